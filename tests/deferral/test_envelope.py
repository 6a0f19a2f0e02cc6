import httpx
import pytest

from ratelimit_mw.deferral.queue import Tokens, of_asgi, of_wsgi, random_id, replay_header, unpacked
from ratelimit_mw.deferral.worker import _request
from ratelimit_mw.identity.attributes import digester
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest
from tests.shells.asking import http_scope

LINES = [
    (b"Host", b"shop.example"),
    (b"content-type", b"text/plain"),
    (b"authorization", b"Bearer 1"),
    (b"x-twice", b"1"),
    (b"x-twice", b"2"),
    (b"connection", b"keep-alive"),
    (b"keep-alive", b"timeout=5"),
    (b"http2-settings", b"AAMAAABkAAQAAP__"),
    (b"te", b"trailers"),
    (b"transfer-encoding", b"chunked"),
    (b"expect", b"100-continue"),
    (b"upgrade", b"h2c"),
    (b"content-length", b"5"),
    (b"proxy-authorization", b"Basic 1"),
    (b"x-ratelimit-deferred", b"forged"),
]


def asgi(path="/reports", headers=None, lines=LINES, **more):
    return of_asgi(AsgiRequest(http_scope(path, method="POST", headers=lines, **more)), headers)


def wsgi(headers=None, **environ):
    base = {"REQUEST_METHOD": "POST", "PATH_INFO": "/reports", "REMOTE_ADDR": "192.0.2.1", "wsgi.url_scheme": "https"}
    return of_wsgi(WsgiRequest({**base, **environ}), headers)


def test_what_is_true_of_one_connection_alone_is_not_kept():
    assert asgi().headers == (
        ("host", "shop.example"),
        ("content-type", "text/plain"),
        ("authorization", "Bearer 1"),
        ("x-twice", "1"),
        ("x-twice", "2"),
    )


def test_under_wsgi_the_same_is_kept():
    environ = {
        "HTTP_HOST": "shop.example",
        "CONTENT_TYPE": "text/plain",
        "CONTENT_LENGTH": "5",
        "HTTP_X_TWICE": "1, 2",
        "HTTP_CONNECTION": "close",
        "HTTP_EXPECT": "100-continue",
        "HTTP_X_RATELIMIT_DEFERRED": "forged",
    }
    kept = (("host", "shop.example"), ("content-type", "text/plain"), ("x-twice", "1, 2"))
    assert sorted(wsgi(**environ).headers) == sorted(kept)


ADDED = {"x-forwarded-for": "192.0.2.7", "authorization": "Bearer 1", "x-user": "ann", "host": "shop.example"}
FORGED = ("x-forwarded-for, authorization", "X-User,Host", "close, x-user", "x-forwarded-for,,authorization,x-user")


@pytest.mark.parametrize("forged", FORGED)
@pytest.mark.parametrize("named", [None, tuple(ADDED)])
def test_no_connection_header_takes_away_what_a_proxy_has_added(forged, named):
    lines = [(b"connection", forged.encode()), *((name.encode(), value.encode()) for name, value in ADDED.items())]
    assert dict(asgi(headers=named, lines=lines).headers) == ADDED
    environ = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in ADDED.items()}
    assert dict(wsgi(headers=named, HTTP_CONNECTION=forged, **environ).headers) == ADDED


def test_of_named_headers_those_are_kept_and_the_host():
    assert asgi(headers=("content-type", "te")).headers == (("host", "shop.example"), ("content-type", "text/plain"))


@pytest.mark.parametrize(
    ("scope", "target"),
    [
        pytest.param(
            {"path": "/a b", "raw_path": b"/a%20b", "query_string": b"x=1&y=%0d"}, "/a%20b?x=1&y=%0d", id="raw"
        ),
        pytest.param({"path": "/ä b?", "raw_path": None}, "/%C3%A4%20b%3F", id="a server without raw paths"),
        pytest.param({"path": "//evil.example/a", "raw_path": None}, "//evil.example/a", id="two slashes"),
        pytest.param({"path": "/api/a", "raw_path": b"/api/a", "root_path": "/api"}, "/a", id="what the server adds"),
        pytest.param(
            {"path": "/sub/a", "raw_path": b"/sub/a", "root_path": "/sub", "app_root_path": ""},
            "/sub/a",
            id="a framework's mount",
        ),
        pytest.param({"path": "/apix", "raw_path": b"/apix", "root_path": "/api"}, "/apix", id="no such root"),
        pytest.param({"path": "", "raw_path": b""}, "/", id="nothing"),
    ],
)
def test_the_target_is_what_the_server_got(scope, target):
    assert asgi(**scope).target == target


@pytest.mark.parametrize(
    ("environ", "target"),
    [
        pytest.param({"PATH_INFO": "/a b", "QUERY_STRING": "x=1"}, "/a%20b?x=1", id="a space"),
        pytest.param({"PATH_INFO": "/ä".encode().decode("latin-1")}, "/%C3%A4", id="UTF-8"),
        pytest.param({"SCRIPT_NAME": "/sub", "PATH_INFO": "/a"}, "/sub/a", id="a mount"),
        pytest.param({"PATH_INFO": ""}, "/", id="nothing"),
    ],
)
def test_under_wsgi_the_target_is_put_together_again(environ, target):
    assert wsgi(**environ).target == target


def test_it_comes_out_of_the_queue_as_it_went_in():
    request = AsgiRequest(http_scope("/ä", method="PUT", headers=[(b"x", b"\xff")], ip="2001:db8::1"))
    request.values.update({"user": "ä\ud800", "tier": None})
    packed = of_asgi(request, None)
    assert unpacked(packed.packed()) == packed


@pytest.mark.parametrize("text", [b"", b"\xff", b"[]", b"{}", b'{"headers": [1]}', b'{"headers": []}'])
def test_what_is_no_envelope_is_refused(text):
    with pytest.raises(ValueError):
        unpacked(text)


def test_a_replay_has_what_the_rules_read_of_the_original():
    request = AsgiRequest(http_scope("/a//b", method="POST"))
    request.values["user"] = "ann"
    replay = AsgiRequest(http_scope("/mount/a//b", method="POST"))
    of_asgi(request, None).restore(replay)
    assert (replay.path, replay.forms, replay.values) == (request.path, request.forms, {"user": "ann"})


MARKS = Tokens(digester("secret", "shop"))


def test_a_mark_is_read_as_it_was_written():
    request = random_id()
    ticket = MARKS.ticket(request)
    assert MARKS.read(replay_header(request, ticket)) == (request, ticket)


def test_no_two_are_the_same():
    assert len({random_id() for _ in range(100)}) == 100


OTHERS = Tokens(digester("another secret", "shop"))


@pytest.mark.parametrize(
    "mark",
    [
        pytest.param("", id="empty"),
        pytest.param("x" * 36 + "." + "y" * 36, id="made up"),
        pytest.param(f"{random_id()}.{random_id()}", id="a request in the ticket's place"),
        pytest.param(f"{random_id()}.{MARKS.ticket(random_id())}", id="the ticket of another"),
        pytest.param(replay_header(name := random_id(), OTHERS.ticket(name)), id="another secret's"),
        pytest.param("ä" * 36 + "." + "é" * 36, id="not ASCII"),
        pytest.param(f"{random_id()}.", id="half of it"),
    ],
)
def test_a_forged_mark_is_none(mark):
    assert MARKS.read(mark) is None


@pytest.mark.parametrize(
    ("target", "sent"),
    [
        pytest.param("/reports?a=%C3%BC&b=/../x", True, id="as addresses are"),
        pytest.param("//elsewhere/reports", True, id="two slashes"),
        pytest.param("/reports/.../.hidden..", True, id="dots in names"),
        pytest.param("/reports?a#b", False, id="a fragment"),
        pytest.param("/reports?a=\xff", False, id="beyond ASCII"),
        pytest.param("/reports\r\nX: y", False, id="another line"),
        pytest.param("/reports\n", False, id="the end of a line"),
        pytest.param("/reports/../admin", False, id="a path that leads elsewhere"),
        pytest.param("/reports/..", False, id="dots at the end"),
        pytest.param("/./reports", False, id="one dot"),
        pytest.param("/" + "a" * 70_000, False, id="too long for a client"),
    ],
)
def test_only_a_request_that_is_replayed_unchanged_is_deferred(target, sent):
    plain = of_asgi(AsgiRequest(http_scope("/reports", method="POST")), None)
    envelope = plain._replace(target=target)
    assert envelope.replayable() is sent
    if sent:
        assert _request(httpx.URL("http://app"), envelope, b"", {}).url.raw_path == target.encode()


def test_a_target_that_is_no_path_is_not_deferred():
    """Servers pass the absolute form, "GET http://shop.example/reports", to the app as its path."""
    absolute = "http://shop.example/reports"
    made = [asgi(absolute, raw_path=absolute.encode()), wsgi(PATH_INFO=absolute), wsgi(PATH_INFO="")]
    assert [(each.target, each.replayable()) for each in made] == [(absolute, False), (absolute, False), ("/", True)]
