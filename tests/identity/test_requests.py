"""What a router would see, under both interfaces, whatever the client sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from werkzeug.test import EnvironBuilder

from ratelimit_mw.identity import AsgiRequest, Attributes, MappingRequest, WsgiRequest
from tests.identity.requests import asgi, attributes, environ, scope, settings, wsgi


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
        pytest.param("shop:eighty", "shop:eighty", id="no port"),
        pytest.param("", None, id="empty"),
        pytest.param(None, None, id="absent"),
    ],
)
@pytest.mark.parametrize("interface", [asgi, wsgi])
def test_host(interface, host, expected):
    request = interface([] if host is None else [("Host", host)])
    assert attributes().reader("host")(request) == expected


@pytest.mark.parametrize(
    ("header", "last", "first"),
    [
        pytest.param("s=1", "1", "1", id="plain"),
        pytest.param("a=0; s=1; b=2", "1", "1", id="among others"),
        pytest.param(" s = 1 ", "1", "1", id="white space"),
        pytest.param('s="1"', "1", "1", id="quoted"),
        pytest.param('s="\\061"', "1", "1", id="octal escape"),
        pytest.param('s="\\1"', "1", "1", id="escaped"),
        pytest.param('s="', '"', None, id="a lone quote: Flask passes it over"),
        pytest.param('s="x; s=1', "1", "1", id="a quote that is left open"),
        pytest.param('s="x;y"; s=1', "1", "x;y", id="a semicolon in quotes"),
        pytest.param("s=a b; s=1", "1", "1", id="a space in the value: Flask passes it over"),
        pytest.param("s; s=1", "1", "", id="without a value, then with one"),
        pytest.param("s=1=2", "1=2", "1=2", id="equals signs in the value"),
        pytest.param("s=1; s=2", "2", "1", id="twice: as the interface's frameworks read it"),
        pytest.param("S=1", None, None, id="names have a case"),
        pytest.param("ss=1; t=s", None, None, id="not a longer name"),
        pytest.param("", None, None, id="empty"),
    ],
)
def test_cookies(header, last, first):
    assert asgi([("Cookie", header)]).cookie("s") == last
    assert wsgi([("Cookie", header)]).cookie("s") == first


def test_cookies_split_over_lines():
    assert asgi([("cookie", "a=0"), ("cookie", "s=1")]).cookie("s") == "1"


@pytest.mark.parametrize(
    ("query", "last", "first"),
    [
        pytest.param("id=1", "1", "1", id="plain"),
        pytest.param("x=0&id=1", "1", "1", id="among others"),
        pytest.param("%69%64=%31", "1", "1", id="percent-encoded, name and value"),
        pytest.param("id=a+b", "a b", "a b", id="plus"),
        pytest.param("id=%E9%zz%", "\ufffd%zz%", "\ufffd%zz%", id="broken percent signs"),
        pytest.param("id=1&id=2", "2", "1", id="twice: as the interface's frameworks read it"),
        pytest.param("id=", "", "", id="empty value"),
        pytest.param("", None, None, id="empty"),
        pytest.param("&&=&", None, None, id="separators only"),
    ],
)
def test_query_parameters(query, last, first):
    assert asgi(query=query).query("id") == last
    assert wsgi(query=query).query("id") == first


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
    assert request.peer is request.header("host") is request.cookie("s") is request.query("q") is None
    assert request.header_lines("host") == []
    assert MappingRequest({}, {"header:host": "a"}).header_lines("host") == ["a"]


def test_a_bare_scope_and_a_bare_environ_are_requests():
    for request in (AsgiRequest({"type": "http"}), WsgiRequest({})):
        assert (request.method, request.path, request.peer) == ("GET", "/", None)
        assert request.cookie("s") is request.query("q") is request.header("h") is None


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
