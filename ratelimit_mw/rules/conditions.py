"""What a `match` asks of a request: its path by templates, the rest by functions from a request to True or False."""

from collections.abc import Callable, Collection, Iterable
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address
from typing import Generic, NamedTuple, TypeVar

from ratelimit_mw.identity.attributes import Reader
from ratelimit_mw.identity.request import Request
from ratelimit_mw.rules.paths.templates import Template
from ratelimit_mw.settings import Network

T = TypeVar("T")

Condition = Callable[[Request], bool]


def methods(allowed: Collection[str]) -> Condition:
    """True where the method is one of these; HEAD goes with GET."""
    counted = frozenset(allowed) | ({"HEAD"} if "GET" in allowed else set())
    return lambda request: request.method in counted


def values(read: Reader, wanted: Collection[str]) -> Condition:
    """True where an attribute is there and has one of these values."""
    if len(wanted) == 1:
        (only,) = wanted
        return lambda request: read(request) == only
    known = frozenset(wanted)
    return lambda request: read(request) in known


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


def within(read: Reader, networks: Iterable[Network]) -> Condition:
    """True where an address is in one of these networks."""
    table: Networks[bool] = Networks()
    table.add(networks, True)
    return lambda request: bool(table.find(read(request)))


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
            *(values(each.read, each.values) for each in self.exact),
        )
