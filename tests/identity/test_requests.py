"""What a router would see, under both interfaces, whatever the client sent."""

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from werkzeug.test import EnvironBuilder

from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.identity.credentials import reduced
from ratelimit_mw.identity.fields import TOO_MANY, Cookie, Parameter
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest
from ratelimit_mw.identity.request import MappingRequest
from tests.identity.requests import asgi, attributes, environ, scope, settings, wsgi
from tests.support.steps import steps


@pytest.mark.parametrize(
    ("root", "path", "expected"),
    [
        pytest.param("", "/a", "/a", id="no mount"),
        pytest.param("/api", "/api/a", "/a", id="mounted, whole path"),
        pytest.param("/api", "/api", "/", id="the mount itself"),
        pytest.param("/api", "/api/", "/", id="its root"),
        pytest.param("/api", "/apiary", "/apiary", id="no segment boundary"),
        pytest.param("/api", "/a", "/a", id="a server that leaves the prefix off"),
        pytest.param("/api/", "/api/a", "/api/a", id="a slash at the prefix's end, as Starlette has it"),
        pytest.param("", "", "/", id="empty"),
    ],
)
def test_the_path_less_root_path(root, path, expected):
    assert asgi(path=path, root_path=root).path == expected


def test_the_path_agrees_with_a_mounted_starlette_router():
    seen = []

    class Spy:
        def __init__(self, app):
            self.app = app

        async def __call__(self, scope, receive, send):
            seen.append(AsgiRequest(scope).path)
            await self.app(scope, receive, send)

    async def item(request):
        return PlainTextResponse(request.path_params["item"])

    inner = Starlette(routes=[Route("/items/{item}", item)])
    app = Starlette(routes=[Mount("/v1", Spy(inner))])
    with TestClient(app, root_path="/behind") as client:
        assert client.get("/behind/v1/items/caf%C3%A9").text == "café"
    assert seen == ["/items/café"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        pytest.param("/caf\xc3\xa9", "/café", id="utf-8"),
        pytest.param("/plain", "/plain", id="ascii"),
        pytest.param("", "/", id="empty"),
        pytest.param("/a\xff", "/a\ufffd", id="not utf-8"),
        pytest.param("/caf\u20ac", "/caf\u20ac", id="decoded by the server, against PEP 3333"),
    ],
)
def test_path_info_is_bytes_read_as_latin_1(path, expected):
    assert wsgi(path=path).path == expected


def test_a_utf8_path_is_the_same_under_both():
    built = EnvironBuilder(path="/caf\u00e9/\u4e2d").get_environ()
    assert WsgiRequest(built).path == asgi(path="/café/中").path


def test_script_name_is_not_part_of_the_path():
    assert wsgi(path="/a", SCRIPT_NAME="/mounted").path == "/a"


@pytest.mark.parametrize("interface", [asgi, wsgi])
def test_a_hostile_host_changes_no_path(interface):
    request = interface([("Host", "evil.example/admin?x=")], path="/login")
    assert request.path == "/login"
    assert attributes().reader("path")(request) == "/login"


def test_a_websocket_counts_as_get_and_methods_are_upper_case():
    websocket = {key: value for key, value in scope().items() if key != "method"} | {"type": "websocket"}
    assert AsgiRequest(websocket).method == "GET"
    assert asgi(method="post").method == wsgi(REQUEST_METHOD="post").method == "POST"


@pytest.mark.parametrize("interface", [asgi, wsgi])
@pytest.mark.parametrize("override", ["X-HTTP-Method-Override", "X-Method-Override"])
def test_a_method_override_is_not_believed(interface, override):
    assert interface([(override, "DELETE")]).method == "GET"


def test_head_counts_as_get():
    assert attributes().reader("method")(asgi(method="HEAD")) == "GET"
    assert attributes().reader("method")(attributes().request_from({"method": "head"})) == "GET"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        pytest.param("Shop.Example.COM", "shop.example.com", id="case"),
        pytest.param("shop.example.com:8443", "shop.example.com", id="port"),
        pytest.param("shop.example.com.", "shop.example.com", id="the root's dot"),
        pytest.param("[2001:DB8::1]:80", "[2001:db8::1]", id="ipv6 with a port"),
        pytest.param("[2001:db8::1]", "[2001:db8::1]", id="ipv6"),
        pytest.param("shop:", "shop", id="an empty port"),
        pytest.param("shop:eighty", "shop", id="a port that is no number"),
        pytest.param("", None, id="empty"),
        pytest.param(None, None, id="absent"),
    ],
)
@pytest.mark.parametrize("interface", [asgi, wsgi])
def test_host(interface, host, expected):
    request = interface([] if host is None else [("Host", host)])
    assert attributes().reader("host")(request) == expected


@pytest.mark.parametrize("lines", [[], [("Host", "")]], ids=["absent", "empty"])
def test_without_a_host_the_server_is_the_host(lines):
    for request in (asgi(lines, server=("shop", 80)), wsgi(lines, SERVER_NAME="shop")):
        assert attributes().reader("host")(request) == "shop"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        pytest.param("t=1; s=2;u=3", ("2",), id="among others"),
        pytest.param("ss=1; S=2", (), id="other names"),
        pytest.param("s=; s", (), id="empty"),
        pytest.param("s=a=b", ("a=b",), id="equals signs in the value"),
        pytest.param("s=1; s=2; s=1", ("1", "2"), id="twice"),
        pytest.param('s="a; b"', ("a; b", '"a'), id="a semicolon in quotes"),
        pytest.param('s="\\101"', ("A",), id="an escape"),
        pytest.param("s=1,t=2", ("1", "1,t=2"), id="a comma before a name"),
        pytest.param("s=1,2", ("1,2",), id="a comma in the value"),
        pytest.param('s="ab",t=2', ("ab", '"ab",t=2'), id="quotes before a comma and a name"),
        pytest.param("s=%41", ("%41", "A"), id="a percent sign"),
    ],
)
@pytest.mark.parametrize("make", [asgi, wsgi])
def test_every_value_of_a_cookie_is_found(make, header, expected):
    assert make([("Cookie", header)]).cookies(Cookie("s")) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        pytest.param("a=1&id=2", ("2",), id="among others"),
        pytest.param("id=1&id=2", ("1", "2"), id="twice"),
        pytest.param("id=1;id=2", ("1", "2", "1;id=2"), id="a semicolon before a name"),
        pytest.param("id=1;2", ("1;2",), id="a semicolon in the value"),
        pytest.param("%69d=a+b%26id%3D3", ("a b&id=3",), id="escapes"),
        pytest.param("id=&id", (), id="empty"),
    ],
)
@pytest.mark.parametrize("make", [asgi, wsgi])
def test_every_value_of_a_query_parameter_is_found(make, query, expected):
    assert make(query=query).parameters(Parameter("id")) == expected


@pytest.mark.parametrize(("stray", "expected"), [(64, ("1",)), (65, TOO_MANY)])
def test_a_query_with_many_stray_percent_signs_counts_with_all_others(stray, expected):
    assert asgi(query="id=1&q=" + "%" * stray).parameters(Parameter("id")) == expected


@pytest.mark.parametrize(("escapes", "expected"), [(64, ("é%" + "%41" * 63, "é%" + "A" * 63)), (65, TOO_MANY)])
def test_a_cookie_that_is_not_ascii_has_few_escapes(escapes, expected):
    header = "s=\xc3\xa9%" + "%41" * (escapes - 1)
    assert asgi([("Cookie", header)]).cookies(Cookie("s")) == expected


@pytest.mark.parametrize(("length", "expected"), [(65_536, ("1",)), (65_537, TOO_MANY)])
def test_beyond_64_kib_all_values_count_as_one(length, expected):
    assert asgi(query="id=1&q=".ljust(length, "x")).parameters(Parameter("id")) == expected
    lines = [("Cookie", "s=1; t=".ljust(length - 1, "x"))]  # each line ends with a character of its own
    assert asgi(lines).cookies(Cookie("s")) == expected


@pytest.mark.parametrize(("number", "expected"), [(4, ("0", "1", "2", "3")), (5, TOO_MANY)])
def test_more_than_four_values_count_as_one(number, expected):
    assert asgi(query="&".join(f"id={each}" for each in range(number))).parameters(Parameter("id")) == expected


@pytest.mark.parametrize(("times", "expected"), [(32, ("1",)), (33, TOO_MANY)])
def test_a_name_that_stands_more_than_32_times_counts_with_all_others(times, expected):
    assert asgi(query="&".join(["id=1"] * times)).parameters(Parameter("id")) == expected


@pytest.mark.parametrize(("backslashes", "expected"), [(2_048, ('"' * 2_048,)), (2_049, TOO_MANY)])
def test_a_quoted_cookie_with_many_backslashes_counts_with_all_others(backslashes, expected):
    assert asgi([("Cookie", 's="' + '\\"' * backslashes + '"')]).cookies(Cookie("s")) == expected


@pytest.mark.parametrize(("commas", "expected"), [(1_024, ("1" + "," * 1_024,)), (1_025, TOO_MANY)])
def test_a_cookie_with_many_commas_counts_with_all_others(commas, expected):
    assert asgi([("Cookie", "s=1" + "," * commas)]).cookies(Cookie("s")) == expected


def test_a_cookie_with_an_irregular_escape_counts_with_all_others():
    assert asgi([("Cookie", 's="a\\q"')]).cookies(Cookie("s")) == TOO_MANY


def test_several_lines_of_cookies_are_one_text():
    assert asgi([("Cookie", "s=1"), ("Cookie", "t; s=2")]).cookies(Cookie("s")) == ("1", "2")


SIGNED = "payload." + "a" * 44


@pytest.mark.parametrize("cut", [10, 20, 40])
@pytest.mark.parametrize("stray", ["", "!", "!!"])
def test_a_signed_cookie_that_is_cut_into_lines_is_one_identity(cut, stray):
    lines = [("Cookie", f"s={SIGNED[:cut]}{stray}"), ("Cookie", f"{stray}{SIGNED[cut:]}")]
    assert SIGNED in map(reduced, asgi(lines).cookies(Cookie("s")))


def test_joined_lines_of_a_header_count_by_the_whole_text_too():
    lines = [("X-User", "1"), ("X_User", "2"), ("X-User", "3")]
    assert asgi(lines).headers("x-user") == ("1", "2", "3", "1,2,3", "1,3")
    assert wsgi(lines).headers("x-user") == ("1,2,3",)


def test_basic_credentials_in_several_lines_are_one_user_where_a_framework_joins_the_lines():
    known = attributes(user="header:Authorization")
    for password in "12":
        credentials = b64encode(f"root:{password}".encode()).decode()
        request = asgi([("Authorization", "Basic !"), ("Authorization", credentials)])
        known.reader("user")(request)
        assert "basic root" in request.several["user"]


def test_no_cookie_has_a_name_that_is_no_token():
    with pytest.raises(ValueError, match="no cookie is called"):
        Cookie("a;b")


HOSTILE = {
    "escapes": {"query": "q=1&q=" + "%41" * 21000},
    "names": {"query": "%71=1&" * 10000},
    "separators": {"query": "q=1&q=2" + "&;" * 30000},
    "stray percent signs": {"query": "q=1&" + "%" * 60000},
    "cookies": {"headers": [("cookie", "s;" * 30000)]},
    "equal cookies": {"headers": [("cookie", "s=1;" * 15000)]},
    "quotes": {"headers": [("cookie", 's="' + '\\"' * 30000 + '"')]},
    "commas": {"headers": [("cookie", "s=1" + ",a" * 30000)]},
    "lines": {"headers": [("a", "")] * 15000},
    "lines of one name": {"headers": [("cookie", "s=1")] * 5000},
    "lines of an underscore": {"headers": [("x_user", "1")] * 5000},
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE)
def test_a_request_of_64_kib_takes_at_most_forty_times_the_instructions_of_a_plain_one(hostile):
    known = attributes(user="cookie:s", attributes={"q": "query:q", "x": "header:X-User"})
    readers = [known.reader(name) for name in ("user", "q", "x", "host")]

    def instructions(request):
        return steps(lambda: [read(request) for read in readers])

    plain = instructions(asgi([("cookie", "s=1"), ("x-user", "1"), ("host", "a")], query="q=1"))
    assert plain > 100
    assert instructions(asgi(**hostile)) <= 40 * plain


def test_headers_under_wsgi_have_their_variables():
    request = wsgi([("X-Plan", "gold")], CONTENT_TYPE="text/plain", CONTENT_LENGTH="3")
    assert request.header("x-plan") == "gold"
    assert request.header("content-type") == "text/plain"
    assert request.header("content-length") == "3"
    assert request.header("x-other") is None


def test_the_first_of_several_lines_is_what_an_asgi_app_reads():
    assert asgi([("X-Plan", "gold"), ("x-plan", "free")]).header("x-plan") == "gold"
    assert asgi().header("x-plan") is None


def test_a_bare_mapping_has_nothing_behind_it():
    request = MappingRequest({})
    assert request.peer is request.header("host") is None
    assert request.cookies(Cookie("s")) == request.parameters(Parameter("q")) == request.hosts() == ()
    assert request.header_lines("host") == []
    assert MappingRequest({}, {"header:host": "a"}).header_lines("host") == ["a"]


def test_a_bare_scope_and_a_bare_environ_are_requests():
    for request in (AsgiRequest({"type": "http"}), WsgiRequest({})):
        assert (request.method, request.path, request.peer) == ("GET", "/", None)
        assert request.cookies(Cookie("s")) == request.parameters(Parameter("q")) == request.headers("h") == ()


latin = st.text(st.characters(max_codepoint=255), max_size=60)
pairs = st.lists(st.tuples(st.sampled_from(["host", "cookie", "authorization", "x-forwarded-for", "x"]) | latin, latin))
KNOWN = Attributes(
    settings(trusted_hops=1, user="header:Authorization", tier="cookie:tier", attributes={"who": "query:who"})
)
NAMES = ("ip", "user", "tier", "method", "path", "host", "header:x", "cookie:s", "query:q", "who", "path:id")


@given(pairs, latin, latin, st.none() | latin)
def test_no_request_makes_a_reader_raise(headers, path, query, peer):
    for request in (
        AsgiRequest(scope(headers, path=path, query=query, peer=peer)),
        WsgiRequest(environ(headers, path=path, query=query, peer=peer)),
    ):
        for name in NAMES:
            value = KNOWN.reader(name)(request)
            assert value is None or (isinstance(value, str) and value)
