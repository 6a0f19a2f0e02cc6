"""The records that operators set at run time: overrides for single clients, and the kill switch."""

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from ratelimit_mw.clock import Clock
from ratelimit_mw.model import NEVER, SECOND
from ratelimit_mw.rules.compiled import KINDS, CompiledOverride, key_of_domain
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.stores.records import MemoryRecords, Records

R = TypeVar("R", "Override", "Setting")


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


def read_all(records: Records, domain: str) -> tuple[int, tuple[Override, ...]]:
    """Return the overrides of a domain, and their version. Unreadable records are skipped. Raises StoreUnavailable."""
    version, texts = records.read(key_of(domain))
    return version, overrides_in(texts, domain)


def overrides_in(texts: Mapping[str, str], domain: str) -> tuple[Override, ...]:
    """Return the overrides in the records of a domain. Unreadable records are skipped."""
    found = (_read(domain, text) for _, text in sorted(texts.items()))
    return tuple(override for override in found if override is not None)


def _read(domain: str, text: str) -> Override | None:
    override = _record(Override, text, domain=domain)
    return override if override is not None and override.kind in KINDS else None


def setting_in(texts: Mapping[str, str], source: str) -> Setting:
    """Return the setting in the records of a domain. It is `on` if there is no readable record."""
    setting = _record(Setting, texts.get(SWITCH_RECORD, "{}"), source=source)
    return setting if setting is not None and setting.word in SWITCH_WORDS[1:] else Setting()


def _record(kind: type[R], text: str, **known: str) -> R | None:
    """Return the record in a text. None if it cannot be read."""
    try:
        record = kind(**{**json.loads(text), **known})
        return record if record.until is None else record._replace(until=float(record.until))
    except (TypeError, ValueError):
        return None


def most_permissive(settings: Iterable[Setting], now: float) -> Setting:
    """Return the most permissive of the settings that have not ended. It applies to a process with several domains."""
    current = [setting for setting in settings if setting.lasts(now)]
    return max(current, key=lambda setting: SWITCH_WORDS.index(setting.word), default=Setting())


logger = logging.getLogger("ratelimit_mw")


class Controls:
    """The overrides and the switch for the domains of some rules. `clock` decides when they end."""

    def __init__(self, clock: Clock) -> None:
        self.records: Records = MemoryRecords()
        self._clock = clock
        self._overrides: dict[str, tuple[int, tuple[Override, ...]]] = {}
        self._settings: dict[str, Setting] = {}
        self._logged: set[str] = set()
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
        """Return the setting of the switch."""
        kept = [self._settings[part.domain] for part in rules.parts if part.domain in self._settings]
        return most_permissive(kept, self._clock.now() / SECOND)

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
                text = f"the override of {override.identity} has no effect: {error}"
                if text not in self._logged:
                    self._logged.add(text)
                    logger.warning("%s", text)
