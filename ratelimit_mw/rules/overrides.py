"""What holds for single clients instead of the rules: another limit, an exemption, a block.

An identity is written as in a counter's key: `ip=192.0.2.1`, `user=<its hash>`, several joined by "+". A network,
`ip=192.0.2.0/24`, can be exempt or blocked.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_network
from typing import NamedTuple, Protocol
from urllib.parse import unquote

from ratelimit_mw.algorithms import NOTHING
from ratelimit_mw.clock import Clock
from ratelimit_mw.hints import nearest
from ratelimit_mw.identity.attributes import Attributes, canonical_name
from ratelimit_mw.identity.identifier import Identifier, identifier, spelling
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import NEVER, Ask, Charge, Quota, Rule
from ratelimit_mw.rules.conditions import Networks
from ratelimit_mw.rules.paths.match import NO_PARAMETERS

KINDS = ("limit", "exempt", "block")

_Counters = tuple[tuple[str, Quota], ...]
_UNKNOWN = ("route", "global")


class Held(NamedTuple):
    """One override. `until` is when it ends, in microseconds since the epoch; `NEVER`, it stays.

    `rule` and `counters` belong to a `limit`: the rule's counters for this identity.
    """

    identity: str
    kind: str
    until: int = NEVER
    rule: str = ""
    counters: _Counters = ()


BLOCKED: tuple[Charge, ...] = (Charge(Rule("block"), Ask("", NOTHING)),)
"""The plan of a client who may do nothing: itself, never a copy, and never asked of a store."""


class Recompiling(Protocol):
    """Compiles overrides that come at run time."""

    def limit(self, identity: str, rule: str, limit: object, until: int = NEVER) -> Held:
        """Another limit for an identity; `limit` is as a rule's. Raises ValueError."""
        ...


def bearing(held: Iterable[Held]) -> tuple[Held, ...]:
    """Those that bear on all that a client does: exemptions and blocks."""
    return tuple(override for override in held if override.kind != "limit")


def identity_of(client: Mapping[str, str], attributes: Attributes) -> str:
    """The identity that has these attributes. Raises ValueError for what is none."""
    if not client:
        raise ValueError("an override is for somebody: name a client, as ip=192.0.2.1 or user=alice")
    parts = []
    for given, value in client.items():
        name = canonical_name(given)
        if name in _UNKNOWN or name.startswith("path:") or not attributes.known(name):
            names = [known for known in attributes.names() if known not in ("remote_address", "path:N")]
            raise ValueError(f"a client is not known by {given!r} ({nearest(given, names)})")
        if not value.strip():
            raise ValueError(f"{given} is empty")
        parts.append(_address(value, attributes) if name == "ip" else spelling(name, attributes)(value))
    if len(parts) > 1 and names_network(client):
        raise ValueError("a network stands alone, without further attributes")
    return "+".join(sorted(parts))


def names_network(client: Mapping[str, str]) -> bool:
    """True where a client is given by a network."""
    return any("/" in value for name, value in client.items() if canonical_name(name) == "ip")


def _is_network(identity: str) -> bool:
    """True of what stands for more than one address; so does every IPv6 client."""
    return identity.startswith("ip=") and "/" in identity and "+" not in identity


def _address(value: str, attributes: Attributes) -> str:
    if "/" in value:
        try:
            return f"ip={ip_network(value)}"
        except ValueError:
            raise ValueError(f"{value!r} is no network (as 192.0.2.0/24)") from None
    network = attributes.network(value)
    if network is None:
        raise ValueError(f"{value!r} is no address (as 192.0.2.1)")
    return f"ip={network}"


class Overrides:
    """The overrides of one domain, ready to be asked. `clock` tells which have ended; of two alike the later holds."""

    def __init__(self, held: Iterable[Held], attributes: Attributes, clock: Clock) -> None:
        self._now = clock.now
        self._limits: dict[tuple[str, str], Held] = {}
        lists: dict[str, list[Held]] = {"block": [], "exempt": []}
        for override in held:
            if override.kind == "limit":
                for identity in _spellings(override.identity):
                    self._limits[override.rule, identity] = override
            else:
                lists[override.kind].append(override)
        self._blocked = _Clients(lists["block"], attributes) if lists["block"] else None
        self._exempt = _Clients(lists["exempt"], attributes) if lists["exempt"] else None

    def blocks(self, request: Request) -> bool:
        """True where the client may do nothing."""
        return self._blocked is not None and self._blocked.hold(request, self._now)

    def exempts(self, request: Request) -> bool:
        """True where the client is not counted."""
        return self._exempt is not None and self._exempt.hold(request, self._now)

    def counters(self, rule: str, identity: str, usual: _Counters) -> _Counters:
        """The counters of `rule` for an identity: its own, or else the `usual` ones."""
        override = self._limits.get((rule, identity))
        return usual if override is None or not _lasts(override, self._now) else override.counters


class _Clients:
    """A list of clients, found with one look-up for each set of attributes that they are named by."""

    def __init__(self, held: Iterable[Held], attributes: Attributes) -> None:
        self._address = attributes.address
        self._networks: Networks[Held] = Networks()
        self._groups: dict[str, tuple[Identifier, dict[str, Held]]] = {}
        for override in held:
            identity = override.identity
            if _is_network(identity):
                self._networks.add([ip_network(identity.removeprefix("ip="))], override)
                continue
            by = "+".join(unquote(part.partition("=")[0]) for part in identity.split("+"))
            if by not in self._groups:
                self._groups[by] = identifier(by, attributes), {}
            self._groups[by][1][identity] = override

    def hold(self, request: Request, now: Callable[[], int]) -> bool:
        for identify, held in self._groups.values():
            override = held.get(identify(request, NO_PARAMETERS, "") or "")
            if override is not None and _lasts(override, now):
                return True
        if self._networks:
            return any(_lasts(override, now) for override in self._networks.find(self._address(request)))
        return False


def _lasts(override: Held, now: Callable[[], int]) -> bool:
    return override.until == NEVER or now() < override.until


def _spellings(identity: str) -> Iterable[str]:
    """An identity with its parts in every order, for a rule's `by` has its own."""
    return map("+".join, itertools.permutations(identity.split("+")))
