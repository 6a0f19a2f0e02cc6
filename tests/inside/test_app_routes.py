"""`by: ip+route` without `match.path`: a default for each endpoint, by the app's own routes, in each framework."""

import pytest
from django.http import HttpResponse
from django.test.utils import override_settings
from django.urls import include, path
from fastapi import APIRouter, Depends, FastAPI
from fastapi.testclient import TestClient
from flask import Blueprint, Flask
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route, Router, WebSocketRoute
from werkzeug.exceptions import NotFound
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from ratelimit_mw import ConfigurationError, ManualClock, RateLimiter
from ratelimit_mw import fastapi as in_fastapi
from ratelimit_mw import flask as in_flask
from ratelimit_mw import starlette as in_starlette
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.service.servable import unservable
from ratelimit_mw.wsgi import RateLimitMiddleware
from tests.inside.clients import from_address
from tests.inside.test_django_middleware import awaited, blocking

HERE = "tests.inside.test_app_routes"


def rules(by="ip+route", **more):
    rule = {"name": "each", "by": by, "limit": "2 per minute", "algorithm": "fixed_window", **more}
    return {"domain": "routes", "storage": {"timeout": "5s"}, "client": {"secret": "x"}, "rules": [rule]}


@pytest.fixture
def limiter(storage, clock):
    with RateLimiter(rules(), storage=storage, clock=clock) as made:
        yield made


def of_flask(limiter):
    app, shop = Flask("routes", root_path="/"), Blueprint("shop", "shop", url_prefix="/shop")
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)  # before the routes
    app.add_url_rule("/items/<int:number>", "item", lambda number: "")
    app.add_url_rule("/items/<int:number>", "change", lambda number: "", methods=["POST"])
    shop.add_url_rule("/mail", "mail", lambda: "")
    app.register_blueprint(shop)
    client = app.test_client()
    return lambda method, url: client.open(url, method=method)


def starlette_routes():
    async def answer(request):
        return PlainTextResponse("")

    item = Route("/items/{number:int}", answer)
    return [Host("api.example.com", Router([item])), item, Mount("/shop", routes=[Route("/mail", answer)])]


def of_starlette(limiter):
    app = Starlette(routes=starlette_routes(), middleware=[Middleware(Asgi, limiter=limiter)])
    client = TestClient(from_address(app, "192.0.2.1"))
    return client.request


def around_starlette(limiter):
    client = TestClient(from_address(Asgi(Starlette(routes=starlette_routes()), limiter=limiter), "192.0.2.1"))
    return client.request


def of_fastapi(limiter):
    app, shop = FastAPI(), APIRouter(prefix="/shop")
    in_fastapi.add_rate_limits(app, limiter=limiter)  # before the routes
    app.get("/items/{number}")(lambda number: "")
    app.post("/items/{number}")(lambda number: "")
    shop.get("/mail")(lambda: "")
    app.include_router(shop)
    client = TestClient(from_address(app, "192.0.2.1"))
    return client.request


def view(request, number=0, shop=""):
    return HttpResponse()


urlpatterns = [path("items/<int:number>", view), path("shop/", include([path("mail", view)]))]


def of_django(ask):
    def made(limiter):
        def requested(method, url):
            with override_settings(RATELIMIT=limiter, ROOT_URLCONF=HERE):
                return ask([url], method=method)[0]

        return requested

    return made


EACH = pytest.mark.parametrize(
    "of",
    [
        pytest.param(of_flask, id="Flask"),
        pytest.param(of_starlette, id="Starlette"),
        pytest.param(around_starlette, id="around Starlette"),
        pytest.param(of_fastapi, id="FastAPI"),
        pytest.param(of_django(blocking), id="Django"),
        pytest.param(of_django(awaited), id="Django, async"),
    ],
)


def denied(ask, *urls, method="GET"):
    return [ask(method, url).status_code == 429 for url in urls]


@EACH
def test_each_route_has_a_counter_for_all_its_paths(limiter, of):
    ask = of(limiter)
    assert denied(ask, "/items/1", "/items/2", "/items/3", "/items/1") == [False, False, True, True]
    assert denied(ask, "/shop/mail", "/shop/mail", "/shop/mail") == [False, False, True]


@EACH
def test_a_method_that_has_no_route_has_the_route_of_the_path(limiter, of):
    ask = of(limiter)
    assert denied(ask, "/items/1", "/items/2", "/items/3", method="DELETE") == [False, False, True]
    assert denied(ask, "/items/1") == [True]


@EACH
def test_requests_that_no_route_serves_share_a_counter(limiter, of):
    ask = of(limiter)
    assert denied(ask, "/a", "/b", "/shop/c", "/items/1/x") == [False, False, True, True]
    assert denied(ask, "/items/1") == [False]


@pytest.mark.parametrize(
    ("of", "url", "ip", "route"),
    [
        pytest.param(of_flask, "/items/1", "127.0.0.1", "/items/<int:number>", id="Flask"),
        pytest.param(of_starlette, "/shop/mail", "192.0.2.1", "/shop/mail", id="a mount of Starlette"),
        pytest.param(of_starlette, "http://api.example.com/items/7", "192.0.2.1", "/items/{number:int}", id="a host"),
        pytest.param(of_fastapi, "/shop/mail", "192.0.2.1", "/shop/mail", id="a router of FastAPI"),
        pytest.param(of_django(awaited), "/items/7", "127.0.0.1", "/items/<int:number>", id="Django"),
        pytest.param(of_fastapi, "/absent", "192.0.2.1", "-", id="no route"),
    ],
)
def test_a_counter_has_the_template_of_the_app_s_route(limiter, of, url, ip, route):
    of(limiter)("GET", url)
    assert limiter.peek({"ip": ip, "route": route}).used == 1


def test_a_mounted_app_without_routes_of_its_own_is_one_route(limiter):
    async def files(scope, receive, send):
        await PlainTextResponse("")(scope, receive, send)

    app = Starlette(routes=[Mount("/files", files)], middleware=[Middleware(Asgi, limiter=limiter)])
    client = TestClient(from_address(app, "192.0.2.1"))
    assert denied(client.request, "/files/a", "/files/b", "/files/c")[2]


def test_a_rule_with_a_path_counts_by_its_own_template(storage, clock):
    with RateLimiter(rules(match={"path": "/items/*"}), storage=storage, clock=clock) as limiter:
        ask = of_flask(limiter)
        assert denied(ask, "/items/1", "/items/x", "/items/2", "/shop/mail") == [False, False, True, False]


def test_a_limit_in_a_decorator_may_count_by_route(storage, clock):
    with RateLimiter(rules("user"), storage=storage, clock=clock) as limiter:
        app = Flask("routes", root_path="/")
        view = in_flask.limited("1 per minute", by="ip+route")(lambda **_: "")
        app.add_url_rule("/a/<number>", "a", view)
        app.add_url_rule("/b/<number>", "b", view)
        app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)
        client = app.test_client()
        assert denied(lambda _, url: client.get(url), "/a/1", "/b/1", "/a/2", "/b/2") == [False, False, True, True]


def dispatched_flask(limiter, by):
    app = Flask("routes", root_path="/")
    app.add_url_rule("/a", "a", in_flask.limited("1 per minute", by=by)(lambda: ""))
    app.testing = True  # errors are raised
    client = Client(RateLimitMiddleware(DispatcherMiddleware(NotFound(), {"/shop": app}), limiter=limiter))
    return lambda url: client.get(f"/shop{url}")


def dispatched_starlette(limiter, by):
    @in_starlette.limited("1 per minute", by=by)
    async def answer(request):
        return PlainTextResponse("")

    app = Starlette(routes=[Route("/a", answer)])
    return TestClient(from_address(Asgi(dispatcher_of(app), limiter=limiter), "192.0.2.1")).get


def dispatched_fastapi(limiter, by):
    app = FastAPI()
    app.get("/a", dependencies=[Depends(in_fastapi.limited("1 per minute", by=by))])(lambda: "")
    return TestClient(from_address(Asgi(dispatcher_of(app), limiter=limiter), "192.0.2.1")).get


def dispatcher_of(app):
    async def dispatcher(scope, receive, send):
        await app(scope, receive, send)

    return dispatcher


DISPATCHED = pytest.mark.parametrize("of", [dispatched_flask, dispatched_starlette, dispatched_fastapi])


@DISPATCHED
@pytest.mark.parametrize("by", ["ip+route", "user|route"])
def test_a_limit_by_route_fails_loudly_in_an_app_whose_routes_cannot_be_read(storage, clock, of, by):
    with RateLimiter(rules("user"), storage=storage, clock=clock) as limiter:
        ask = of(limiter, by)
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=r"'1 per minute' of .* counts by route, but the routes of"):
                ask("/a")


@DISPATCHED
def test_other_limits_work_in_an_app_whose_routes_cannot_be_read(storage, clock, of):
    with RateLimiter(rules("user"), storage=storage, clock=clock) as limiter:
        ask = of(limiter, "ip+path")
        assert [ask("/a").status_code for _ in range(2)] == [200, 429]


def test_check_takes_the_route_as_an_attribute():
    limiter = RateLimiter(rules(), storage="memory://", clock=ManualClock(1_700_000_040))
    given = {"ip": "192.0.2.1", "route": "/items/{id}"}
    assert [bool(limiter.check(given)) for _ in range(3)] == [True, True, False]
    assert limiter.check({**given, "route": "/other"})
    assert limiter.check({"ip": "192.0.2.1"}).rule is None
    (reason,) = limiter.explain({"ip": "192.0.2.1"}).rules
    assert (reason.status, reason.why) == (
        "no counter",
        "it matches, but has nothing to count by: the request has no route",
    )


def test_a_websocket_has_its_own_route_where_the_plan_of_a_request_to_its_path_is_known(limiter):
    async def accept(websocket):
        await websocket.accept()
        await websocket.close()

    limited = Asgi(Starlette(routes=[WebSocketRoute("/w", accept)]), limiter=limiter)

    async def over_http_2(scope, receive, send):  # where a WebSocket has no Upgrade
        await limited({**scope, "headers": [(b"host", b"shop.example")]}, receive, send)

    client = TestClient(from_address(over_http_2, "::1"))
    assert denied(client.request, "/w", "/w", "/w") == [False, False, True]
    with client.websocket_connect("/w"):
        assert limiter.peek({"ip": "::1", "route": "/w"}).used == 1


def test_an_upgrade_that_no_route_serves_does_not_hide_the_route_of_later_requests(limiter):
    app = Flask("routes", root_path="/")
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)
    app.add_url_rule("/login", "login", lambda: "")
    client = app.test_client()
    upgrades = [client.get("/login", headers={"Connection": "Upgrade", "Upgrade": "websocket"}) for _ in range(2)]
    disguised = [client.get("/login", headers={"Upgrade": "websocket"}) for _ in range(2)]
    assert [each.status_code for each in upgrades + disguised] == [400, 400, 200, 200]
    assert denied(lambda method, url: client.open(url, method=method), "/login") == [True]


def test_a_host_that_no_server_can_have_has_no_route(limiter):
    app = Flask("routes", root_path="/")
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)
    client = app.test_client()
    answers = [client.get("/", headers={"Host": "a..b"}) for _ in range(3)]
    assert [each.status_code for each in answers] == [400, 400, 429]


PER_SHOP = (path("<slug:shop>/<int:number>", view),)


def choosing(get_response):
    """A middleware of Django that chooses the URL patterns."""

    def middleware(request):
        if request.headers.get("X-Shops"):
            request.urlconf = PER_SHOP
        return get_response(request)

    return middleware


def test_url_patterns_that_a_middleware_of_django_chooses_are_those_of_each_request(limiter):
    stack = [f"{HERE}.choosing", "ratelimit_mw.django.RateLimitMiddleware"]
    with override_settings(RATELIMIT=limiter, ROOT_URLCONF=HERE, MIDDLEWARE=stack):
        blocking(["/items/1"] * 2)
        answers = blocking(["/items/1"] * 2, {"X-Shops": "1"})
    assert [answer.status_code for answer in answers] == [200, 200]
    assert limiter.peek({"ip": "127.0.0.1", "route": "/<slug:shop>/<int:number>"}).used == 2


def test_two_apps_of_one_limiter_have_their_own_routes(limiter):
    flask, starlette = of_flask(limiter), of_starlette(limiter)
    for _ in range(3):
        flask("GET", "/items/1")
    assert denied(starlette, "/items/1") == [False]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: RateLimitMiddleware(lambda environ, start: [], config=rules()), id="WSGI"),
        pytest.param(lambda: Asgi(asgi_app, config=rules("route|ip")), id="ASGI"),
    ],
)
def test_an_app_whose_routes_cannot_be_read_is_refused(make):
    with pytest.raises(
        ConfigurationError, match=r"the rule 'each' counts by route without match\.path, but the routes of"
    ):
        make()


async def asgi_app(scope, receive, send):
    pass


def test_a_service_refuses_such_a_rule():
    limiter = RateLimiter(rules(), storage="memory://")
    (problem,) = unservable(limiter.rules)
    assert problem.message.startswith("rules[0].by: the rule 'each' can't be served: route needs match.path here")
