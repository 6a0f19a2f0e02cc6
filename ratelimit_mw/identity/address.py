"""The client's address: which one a request came from, how it is spelled, and the identity that it gives.

The peer is the first hop. As long as a hop is trusted, the address that it reports for the hop before it is believed.
The header is therefore read from its end, and what a client wrote at its start is never reached. An unreadable hop
ends the search: nothing to the left of it is believed.
"""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from ratelimit_mw.identity.request import Request
from ratelimit_mw.settings import ClientSettings, Network

UNKNOWN_ADDRESS = "ip=?"
"""The identity that all requests without an address share."""

_WHOLE = " address"
"""The key of the whole address among the values of a request. No attribute's name starts with a space."""

_log = logging.getLogger("ratelimit_mw")

_LONGEST = 64  # an address, brackets, a zone and a port; longer values are not parsed
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = re.compile(rf"(?:{_OCTET}\.){{3}}{_OCTET}")
_PORT = re.compile(r":(?:[0-9]{1,5}|_[A-Za-z0-9._-]+)")
# Possessive, so that no header makes it go back: time is linear in the header's length.
_ELEMENT_REVERSED = re.compile(r'((?:[^",\\]++|"[^"\\]*+")*+)(,|\Z)')
_PAIR = re.compile(r"""[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(?:"([^"]*)"|([^";,\s]*))[ \t]*(?:;|\Z)""")


def canonical(text: str | None) -> str | None:
    """The address in its one spelling, or None if the text is no address.

    Brackets, a port and a zone id are accepted, because servers and proxies write them. They are dropped. An IPv4
    address that is mapped into IPv6 becomes the IPv4 address.
    """
    if text is None or len(text) > _LONGEST:
        return None
    return _parsed(text)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> str | None:
    if _IPV4.fullmatch(text):  # already canonical; `ip_address` would take ten times as long
        return text
    host = text.strip(" \t")
    bracketed = host.startswith("[")
    if bracketed:
        host, _, rest = host[1:].partition("]")
        if rest and not _PORT.fullmatch(rest):
            return None
    elif host.count(":") == 1:
        colon = host.index(":")
        if not _PORT.fullmatch(host, colon):
            return None
        host = host[:colon]
    if ":" in host:
        host = host.partition("%")[0]
    elif bracketed:
        return None
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return str(_unmapped(address))


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def masked(address: str, ipv6_prefix: int) -> str:
    """The network that a client is counted as: a canonical IPv4 address itself, or the network of an IPv6 address."""
    if ":" not in address or ipv6_prefix == 128:
        return address
    return str(ip_network((address, ipv6_prefix), strict=False))


class ClientAddress:
    """Finds the client's address by the settings `trusted_proxies`, `trusted_hops` and `ip_header`.

    A hop is trusted if its address is in one of the networks, or if it is one of the first `trusted_hops`. The latter
    are trusted whatever their address, even without one, as a proxy on a unix socket. If no hop is trusted, `header`
    is None and no header is read.

    Args:
        settings: the settings, already checked.
        logged: remembers what was logged.
    """

    __slots__ = ("_hops", "_logged", "_masked", "_networks", "_reported", "_within", "header")

    def __init__(self, settings: ClientSettings, logged: set[str] | None = None) -> None:
        self._logged: set[str] = set() if logged is None else logged
        self._masked = lru_cache(maxsize=4096)(partial(masked, ipv6_prefix=settings.ipv6_prefix))
        self._hops = settings.trusted_hops
        self._networks = tuple(map(_unmapped_network, settings.trusted_proxies))
        self._within = lru_cache(maxsize=4096)(self._look_up)
        header = settings.ip_header.lower()
        self.header = header if self._hops or self._networks else None
        if header == "forwarded":
            self._reported: Callable[[Sequence[str]], Iterator[str | None]] = _forwarded
        else:
            self._reported = _listed if header.endswith("forwarded-for") else _single

    def trusts(self, address: str | None, hop: int) -> bool:
        """Whether the hop is believed. Hop 0 is the peer; `address` is canonical."""
        return hop < self._hops or (address is not None and self._within(address))

    def find(self, peer: str | None, lines: Sequence[str]) -> str | None:
        """The client's canonical address, given the peer's text and the lines of `header`; None where unknown."""
        address = canonical(peer)
        reports = self._reported(lines)
        hop = 0
        while self.trusts(address, hop):
            reported = next(reports, None)
            if reported is None:
                break
            address = reported
            hop += 1
        return address

    def read(self, request: Request) -> str | None:
        """The client's whole address, not cut to its network; None if it is unknown."""
        values = request.values
        if _WHOLE in values:
            return values[_WHOLE]
        peer = request.peer
        whole = canonical(peer)
        if self.header is not None and self.trusts(whole, 0):
            whole = self.find(peer, request.header_lines(self.header))
        values[_WHOLE] = whole
        return whole

    def network(self, request: Request) -> str | None:
        """The attribute `ip`: the client's address, cut to its network if it is IPv6; None if it is unknown."""
        values = request.values
        if "ip" in values:
            return values["ip"]
        network = values["ip"] = self._network(self.read(request))
        return network

    def identify(self, request: Request, _parameters: object, _route: object) -> str:
        """The identity of a request under `by: ip`; an `Identifier`."""
        network = self.network(request)
        if network is None:
            self.report_unknown()
            return UNKNOWN_ADDRESS
        return "ip=" + network

    def spelled(self, text: str | None) -> dict[str, str | None]:
        """The values of a request whose address is given as `text`. A network is given as one of its addresses."""
        whole = canonical(text.partition("/")[0]) if text else None
        return {_WHOLE: whole, "ip": self._network(whole)}

    def report_unknown(self) -> None:
        """Log, once, that a request has no address."""
        if "address" not in self._logged:
            self._logged.add("address")
            _log.warning(
                "a request came without a client address: all such requests share one counter (logged once). "
                "Behind a proxy on a unix socket, set client.trusted_hops to the number of proxies"
            )

    def _network(self, whole: str | None) -> str | None:
        return self._masked(whole) if whole is not None and ":" in whole else whole

    def _look_up(self, address: str) -> bool:
        parsed = ip_address(address)
        return any(parsed in network for network in self._networks)


def _unmapped_network(network: Network) -> Network:
    """A network within ::ffff:0:0/96 as the IPv4 network that it stands for."""
    if isinstance(network, IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, network.prefixlen - 96))
    return network


# What each kind of header reports, nearest hop first. None is an unreadable hop, which ends the search.


def _listed(lines: Sequence[str]) -> Iterator[str | None]:
    """X-Forwarded-For: a list to which each proxy appends, in one line or in several."""
    for line in reversed(lines):
        end = len(line)
        while end >= 0:
            comma = line.rfind(",", 0, end)
            yield canonical(line[comma + 1 : end])
            end = comma


def _forwarded(lines: Sequence[str]) -> Iterator[str | None]:
    """RFC 7239. Read backwards, so that a quote that a client leaves open hides nothing that the proxy wrote."""
    for line in reversed(lines):
        backwards = line[::-1]
        start = 0
        while True:
            element = _ELEMENT_REVERSED.match(backwards, start)
            yield element and _forwarded_for(element[1][::-1])
            if element is None or not element[2]:
                break
            start = element.end()


def _forwarded_for(element: str) -> str | None:
    nodes: list[str] = []
    position = 0
    while position < len(element):
        pair = _PAIR.match(element, position)
        if pair is None:
            return None
        if pair[1].lower() == "for":
            nodes.append(pair[2] or pair[3] or "")
        position = pair.end()
    return canonical(nodes[0]) if len(nodes) == 1 else None


def _single(lines: Sequence[str]) -> Iterator[str | None]:
    """X-Real-IP, CF-Connecting-IP and similar headers: one address, which further lines may only repeat."""
    addresses = {canonical(value) for line in lines for value in line.split(",")}
    yield addresses.pop() if len(addresses) == 1 else None
