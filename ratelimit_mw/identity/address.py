"""Which address a request came from: the last one that a trusted hop vouched for.

The peer is the first hop. As long as a hop is trusted, what it reports of the hop before it is believed;
so the header is read from its end, and what a client wrote at its start is never reached. A hop that is
unreadable ends the walk: nothing left of it is believed.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from ratelimit_mw.settings import ClientSettings, Network

_LONGEST = 64  # an address, brackets, a zone and a port; longer values are not worth a look
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = re.compile(rf"(?:{_OCTET}\.){{3}}{_OCTET}")
_PORT = re.compile(r":(?:[0-9]{1,5}|_[A-Za-z0-9._-]+)")
# Possessive, so that no header makes it go back: time is linear in the header's length.
_ELEMENT_REVERSED = re.compile(r'((?:[^",\\]++|"[^"\\]*+")*+)(,|\Z)')
_PAIR = re.compile(r"""[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(?:"([^"]*)"|([^";,\s]*))[ \t]*(?:;|\Z)""")


def canonical(text: str | None) -> str | None:
    """The address in its one spelling, or None where the text is no address.

    Takes what servers and proxies write: brackets, a port, a zone id (dropped, for anything may stand
    there). An IPv4 address mapped into IPv6 is the IPv4 address.
    """
    if text is None or len(text) > _LONGEST:
        return None
    return _parsed(text)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> str | None:
    if _IPV4.fullmatch(text):  # it is canonical, and `ip_address` takes ten times as long to say so
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
    """What a client is known by: a canonical IPv4 address as it is, an IPv6 address as its network."""
    if ":" not in address or ipv6_prefix == 128:
        return address
    return str(ip_network((address, ipv6_prefix), strict=False))


class ClientAddress:
    """Finds the client's address by the settings `trusted_proxies`, `trusted_hops` and `ip_header`.

    A hop is trusted if its address is in one of the networks, or if it is one of the first `trusted_hops`. The latter
    are trusted whatever their address, even without one, as a proxy on a unix socket. If no hop is trusted, `header`
    is None and no header is read.
    """

    __slots__ = ("_hops", "_networks", "_reported", "_within", "header")

    def __init__(self, settings: ClientSettings) -> None:
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
        """True where that hop is believed. Hop 0 is the peer; `address` is canonical."""
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

    def _look_up(self, address: str) -> bool:
        parsed = ip_address(address)
        return any(parsed in network for network in self._networks)


def _unmapped_network(network: Network) -> Network:
    """A network within ::ffff:0:0/96 as the IPv4 network that it is."""
    if isinstance(network, IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, network.prefixlen - 96))
    return network


# What each kind of header reports, nearest hop first. None is an unreadable hop, which ends the walk.


def _listed(lines: Sequence[str]) -> Iterator[str | None]:
    """X-Forwarded-For: a list to which each proxy appends, in one line or in several."""
    for line in reversed(lines):
        end = len(line)
        while end >= 0:
            comma = line.rfind(",", 0, end)
            yield canonical(line[comma + 1 : end])
            end = comma


def _forwarded(lines: Sequence[str]) -> Iterator[str | None]:
    """RFC 7239. Read backwards, so that a quote which a client leaves open swallows nothing of the proxy's."""
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
    """X-Real-IP, CF-Connecting-IP and their like: one address, which several lines may only repeat."""
    addresses = {canonical(value) for line in lines for value in line.split(",")}
    yield addresses.pop() if len(addresses) == 1 else None
