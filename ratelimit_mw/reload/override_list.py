"""The overrides for single clients, which operators set at run time."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.errors import Invalid
from ratelimit_mw.model import SECOND
from ratelimit_mw.reload.controls import Override, key_of, read_all
from ratelimit_mw.reload.watcher import Retriever
from ratelimit_mw.rules.compiled import identity_of, names_network
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.stores.records import Records
from ratelimit_mw.units import parse_duration

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


def _awaitable(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """Return a coroutine method that calls `method` in a thread, with the same arguments."""

    @wraps(method)
    async def awaitable(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, self, *args, **kwargs)

    awaitable.__name__ = f"a{method.__name__}"
    awaitable.__doc__ = f"Do what `{method.__name__}` does, awaitable."
    return awaitable


class OverrideList:
    """The overrides that are set at run time. They apply in every process that shares the storage.

    Each method has an awaitable counterpart with the same arguments: `aset`, `alist`, `aremove`. Each method may raise
    StoreUnavailable.
    """

    def __init__(self, retriever: Retriever, clock: Clock | None = None) -> None:
        self._retriever = retriever
        self._clock = clock or SystemClock()

    @property
    def records(self) -> Records:
        """The records in the storage that contain them."""
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
        kind = _kind(rule, limit, block=block, exempt=exempt)
        identity = identity_of(client, part.attributes)
        if kind == "limit" and names_network(client):
            raise ValueError("the client of a limit must be a single address; a network can only be exempt or blocked")
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
        """Return the overrides that apply now.

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
            client: The client, as for `set`.
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

    aset = _awaitable(set)  # noqa: A003 - the method above
    alist = _awaitable(list)  # noqa: A003 - the method above
    aremove = _awaitable(remove)

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


def _kind(rule: str | None, limit: object, *, block: bool, exempt: bool) -> str:
    """Return the kind of an override. Raises ValueError if the arguments do not describe exactly one override."""
    kinds = [kind for kind, is_set in (("limit", limit is not None), ("block", block), ("exempt", exempt)) if is_set]
    if len(kinds) != 1:
        raise ValueError("an override must have exactly one of limit, block and exempt")
    if kinds[0] == "limit" and rule is None:
        raise ValueError("a limit needs the name of its rule")
    if kinds[0] != "limit" and rule is not None:
        raise ValueError(f"{kinds[0]} can't be combined with rule: it applies to all rules")
    return kinds[0]


def in_seconds(duration: str | float) -> float:
    """Return a duration in seconds. `duration` is a number of seconds, or a text such as "2h". Raises ValueError."""
    if not isinstance(duration, str):
        return duration
    try:
        return parse_duration(duration) / SECOND
    except Invalid:
        raise ValueError(f"{duration!r} is not a duration (for example 30m, 2h or 1 day)") from None
