"""Compiled rules and overrides: conditions on requests, counters, and exceptions for single clients."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address, ip_network
from typing import Generic, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote

from ratelimit_mw.algorithms import NOTHING
from ratelimit_mw.clock import Clock
from ratelimit_mw.errors import nearest
from ratelimit_mw.identity.attributes import Attributes, Reader, canonical_name
from ratelimit_mw.identity.identifier import Identifier, identifier, spelling
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import NEVER, Ask, Charge, Quota, Rule
from ratelimit_mw.rules.path_matcher import NO_PARAMETERS
from ratelimit_mw.rules.path_templates import Template
from ratelimit_mw.settings import Network

T = TypeVar("T")

_SHOWN = ("the method", "the address", "host", "tier")
"""Conditions of which an explanation may show what a request has. Other values may be secret."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One thing that a `match` asks for apart from the path. The plan tests it, and an explanation describes it.

    `name` and `wanted` are for people. `holds` decides. `read` reads what a request has, and `absent` is the word for
    nothing.
    """

    name: str
    wanted: tuple[str, ...]
    holds: Callable[[Request], bool]
    read: Reader
    absent: str = "absent"

    def found(self, request: Request) -> str:
        """What the request has, for people: a value that may be secret is "another"."""
        value = self.read(request)
        if value is None:
            return self.absent
        return value if self.name in _SHOWN or value in self.wanted else "another"


def methods(allowed: tuple[str, ...]) -> Condition:
    """Holds where the method is one of these; HEAD goes with GET."""
    counted = frozenset(allowed) | ({"HEAD"} if "GET" in allowed else set())
    return Condition("the method", allowed, lambda request: request.method in counted, _method, "not given")


def _method(request: Request) -> str | None:
    return request.method or None


def values(name: str, read: Reader, wanted: tuple[str, ...]) -> Condition:
    """Holds where the attribute of this name is present and has one of these values."""
    if len(wanted) == 1:
        (only,) = wanted
        return Condition(name, wanted, lambda request: read(request) == only, read)
    known = frozenset(wanted)
    return Condition(name, wanted, lambda request: read(request) in known, read)


class Networks(Generic[T]):
    """Values by network, found by an address with one look-up for each length of prefix that there is."""

    def __init__(self) -> None:
        self._tables: dict[int, dict[int, dict[int, list[T]]]] = {4: {}, 6: {}}

    def add(self, networks: Iterable[Network], value: T) -> None:
        """Put `value` under each of these networks, under none twice for one address."""
        given = list(networks)
        apart: list[Network] = []
        apart += collapse_addresses(network for network in given if isinstance(network, IPv4Network))
        apart += collapse_addresses(network for network in given if isinstance(network, IPv6Network))
        for network in apart:
            shift = network.max_prefixlen - network.prefixlen
            table = self._tables[network.version].setdefault(shift, {})
            table.setdefault(int(network.network_address) >> shift, []).append(value)

    def __bool__(self) -> bool:
        return any(self._tables.values())

    def find(self, address: str | None) -> list[T]:
        """The values of the networks that hold a canonical address."""
        found: list[T] = []
        if address is not None:
            version, number = _parsed(address)
            for shift, table in self._tables[version].items():
                found += table.get(number >> shift, ())
        return found


@lru_cache(maxsize=4096)
def _parsed(address: str) -> tuple[int, int]:
    parsed = ip_address(address)
    return parsed.version, int(parsed)


def within(read: Reader, networks: tuple[Network, ...]) -> Condition:
    """Holds where an address is in one of these networks."""
    table: Networks[bool] = Networks()
    table.add(networks, True)
    wanted = tuple(map(str, networks))
    return Condition("the address", wanted, lambda request: bool(table.find(read(request))), read, "unknown")


class Exact(NamedTuple):
    """A condition on an attribute's value that can be looked up. `name` is the attribute's, for people."""

    read: Reader
    values: tuple[str, ...]
    name: str


class Matching(NamedTuple):
    """A `match`: its templates (none: every path), the values that attributes must have, and the rest."""

    templates: tuple[Template, ...] = ()
    exact: tuple[Exact, ...] = ()
    networks: tuple[Network, ...] = ()
    methods: tuple[str, ...] = ()

    def conditions(self, address: Reader) -> tuple[Condition, ...]:
        """All but the path, to be tried one by one, the cheapest first. `address` reads the client's."""
        return (
            *([methods(self.methods)] if self.methods else ()),
            *([within(address, self.networks)] if self.networks else ()),
            *(values(each.name, each.read, each.values) for each in self.exact),
        )

    def split(self) -> "tuple[Matching, Matching]":
        """The part by which the index looks a rule up, and the rest, whose conditions are tried one by one."""
        if self.templates:
            return Matching(self.templates), self._replace(templates=())
        if self.exact:
            return Matching(exact=self.exact[:1]), self._replace(exact=self.exact[1:])
        return Matching(networks=self.networks), self._replace(networks=())


Weigh = Callable[[Request], int]
"""From a request to its cost."""

Counter = tuple[str, Quota]
"""A key up to and with its opening brace, and what it is held to."""

Tiers = Mapping[str | None, tuple[Counter, ...]]
"""The counters of each tier."""


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """One rule. `rank` is its place in the file, `replaces` the ranks of those that do not apply where it does.

    `tiers` is None unless the limit depends on the tier; `counters` are those of clients without a tier that is named.
    `by` holds the entries of `by` from which the identifiers were compiled. `cost` is the cost of a request, unless
    `weigh` reads it from the request. A rule `on_demand` applies only when the app asks for it by name.
    """

    rank: int
    rule: Rule
    match: Matching
    by: tuple[str, ...]
    identifiers: tuple[Identifier, ...]
    counters: tuple[Counter, ...]
    tiers: Tiers | None
    cost: int
    replaces: frozenset[int]
    weigh: Weigh | None = None
    on_demand: bool = False

    @property
    def quotas(self) -> list[Quota]:
        """The quotas of all counters, of all tiers."""
        return [quota for counters in (self.counters, *(self.tiers or {}).values()) for _, quota in counters]


KINDS = ("limit", "exempt", "block")

_Counters = tuple[tuple[str, Quota], ...]
_UNKNOWN = ("route", "global")


class CompiledOverride(NamedTuple):
    """One override. `until` is when it ends, in microseconds since the epoch; `NEVER`, it stays.

    `rule` and `counters` belong to a `limit`: the rule's counters for this identity.
    """

    identity: str
    kind: str
    until: int = NEVER
    rule: str = ""
    counters: _Counters = ()


BLOCKED: tuple[Charge, ...] = (Charge(Rule("block"), Ask("", NOTHING)),)
"""The plan of a blocked client. It is compared by identity, never copied, and never sent to a store."""


class Recompiling(Protocol):
    """Compiles overrides that come at run time."""

    def limit(self, identity: str, rule: str, limit: object, until: int = NEVER) -> CompiledOverride:
        """Another limit for an identity; `limit` is as a rule's. Raises ValueError."""
        ...


def blocks_and_exemptions(held: Iterable[CompiledOverride]) -> tuple[CompiledOverride, ...]:
    """Return the overrides that apply to all rules: exemptions and blocks."""
    return tuple(override for override in held if override.kind != "limit")


def identity_of(client: Mapping[str, str], attributes: Attributes) -> str:
    """The identity that has these attributes. Raises ValueError for what is none."""
    if not client:
        raise ValueError("an override needs a client, as ip=192.0.2.1 or user=alice")
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
        raise ValueError("a network can't be combined with further attributes")
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
            raise ValueError(f"{value!r} is not a network (as 192.0.2.0/24)") from None
    network = attributes.network(value)
    if network is None:
        raise ValueError(f"{value!r} is not an address (as 192.0.2.1)")
    return f"ip={network}"


class Overrides:
    """The overrides of one domain, ready to be asked. `clock` tells which have ended; of two alike the later holds."""

    def __init__(self, held: Iterable[CompiledOverride], attributes: Attributes, clock: Clock) -> None:
        self._now = clock.now
        self._limits: dict[tuple[str, str], CompiledOverride] = {}
        lists: dict[str, list[CompiledOverride]] = {"block": [], "exempt": []}
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

    def __init__(self, held: Iterable[CompiledOverride], attributes: Attributes) -> None:
        self._address = attributes.address
        self._networks: Networks[CompiledOverride] = Networks()
        self._groups: dict[str, tuple[Identifier, dict[str, CompiledOverride]]] = {}
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


def _lasts(override: CompiledOverride, now: Callable[[], int]) -> bool:
    return override.until == NEVER or now() < override.until


def _spellings(identity: str) -> Iterable[str]:
    """An identity with its parts in every order, for a rule's `by` has its own."""
    return map("+".join, itertools.permutations(identity.split("+")))
