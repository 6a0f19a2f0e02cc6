"""Whatever a client writes, its address is the last one that a trusted hop vouched for."""

import re
from ipaddress import IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.identity.address import ClientAddress, canonical, masked
from ratelimit_mw.logs import Once
from tests.identity.requests import asgi, attributes, identity, settings, wsgi

PROXY = "10.0.0.1"
CLIENT = "203.0.113.9"
FULL = "1111:2222:3333:4444:5555:6666:7777:8888"
XFF = "X-Forwarded-For"

SPELLINGS = [
    pytest.param("203.0.113.9", CLIENT, id="ipv4"),
    pytest.param(" 203.0.113.9\t", CLIENT, id="white space around it"),
    pytest.param("203.0.113.9:4711", CLIENT, id="ipv4 with a port"),
    pytest.param("203.0.113.9:_secret", CLIENT, id="ipv4 with an obfuscated port"),
    pytest.param("203.0.113.9:99999999", None, id="a port too long to be one"),
    pytest.param("203.0.113.9:", None, id="a colon without a port"),
    pytest.param("203.0.113.9:٣", None, id="a port in arabic digits"),
    pytest.param("203.0.113.09", None, id="octal ipv4"),
    pytest.param("203.0.113.٩", None, id="ipv4 in arabic digits"),
    pytest.param("3405803785", None, id="ipv4 as one number"),
    pytest.param("[203.0.113.9]", None, id="brackets around ipv4"),
    pytest.param("2001:db8::1", "2001:db8::1", id="ipv6"),
    pytest.param("2001:DB8:0:0::0001", "2001:db8::1", id="ipv6 in another spelling"),
    pytest.param("[2001:db8::1]", "2001:db8::1", id="ipv6 in brackets"),
    pytest.param("[2001:db8::1]:443", "2001:db8::1", id="ipv6 in brackets with a port"),
    pytest.param("[2001:db8::1]443", None, id="a port stuck to its bracket"),
    pytest.param("[2001:db8::1", "2001:db8::1", id="a bracket left open"),
    pytest.param("2001:db8::1]", None, id="a bracket never opened"),
    pytest.param("::ffff:203.0.113.9", CLIENT, id="mapped ipv4"),
    pytest.param("[::FFFF:cb00:7109]:80", CLIENT, id="mapped ipv4 in hex with a port"),
    pytest.param("::ffff:203.0.113.9%eth0", CLIENT, id="mapped ipv4 with a zone"),
    pytest.param("fe80::1%eth0", "fe80::1", id="zone id"),
    pytest.param("fe80::1%anything at all", "fe80::1", id="invented zone id"),
    pytest.param("[fe80::1%25eth0]:80", "fe80::1", id="zone id in brackets"),
    pytest.param("[1111:2222:3333:4444:5555:6666:7777:8888%ethernet0]:65535", FULL, id="all parts at their longest"),
    pytest.param("fe80::1%" + "x" * 56, "fe80::1", id="64 characters"),
    pytest.param("fe80::1%" + "x" * 57, None, id="65 characters"),
    pytest.param("203.0.113.9%1", None, id="zone id on ipv4"),
    pytest.param("fe80::1%" + "x" * 8000, None, id="zone id of 8 KB"),
    pytest.param("1" * 8000, None, id="8 KB of digits"),
    pytest.param("", None, id="empty"),
    pytest.param("unknown", None, id="unknown"),
    pytest.param("_hidden", None, id="obfuscated"),
    pytest.param("localhost", None, id="a name"),
    pytest.param("testclient", None, id="the peer of a test client"),
    pytest.param("10.0.0.0/8", None, id="a network"),
    pytest.param("\x00\xff", None, id="garbage"),
    pytest.param(None, None, id="none"),
]


@pytest.mark.parametrize(("text", "expected"), SPELLINGS)
def test_one_spelling_for_each_address(text, expected):
    assert canonical(text) == expected


@pytest.mark.parametrize(
    ("address", "prefix", "expected"),
    [
        pytest.param("2001:db8:1:2:3:4:5:6", 64, "2001:db8:1:2::/64", id="a /64"),
        pytest.param("2001:db8:1:2:ffff::", 64, "2001:db8:1:2::/64", id="its rotation"),
        pytest.param("2001:db8:1:3::", 64, "2001:db8:1:3::/64", id="its neighbour"),
        pytest.param("2001:db8:1:2::", 48, "2001:db8:1::/48", id="a /48"),
        pytest.param("2001:db8::1", 128, "2001:db8::1", id="whole"),
        pytest.param("203.0.113.9", 64, "203.0.113.9", id="ipv4 is never cut"),
    ],
)
def test_ipv6_counts_by_network(address, prefix, expected):
    assert masked(address, prefix) == expected


LISTS = [
    pytest.param([CLIENT], CLIENT, id="one proxy, no trick"),
    pytest.param([f"1.1.1.1, {CLIENT}"], CLIENT, id="spoofed entry on the left"),
    pytest.param([f"{CLIENT}, 10.0.0.2"], CLIENT, id="two proxies"),
    pytest.param([f"10.9.9.9, {CLIENT}, 10.0.0.2"], CLIENT, id="spoofed as one of the proxies"),
    pytest.param(["1.1.1.1", CLIENT], CLIENT, id="spoofed line before the proxy's"),
    pytest.param([f"1.1.1.1,2.2.2.2,{CLIENT}", "10.0.0.2,10.0.0.3"], CLIENT, id="two lines, lists"),
    pytest.param(["1.1.1.1, unknown"], PROXY, id="nothing left of an unknown hop"),
    pytest.param(["1.1.1.1, unknown, 10.0.0.2"], "10.0.0.2", id="the hop before an unknown one is the last vouched"),
    pytest.param(["1.1.1.1, _hidden"], PROXY, id="obfuscated hop"),
    pytest.param(["1.1.1.1, "], PROXY, id="an empty entry is no entry to skip"),
    pytest.param(["1.1.1.1", ""], PROXY, id="an empty line"),
    pytest.param(["1.1.1.1,,10.0.0.2"], "10.0.0.2", id="an empty entry between"),
    pytest.param([f"1.1.1.1 {CLIENT}"], PROXY, id="entries without a comma"),
    pytest.param([f"{CLIENT}:4711"], CLIENT, id="with a port, as Azure does"),
    pytest.param([f"::ffff:{CLIENT}, ::ffff:10.0.0.2"], CLIENT, id="mapped proxy is in the ipv4 network"),
    pytest.param(["x" * 8000], PROXY, id="8 KB of garbage"),
    pytest.param(["10.0.0.2, 10.0.0.3"], "10.0.0.2", id="all trusted: the leftmost"),
    pytest.param([], PROXY, id="no header"),
]


@pytest.mark.parametrize(("lines", "expected"), LISTS)
@pytest.mark.parametrize("interface", [asgi, wsgi])
def test_x_forwarded_for_behind_trusted_networks(interface, lines, expected):
    request = interface([(XFF, line) for line in lines], peer=PROXY)
    assert attributes(trusted=["10.0.0.0/8"]).address(request) == expected


HOPS = [
    pytest.param(1, [f"1.1.1.1, {CLIENT}"], PROXY, CLIENT, id="one hop: the last entry"),
    pytest.param(2, [f"1.1.1.1, {CLIENT}, 198.51.100.7"], PROXY, CLIENT, id="two hops: the last but one"),
    pytest.param(2, [CLIENT], PROXY, CLIENT, id="fewer entries than hops"),
    pytest.param(1, [CLIENT], None, CLIENT, id="a peer without an address, as on a unix socket"),
    pytest.param(1, [CLIENT], "localhost", CLIENT, id="a peer that is no address"),
    pytest.param(1, ["1.1.1.1, garbage"], None, None, id="unix socket, garbage: unknown"),
    pytest.param(2, ["1.1.1.1, unknown"], PROXY, PROXY, id="unreadable first hop"),
    pytest.param(2, ["1.1.1.1, unknown, 198.51.100.7"], PROXY, "198.51.100.7", id="unreadable second hop"),
    pytest.param(0, [CLIENT], PROXY, PROXY, id="no hops: header never read"),
    pytest.param(0, [CLIENT], None, None, id="no hops, no peer: unknown"),
]


@pytest.mark.parametrize(("hops", "lines", "peer", "expected"), HOPS)
@pytest.mark.parametrize("interface", [asgi, wsgi])
def test_x_forwarded_for_behind_counted_hops(interface, hops, lines, peer, expected):
    request = interface([(XFF, line) for line in lines], peer=peer)
    assert attributes(trusted_hops=hops).address(request) == expected


FORWARDED = [
    pytest.param([f"for={CLIENT}"], CLIENT, id="plain"),
    pytest.param([f"For={CLIENT};Proto=https;by=10.0.0.1"], CLIENT, id="other parameters, any case"),
    pytest.param([f'proto=http;host="a,b;for=1.1.1.1";for={CLIENT}'], CLIENT, id="quoted separators"),
    pytest.param(['for="[2001:db8::1]:4711"'], "2001:db8::1", id="quoted ipv6 with a port"),
    pytest.param([f'for="{CLIENT}:_obf"'], CLIENT, id="obfuscated port"),
    pytest.param([f"for=1.1.1.1, for={CLIENT}"], CLIENT, id="spoofed element"),
    pytest.param(["for=1.1.1.1", f"for={CLIENT}"], CLIENT, id="spoofed line"),
    pytest.param([f"for={CLIENT}, for=10.0.0.2"], CLIENT, id="two proxies"),
    pytest.param([f"for={CLIENT}", "for=10.0.0.2"], CLIENT, id="two proxies, a line each"),
    pytest.param(["for=10.0.0.3, for=10.0.0.2"], "10.0.0.3", id="all trusted: the leftmost"),
    pytest.param([f'for="1.1.1.1, for={CLIENT}'], CLIENT, id="a quote left open swallows nothing"),
    pytest.param([f'for="\\, for={CLIENT}'], CLIENT, id="nor does one with a backslash"),
    pytest.param([f'for=1.1.1.1, x="a", for="{CLIENT}"'], CLIENT, id="quotes on both sides"),
    pytest.param(['for=1.1.1.1, for="10.0.0.2'], PROXY, id="the proxy's own quote is broken"),
    pytest.param(['for=1.1.1.1, for="\\10.0.0.2"'], PROXY, id="escapes are not read"),
    pytest.param(["for=1.1.1.1, for=unknown"], PROXY, id="unknown"),
    pytest.param(["for=1.1.1.1, for=_hidden"], PROXY, id="obfuscated"),
    pytest.param(["for=1.1.1.1, by=10.0.0.2"], PROXY, id="an element without for"),
    pytest.param(["for=1.1.1.1;for=2.2.2.2"], PROXY, id="for twice"),
    pytest.param(["for=1.1.1.1, "], PROXY, id="an empty element"),
    pytest.param(["for=1.1.1.1, for"], PROXY, id="no equals sign"),
    pytest.param(["for=1.1.1.1, =2.2.2.2"], PROXY, id="no name"),
    pytest.param(["1.1.1.1"], PROXY, id="a bare address"),
    pytest.param(['for=""'], PROXY, id="an empty node"),
    pytest.param(["for=" + "x" * 8000], PROXY, id="8 KB"),
    pytest.param(['"' * 8000], PROXY, id="8 KB of quotes"),
]


@pytest.mark.parametrize(("lines", "expected"), FORWARDED)
@pytest.mark.parametrize("interface", [asgi, wsgi])
def test_forwarded(interface, lines, expected):
    request = interface([("Forwarded", line) for line in lines], peer=PROXY)
    assert attributes(trusted=["10.0.0.0/8"], ip_header="Forwarded").address(request) == expected


SINGLE = [
    pytest.param([CLIENT], CLIENT, id="one"),
    pytest.param([CLIENT, CLIENT], CLIENT, id="said twice"),
    pytest.param(["1.1.1.1", CLIENT], PROXY, id="two lines that disagree"),
    pytest.param([f"1.1.1.1, {CLIENT}"], PROXY, id="a list"),
    pytest.param([f"{CLIENT}, garbage"], PROXY, id="a list with garbage"),
    pytest.param(["garbage"], PROXY, id="garbage"),
    pytest.param([""], PROXY, id="empty"),
    pytest.param([], PROXY, id="absent"),
]


@pytest.mark.parametrize(("lines", "expected"), SINGLE)
@pytest.mark.parametrize("header", ["X-Real-IP", "CF-Connecting-IP", "True-Client-IP"])
@pytest.mark.parametrize("interface", [asgi, wsgi])
def test_single_value_headers(interface, header, lines, expected):
    request = interface([(header, line) for line in lines], peer=PROXY)
    assert attributes(trusted=["10.0.0.0/8"], ip_header=header).address(request) == expected


@pytest.mark.parametrize("header", [XFF, "Forwarded", "X-Real-IP"])
@pytest.mark.parametrize("interface", [asgi, wsgi])
def test_nobody_trusted_reads_no_header(interface, header):
    request = interface([(XFF, CLIENT), ("Forwarded", f"for={CLIENT}"), ("X-Real-IP", CLIENT)], peer=PROXY)
    assert attributes(ip_header=header).address(request) == PROXY


@pytest.mark.parametrize("interface", [asgi, wsgi])
def test_a_peer_outside_the_trusted_networks_is_not_believed(interface):
    request = interface([(XFF, "1.1.1.1")], peer=CLIENT)
    assert attributes(trusted=["10.0.0.0/8"]).address(request) == CLIENT


@pytest.mark.parametrize("interface", [asgi, wsgi])
def test_a_unix_socket_is_in_no_network(interface):
    request = interface([(XFF, CLIENT)], peer=None)
    assert attributes(trusted=["0.0.0.0/0", "::/0"]).address(request) is None


@pytest.mark.parametrize(
    ("network", "peer"),
    [
        pytest.param("10.0.0.0/8", "::ffff:10.0.0.1", id="mapped peer, ipv4 network"),
        pytest.param("::ffff:10.0.0.0/104", "10.0.0.1", id="ipv4 peer, mapped network"),
        pytest.param("fe80::/64", "fe80::1%eth0", id="peer with a zone"),
        pytest.param("2001:db8::/96", "2001:db8::7", id="ipv6 network"),
    ],
)
def test_trust_is_decided_on_normal_forms(network, peer):
    request = asgi([(XFF, CLIENT)], peer=peer)
    assert attributes(trusted=[network]).address(request) == CLIENT


def test_other_lists_are_lists():
    request = asgi([("X-Original-Forwarded-For", f"1.1.1.1, {CLIENT}")], peer=PROXY)
    assert attributes(trusted_hops=1, ip_header="X-Original-Forwarded-For").address(request) == CLIENT


def test_mixed_case_and_duplicate_lines_under_asgi():
    request = asgi([("x-FORWARDED-for", "1.1.1.1"), ("X-Forwarded-For", CLIENT)], peer=PROXY)
    assert attributes(trusted_hops=1).address(request) == CLIENT


def test_an_underscore_header_is_another_header_under_asgi():
    request = asgi([(XFF, CLIENT), ("X_Forwarded_For", "1.1.1.1")], peer=PROXY)
    assert attributes(trusted_hops=1).address(request) == CLIENT


rotations = st.integers(min_value=0, max_value=2**64 - 1)


@given(rotations)
def test_rotating_within_a_network_is_one_identity(host):
    request = asgi(
        peer=f"2001:db8:1:2:{host >> 48:x}:{host >> 32 & 0xFFFF:x}:{host >> 16 & 0xFFFF:x}:{host & 0xFFFF:x}"
    )
    assert identity("ip", request) == "ip=2001:db8:1:2::/64"


@given(st.ip_addresses(v=4), st.ip_addresses(v=4))
def test_mapped_clients_stay_apart(one, other):
    first, second = (identity("ip", asgi(peer=f"::ffff:{address}")) for address in (one, other))
    assert (first == second) == (one == other)
    assert first == f"ip={one}"


garbage = st.text(st.characters(max_codepoint=255), max_size=200)
fragments = st.lists(st.sampled_from([*',;="\\ []:%_', "for", "unknown", "10.0.0.2", "::1", "1.1.1.1"])).map("".join)


@given(st.lists(garbage | fragments, max_size=4), st.booleans())
@pytest.mark.parametrize("header", [XFF, "Forwarded"])
def test_what_stands_left_of_the_proxys_entry_never_matters(header, spoofed, same_line):
    entry = f"for={CLIENT}" if header == "Forwarded" else CLIENT
    lines = [*spoofed[:-1], f"{spoofed[-1]}, {entry}"] if same_line and spoofed else [*spoofed, entry]
    request = asgi([(header, line) for line in lines], peer=PROXY)
    assert attributes(trusted_hops=1, ip_header=header).address(request) == CLIENT
    assert attributes(trusted=["10.0.0.0/8"], ip_header=header).address(request) == CLIENT


@given(st.none() | garbage | fragments, st.lists(garbage | fragments, max_size=3), st.integers(0, 3))
@pytest.mark.parametrize("header", [XFF, "Forwarded", "X-Real-IP"])
def test_nothing_raises_and_what_comes_out_is_an_address(header, peer, lines, hops):
    found = ClientAddress(settings(trusted_hops=hops, ip_header=header), Once()).find(peer, lines)
    assert found is None or canonical(found) == found


# Groups of zeros, and what IPv4 addresses are mapped into, are where spellings differ.
groups = st.lists(st.sampled_from((0, 0, 1, 0xAB, 0xFFFF)) | st.integers(0, 0xFFFF), min_size=8, max_size=8)
sixes = st.builds(lambda parts: IPv6Address(b"".join(part.to_bytes(2) for part in parts)), groups)
ends = st.builds(
    lambda number, mapped: IPv6Address(number + mapped), st.integers(0, 2**32 - 1), st.sampled_from((0, 0xFFFF << 32))
)


@given(sixes | ends, st.sampled_from((str, lambda address: address.exploded, lambda address: str(address).upper())))
def test_an_ipv6_address_is_spelled_as_the_standard_library_spells_it(address, spelled):
    assert canonical(spelled(address)) == str(address.ipv4_mapped or address)


@given(sixes | ends, st.integers(0, 128))
def test_a_network_is_spelled_as_the_standard_library_spells_it(address, prefix):
    known = masked(str(address), prefix)
    assert known == (str(address) if prefix == 128 else str(ip_network((address, prefix), strict=False)))


@given(st.lists(st.integers(0, 300).map(str) | st.sampled_from(("", "00", "01", "0x1", "1e1", " 1")), max_size=5))
def test_an_ipv4_address_is_one_only_if_the_standard_library_takes_it(octets):
    text = ".".join(octets)
    try:
        expected = str(ip_address(text.strip(" ")))
    except ValueError:
        expected = None
    assert canonical(text) == expected


@pytest.mark.parametrize(
    ("peer", "message"),
    [
        pytest.param("testclient", r"that is not an IP address.*TestClient\(app, client=", id="a test client"),
        pytest.param(None, r"no client address; .*unix socket, set client.trusted_hops", id="a unix socket"),
    ],
)
def test_a_missing_address_is_logged_once_with_its_cause(peer, message, caplog):
    known = attributes()
    for _ in range(2):
        request = asgi([("X-Forwarded-For", "garbage")], peer=peer)
        assert known.client_address.identify(request, {}, "") == "ip=?"
    (record,) = caplog.records
    assert re.search(message, record.getMessage())
