"""The client's address: find it, write it in its canonical spelling, and make an identity of it.

The client's address is the last address that a trusted hop reported. The peer of the connection is hop 0. While a
hop is trusted, its report about the hop before it is believed. Each proxy appends to the header, so the header is
read from its end. The walk stops at the first hop that is not trusted or not readable. Text to the left of that hop
may come from the client and is ignored.
"""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from ratelimit_mw.identity.request import Request
from ratelimit_mw.settings import ClientSettings, Network

UNKNOWN_ADDRESS = "ip=?"
"""The identity that all requests without a client address share."""

_WHOLE = " address"
"""The key of the whole address in `Request.values`. No attribute name starts with a space."""

_log = logging.getLogger("ratelimit_mw")

_MAX_LENGTH = 64  # enough for an address with brackets, a zone and a port; longer values are not parsed
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = re.compile(rf"(?:{_OCTET}\.){{3}}{_OCTET}")
_PORT = re.compile(r":(?:[0-9]{1,5}|_[A-Za-z0-9._-]+)")
# Possessive quantifiers prevent backtracking: the time is linear in the length of the header.
_ELEMENT_REVERSED = re.compile(r'((?:[^",\\]++|"[^"\\]*+")*+)(,|\Z)')
_PAIR = re.compile(r"""[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=(?:"([^"]*)"|([^";,\s]*))[ \t]*(?:;|\Z)""")


def canonical(text: str | None) -> str | None:
    """Return the address in its canonical spelling, or None if the text is not an address.

    Brackets, a port and a zone id are accepted, as servers and proxies write them, and are dropped. (A client can
    write any text as a zone id.) An IPv4 address that is mapped into IPv6 becomes the IPv4 address.
    """
    if text is None or len(text) > _MAX_LENGTH:
        return None
    return _parsed(text)


@lru_cache(maxsize=4096)
def _parsed(text: str) -> str | None:
    if _IPV4.fullmatch(text):  # already canonical; `ip_address` takes ten times as long
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
    """Return what identifies a client: an IPv4 address itself, or the network of an IPv6 address.

    `address` is canonical. One IPv6 client usually has a whole network, so single addresses do not identify it.
    """
    if ":" not in address or ipv6_prefix == 128:
        return address
    return str(ip_network((address, ipv6_prefix), strict=False))


class ClientAddress:
    """Find the client's address according to the settings `trusted_proxies`, `trusted_hops` and `ip_header`.

    A hop is trusted if its address is in one of the networks of `trusted_proxies`. The first `trusted_hops` hops are
    trusted whatever their address is. They may have no address, as a proxy on a unix socket. If the settings trust no
    hop, `header` is None and no header is read.

    Args:
        settings: the checked settings of the section `client`.
        logged: the names of the warnings that were logged already.
    """

    __slots__ = ("_hops", "_in_networks", "_logged", "_masked", "_networks", "_reports", "header")

    def __init__(self, settings: ClientSettings, logged: set[str] | None = None) -> None:
        self._logged: set[str] = set() if logged is None else logged
        self._masked = lru_cache(maxsize=4096)(partial(masked, ipv6_prefix=settings.ipv6_prefix))
        self._hops = settings.trusted_hops
        self._networks = tuple(map(_unmapped_network, settings.trusted_proxies))
        self._in_networks = lru_cache(maxsize=4096)(self._is_in_networks)
        header = settings.ip_header.lower()
        self.header = header if self._hops or self._networks else None
        if header == "forwarded":
            self._reports: Callable[[Sequence[str]], Iterator[str | None]] = _forwarded_reports
        else:
            self._reports = _list_reports if header.endswith("forwarded-for") else _single_report

    def trusts(self, address: str | None, hop: int) -> bool:
        """Return True if the hop with this number is trusted. Hop 0 is the peer; `address` is canonical."""
        return hop < self._hops or (address is not None and self._in_networks(address))

    def find(self, peer: str | None, lines: Sequence[str]) -> str | None:
        """Return the client's canonical address, or None if it is unknown.

        `peer` is the peer's address as the server wrote it. `lines` are the lines of `header`, in order.
        """
        address = canonical(peer)
        reports = self._reports(lines)
        hop = 0
        while self.trusts(address, hop):
            reported = next(reports, None)
            if reported is None:
                break
            address = reported
            hop += 1
        return address

    def read(self, request: Request) -> str | None:
        """Return the client's whole address, which is not cut to its network, or None if it is unknown."""
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
        """Return the attribute `ip`: the client's address, cut to its network if it is IPv6. None if unknown."""
        values = request.values
        if "ip" in values:
            return values["ip"]
        network = values["ip"] = self._network(self.read(request))
        return network

    def identify(self, request: Request, _parameters: object, _route: object) -> str:
        """Return the identity of a request under `by: ip`. This is an `Identifier`."""
        network = self.network(request)
        if network is None:
            self.report_unknown()
            return UNKNOWN_ADDRESS
        return "ip=" + network

    def values_of(self, text: str | None) -> dict[str, str | None]:
        """Return the entries of `Request.values` for an address that `check()` was given.

        A prefix length in `text` is ignored. The values are None if `text` is not an address.
        """
        whole = canonical(text.partition("/")[0]) if text else None
        return {_WHOLE: whole, "ip": self._network(whole)}

    def report_unknown(self) -> None:
        """Log once that a request has no client address."""
        if "address" not in self._logged:
            self._logged.add("address")
            _log.warning(
                "a request has no client address; all such requests share one counter (logged once). "
                "Behind a proxy on a unix socket, set client.trusted_hops to the number of proxies"
            )

    def _network(self, whole: str | None) -> str | None:
        return self._masked(whole) if whole is not None and ":" in whole else whole

    def _is_in_networks(self, address: str) -> bool:
        parsed = ip_address(address)
        return any(parsed in network for network in self._networks)


def _unmapped_network(network: Network) -> Network:
    """Return the IPv4 network for a network within ::ffff:0:0/96, and any other network as it is."""
    if isinstance(network, IPv6Network) and network.prefixlen >= 96:
        mapped = network.network_address.ipv4_mapped
        if mapped is not None:
            return IPv4Network((mapped, network.prefixlen - 96))
    return network


# Each of these functions yields the addresses that one kind of header reports, nearest hop first.
# It yields None for an unreadable hop, which ends the walk.


def _list_reports(lines: Sequence[str]) -> Iterator[str | None]:
    """Read X-Forwarded-For: a list in one or more lines, to which each proxy appends."""
    for line in reversed(lines):
        end = len(line)
        while end >= 0:
            comma = line.rfind(",", 0, end)
            yield canonical(line[comma + 1 : end])
            end = comma


def _forwarded_reports(lines: Sequence[str]) -> Iterator[str | None]:
    """Read Forwarded (RFC 7239).

    The header is read backwards. A quote that a client opened and did not close can then not hide what a proxy
    appended.
    """
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
    """Return the address of the only `for=` of an element. An element with none or several is unreadable: None."""
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


def _single_report(lines: Sequence[str]) -> Iterator[str | None]:
    """Read X-Real-IP, CF-Connecting-IP and similar headers: one address. Several lines must hold the same address."""
    addresses = {canonical(value) for line in lines for value in line.split(",")}
    yield addresses.pop() if len(addresses) == 1 else None
