"""The ASGI middleware to the letter of the specification, message by message."""

import asyncio
import contextlib
import contextvars
import gc
import inspect

import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.testclient import TestClient

from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.decision.settlement import Account
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.http.handle import AsyncHandle
from ratelimit_mw.identity.http_request import AsgiRequest
from tests.shells.asking import IP, exchange, http_scope, limiter, rules, serve, websocket_scope

START = {"type": "http.response.start", "status": 200, "headers": []}
END = {"type": "http.response.body", "body": b""}
RATED = [b"x-ratelimit-limit", b"x-ratelimit-remaining", b"x-ratelimit-reset"]


async def ok(scope, receive, send):
    await send(START)
    await send(END)


def names(message):
    return [name for name, _ in message["headers"]]


@pytest.mark.parametrize("kind", ["tunnel", "http.extension"])
def test_unknown_scopes_pass_untouched(kind):
    got = []

    async def app(*arguments):
        got.extend(arguments)

    async def receive(): ...
    async def send(message): ...

    scope = {"type": kind}
    asyncio.run(RateLimitMiddleware(app, limiter=limiter("0 per minute"))(scope, receive, send))
    assert [id(each) for each in got] == [id(scope), id(receive), id(send)]
    assert scope == {"type": kind}


def test_servers_see_that_it_is_a_single_callable():
    assert inspect.iscoroutinefunction(RateLimitMiddleware(ok, limiter=limiter()).__call__)


def test_what_the_app_learns_of_its_request_stays_in_the_server_s_scope():
    """Middlewares further out read the route there, and may read the decision."""
    scope = http_scope()

    async def app(inner, receive, send):
        inner["route"] = "/items/{id}"
        await ok(inner, receive, send)

    serve(RateLimitMiddleware(app, limiter=limiter()), scope)
    assert scope["route"] == "/items/{id}"
    assert scope["ratelimit"].remaining == 1


def test_a_denied_request_s_decision_stands_in_the_scope_too():
    scope = http_scope()
    serve(RateLimitMiddleware(ok, limiter=limiter("0 per minute")), scope)
    assert (scope["ratelimit"].allowed, scope["ratelimit"].retry_after) == (False, float("inf"))


def test_a_denial_comes_before_the_app_and_reads_no_body():
    received = []

    async def app(scope, receive, send):
        raise AssertionError("called")

    async def receive():
        received.append(1)

    sent = []

    async def send(message):
        sent.append(message)

    asyncio.run(RateLimitMiddleware(app, limiter=limiter("0 per minute"))(http_scope(method="POST"), receive, send))
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert received == []


def test_streaming_is_never_buffered():
    """Each chunk has reached the server before the app makes the next."""
    sent = []

    async def app(scope, receive, send):
        await send(START)
        for number in range(5):
            await send({"type": "http.response.body", "body": b"%d" % number, "more_body": True})
            assert sent[-1]["body"] == b"%d" % number
        await send(END)

    async def send(message):
        sent.append(message)

    asyncio.run(RateLimitMiddleware(app, limiter=limiter())(http_scope(), None, send))
    assert names(sent[0]) == RATED
    assert [message["type"] for message in sent] == ["http.response.start", *["http.response.body"] * 6]


@pytest.mark.parametrize(
    "message",
    [
        pytest.param({"type": "http.response.body", "body": b"x", "more_body": True}, id="body"),
        pytest.param({"type": "http.response.trailers", "headers": [(b"a", b"b")]}, id="trailers"),
        pytest.param({"type": "http.response.push", "path": "/a.css", "headers": []}, id="push"),
        pytest.param({"type": "http.response.pathsend", "path": "/tmp/a"}, id="pathsend"),
        pytest.param({"type": "http.response.early_hint", "links": []}, id="early hint"),
        pytest.param({"type": "http.response.debug", "info": {}}, id="debug"),
    ],
)
def test_every_other_message_is_passed_on_as_it_is(message):
    async def app(scope, receive, send):
        await send(message)

    (sent,) = serve(RateLimitMiddleware(app, limiter=limiter()), http_scope())
    assert sent is message


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({}, id="missing"),
        pytest.param({"headers": None}, id="None"),
        pytest.param({"headers": []}, id="empty"),
        pytest.param({"headers": iter(())}, id="an iterator"),
        pytest.param({"headers": ()}, id="a tuple"),
    ],
)
def test_the_app_s_headers_may_be_any_iterable_or_none(headers):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, **headers})

    (start,) = serve(RateLimitMiddleware(app, limiter=limiter()), http_scope())
    assert (start["status"], names(start)) == (204, RATED)


def test_names_in_mixed_case_are_recognised_and_kept():
    async def app(scope, receive, send):
        await send({**START, "headers": [[b"X-RateLimit-Reset", b"soon"]]})

    (start,) = serve(RateLimitMiddleware(app, limiter=limiter()), http_scope())
    assert start["headers"] == [[b"X-RateLimit-Reset", b"soon"]]


def test_a_response_that_the_app_uses_again_and_again_gathers_no_headers():
    response = PlainTextResponse("ok")
    app = RateLimitMiddleware(response, limiter=limiter("9 per minute"))
    first, second = (serve(app, http_scope())[0] for _ in range(2))
    assert len(first["headers"]) == len(second["headers"]) == 5
    assert len(response.raw_headers) == 2


def test_of_two_middlewares_the_inner_one_speaks():
    """Nested, as under a mount: no header twice, and the decision is the one closest to the app."""
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["ratelimit"].limit)
        await ok(scope, receive, send)

    inner = RateLimitMiddleware(app, limiter=limiter("7 per minute"))
    start = serve(RateLimitMiddleware(inner, limiter=limiter("5 per minute")), http_scope())[0]
    assert dict(start["headers"])[b"x-ratelimit-limit"] == b"7"
    assert names(start) == RATED
    assert seen == [7]


def test_several_apps_share_one_engine():
    engine = limiter("2 per minute")
    one, two = RateLimitMiddleware(ok, limiter=engine), RateLimitMiddleware(ok, limiter=engine)
    assert [serve(app, http_scope())[0]["status"] for app in (one, two, one)] == [200, 200, 429]


def test_an_oserror_from_send_reaches_the_app():
    """Servers raise it where the client has left (ASGI 2.4)."""
    caught = []

    async def app(scope, receive, send):
        try:
            await send(START)
        except OSError as error:
            caught.append(error)
            raise

    async def send(message):
        raise OSError("gone")

    with pytest.raises(OSError, match="gone") as raised:
        asyncio.run(RateLimitMiddleware(app, limiter=limiter())(http_scope(), None, send))
    assert caught == [raised.value]


def test_an_oserror_from_send_is_not_hidden_by_a_denial():
    async def send(message):
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        asyncio.run(RateLimitMiddleware(ok, limiter=limiter("0 per minute"))(http_scope(), None, send))


def test_the_app_s_exceptions_propagate():
    async def app(scope, receive, send):
        raise LookupError("the app's own")

    with pytest.raises(LookupError, match="the app's own"):
        serve(RateLimitMiddleware(app, limiter=limiter()), http_scope())


def test_a_disconnect_reaches_the_app():
    got = []

    async def app(scope, receive, send):
        got.append((await receive())["type"])
        got.append((await receive())["type"])

    serve(RateLimitMiddleware(app, limiter=limiter()), http_scope())
    assert got == ["http.request", "http.disconnect"]


def test_contextvars_pass_in_and_out_as_without_the_middleware():
    variable = contextvars.ContextVar("variable", default="unset")
    seen = []

    async def app(scope, receive, send):
        seen.append(variable.get())
        variable.set("by the app")
        await ok(scope, receive, send)

    async def run():
        variable.set("by the server")
        await exchange(RateLimitMiddleware(app, limiter=limiter()), http_scope())
        seen.append(variable.get())

    asyncio.run(run())
    assert seen == ["by the server", "by the app"]


def test_background_tasks_run_after_the_response_was_sent():
    order = []

    async def endpoint(request):
        return PlainTextResponse("ok", background=BackgroundTask(order.append, "task"))

    async def send(message):
        order.append(message["type"])

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    app = Starlette(routes=[Route("/", endpoint)], middleware=[Middleware(RateLimitMiddleware, limiter=limiter())])
    asyncio.run(app(http_scope(), receive, send))
    assert order == ["http.response.start", "http.response.body", "task"]


def test_a_request_cancelled_while_it_is_decided_was_never_there(any_server):
    """Its CancelledError propagates, the app is not called, and the connection serves the next request."""
    called = []

    async def app(scope, receive, send):
        called.append(scope["path"])
        await ok(scope, receive, send)

    async def run(engine):
        limited = RateLimitMiddleware(app, limiter=engine)
        await exchange(limited, http_scope("/warm"))
        tasks = [asyncio.create_task(exchange(limited, http_scope(f"/{number}"))) for number in range(20)]
        await asyncio.sleep(0)  # all of them wait for the store now
        for task in tasks[::2]:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(each, asyncio.CancelledError) for each in done] == [True, False] * 10
        assert {sent[0]["status"] for sent in done[1::2]} == {200}
        await engine.aclose()

    asyncio.run(run(limiter("100 per minute", storage=any_server.url)))
    assert sorted(called) == sorted(["/warm", *(f"/{number}" for number in range(1, 20, 2))])


async def looking(scope, receive, send):
    limits = scope["ratelimit"]
    await limits.charge(2)
    await limits.refund(1)
    await limits.check("everybody")
    await ok(scope, receive, send)


async def raising(scope, receive, send):
    raise LookupError("the app's own")


@pytest.mark.parametrize(
    ("app", "limit"),
    [
        pytest.param(ok, "1000 per minute", id="allowed"),
        pytest.param(ok, "0 per minute", id="denied"),
        pytest.param(raising, "1000 per minute", id="the app raises"),
        pytest.param(looking, "1000 per minute", id="the app charges, refunds and checks"),
        pytest.param(ok, "5 concurrent", id="held until its end"),
        pytest.param(RateLimitMiddleware(looking, limiter=limiter()), "1000 per minute", id="one in another"),
    ],
)
def test_a_request_that_has_ended_leaves_nothing_to_the_garbage_collector(app, limit):
    """Scope, handle and request name each other while it lasts; a cycle left of each is a pause for all, later."""

    async def run():
        rule = {"name": "everybody", "by": "ip", "limit": limit}
        limited = RateLimitMiddleware(app, limiter=limiter(rules=[rule]))

        async def ask(times):
            for _ in range(times):
                with contextlib.suppress(LookupError):
                    await exchange(limited, http_scope())

        await ask(1)  # what is made once is not meant
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await ask(5)
            gc.collect()
            return [
                type(each) for each in gc.garbage if isinstance(each, AsgiRequest | AsyncHandle | Verdict | Account)
            ]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    assert asyncio.run(run()) == []


def test_one_middleware_serves_one_event_loop_after_another(any_server):
    """Test clients make a loop for each test. No loop gets another's connection, and none leaves one behind."""
    app = RateLimitMiddleware(ok, limiter=limiter("2 per minute", storage=any_server.url))
    assert [serve(app, http_scope())[0]["status"] for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        pytest.param("/größe/🦉", 429, id="as it is"),
        pytest.param("/größe/x", 429, id="another name, the same route"),
        pytest.param("/grosse/🦉", 200, id="another path"),
    ],
)
def test_utf_8_paths(path, status):
    closed = {"name": "closed", "by": "route", "limit": "0 per hour", "match": {"path": "/größe/{name}"}}
    start = serve(RateLimitMiddleware(ok, limiter=limiter(rules=[closed])), http_scope(path, raw_path=None))[0]
    assert start["status"] == status


# -------------------------------------------------------------------------------------------- Starlette


async def hello(request):
    return PlainTextResponse("hello")


async def remaining(request):
    return PlainTextResponse(str(request.scope["ratelimit"].remaining))


def client(app):
    async def from_one_address(scope, receive, send):  # Starlette 0.40's TestClient can't be told of one
        await app(scope if scope["type"] == "lifespan" else {**scope, "client": (IP, 40_000)}, receive, send)

    return TestClient(from_one_address)


def test_an_app_whose_routes_are_a_method_is_served():
    class App:
        def __init__(self, inner):
            self.inner, self.app = inner, self

        def routes(self):
            raise AssertionError("another framework's method is not called")

        async def __call__(self, scope, receive, send):
            await self.inner(scope, receive, send)

    class Around(App):
        routes = property()  # has none

    for app in (App(ok), Around(ok)):
        around = RateLimitMiddleware(app, limiter=limiter("1 per minute"))
        assert [serve(around, http_scope())[0]["status"] for _ in range(2)] == [200, 429]


def test_starlette_end_to_end():
    app = Starlette(
        routes=[Route("/", remaining, methods=["GET", "HEAD"])],
        middleware=[Middleware(RateLimitMiddleware, limiter=limiter("2 per minute"))],
    )
    web = client(app)
    first = web.get("/")
    assert (first.status_code, first.text, first.headers["X-RateLimit-Remaining"]) == (200, "1", "1")
    assert web.head("/").headers["X-RateLimit-Remaining"] == "0"
    denied = web.get("/")
    assert (denied.status_code, denied.json()) == (429, {"message": "Too many requests"})
    assert denied.headers["Retry-After"] == "40"


def test_starlette_s_error_responses_are_limited_too():
    """404, 405 and whatever an exception handler says: each was a request."""
    app = Starlette(
        routes=[Route("/", hello, methods=["POST"])],
        middleware=[Middleware(RateLimitMiddleware, limiter=limiter("2 per minute"))],
    )
    web = client(app)
    answers = [web.get("/nothing"), web.get("/"), web.get("/nothing")]
    assert [answer.status_code for answer in answers] == [404, 405, 429]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]


def test_starlette_streams_through_it():
    async def chunks():
        for _ in range(3):
            yield b"chunk "

    async def stream(request):
        return StreamingResponse(chunks())

    app = Starlette(routes=[Route("/", stream)], middleware=[Middleware(RateLimitMiddleware, limiter=limiter())])
    answer = client(app).get("/")
    assert (answer.text, answer.headers["X-RateLimit-Remaining"]) == ("chunk chunk chunk ", "1")


def test_under_a_mount_paths_are_the_inner_app_s():
    """The same rules outside and inside a mount: each middleware sees the path as its own router does."""
    inside = limiter(rules=[{"name": "items", "by": "ip", "limit": "5 per hour", "match": {"path": "/items/{id}"}}])
    outside = limiter(
        rules=[{"name": "items", "by": "ip", "limit": "1 per hour", "match": {"path": "/api/items/{id}"}}]
    )
    mounted = Starlette(
        routes=[Route("/items/{id}", hello), Route("/free", hello)],
        middleware=[Middleware(RateLimitMiddleware, limiter=inside)],
    )
    app = Starlette(
        routes=[Mount("/api", mounted), Route("/items/{id}", hello)],
        middleware=[Middleware(RateLimitMiddleware, limiter=outside)],
    )
    web = client(app)
    assert web.get("/items/1").headers.get("X-RateLimit-Limit") is None, "not the mounted app's"
    assert web.get("/api/free").headers.get("X-RateLimit-Limit") is None
    assert web.get("/api/items/1").headers["X-RateLimit-Limit"] == "5"
    denied = web.get("/api/items/2")
    assert (denied.status_code, denied.headers["X-RateLimit-Limit"]) == (429, "1")


def test_mounted_twice_under_one_engine_is_one_budget():
    engine = limiter("3 per minute")

    def part():
        return Starlette(routes=[Route("/", hello)], middleware=[Middleware(RateLimitMiddleware, limiter=engine)])

    web = client(Starlette(routes=[Mount("/a", part()), Mount("/b", part())]))
    assert [web.get(path).status_code for path in ("/a/", "/b/", "/a/", "/b/")] == [200, 200, 200, 429]


# ----------------------------------------------------------------------------------------- construction


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({}, id="neither"),
        pytest.param({"config": rules(), "limiter": limiter()}, id="both"),
        pytest.param({"limiter": limiter(), "storage": "memory://"}, id="storage beside a limiter"),
    ],
)
def test_exactly_one_of_config_and_limiter(arguments):
    with pytest.raises(TypeError, match="RateLimitMiddleware takes"):
        RateLimitMiddleware(ok, **arguments)


def test_storage_wins_over_the_config_s(any_server):
    config = rules("1 per hour", storage={"url": "memory://"})
    app = RateLimitMiddleware(ok, config, storage=any_server.url)
    assert [serve(app, http_scope())[0]["status"] for _ in range(2)] == [200, 429]
    assert len(any_server.keys()) == 1
    app.limiter.close()


# -------------------------------------------------------------------------------------------- websocket


async def accepting(scope, receive, send):
    await receive()
    await send({"type": "websocket.accept", "headers": [(b"x-own", b"1")]})
    await send({"type": "websocket.send", "text": "hello"})
    await send({"type": "websocket.close"})


CONNECT = ({"type": "websocket.connect"},)


def test_a_websocket_s_accept_carries_the_rate_headers():
    sent = serve(RateLimitMiddleware(accepting, limiter=limiter()), websocket_scope(), incoming=CONNECT)
    assert [message["type"] for message in sent] == ["websocket.accept", "websocket.send", "websocket.close"]
    assert names(sent[0]) == [b"x-own", *RATED]


def test_a_websocket_that_the_app_refuses_carries_them_too():
    async def refusing(scope, receive, send):
        await send({"type": "websocket.http.response.start", "status": 401, "headers": []})
        await send({"type": "websocket.http.response.body", "body": b""})

    sent = serve(RateLimitMiddleware(refusing, limiter=limiter()), websocket_scope(), incoming=CONNECT)
    assert (sent[0]["status"], names(sent[0])) == (401, RATED)


def test_a_websocket_is_denied_by_a_response_where_the_server_offers_it():
    scope = websocket_scope(extensions={"websocket.http.response": {}})
    start, body = serve(RateLimitMiddleware(accepting, limiter=limiter("0 per minute")), scope, incoming=CONNECT)
    assert (start["type"], start["status"]) == ("websocket.http.response.start", 429)
    assert dict(start["headers"])[b"cache-control"] == b"no-store"
    assert body == {"type": "websocket.http.response.body", "body": b'{"message": "Too many requests"}'}


@pytest.mark.parametrize("extensions", [{}, {"extensions": {}}, {"extensions": None}, {"extensions": {"tls": {}}}])
def test_a_websocket_is_denied_by_a_close_before_accept_where_it_does_not(extensions):
    scope = websocket_scope(**extensions)
    sent = serve(RateLimitMiddleware(accepting, limiter=limiter("0 per minute")), scope, incoming=CONNECT)
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_a_websocket_that_the_store_s_absence_denies_is_told_to_come_back():
    strict = [{"name": "a", "by": "ip", "limit": "9 per hour", "on_error": "deny"}]
    with limiter(rules=strict, storage="redis://127.0.0.1:1/0") as engine:
        sent = serve(RateLimitMiddleware(accepting, limiter=engine), websocket_scope(), incoming=CONNECT)
    assert sent == [{"type": "websocket.close", "code": 1013}]


def test_a_handshake_counts_as_a_get_of_its_path():
    gets = [{"name": "gets", "by": "ip", "limit": "1 per hour", "match": {"path": "/feed", "methods": ["GET"]}}]
    app = RateLimitMiddleware(accepting, limiter=limiter(rules=gets))
    first, second = (serve(app, websocket_scope("/feed"), incoming=CONNECT) for _ in range(2))
    assert first[0]["type"] == "websocket.accept"
    assert second[0]["type"] == "websocket.close"


def test_starlette_s_websockets_end_to_end():
    async def feed(socket):
        await socket.accept()
        await socket.send_text(str(socket.scope["ratelimit"].remaining))
        await socket.close()

    app = Starlette(
        routes=[WebSocketRoute("/", feed)], middleware=[Middleware(RateLimitMiddleware, limiter=limiter("1 per hour"))]
    )
    web = client(app)
    with web.websocket_connect("/") as socket:
        assert socket.receive_text() == "0"
        assert dict(socket.extra_headers)[b"x-ratelimit-limit"] == b"1"
    from starlette.testclient import WebSocketDenialResponse

    with pytest.raises(WebSocketDenialResponse) as denied, web.websocket_connect("/"):
        pass
    assert denied.value.status_code == 429
    assert denied.value.json() == {"message": "Too many requests"}
