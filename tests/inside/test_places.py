"""`N concurrent` asked for in the code of an app: a place is held until the response has ended, in each framework."""

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from wsgiref.util import setup_testing_defaults

import pytest
from django.http import HttpResponse, StreamingHttpResponse
from django.test.utils import override_settings
from django.urls import path
from fastapi import Depends, FastAPI, Request, WebSocket
from fastapi.responses import PlainTextResponse, StreamingResponse
from flask import Flask
from flask import Response as FlaskResponse
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from werkzeug.middleware.proxy_fix import ProxyFix

from ratelimit_mw import RateLimiter
from ratelimit_mw import django as in_django
from ratelimit_mw import fastapi as in_fastapi
from ratelimit_mw import flask as in_flask
from ratelimit_mw import starlette as in_starlette
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.inside import django_app
from tests.inside.test_django_middleware import awaited
from tests.shells.asking import IP, exchange, http_scope, websocket_scope
from tests.support.patience import aeventually

PLACE = {"name": "place", "by": "global", "limit": "1 concurrent", "on_demand": True}
RULES = {"domain": "places", "storage": {"timeout": "5s"}, "client": {"secret": "x"}}
NAMED, INLINE = ("place", {}), ("1 concurrent", {"by": "global", "shared": "place"})


@pytest.fixture(params=["a rule of the file", "a limit in code"])
def asked(request):
    """The arguments of `limited`, and the rules."""
    if request.param == "a limit in code":
        return *INLINE, {**RULES, "rules": []}
    return *NAMED, {**RULES, "rules": [PLACE]}


@pytest.fixture
def limiter(asked, storage, clock):
    with RateLimiter(asked[2], storage=storage, clock=clock) as made:
        yield made


def read(app, parts=1_000):
    """The status of a WSGI app. So many parts of its response are read, and it is closed as servers do."""
    began = []
    environ = {"REMOTE_ADDR": IP, "wsgi.multithread": True}
    setup_testing_defaults(environ)
    body = app(environ, lambda *arguments: began.append(arguments))
    try:
        for _ in zip(range(parts), body, strict=False):
            pass
    finally:
        getattr(body, "close", lambda: None)()
    return int(began[0][0][:3])


def asgi(app):
    """Ask an ASGI app."""
    return partial(_aread, app)


def _aread(app):
    return asyncio.run(exchange(app, http_scope()))[0]["status"]


def is_free(limiter):
    """Whether the place is free. The request that asks gives it back."""
    found = []
    name = next((limit.name for limit in limiter.rules.parts[0].inline.rules), "place")

    def app(environ, start_response):
        found.append(environ["ratelimit.decision"].check(name).allowed)
        start_response("200 OK", [])
        return [b"x"]

    read(Wsgi(app, limiter=limiter))
    return found[0]


def of_flask(limiter, rule, options, view):
    app = Flask("places", root_path="/")

    @app.route("/")
    @in_flask.limited(rule, **options)
    def index():
        return FlaskResponse(view())

    app.wsgi_app = Wsgi(app.wsgi_app, limiter=limiter)
    return partial(read, app)


def of_starlette(limiter, rule, options, view):
    @in_starlette.limited(rule, **options)
    async def endpoint(request: Request):
        return _response(view())

    return asgi(Starlette(routes=[Route("/", endpoint)], middleware=[Middleware(Asgi, limiter=limiter)]))


def of_fastapi(limiter, rule, options, view):
    app = FastAPI()

    @app.get("/", dependencies=[Depends(in_fastapi.limited(rule, **options))])
    async def endpoint():
        return _response(view())

    in_fastapi.add_rate_limits(app, limiter=limiter)
    return asgi(app)


def _response(found):
    if isinstance(found, Response):
        return found
    return PlainTextResponse(found) if isinstance(found, str) else StreamingResponse(_awaited(found))


async def _awaited(parts):
    for part in parts:
        yield part


def of_django(limiter, rule, options, view):
    @in_django.limited(rule, **options)
    def index(request):
        found = view()
        return HttpResponse(found) if isinstance(found, str) else StreamingHttpResponse(found)

    return _project(limiter, index, lambda **options: read(django_app.get_wsgi_application(), **options))


def of_django_async(limiter, rule, options, view):
    @in_django.limited(rule, **options)
    async def index(request):
        found = view()
        return HttpResponse(found) if isinstance(found, str) else StreamingHttpResponse(_awaited(found))

    return _project(limiter, index, lambda: awaited(["/"])[0].status_code)


def of_django_in_threads(limiter, rule, options, view):
    """A plain view under ASGI."""

    @in_django.limited(rule, **options)
    def index(request):
        found = view()
        return HttpResponse(found) if isinstance(found, str) else StreamingHttpResponse(found)

    return _project(limiter, index, lambda: awaited(["/"])[0].status_code)


def of_django_within(limiter, rule, options, view):
    """The middleware is around the project, too."""

    @in_django.limited(rule, **options)
    def index(request):
        found = view()
        return HttpResponse(found) if isinstance(found, str) else StreamingHttpResponse(found)

    return _project(
        limiter, index, lambda **options: read(Wsgi(django_app.get_wsgi_application(), limiter=limiter), **options)
    )


def of_rest(limiter, rule, options, view):
    from rest_framework.views import APIView  # it needs the settings of Django

    from ratelimit_mw.drf import RateLimitThrottle

    class Throttle(RateLimitThrottle):
        scope = rule
        by = options.get("by")

    class Resource(APIView):
        throttle_classes = (Throttle,)

        def get(self, request):
            found = view()
            return HttpResponse(found) if isinstance(found, str) else StreamingHttpResponse(found)

    return _project(limiter, Resource.as_view(), lambda **options: read(django_app.get_wsgi_application(), **options))


def _project(limiter, index, ask):
    def asked(**options):
        with override_settings(RATELIMIT=limiter, ROOT_URLCONF=(path("", index),)):
            return ask(**options)

    return asked


def of_late_flask(limiter, rule, options, view):
    app = Flask("places", root_path="/")
    app.wsgi_app = Wsgi(app.wsgi_app, limiter=limiter)
    app.add_url_rule("/", view_func=in_flask.limited(rule, **options)(lambda: FlaskResponse(view())))
    return partial(read, app)


def of_hidden_flask(limiter, rule, options, view):
    app = Flask("places", root_path="/")
    app.add_url_rule("/", view_func=in_flask.limited(rule, **options)(lambda: FlaskResponse(view())))
    app.testing = True  # it does not catch what a view raises
    app.wsgi_app = Wsgi(ProxyFix(app.wsgi_app), limiter=limiter)
    return partial(read, app)


def of_hidden_starlette(limiter, rule, options, view):
    @in_starlette.limited(rule, **options)
    async def endpoint(request: Request):
        return _response(view())

    app = Starlette(routes=[Route("/", endpoint)])

    async def around(scope, receive, send):
        await app(scope, receive, send)

    return asgi(Asgi(around, limiter=limiter))


EACH = pytest.mark.parametrize(
    "of",
    [
        pytest.param(of_flask, id="Flask"),
        pytest.param(of_late_flask, id="Flask, a view that is added after the middleware"),
        pytest.param(of_hidden_flask, id="Flask, a view that is unknown at start"),
        pytest.param(of_starlette, id="Starlette"),
        pytest.param(of_hidden_starlette, id="Starlette, an endpoint that is unknown at start"),
        pytest.param(of_fastapi, id="FastAPI"),
        pytest.param(of_django, id="Django"),
        pytest.param(of_django_async, id="Django, async"),
        pytest.param(of_django_in_threads, id="Django, a plain view under ASGI"),
        pytest.param(of_django_within, id="Django, within a middleware"),
        pytest.param(of_rest, id="REST framework"),
    ],
)


@EACH
def test_a_view_holds_a_place_until_its_response_has_ended(limiter, asked, of, clock):
    seen = []

    def view():
        clock.advance(25)  # longer than a place lives that is not renewed
        seen.append(is_free(limiter))
        return "x"

    ask = of(limiter, *asked[:2], view)
    assert [(ask(), is_free(limiter)) for _ in range(3)] == [(200, True)] * 3
    assert seen == [False] * 3


@EACH
def test_a_request_without_a_place_is_denied(limiter, asked, of):
    def view():
        return "x" if others else str(others.append(inner()))

    others, ask = [], of(limiter, *asked[:2], view)

    def inner():
        """The status of a request while another one is in the view."""
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(ask).result(30)

    assert (ask(), others, ask()) == (200, [429], 200)


@EACH
def test_a_view_that_raises_frees_its_place(limiter, asked, of):
    def view():
        raise RuntimeError

    ask = of(limiter, *asked[:2], view)
    for _ in range(2):
        with suppress(RuntimeError):  # some frameworks raise it after they have answered
            ask()
        assert is_free(limiter)


@EACH
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous")
def test_a_stream_holds_its_place_until_its_last_part(limiter, asked, of):
    seen = []

    def parts():
        for part in "abc":
            seen.append(is_free(limiter))
            yield part

    ask = of(limiter, *asked[:2], parts)
    assert (ask(), is_free(limiter)) == (200, True)
    assert seen == [False] * 3


@EACH
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous")
@pytest.mark.filterwarnings("ignore:Unclosed file:ResourceWarning")  # of Django, which does not close the request
def test_a_stream_that_raises_frees_its_place(limiter, asked, of):
    def parts():
        yield "a"
        raise RuntimeError

    ask = of(limiter, *asked[:2], parts)
    for _ in range(2):
        with suppress(RuntimeError):
            ask()
        assert is_free(limiter)
    gc.collect()  # here, where the warning is ignored


@pytest.mark.parametrize("of", [of_flask, of_hidden_flask, of_django, of_django_within, of_rest])
def test_a_client_that_leaves_a_stream_frees_the_place(limiter, asked, of):
    seen = []

    def parts():
        for part in "abc":
            seen.append(is_free(limiter))
            yield part

    ask = of(limiter, *asked[:2], parts)
    assert (ask(parts=1), seen, is_free(limiter)) == (200, [False], True)


@pytest.mark.parametrize("of", [of_starlette, of_hidden_starlette, of_fastapi])
@pytest.mark.parametrize("how", ["its client leaves", "it is cancelled"])
def test_a_request_without_an_end_frees_its_place_when(limiter, asked, of, how):
    inside = []

    async def forever():
        inside.append(is_free(limiter))
        yield "x"
        await asyncio.Event().wait()

    async def receive():
        await (aeventually(lambda: inside) if how == "its client leaves" else asyncio.Event().wait())
        return {"type": "http.disconnect"}

    async def send(_message):
        pass

    async def main():
        request = asyncio.ensure_future(app(http_scope(), receive, send))
        await aeventually(lambda: inside)
        if how == "it is cancelled":
            request.cancel()
        await asyncio.wait([request])
        await aeventually(lambda: is_free(limiter))

    app = of(limiter, *asked[:2], lambda: StreamingResponse(forever())).args[0]
    asyncio.run(main())
    assert inside == [False]


@pytest.mark.parametrize("ends", ["the view returns", "the view raises", "the stream ends"])
@pytest.mark.parametrize("of", [of_hidden_flask, of_hidden_starlette])
def test_a_view_that_is_unknown_at_start_frees_its_place_beside_rules_that_need_several_decisions(clock, of, ends):
    seen = []

    def view():
        seen.append(is_free(limiter))
        if ends == "the view raises":
            raise RuntimeError
        return parts() if ends == "the stream ends" else "x"

    def parts():
        seen.append(is_free(limiter))
        yield "x"

    messages = {"name": "messages", "limit": "9 per hour", "messages": "close"}
    with RateLimiter({**RULES, "rules": [messages]}, clock=clock) as limiter:
        ask = of(limiter, *INLINE, view)
        for _ in range(2):
            with suppress(RuntimeError):  # some frameworks raise it after they have answered
                assert ask() == 200
            assert is_free(limiter)
    assert not any(seen)


@pytest.mark.parametrize("of", [of_starlette, of_fastapi])
def test_a_background_task_holds_no_place(limiter, asked, of):
    seen = []

    async def task():
        await aeventually(lambda: is_free(limiter))
        seen.append("free")

    ask = of(limiter, *asked[:2], lambda: PlainTextResponse("x", background=BackgroundTask(task)))
    assert (ask(), ask(), seen) == (200, 200, ["free"] * 2)


def of_starlette_socket(limiter, rule, options, during):
    @in_starlette.limited(rule, **options)
    async def endpoint(socket: WebSocket):
        await socket.accept()
        during()

    return Starlette(routes=[WebSocketRoute("/", endpoint)], middleware=[Middleware(Asgi, limiter=limiter)])


def of_fastapi_socket(limiter, rule, options, during):
    app = FastAPI()

    @app.websocket("/", dependencies=[Depends(in_fastapi.limited(rule, **options))])
    async def endpoint(socket: WebSocket):
        await socket.accept()
        during()

    in_fastapi.add_rate_limits(app, limiter=limiter)
    return app


@pytest.mark.parametrize("of", [of_starlette_socket, of_fastapi_socket])
def test_a_websocket_holds_its_place_as_long_as_its_endpoint_runs(limiter, asked, of):
    seen = []
    app = of(limiter, *asked[:2], lambda: seen.append(is_free(limiter)))
    for _ in range(2):
        sent = asyncio.run(exchange(app, websocket_scope(), [{"type": "websocket.connect"}]))
        assert (sent[0]["type"], is_free(limiter)) == ("websocket.accept", True)
    assert seen == [False] * 2


@pytest.mark.parametrize("ask", ["check", "enforce"])
def test_an_app_without_a_framework_holds_what_it_asks_for_by_name(clock, ask):
    seen = []

    async def under_asgi(scope, receive, send):
        assert await getattr(scope["ratelimit"], ask)("place")
        seen.append(is_free(limiter))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})
        await aeventually(lambda: is_free(limiter))

    def under_wsgi(environ, start_response):
        start_response("200 OK", [])
        yield b"x"
        assert getattr(environ["ratelimit.decision"], ask)("place")
        yield b"y"
        seen.append(is_free(limiter))

    with RateLimiter({**RULES, "rules": [PLACE]}, clock=clock) as limiter:
        for served in (asgi(Asgi(under_asgi, limiter=limiter)), partial(read, Wsgi(under_wsgi, limiter=limiter))):
            assert (served(), is_free(limiter)) == (200, True)
    assert seen == [False] * 2


def test_charges_and_refunds_leave_the_place_and_count_the_window_beside_it(clock):
    seen = []

    async def app(scope, receive, send):
        handle = scope["ratelimit"]
        await handle.enforce("place")
        await handle.charge(2)
        await handle.refund(1)
        seen.append(is_free(limiter))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    both = {**PLACE, "limit": ["1 concurrent", "9 per minute"]}
    with RateLimiter({**RULES, "rules": [both]}, clock=clock) as limiter:
        assert [asgi(Asgi(app, limiter=limiter))() for _ in range(2)] == [200] * 2
        assert (seen, limiter.peek({}, 0, rule="place").remaining) == ([False] * 2, 5)


def test_a_request_that_is_cancelled_while_it_waits_for_its_turn_frees_its_place(clock):
    turns = {**PLACE, "limit": ["1 concurrent", "1 per hour"], "algorithm": "leaky_bucket", "burst": 2}

    async def app(scope, receive, send):
        await scope["ratelimit"].enforce("place")

    async def main():
        middleware = Asgi(app, limiter=limiter)
        await exchange(middleware, http_scope())
        waits = asyncio.ensure_future(exchange(middleware, http_scope()))
        await aeventually(lambda: limiter.engine.storage.in_flight)
        waits.cancel()
        await asyncio.wait([waits])
        await aeventually(lambda: not limiter.engine.storage.in_flight)
        return limiter.peek({}, 0, rule="place")

    with RateLimiter({**RULES, "rules": [turns]}, clock=clock) as limiter:
        asyncio.run(main())


def test_a_reload_and_an_override_keep_what_is_known_of_places(tmp_path, clock):
    file = tmp_path / "rules.yaml"
    text = (
        "domain: places\nstorage: {timeout: 5s}\nclient: {secret: x}\nreload: off\nrules: [{name: a, limit: 9/hour}]\n"
    )
    file.write_text(text)
    seen = []
    with RateLimiter(file, clock=clock) as limiter:
        ask = of_starlette(limiter, *INLINE, lambda: str(seen.append(is_free(limiter))))
        assert (ask(), is_free(limiter)) == (200, True)
        file.write_text(text.replace("9/hour", "8/hour"))
        limiter.reload()
        assert (ask(), is_free(limiter)) == (200, True)
        limiter.overrides.set({"ip": IP}, rule="a", limit="50 per hour")
        assert (ask(), is_free(limiter)) == (200, True)
    assert seen == [False] * 3


def test_a_direct_check_takes_no_place_and_says_so(caplog):
    with RateLimiter({**RULES, "rules": [PLACE]}) as limiter:
        assert [limiter.check({}, rule="place").allowed for _ in range(3)] == [True] * 3
    (line,) = [line for line in caplog.messages if "'place'" in line]
    assert "put the code into a block, with limiter.limited(…)" in line
