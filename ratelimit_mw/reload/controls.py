"""What operators set at run time: overrides for single clients, and the kill switch. The storage has the records."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.errors import Invalid
from ratelimit_mw.logs import Once, logger
from ratelimit_mw.model import NEVER, SECOND
from ratelimit_mw.rules.compiled import KINDS, CompiledOverride, identity_of, key_of_domain, kind_of
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.stores.base import MemoryRecords, Records
from ratelimit_mw.units import parse_duration

if TYPE_CHECKING:
    from ratelimit_mw.reload.watcher import Retriever

Record = TypeVar("Record", "Override", "Setting")


class Override(NamedTuple):
    """One override for one client.

    Attributes:
        domain: The domain of the rules.
        identity: The client, as in the key of a counter.
        kind: `limit`, `exempt` or `block`.
        rule: The rule whose limit is replaced. Empty for the other kinds.
        limit: The new limit, as in a rules file. None for the other kinds.
        until: When it ends, in epoch seconds. None if it does not end.
        comment: A note for people.
        author: Who set it.
        at: When it was set, in epoch seconds.
    """

    domain: str
    identity: str
    kind: str
    rule: str = ""
    limit: object = None
    until: float | None = None
    comment: str = ""
    author: str = ""
    at: float = 0.0

    @property
    def name(self) -> str:
        """The name of its record. An identity has one limit per rule, and one block or exemption."""
        return f"{self.rule or '*'} {self.identity}"

    def text(self) -> str:
        """Return the text of its record."""
        return json.dumps(self._asdict(), ensure_ascii=False)

    def compiled(self, rules: RuleSet) -> CompiledOverride:
        """Return the compiled override. Raises ValueError if `rules` do not have its rule, or its limit is invalid."""
        until = NEVER if self.until is None else round(self.until * SECOND)
        if self.kind != "limit":
            return CompiledOverride(self.identity, self.kind, until)
        return rules.recompiler.limit(self.identity, self.rule, self.limit, until)


SWITCH_RECORD = "switch"
"""The name of the record of the kill switch. It is never the name of an override, because that contains a space."""

SWITCH_WORDS = ("on", "shadow", "off")
"""The settings of the kill switch.

`on` enforces limits. With `shadow`, requests are counted but not denied. With `off`, they are not counted either.
"""


class Setting(NamedTuple):
    """The setting of the kill switch.

    Attributes:
        word: `on`, `shadow` or `off`.
        until: When it ends, in epoch seconds. None if it does not end.
        comment: A note for people.
        author: Who set it.
        at: When it was set, in epoch seconds.
        source: Where it was set: "environment", the name of the storage, or "" for the default.
    """

    word: str = "on"
    until: float | None = None
    comment: str = ""
    author: str = ""
    at: float = 0.0
    source: str = ""

    def text(self) -> str:
        """Return the text of its record."""
        fields = self._asdict()
        del fields["source"]
        return json.dumps(fields, ensure_ascii=False)

    def lasts(self, now: float) -> bool:
        """Return True if it has not ended at `now`, in epoch seconds."""
        return self.until is None or now < self.until


def key_of(domain: str) -> str:
    """Return the key of a domain's records. It has the same prefix as the keys of its counters."""
    return f"{key_of_domain(domain)}:overrides"


def read_all(records: Records, domain: str) -> tuple[Override, ...]:
    """Return the overrides of a domain. Unreadable records are skipped. Raises StoreUnavailable."""
    return overrides_in(records.read(key_of(domain))[1], domain)


def overrides_in(texts: Mapping[str, str], domain: str) -> tuple[Override, ...]:
    """Return the overrides in the records of a domain. Unreadable records are skipped."""
    found = (_record(Override, text, domain=domain) for _, text in sorted(texts.items()))
    return tuple(override for override in found if override is not None and override.kind in KINDS)


def setting_in(texts: Mapping[str, str], source: str) -> Setting:
    """Return the setting in the records of a domain. It is `on` if there is no readable record."""
    setting = _record(Setting, texts.get(SWITCH_RECORD, "{}"), source=source)
    return setting if setting is not None and setting.word in SWITCH_WORDS[1:] else Setting()


def _record(kind: type[Record], text: str, **known: str) -> Record | None:
    """Return the record in a text. None if it cannot be read."""
    try:
        record = kind(**{**json.loads(text), **known})
        return record if record.until is None else record._replace(until=float(record.until))
    except (TypeError, ValueError):
        return None


class Controls:
    """The overrides and the switch for the domains of some rules. `clock` decides when they end."""

    def __init__(self, clock: Clock) -> None:
        self.records: Records = MemoryRecords()
        """Where the records are. A limiter opens those in its storage."""
        self._clock = clock
        self._overrides: dict[str, tuple[int, tuple[Override, ...]]] = {}
        self._settings: dict[str, Setting] = {}
        self._once = Once()
        self.changes = 0
        """The number of changes that were fetched."""

    def fetch(self, rules: Rules) -> None:
        """Fetch the newest records. Raises StoreUnavailable."""
        for part in rules.parts:
            key = key_of(part.domain)
            known, _ = self._overrides.get(part.domain, (0, ()))
            if self.records.version(key) != known:
                version, texts = self.records.read(key)
                overrides = overrides_in(texts, part.domain)
                self._settings[part.domain] = setting_in(texts, self.records.name)
                self.changes += 1
                self._overrides[part.domain] = version, overrides  # last, so that an interrupted fetch is repeated

    def setting(self, rules: Rules) -> Setting:
        """Return the setting of the switch: of several domains the most permissive one that has not ended."""
        now = self._clock.now() / SECOND
        kept = [self._settings.get(part.domain, Setting()) for part in rules.parts]
        current = [setting for setting in kept if setting.lasts(now)]
        return max(current, key=lambda setting: SWITCH_WORDS.index(setting.word), default=Setting())

    def count(self, rules: Rules) -> int:
        """Return the number of overrides."""
        return sum(len(self._of(part)) for part in rules.parts)

    def applied_to(self, rules: Rules) -> Rules:
        """Return the same rules with the overrides applied."""
        parts = [part.overridden(self._compiled(part), self._clock) for part in rules.parts]
        return rules.overridden(parts)

    def _of(self, part: RuleSet) -> tuple[Override, ...]:
        return self._overrides.get(part.domain, (0, ()))[1]

    def _compiled(self, part: RuleSet) -> Iterator[CompiledOverride]:
        for override in self._of(part):
            try:
                yield override.compiled(part)
            except ValueError as error:  # the rule may have been removed or changed
                message = "the override of %s has no effect: %s"
                self._once(logger.warning, message, override.identity, error, about=(override.identity, str(error)))


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def in_thread(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, Coroutine[Any, Any, _Result]]:
    """Return the awaitable counterpart of a method, with the same arguments. The method runs in a thread."""

    @wraps(method)
    async def awaitable(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        return await asyncio.to_thread(method, *args, **kwargs)

    return awaitable


class OverrideList:
    """The overrides that are set at run time. They apply in every process that shares the storage.

    Each method has an awaitable counterpart with the same arguments: `aset`, `alist`, `aremove`. Each method may raise
    StoreUnavailable.
    """

    def __init__(self, retriever: "Retriever", clock: Clock | None = None) -> None:
        self._retriever = retriever
        self._clock = clock or SystemClock()

    @property
    def records(self) -> Records:
        """The records in the storage that contain them."""
        return self._retriever.controls.records

    def set(
        self,
        client: Mapping[str, str],
        *,
        rule: str | None = None,
        limit: object = None,
        block: bool = False,
        exempt: bool = False,
        duration: str | float | None = None,
        comment: str = "",
        author: str = "",
        domain: str | None = None,
    ) -> Override:
        """Set one override of a client: a `limit`, a `block` or an exemption.

        It applies in this process at once. Other processes apply it within the `reload` interval of their rules.

        Args:
            client: The attributes of the client: `{"user": "alice"}`, `{"ip": "192.0.2.1"}`, or several attributes. It
                must have all of them. A network is only allowed for a block or an exemption. The values are stored
                hashed, as in the keys of counters.
            rule: The rule whose limit is replaced for this client. Required with `limit`, and not allowed otherwise.
            limit: The limit of the client, as in a rules file.
            block: True denies all requests of the client.
            exempt: True leaves all requests of the client uncounted.
            duration: How long it lasts: seconds, or a text such as "2h". None: until it is removed.
            comment: A note for people.
            author: Who sets it.
            domain: The domain of the rules. It is needed only if the rules have several.

        Raises:
            ValueError: The arguments do not describe exactly one override, or the rules have no such rule or domain.
            StoreUnavailable: The store does not answer.
        """
        part = self._part(domain)
        kind = kind_of(rule, limit, block=block, exempt=exempt)
        identity = identity_of(client, part.attributes, kind)
        now = self._clock.now() / SECOND
        until = None if duration is None else now + in_seconds(duration)
        override = Override(part.domain, identity, kind, rule or "", limit, until, comment, author, time.time())
        override.compiled(part)
        records = self._retriever.controls.records
        ended = [old.name for old in read_all(records, part.domain) if old.until is not None and old.until <= now]
        records.write(key_of(part.domain), {override.name: override.text()}, [n for n in ended if n != override.name])
        self._retriever.look_for_overrides()
        return override

    def list(self, *, domain: str | None = None) -> tuple[Override, ...]:
        """Return the overrides that apply now.

        Args:
            domain: The domain whose overrides are listed. None lists those of all domains.

        Raises:
            ValueError: The rules have no such domain.
            StoreUnavailable: The store does not answer.
        """
        parts = self._retriever.rules.parts if domain is None else (self._part(domain),)
        now = self._clock.now() / SECOND
        found = [override for part in parts for override in read_all(self._retriever.controls.records, part.domain)]
        return tuple(override for override in found if override.until is None or now < override.until)

    def remove(self, client: Mapping[str, str], *, rule: str | None = None, domain: str | None = None) -> bool:
        """Remove an override. Return False if there is none.

        Args:
            client: The client, as for `set`.
            rule: The rule whose limit for the client is removed. None removes the block or the exemption.
            domain: The domain of the rules. It is needed only if the rules have several.

        Raises:
            ValueError: The rules have no such domain.
            StoreUnavailable: The store does not answer.
        """
        part = self._part(domain)
        name = Override(part.domain, identity_of(client, part.attributes), "", rule or "").name
        records = self._retriever.controls.records
        found = name in records.read(key_of(part.domain), [name])[1]
        if found:
            records.write(key_of(part.domain), {}, [name])
            self._retriever.look_for_overrides()
        return found

    aset, alist, aremove = in_thread(set), in_thread(list), in_thread(remove)  # noqa: A003  the methods are meant

    def _part(self, domain: str | None) -> RuleSet:
        parts = self._retriever.rules.parts
        found = [part for part in parts if domain in (None, part.domain)]
        if len(found) != 1:
            names = ", ".join(part.domain for part in parts)
            raise ValueError(
                f"the rules have several domains; pass domain=, one of {names}"
                if domain is None
                else f"the rules have no domain {domain!r}, only {names}"
            )
        return found[0]


def in_seconds(duration: str | float) -> float:
    """Return a duration in seconds. `duration` is a number of seconds, or a text such as "2h". Raises ValueError."""
    if not isinstance(duration, str):
        return duration
    try:
        return parse_duration(duration) / SECOND
    except Invalid:
        raise ValueError(f"{duration!r} is not a duration (for example 30m, 2h or 1 day)") from None
