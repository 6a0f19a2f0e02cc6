"""Divides the requests of a log among processes, by a part of the key that all counters share.

Requests that have no counter in common are decided alike in one process and in several. If each counter counts by the
address, alone or with more, all requests of an address belong to one process.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from ratelimit_mw.errors import quoted
from ratelimit_mw.foresight.logs.entry import Entry
from ratelimit_mw.foresight.requests import Reading, Requests
from ratelimit_mw.foresight.simulation import Simulation
from ratelimit_mw.identity.attributes import Reader, canonical_name
from ratelimit_mw.rules.compiled import CompiledRule

_REMEMBERED = 1 << 16
"""The clients whose process is remembered."""

Takes = Callable[[str, tuple[str | None, ...]], bool]
"""Returns True if a process decides on a request. Its arguments are `Entry.ip` and `Entry.extra`."""


class Share(NamedTuple):
    """The part of a log that one process decides on.

    Attributes:
        attribute: The attribute that all counters count by.
        number: The number of the process, from 0 on.
        of: The number of processes.
    """

    attribute: str
    number: int
    of: int


class NoShare(ValueError):
    """The requests cannot be divided. The text says why, for the user."""


def shared_attribute(simulations: Sequence[Simulation], readings: Sequence[Mapping[str, Reading]]) -> str:
    """Return an attribute that each counter of all rules counts by.

    Args:
        simulations: The rules, and those to compare with.
        readings: How the attributes of each are read.

    Raises:
        NoShare: There is no such attribute, or it is not certain that one request has only one value of it.
    """
    shared: list[str] | None = None
    for simulation in simulations:
        for part in simulation.rules.parts:
            if part.descriptors is not None:
                raise NoShare("the limits of descriptors may count all clients together")
            for rule in part.compiled:
                if not rule.on_demand and not rule.rule.messages:
                    names = _counted_by(rule)
                    shared = [name for name in (names if shared is None else shared) if name in names]
                    if not shared:
                        raise NoShare(f"rule {quoted(rule.rule.name)} counts by {', '.join(rule.by)}")
    usable = [name for name in shared or () if _has_one_value(name, simulations, readings)]
    if not usable:
        raise NoShare(f"requests can't be divided by {' and '.join(shared)}" if shared else "there is no rule")
    return "ip" if "ip" in usable else usable[0]


def _counted_by(rule: CompiledRule) -> list[str]:
    """Return the attributes in each choice of each entry of `by`, which identify a client."""
    choices = [[canonical_name(part) for part in choice.split("+")] for by in rule.by for choice in by.split("|")]
    shared = [name for name in choices[0] if all(name in choice for choice in choices)]
    return [name for name in shared if name not in ("global", "route")]


def _has_one_value(name: str, simulations: Sequence[Simulation], readings: Sequence[Mapping[str, Reading]]) -> bool:
    """Return True if all sets of rules read the same single value of an attribute from a request.

    Frameworks read cookies, hosts, paths and queries in several ways, and a preflight counts by other attributes than
    the request that it announces.
    """
    headers = [each.header for reading in readings for each in reading.values()]
    if "access-control-request-method" in headers:
        return False
    if name == "ip":
        clients = [part.client for each in simulations for part in each.rules.parts]
        ways = {(each.trusted_proxies, each.trusted_hops, each.ip_header, each.ipv6_prefix) for each in clients}
        return len(ways) == 1
    ways_of_name = {each.get(name) for each in readings}
    (way,) = ways_of_name if len(ways_of_name) == 1 else (None,)
    if way is None or not way.field or way.cookie or way.header in ("host", "cookie"):
        return False
    return not any("_" in header for header in headers)  # frameworks may read X_User as X-User


def takes_of(share: Share, simulation: Simulation, requests: Requests) -> Takes:
    """Return a function that finds the requests of a share.

    It makes a request of the fields that tell the client, once for recent clients. The path is not among them.
    """
    parts, name = simulation.rules.parts, share.attribute
    read: Reader
    if name == "ip":
        read = parts[0].attributes.client_address.network
    else:
        read = next(part.attributes.reader(name) for part in parts if name in part.attributes.used)

    @lru_cache(_REMEMBERED)
    def takes(ip: str, extra: tuple[str | None, ...]) -> bool:
        value = read(requests.make(Entry(0, ip, "GET", "/", extra=extra)))
        if value is None and name != "ip":  # such requests have no counter: any process may decide on them
            value = ip
        return crc32((value or "").encode("utf-8", "surrogatepass")) % share.of == share.number

    return takes
