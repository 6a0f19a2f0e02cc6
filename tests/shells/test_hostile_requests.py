"""Whatever a client sends, the middlewares answer: never an exception, never a key, a header or a log of its making."""

import asyncio
import re

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.shells.asking import exchange, http_scope

RULES = {
    "domain": "shop{é}:",
    "client": {
        "trusted_proxies": ["127.0.0.1", "10.0.0.0/8"],
        "user": "header:Authorization",
        "tier": "header:X-Plan",
        "secret": "s",
    },
    "attributes": {
        "session": "cookie:sid",
        "key": "query:key",
        "deep": "scope:state.user",
        "environment": "environ:x.y",
    },
    "response": {"message": "{ip} {rule} {limit} {retry_after}"},
    "exempt": [{"path": "/static/*", "methods": ["GET"]}, {"ip": "192.0.2.0/24", "header:X-Internal": "yes"}],
    "rules": [
        {"name": "everything", "by": "ip", "limit": {"default": "3 per minute", "gold": "4 per minute"}},
        {"name": "users", "by": ["user", "user|ip", "ip+user"], "limit": "5 per minute"},
        {"name": "words", "by": ["tier", "host", "method", "path", "session", "key"], "limit": "5 per minute"},
        {"name": "rest", "by": ["deep|environment|(header:user-agent+cookie:a)|query:q"], "limit": "5 per minute"},
        {"name": "items", "match": {"path": "/i/{a}/{b:int}"}, "by": ["path:a", "path:b", "route"], "limit": "5/s"},
        {"name": "files", "match": {"path": ["/f/{r:path}", "/i/*"]}, "by": "global", "limit": "5/s"},
        {"name": "login", "match": {"path": "/login", "host": "h", "query:q": "1"}, "limit": "1/s", "replaces": "rest"},
    ],
}

NAMES = [
    "x-forwarded-for",
    "authorization",
    "x-plan",
    "cookie",
    "host",
    "origin",
    "access-control-request-method",
    "user-agent",
    "x-internal",
    "x-http-method-override",
]
SIGNS = (
    *(
        "127.0.0.1",
        "203.0.113.7",
        "[::1]:80",
        "::ffff:1.2.3.4",
        "fe80::1%",
        "Basic ",
        "Bearer ",
        "sid=",
        "key=",
        "\\777",
    ),
    *(",", ";", "=", '"', "\\", "%7B", "{", "}", "+", "|", "~", ":", "\r\n", "\0", "/", "..", "1", "\xe9"),
)
PIECES = ("/i/", "/f/", "/login", "/static/", "//", "\ud800", "\uffff", "\u0663", "\ufb01", "\n")


def texts(*pieces, **characters):
    piece = st.sampled_from(pieces) | st.text(st.characters(**characters), max_size=5)
    return st.lists(piece, max_size=9).map("".join)


latin_1 = texts(*SIGNS, max_codepoint=255)
any_text = texts(*SIGNS, *PIECES)
headers = st.lists(st.tuples(st.sampled_from(NAMES) | latin_1, latin_1), max_size=8)
methods = st.sampled_from(["GET", "HEAD", "OPTIONS", "get", "", "P\0ST"])
peers = st.sampled_from(["127.0.0.1", "203.0.113.7", "", "unix:", "@", "fe80::1%eth0", "10.1.1.1:80", "x" * 9000])


def engine():
    return RateLimiter(RULES, storage="memory://", clock=ManualClock())


ASGI, WSGI = engine(), engine()
KEY = re.compile(r"shop%7B%C3%A9%7D%3A:[a-z]+:sw[0-9]+:\{[A-Za-z0-9_.~=:/%*?+-]{1,260}\}")


def check(keys, fields):
    for key in keys:
        assert KEY.fullmatch(key)
    for name, value in fields:
        assert re.fullmatch(r"[A-Za-z-]+", name)
        assert re.fullmatch(r"[ -~]*", value)


@given(path=any_text, method=methods, peer=peers, headers=headers, query=latin_1, root=any_text)
def test_nothing_that_a_server_may_pass_on_makes_asgi_raise(*, path, method, peer, headers, query, root):
    async def app(scope, receive, send):
        assert scope["ratelimit"].allowed
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body"})

    lines = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    scope = http_scope("/", method=method, ip=peer, headers=lines)
    scope.update(path=path, root_path=root, query_string=query.encode("latin-1"))
    start, _ = asyncio.run(exchange(Asgi(app, limiter=ASGI), scope))
    assert start["status"] in {200, 429}
    check(
        [charge.ask.key for charge in ASGI.rules.plan(AsgiRequest(scope))],
        [(name.decode(), value.decode()) for name, value in start.get("headers", ())],
    )


@given(path=latin_1 | any_text, method=methods, peer=peers, headers=headers, query=latin_1)
def test_nothing_that_a_server_may_pass_on_makes_wsgi_raise(*, path, method, peer, headers, query):
    def app(environ, start_response):
        assert environ["ratelimit.decision"].allowed
        start_response("200 OK", [])
        return []

    said = []
    environ = {"PATH_INFO": path, "REQUEST_METHOD": method, "REMOTE_ADDR": peer, "QUERY_STRING": query}
    environ |= {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers}
    Wsgi(app, limiter=WSGI)(environ, lambda *arguments: said.append(arguments))
    ((status, fields),) = said
    assert status[:3] in {"200", "429"}
    check([charge.ask.key for charge in WSGI.rules.plan(WsgiRequest(environ))], fields)
