"""The overrides for single clients, which operators set at run time."""

import asyncio
import time
from collections.abc import Mapping

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.errors import DurationError
from ratelimit_mw.model import SECOND
from ratelimit_mw.reload.controls import Override, key_of, read_all
from ratelimit_mw.reload.watcher import Retriever
from ratelimit_mw.rules.compiled import identity_of, names_network
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.stores.records import Records
from ratelimit_mw.units import parse_duration


class OverrideList:
    """The overrides that are set at run time. They hold in every process that shares the storage.

    Every method has an awaitable twin: `aset`, `alist`, `aremove`. Every method may raise StoreUnavailable.
    """

    def __init__(self, retriever: Retriever, clock: Clock | None = None) -> None:
        self._retriever = retriever
        self._clock = clock or SystemClock()

    @property
    def records(self) -> Records:
        """The records in the storage that keep them."""
        return self._retriever.records

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

        It holds in this process at once. Other processes apply it within the `reload` interval of their rules.

        Args:
            client: The client, by its attributes: `{"user": "alice"}`, `{"ip": "192.0.2.1"}`, or several attributes,
                which it must all have. A network is allowed for a block or an exemption only. The values are kept
                hashed, as in the keys of counters.
            rule: The rule whose limit is another one for this client. It is given with `limit` only.
            limit: The limit of the client, as in a rules file.
            block: True denies all requests of the client.
            exempt: True leaves all requests of the client uncounted.
            duration: How long it holds: seconds, or a text as "2h". None: until it is removed.
            comment: A note for people.
            author: Who sets it.
            domain: The domain of the rules. It is needed only if the rules have several.

        Raises:
            ValueError: The arguments do not make one override, or the rules have no such rule or domain.
            StoreUnavailable: The store does not answer.
        """
        part = self._part(domain)
        kind = _kind(rule, limit, block=block, exempt=exempt)
        identity = identity_of(client, part.attributes)
        if kind == "limit" and names_network(client):
            raise ValueError("a limit is for one address; a network can be exempt or blocked")
        now = self._clock.now() / SECOND
        until = None if duration is None else now + in_seconds(duration)
        override = Override(part.domain, identity, kind, rule or "", limit, until, comment, author, time.time())
        override.compiled(part)
        records = self._retriever.records
        ended = [old.name for old in read_all(records, part.domain)[1] if old.until is not None and old.until <= now]
        records.write(key_of(part.domain), {override.name: override.text()}, [n for n in ended if n != override.name])
        self._retriever.look_for_overrides()
        return override

    def list(self, *, domain: str | None = None) -> tuple[Override, ...]:
        """Return the overrides that hold now.

        Args:
            domain: The domain whose overrides are listed. None lists those of all domains.

        Raises:
            ValueError: The rules have no such domain.
            StoreUnavailable: The store does not answer.
        """
        parts = self._retriever.rules.parts if domain is None else (self._part(domain),)
        now = self._clock.now() / SECOND
        found = [override for part in parts for override in read_all(self._retriever.records, part.domain)[1]]
        return tuple(override for override in found if override.until is None or now < override.until)

    def remove(self, client: Mapping[str, str], *, rule: str | None = None, domain: str | None = None) -> bool:
        """Remove an override. Return False if there is none.

        Args:
            client: The client, by its attributes: `{"user": "alice"}`, `{"ip": "192.0.2.1"}`, or several attributes,
                which it must all have. A network is allowed for a block or an exemption only. The values are kept
                hashed, as in the keys of counters.
            rule: The rule whose limit for the client is removed. None removes the block or the exemption.
            domain: The domain of the rules. It is needed only if the rules have several.

        Raises:
            ValueError: The rules have no such domain.
            StoreUnavailable: The store does not answer.
        """
        part = self._part(domain)
        name = Override(part.domain, identity_of(client, part.attributes), "", rule or "").name
        records = self._retriever.records
        found = name in records.read(key_of(part.domain), [name])[1]
        if found:
            records.write(key_of(part.domain), {}, [name])
            self._retriever.look_for_overrides()
        return found

    async def aset(
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
        """The awaitable twin of `set`."""
        return await asyncio.to_thread(
            self.set,
            client,
            rule=rule,
            limit=limit,
            block=block,
            exempt=exempt,
            duration=duration,
            comment=comment,
            author=author,
            domain=domain,
        )

    async def alist(self, *, domain: str | None = None) -> tuple[Override, ...]:
        """The awaitable twin of `list`."""
        return await asyncio.to_thread(self.list, domain=domain)

    async def aremove(self, client: Mapping[str, str], *, rule: str | None = None, domain: str | None = None) -> bool:
        """The awaitable twin of `remove`."""
        return await asyncio.to_thread(self.remove, client, rule=rule, domain=domain)

    def _part(self, domain: str | None) -> RuleSet:
        parts = self._retriever.rules.parts
        found = [part for part in parts if domain in (None, part.domain)]
        if len(found) != 1:
            names = ", ".join(part.domain for part in parts)
            raise ValueError(
                f"name one domain of these: {names}" if domain is None else f"no domain {domain!r} ({names})"
            )
        return found[0]


def _kind(rule: str | None, limit: object, *, block: bool, exempt: bool) -> str:
    kinds = [kind for kind, meant in (("limit", limit is not None), ("block", block), ("exempt", exempt)) if meant]
    if len(kinds) != 1:
        raise ValueError("an override is one of limit, block and exempt")
    if (rule is not None) != (kinds[0] == "limit"):
        raise ValueError("a limit is that of one rule, so name it; a block or an exemption holds for all rules")
    return kinds[0]


def in_seconds(duration: str | float) -> float:
    """A duration in seconds, or as text such as "2h". Raises ValueError."""
    if not isinstance(duration, str):
        return duration
    try:
        return parse_duration(duration) / SECOND
    except DurationError:
        raise ValueError(f"{duration!r} is no duration (as 30m, 2h or 1 day)") from None
