"""The client's address: find it, write it in its canonical spelling, and make an identity of it.

The client's address is the last address that a trusted hop reported. The peer of the connection is hop 0. While a
hop is trusted, its report about the hop before it is believed. Each proxy appends to the header, so the header is
read from its end. The walk stops at the first hop that is not trusted or not readable. Text to the left of that hop
may come from the client and is ignored.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from ipaddress import IPv6Address
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton
from typing import Generic, TypeVar

from ratelimit_mw.identity.request import Request
from ratelimit_mw.logs import Once, logger
from ratelimit_mw.settings import ClientSettings

T = TypeVar("T")

UNKNOWN_ADDRESS = "ip=?"
"""The identity that all requests without a client address share."""

_WHOLE = "(address)"
"""The key of the whole address in `Request.values`. No attribute's name has parentheses."""


_MAX_LENGTH = 64  # enough for an address with brackets, a zone and a port; longer values are not parsed
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
    try:
        _read_ipv4(text)
    except (ValueError, OSError):
        return _canonical_of_any(text)
    return text  # an IPv4 address has one spelling only


def _canonical_of_any(text: str) -> str | None:
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
    try:
        if ":" not in host:
            if not bracketed:
                _read_ipv4(host)
                return host
            return None
        packed = _read_ipv6(host.partition("%")[0])
    except (ValueError, OSError):
        return None
    return inet_ntop(AF_INET, packed[-4:]) if packed.startswith(_MAPPED) else _write_ipv6(packed)


# These functions of the system take a tenth of the time of `ipaddress`. They accept the same texts, and raise OSError,
# or ValueError for a NUL or a lone surrogate.
_read_ipv4 = partial(inet_pton, AF_INET)
_read_ipv6 = partial(inet_pton, AF_INET6)

_MAPPED = bytes(10) + b"\xff\xff"  # the first bytes of ::ffff:0:0/96
_LOWEST = bytes(10)  # the first bytes of ::/80, where some systems write the end as an IPv4 address

_WRITES_ALIKE = all(
    inet_ntop(AF_INET6, IPv6Address(text).packed) == text for text in ("1:0:2:3:4:5:6:7", "1::2:0:0:3", "1:2::", "1::2")
)
"""Whether the system spells IPv6 addresses as `ipaddress` does. C libraries differ on a single group of zeros."""


def _write_ipv6(packed: bytes) -> str:
    if _WRITES_ALIKE and not packed.startswith(_LOWEST):
        return inet_ntop(AF_INET6, packed)
    return str(IPv6Address(packed))


def masked(address: str, ipv6_prefix: int) -> str:
    """Return what identifies a client: an IPv4 address itself, or the network of an IPv6 address.

    `address` is canonical. One IPv6 client usually has a whole network, so single addresses do not identify it.
    """
    if ":" not in address or ipv6_prefix == 128:
        return address
    host_bits = 128 - ipv6_prefix
    network = int.from_bytes(_read_ipv6(address)) >> host_bits << host_bits
    return f"{_write_ipv6(network.to_bytes(16))}/{ipv6_prefix}"


class Networks(Generic[T]):
    """A table of values by network. Finding an address takes one look-up for each prefix length in the table."""

    def __init__(self) -> None:
        self._ipv4: dict[int, dict[int, tuple[T, ...]]] = {}
        self._ipv6: dict[int, dict[int, tuple[T, ...]]] = {}

    def add(self, networks: Iterable[str], value: T) -> None:
        """Add `value` for each of these networks, as ("10.0.0.0/8", "2001:db8::1/128").

        A list may have hundreds of thousands of networks, so they share one tuple: the garbage collector visits no
        further object for each of them.
        """
        alone = (value,)
        for network in networks:
            address, _, length = network.partition("/")
            packed, tables = (_read_ipv6(address), self._ipv6) if ":" in address else (_read_ipv4(address), self._ipv4)
            shift = len(packed) * 8 - int(length)
            table = tables.setdefault(shift, {})
            number = int.from_bytes(packed) >> shift
            found = table.get(number)
            if found is None:
                table[number] = alone
            elif value not in found:
                table[number] = (*found, value)

    def __bool__(self) -> bool:
        return bool(self._ipv4 or self._ipv6)

    def find(self, address: str | None) -> list[T]:
        """Return the values of the networks that contain a canonical address."""
        found: list[T] = []
        if address is None:
            return found
        if ":" in address:
            tables, packed = self._ipv6, _read_ipv6(address)
        else:
            tables, packed = self._ipv4, _read_ipv4(address)
        number = int.from_bytes(packed)
        for shift, table in tables.items():
            for value in table.get(number >> shift, ()):
                if value not in found:  # a network may contain another one of the same list
                    found.append(value)
        return found


class ClientAddress:
    """Find the client's address according to the settings `trusted_proxies`, `trusted_hops` and `ip_header`.

    A hop is trusted if its address is in one of the networks of `trusted_proxies`. The first `trusted_hops` hops are
    trusted whatever their address is. They may have no address, as a proxy on a unix socket. If the settings trust no
    hop, `header` is None and no header is read.

    Args:
        settings: the checked settings of the section `client`.
        once: logs the warnings.
    """

    __slots__ = ("_hops", "_ipv6_prefix", "_networks", "_once", "_reports", "header")

    def __init__(self, settings: ClientSettings, once: Once) -> None:
        self._once = once
        self._ipv6_prefix = settings.ipv6_prefix
        self._hops = settings.trusted_hops
        self._networks: Networks[bool] = Networks()
        self._networks.add(map(str, settings.trusted_proxies), True)
        header = settings.ip_header.lower()
        self.header = header if self._hops or self._networks else None
        if header == "forwarded":
            self._reports: Callable[[Sequence[str]], Iterator[str | None]] = _forwarded_reports
        else:
            self._reports = _list_reports if header.endswith("forwarded-for") else _single_report

    def trusts(self, address: str | None, hop: int) -> bool:
        """Return True if the hop with this number is trusted. Hop 0 is the peer; `address` is canonical."""
        return hop < self._hops or self.lists(address)

    def lists(self, address: str | None) -> bool:
        """Return True if `trusted_proxies` has this canonical address."""
        return bool(self._networks.find(address))

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
        network = values["ip"] = self.cut(canonical(request.peer) if self.header is None else self.read(request))
        return network

    def cut(self, whole: str | None) -> str | None:
        """Return a canonical address, cut to its network if it is IPv6. None if it is unknown."""
        return whole if whole is None or ":" not in whole else masked(whole, self._ipv6_prefix)

    def identify(self, request: Request, _parameters: object, _route: object) -> str:
        """Return the identity of a request under `by: ip`. This is an `Identifier`."""
        network = self.network(request)
        if network is None:
            self.report_unknown(request.peer)
            return UNKNOWN_ADDRESS
        return "ip=" + network

    def put(self, text: str | None, values: dict[str, str | None]) -> None:
        """Put an address that `check()` was given into `values`, as in `Request.values`.

        A prefix length in `text` is ignored. The values are None if `text` is not an address.
        """
        if text and "/" in text:
            text = text.partition("/")[0]
        whole = values[_WHOLE] = canonical(text) if text else None
        values["ip"] = self.cut(whole)

    def report_unknown(self, peer: str | None) -> None:
        """Log once that a request has no client address. `peer` is the peer's address as the server wrote it."""
        what = "a request has no client address"
        mend = "Behind a proxy on a unix socket, set client.trusted_hops to 1 or more. In a test, give the client one"
        if peer:  # some servers write an empty text; it is not logged, because it may be a secret by mistake
            what = "the server gave a client's address that is not an IP address"
            mend = 'In a test with Starlette\'s TestClient, give it one: TestClient(app, client=("192.0.2.1", 50000))'
        topic = {"ratelimit_topic": "address"}
        self._once(logger.warning, "%s; all such requests share one counter (logged once). %s", what, mend, extra=topic)


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
