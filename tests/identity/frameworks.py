"""What the installed frameworks read of cookies, parameters and headers, and which values the limiter counts."""

import asyncio
from io import BytesIO
from urllib.parse import unquote

from hypothesis import strategies as st

from ratelimit_mw.identity.fields import TOO_MANY, Cookie, Parameter
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest
from tests.identity.requests import environ, scope

# What is not ASCII travels as bytes read as latin-1.
PIECES = (
    *("s=", "s=1", "s=2", "t=3", "s", "=", ";", "; ", "&", '"', "\\061", "\\", "%31", "%", "+", " ", ","),
    *(
        "\xc3\xa9",
        "\xe9",
        "\x1f",
        "\t",
        "\xa0",
        "\x85",
        "\xc2\xa0",
        "$Version=1",
        "path",
        "\\303\\251",
        "[",
        "==",
        "ss=",
    ),
)
COOKIES = st.lists(st.lists(st.sampled_from(PIECES), max_size=9).map("".join), max_size=3)
QUERIES = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)
HEADERS = st.lists(
    st.tuples(st.sampled_from(["x-user", "x_user"]), st.sampled_from(["1", "2", " 3", "a,b", "\xc3\xa9"])),
    max_size=3,
)


def _of_werkzeug(request):
    try:
        parameter = request.args.get("s")
    except UnicodeDecodeError:  # which answers such a request with an error
        parameter = None
    # Werkzeug keeps the percent signs of bytes that are not UTF-8.
    return request.cookies.get("s"), parameter and unquote(parameter), request.headers.get("x-user")


def starlette(built):
    from starlette.requests import Request

    request = Request(built)
    return request.cookies.get("s"), request.query_params.get("s"), request.headers.get("x-user")


def _django(request):
    return request.COOKIES.get("s"), request.GET.get("s"), request.headers.get("x-user")


def _configured():
    from django.conf import settings

    if not settings.configured:
        settings.configure(USE_TZ=True)


def django_asgi(built):
    _configured()
    from django.core.handlers.asgi import ASGIRequest

    return _django(ASGIRequest({**built, "query_string": _as_utf8(built["query_string"])}, BytesIO()))


def _as_utf8(query):
    # Django refuses a query string with other bytes, with a 400.
    return query if query.decode("utf-8", "ignore").encode() == query else b""


def litestar(built):
    from litestar.connection import Request

    request = Request({**built, "state": {}, "path_params": {}})
    return request.cookies.get("s"), request.query_params.get("s"), request.headers.get("x-user")


def quart(built):
    from quart import Quart
    from quart.wrappers import Request
    from werkzeug.datastructures import Headers

    headers = Headers([(name.decode("latin-1"), value.decode("latin-1")) for name, value in built["headers"]])
    query, never = built["query_string"], None
    request = Request("GET", "http", "/", query, headers, "", "1.1", built, send_push_promise=never)
    assert Quart.request_class is Request
    return _of_werkzeug(request)


def falcon_asgi(built):
    from falcon.asgi import Request

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def read():
        lowered = [(name.lower(), value) for name, value in built["headers"]]
        request = Request({**built, "headers": lowered, "query_string": _as_utf8(built["query_string"])}, receive)
        return request.cookies.get("s"), _of_falcon(request), request.get_header("x-user")

    return asyncio.run(read())


def _of_falcon(request):
    values = request.get_param_as_list("s")
    return values[-1] if values else None


def flask(built):
    from flask import Request

    return _of_werkzeug(Request(built))


def django_wsgi(built):
    _configured()
    from django.core.handlers.wsgi import WSGIRequest

    return _django(WSGIRequest(built))


def falcon(built):
    from falcon import Request

    request = Request(
        {**built, "SERVER_NAME": "a", "SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1", "wsgi.errors": None}
    )
    return request.cookies.get("s"), None, request.get_header("x-user")


def bottle(built):
    from http.cookies import CookieError

    from bottle import LocalRequest

    request = LocalRequest(built)
    try:
        cookie = dict(request.cookies).get("s")
    except CookieError:
        cookie = None
    return cookie, request.query.getunicode("s"), request.headers.get("x-user")


READERS = {
    "starlette": starlette,
    "django asgi": django_asgi,
    "litestar": litestar,
    "quart": quart,
    "falcon asgi": falcon_asgi,
    "flask": flask,
    "django wsgi": django_wsgi,
    "falcon": falcon,
    "bottle": bottle,
}
_UNDER_ASGI = ("starlette", "django asgi", "litestar", "quart", "falcon asgi")


def requests_of(framework, cookies, query, headers):
    """The request as the limiter has it, whose context is the framework's."""
    lines = [*headers, *(("cookie", line) for line in cookies)]
    if framework.startswith(_UNDER_ASGI):
        return AsgiRequest(scope(lines, query=query))
    built = environ(lines, query=query, **{"wsgi.input": BytesIO(), "wsgi.url_scheme": "http", "SERVER_NAME": "a"})
    return WsgiRequest(built)


def assert_counted(framework, cookies, query, headers):
    """Assert that what the framework reads is among the values that count, or that these are too many."""
    if framework == "django asgi":  # joins lines by commas; of the joined cookies, only signed ones count
        cookies = [";".join(cookies)]
    request = requests_of(framework, cookies, query, headers)
    counted = request.cookies(Cookie("s")), request.parameters(Parameter("s")), request.headers("x-user")
    context = requests_of(framework, cookies, query, headers).context
    for theirs, ours in zip(READERS[framework](context), counted, strict=True):
        if theirs and theirs.strip() and ours != TOO_MANY:
            # The limiter counts bytes as UTF-8, also where a framework takes them for latin-1.
            read = {theirs, theirs.strip()}
            assert (read | set(map(_as_utf8_text, read))) & set(ours), (theirs, ours)


def _as_utf8_text(text):
    try:
        return text.encode("latin-1").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return text
