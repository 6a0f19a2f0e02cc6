"""`limited` in a Starlette app: in this process on memory, and under uvicorn on Redis."""

import asyncio
from contextlib import suppress
from functools import partial
from typing import Annotated
from uuid import uuid4

import pytest
from fastapi import Depends, FastAPI, Request
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint, WebSocketEndpoint
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.websockets import WebSocketDisconnect

from ratelimit_mw import ConfigurationError
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.fastapi import add_rate_limits
from ratelimit_mw.fastapi import limited as limited_dependency
from ratelimit_mw.starlette import limited
from tests.inside.alike import (
    a_denied_head_request_has_the_length_of_get,
    a_third_websocket_is_refused,
    the_second_waits_for_its_turn,
    two_are_allowed_and_the_third_is_denied_by_the_section,
)
from tests.inside.clients import client_of
from tests.inside.rules import DENIED, RULES
from tests.inside.starlette_app import app, mail
from tests.shells.asking import serve, websocket_scope

client = client_of(lambda: TestClient(app), uvicorn={"app": "tests.inside.starlette_app:app", "workers": 2})


@pytest.mark.parametrize(
    "path", ["/mail", "/blocking", "/partial", "/class", "/subclass", "/methods", "/both", "/mounted/mail"]
)
def test_a_decorated_endpoint_is_limited_and_denied_by_the_response_section(client, me, path):
    two_are_allowed_and_the_third_is_denied_by_the_section(client, path, me)


def test_the_responses_of_the_endpoints_stay_as_they_are(client, me):
    assert client.get("/subclass", headers=me).text == "below"
    assert client.get("/mail", headers=me).headers["X-Own"] == "1"
    assert mail.__name__ == "mail"


@pytest.mark.parametrize("path", ["/class", "/methods"])
def test_methods_that_are_not_async_share_the_rule(client, me, path):
    answers = [client.request(method, path, headers=me) for method in ("POST", "GET", "POST")]
    assert [answer.status_code for answer in answers] == [200, 200, 429]


def test_other_methods_of_a_class_are_free(client, me):
    assert [client.put("/methods", headers=me).text for _ in range(4)] == ["put"] * 4


def test_a_denied_head_request_has_the_length_of_get_and_no_body(client, me):
    a_denied_head_request_has_the_length_of_get(client, "/mail", me)


def test_a_cost_is_multiplied_by_that_of_the_rule(client, me):
    assert [client.get("/export", headers=me).status_code for _ in range(3)] == [200, 200, 429]


def test_an_endpoint_waits_for_its_turn(client, me):
    the_second_waits_for_its_turn(client, me)


@pytest.mark.parametrize("path", ["/socket", "/socket-class", "/socket-method"])
def test_a_websocket_is_refused_with_a_response(client, me, path):
    if isinstance(client, TestClient) and path == "/socket-method":
        pytest.skip("Starlette 0.40's test client sends no disconnect, for which a denied on_connect waits")
    a_third_websocket_is_refused(client, path, me)


def test_a_websocket_that_is_accepted_is_closed_when_a_message_is_denied(me):
    with TestClient(app) as client, client.websocket_connect("/echo", headers=me) as socket:
        for _ in range(2):
            socket.send_text("hello")
            assert socket.receive_text() == "hello"
        socket.send_text("hello")
        with pytest.raises(WebSocketDisconnect) as closed:
            socket.receive_text()
    assert closed.value.code == 1008


@limited("away")
async def never(websocket):
    raise AssertionError(websocket)


@limited("away")
class Never(WebSocketEndpoint):
    async def on_connect(self, websocket):
        raise AssertionError(websocket)


@pytest.mark.parametrize("endpoint", [never, Never])
def test_a_websocket_is_closed_where_the_server_cannot_send_a_response(endpoint):
    app = Starlette(routes=[WebSocketRoute("/", endpoint)])
    app.add_middleware(RateLimitMiddleware, config=RULES, storage="memory://")
    scope = {**websocket_scope(), "headers": [(b"x-client", b"me")]}
    (message,) = serve(app, scope)
    assert (message["type"], message["code"]) == ("websocket.close", 1008)


def starlette(rule, **options):
    return Starlette(routes=[Route("/", limited(rule)(lambda request: PlainTextResponse("sent")))], **options)


@pytest.mark.parametrize(
    "nested", [lambda app: app, lambda app: Starlette(routes=[Mount("/inner", app)])], ids=["itself", "mounted"]
)
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        pytest.param("mial", r"the rule 'mial', which does not exist \(did you mean 'mail'\?\)", id="misspelt"),
        pytest.param("logins", r"'logins', but its count depends on the response", id="count"),
    ],
)
@pytest.mark.parametrize("around", [False, True], ids=["add_middleware", "around"])
def test_an_app_does_not_start_if_a_decorator_names_a_rule_that_cannot_be_used(nested, rule, message, around):
    late = {"name": "logins", "limit": "1 per day", "count": {"status": 401}}
    config = {**RULES, "rules": [*RULES["rules"], late]}
    wrapped = nested(starlette(rule))
    if around:
        wrapped = RateLimitMiddleware(wrapped, config=config)
    else:
        wrapped.add_middleware(RateLimitMiddleware, config=config)
    with pytest.raises(ConfigurationError, match=message), TestClient(wrapped):
        pass


def test_the_methods_of_classes_are_checked_at_start():
    class Misspelt(HTTPEndpoint):
        @limited("mial")
        async def get(self, request):
            raise AssertionError(request)

    wrapped = Starlette(routes=[Route("/", Misspelt)])
    wrapped.add_middleware(RateLimitMiddleware, config=RULES)
    with pytest.raises(ConfigurationError, match="'mial'"), TestClient(wrapped):
        pass


def test_without_a_lifespan_a_misspelt_name_is_logged_and_fails_its_own_endpoint(caplog, me):
    wrapped = starlette("mial")
    wrapped.add_route("/free", lambda request: PlainTextResponse("free"))
    wrapped.add_middleware(RateLimitMiddleware, config=RULES)
    client = TestClient(wrapped)
    assert client.get("/free", headers=me).status_code == 200
    with pytest.raises(LookupError, match="'mial', which does not exist"):
        client.get("/", headers=me)
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert message.startswith("these rules cannot be used by name, and a request that needs one fails")


def test_without_the_middleware_it_says_what_is_missing():
    with TestClient(starlette("mail")) as client, pytest.raises(RuntimeError, match=r"'mail'.*app\.add_middleware"):
        client.get("/")


def test_what_cannot_be_decorated_is_a_type_error():
    with pytest.raises(TypeError, match="subclasses of HTTPEndpoint or WebSocketEndpoint, not <class 'dict'>"):
        limited("mail")(dict)
    with pytest.raises(TypeError, match=r"give .*nothing an argument for it, as in .*nothing\(request: Request\)"):

        @limited("mail")
        async def nothing():
            raise AssertionError

    fast = FastAPI()

    @fast.get("/{item}")
    @limited("mail")
    async def other(item: str) -> str:
        return item

    add_rate_limits(fast, RULES)
    with TestClient(fast) as client, pytest.raises(TypeError, match="other an argument for it"):
        client.get("/7")


@pytest.fixture(params=[True, False], ids=["add_rate_limits", "add_middleware"])
def fastapi(request):
    """A FastAPI app with a decorated endpoint of each kind."""
    fast = FastAPI()

    @fast.get("/awaited/{item}")
    @limited("mail")
    async def awaited(request: Request, item: int) -> dict[str, int]:
        return {"item": item}

    @fast.get("/blocking/{item}")
    @limited("mail")
    def blocking(item: int, shown: Annotated[str, "a query"], request: Request) -> dict[str, object]:
        return {"item": item, "shown": shown}

    if request.param:
        add_rate_limits(fast, RULES)
    else:
        fast.add_middleware(RateLimitMiddleware, config=RULES)
    return fast


def test_endpoints_of_fastapi_keep_their_arguments(fastapi, me):
    with TestClient(fastapi) as client:
        assert client.get("/awaited/7", headers=me).json() == {"item": 7}
        assert client.get("/blocking/7?shown=x", headers=me).json() == {"item": 7, "shown": "x"}
        denied = client.get("/awaited/7", headers=me)
        assert (denied.status_code, denied.json()) == (429, DENIED)
        assert client.get("/awaited/seven", headers=me).status_code == 422


def test_the_openapi_document_of_fastapi_shows_the_denial_of_a_decorator(me):
    fast = FastAPI()

    @fast.get("/")
    @limited("mail")
    async def read(request: Request) -> str:
        return "read"

    add_rate_limits(fast, RULES)
    assert set(fast.openapi()["paths"]["/"]["get"]["responses"]) == {"200", "429"}


def test_an_endpoint_that_is_not_async_runs_in_a_thread(me):
    loops = []

    @limited("mail")
    def blocking(request):
        with suppress(RuntimeError):
            loops.append(asyncio.get_running_loop())
        return PlainTextResponse("sent")

    threaded = Starlette(routes=[Route("/", blocking)])
    threaded.add_middleware(RateLimitMiddleware, config=RULES, storage="memory://")
    with TestClient(threaded) as client:
        assert client.get("/", headers=me).text == "sent"
    assert loops == []


def test_a_fastapi_app_does_not_start_if_a_decorator_misspells_a_name():
    fast = FastAPI()
    fast.add_api_route("/", limited("mial")(lambda request: "x"), methods=["GET"], response_model=None)
    add_rate_limits(fast, RULES)
    with pytest.raises(ConfigurationError, match="'mial'"), TestClient(fast):
        pass


def test_inline_limits_hold_over_all_workers_and_each_client_has_its_own(client, me):
    answers = [client.get("/inline", headers=me) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["X-RateLimit-Remaining"] == "1"
    assert answers[2].json() == {"message": "2 of tests.inside.starlette_app:inline[1], that is all"}
    assert client.get("/inline", headers={"X-Client": uuid4().hex}).status_code == 200


def test_a_denial_by_a_function_of_the_app_keeps_its_cookie(me):
    handler = f"python:{with_a_cookie.__module__}:with_a_cookie"
    rules = {**RULES, "response": {"handler": handler}}
    limited_app = Starlette(routes=[Route("/", limited("away")(lambda request: PlainTextResponse("sent")))])
    limited_app.add_middleware(RateLimitMiddleware, config=rules, storage="memory://")
    fast = FastAPI(dependencies=[Depends(limited_dependency("away"))])
    fast.add_api_route("/", lambda: "sent")
    add_rate_limits(fast, rules, storage="memory://")
    for each in (limited_app, fast):
        with TestClient(each) as client:
            denied = client.get("/", headers=me)
        assert (denied.status_code, denied.text) == (403, "no")
        assert denied.headers["Set-Cookie"] == "a=1"


def test_fastapi_s_own_answer_to_a_denial_keeps_its_cookie(me):
    handler = f"python:{with_a_cookie.__module__}:with_a_cookie"
    fast = FastAPI(dependencies=[Depends(limited_dependency("away"))])
    fast.add_api_route("/", lambda: "sent")
    fast.add_middleware(RateLimitMiddleware, config={**RULES, "response": {"handler": handler}}, storage="memory://")
    with TestClient(fast) as client:
        denied = client.get("/", headers=me)
    assert (denied.status_code, denied.json()) == (403, {"detail": "Forbidden"})
    assert denied.headers["Set-Cookie"] == "a=1"


def with_a_cookie(request, decision):
    return 403, {"Set-Cookie": "a=1"}, "no"


class Called:
    async def __call__(self, request: Request, greeting: str = "called"):
        return PlainTextResponse(greeting)


class Later:
    """What compiled and wrapped functions return: it can be awaited, but is no coroutine."""

    def __await__(self):
        yield
        return PlainTextResponse("called")


class CalledLater:
    def __call__(self, request: Request):
        return Later()


@pytest.mark.parametrize(
    "endpoint",
    [Called(), partial(Called(), greeting="called"), CalledLater()],
    ids=["object", "partial", "no coroutine"],
)
def test_an_endpoint_that_is_an_object_with_an_async_call_is_awaited(endpoint):
    limits = RateLimitMiddleware(Starlette(routes=[Route("/", limited("1 per minute")(endpoint))]), config=RULES)
    with TestClient(limits) as client:
        assert client.get("/").text == "called"
        assert client.get("/").status_code == 429
