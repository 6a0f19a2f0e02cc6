"""The apps of five teams, moved by docs/moving.md alone: what their tests expected of the old limiter still holds.

Each case has the limits as the old app wrote them, the app after the move, and the tests of the old app, as requests
and statuses. The old apps were run with slowapi 0.1.10, Flask-Limiter 4.1.1, fastapi-limiter 0.1.6 and 0.2.0,
django-ratelimit 4.1.0, djangorestframework 3.18.3 and limits 5.8.0, and gave the same statuses, except where `old` has
theirs. The page says each of these differences.
"""

import asyncio
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import NamedTuple

import pytest
from django.test import Client
from django.test.utils import override_settings
from fastapi.testclient import TestClient

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.clock import machine_clock_is
from tests.inside import django_app
from tests.inside.clients import from_address


class Ask(NamedTuple):
    """A request of the old app's tests, sent once for each of the statuses. `old` are those of the old limiter."""

    path: str
    statuses: list[int]
    method: str = "GET"
    headers: Mapping[str, str] = MappingProxyType({})
    form: Mapping[str, str] = MappingProxyType({})
    old: list[int] | None = None


class Wait(NamedTuple):
    """The old app's tests moved the clock."""

    seconds: float


class Move(NamedTuple):
    """One team."""

    was: str
    rules: list[dict[str, object]]
    app: str
    tests: list[Ask | Wait]
    more: Mapping[str, object] = MappingProxyType({})


SLOWAPI = Move(
    was="""
        limiter = Limiter(key_func=get_remote_address, application_limits=["24/hour"], default_limits=["5/minute"])
        @app.get("/search")              @limiter.limit("3/minute")
        @app.get("/items/{item}")        @limiter.limit("2/minute")     (key_style="url")
        @app.get("/tenant")              @limiter.limit("1/minute", key_func=tenant_or_address)
        @app.post("/mail"), /letter      @limiter.shared_limit("2/day", scope="mail")
        @app.get("/plain/{item}")
        @app.get("/large")               @limiter.limit("7/minute")
        @app.get("/health")              @limiter.exempt
    """,
    rules=[
        {"name": "application", "limit": "24/hour", "algorithm": "fixed_window"},
        {"name": "each", "by": "ip+path", "limit": "5/minute", "algorithm": "fixed_window"},
        {"name": "large", "match": {"path": "/large"}, "limit": "7/minute", "replaces": ["each", "application"]},
    ],
    more={"exempt": [{"path": "/health"}]},
    app="""
        from fastapi import FastAPI, Request
        from ratelimit_mw.fastapi import add_rate_limits
        from ratelimit_mw.starlette import limited

        app = FastAPI()
        add_rate_limits(app, RULES)

        @app.get("/search")
        @limited("3/minute", algorithm="fixed_window")
        async def search(request: Request): ...

        @app.get("/items/{item}")
        @limited("2/minute", by="ip+path")
        async def items(request: Request, item: int): ...

        @app.get("/tenant")
        @limited("1/minute", by="header:X-Tenant|ip")
        async def tenant(request: Request): ...

        @app.post("/mail")
        @limited("2/day", shared="mail")
        async def mail(request: Request): ...

        @app.post("/letter")
        @limited("2/day", shared="mail")
        async def letter(request: Request): ...

        @app.get("/plain/{item}")
        async def plain(item: int): ...

        @app.get("/large")
        async def large(): ...

        @app.get("/health")
        async def health(): ...
    """,
    tests=[
        Ask("/search", [200, 200, 200, 429]),
        Wait(60),
        Ask("/search", [200]),
        Ask("/items/1", [200, 200, 429]),
        Ask("/items/2", [200]),
        Ask("/tenant", [200, 429], headers={"X-Tenant": "a"}),
        Ask("/tenant", [200, 429]),
        Ask("/mail", [200], method="POST"),
        Ask("/letter", [200, 429], method="POST"),
        Ask("/large", [200] * 7 + [429]),
        Ask("/plain/1", [200, 200]),
        Ask("/plain/2", [200] * 5 + [429]),
        Ask("/plain/3", [200, 429], old=[200, 200]),  # there, the application's limit leaves out routes with their own
        Ask("/unknown", [429], old=[404]),  # there, only routes are limited
        Ask("/health", [200] * 20),
    ],
)

FLASK_LIMITER = Move(
    was="""
        limiter = Limiter(get_remote_address, app=app, strategy="fixed-window")
        /search    @limiter.limit("2/minute")
        /login     @limiter.limit("2/hour", key_func=name_in_form, deduct_when=lambda r: r.status_code == 401)
        /export    @limiter.limit("1/minute", methods=["POST"], exempt_when=is_admin)
        blueprint  limiter.limit("3/minute")(shop)
    """,
    rules=[{"name": "shop", "match": {"path": "/shop/*"}, "limit": "3/minute", "algorithm": "fixed_window"}],
    app="""
        from flask import Flask, request
        from ratelimit_mw.flask import limited
        from ratelimit_mw.wsgi import RateLimitMiddleware

        app = Flask(__name__)

        @app.get("/search")
        @limited("2/minute", algorithm="fixed_window")
        def search():
            return "found"

        @app.post("/login")
        @limited("2/hour", key=lambda request: request.form["name"],
                 refund_when=lambda response: response.status_code != 401)
        def login():
            return ("welcome", 200) if request.form["password"] == "correct" else ("wrong", 401)

        @app.route("/export", methods=["GET", "POST"])
        @limited("1/minute", methods=["POST"], exempt_when=lambda request: request.headers.get("X-Admin") == "yes")
        def export():
            return "exported"

        @app.get("/shop/<page>")
        def page(page):
            return page

        @app.errorhandler(429)
        def slow_down(error):
            return "slow down", 429

        app.wsgi_app = RateLimitMiddleware(app.wsgi_app, config=RULES)
    """,
    tests=[
        Ask("/search", [200, 200, 429, 429]),
        Wait(60),
        Ask("/search", [200]),
        Ask("/login", [200] * 4, method="POST", form={"name": "ann", "password": "correct"}),
        Ask("/login", [401, 401, 429], method="POST", form={"name": "ann", "password": "wrong"}),
        Ask("/login", [401], method="POST", form={"name": "bob", "password": "wrong"}),
        Ask("/export", [200] * 4),
        Ask("/export", [200, 429], method="POST"),
        Ask("/export", [200, 200], method="POST", headers={"X-Admin": "yes"}),
        Ask("/shop/a", [200, 200]),
        Ask("/shop/b", [200, 429]),
    ],
)

FASTAPI_LIMITER = Move(
    was="""
        /           dependencies=[Depends(RateLimiter(times=2, seconds=5))]      (identifier: address and path)
        /multiple   dependencies=[Depends(RateLimiter(times=1, seconds=5)), Depends(RateLimiter(times=2, seconds=15))]
        /tenant     dependencies=[Depends(RateLimiter(times=1, minutes=1, identifier=tenant))]
        /together   dependencies=[Depends(RateLimiter(limiter=Limiter(Rate(1, Duration.MINUTE)), identifier=tenant))]
        /skipped    @skip_limiter
    """,
    rules=[],
    app="""
        from fastapi import Depends, FastAPI
        from ratelimit_mw.fastapi import add_rate_limits, limited

        app = FastAPI()
        add_rate_limits(app, RULES)

        def once(limit, **options):
            return Depends(limited(limit, algorithm="fixed_window", **options))

        @app.get("/", dependencies=[once("2 per 5 seconds", by="ip+path")])
        async def index(): ...

        @app.get("/multiple", dependencies=[once("1 per 5 seconds"), once("2 per 15 seconds")])
        async def multiple(): ...

        @app.get("/tenant", dependencies=[once("1 per minute", by="header:X-Tenant|ip")])
        async def tenant(): ...

        @app.get("/together", dependencies=[once("1 per minute", by="global")])
        async def together(): ...

        @app.get("/skipped")
        async def skipped(): ...
    """,
    tests=[
        Ask("/", [200, 200, 429]),
        Wait(5),
        Ask("/", [200]),
        Wait(10),
        Ask("/multiple", [200, 429]),
        Wait(5),
        Ask("/multiple", [200]),
        Wait(5),
        Ask("/multiple", [429]),
        Ask("/tenant", [200, 429], headers={"X-Tenant": "a"}),
        Ask("/tenant", [200], headers={"X-Tenant": "b"}),
        Ask("/together", [200], headers={"X-Tenant": "a"}),  # version 0.2 has one counter, whatever `identifier` says
        Ask("/together", [429], headers={"X-Tenant": "b"}),
        Ask("/skipped", [200] * 5),
    ],
)

DJANGO = Move(
    was="""
        mail      @ratelimit(key="user_or_ip", rate="2/h", group="mail")
        login     @ratelimit(key="post:username", rate="2/d", method="POST")
        search    @ratelimit(key="ip", rate="1/h", block=False), and request.limited
        tenant    @ratelimit(key="header:x-tenant", rate="1/h")
        rest      REST_FRAMEWORK: ScopedRateThrottle, {"uploads": "2/hour"}
    """,
    rules=[
        {"name": "search", "limit": "1/h", "on_demand": True},
        {"name": "uploads", "by": "user|ip", "limit": "2/hour", "on_demand": True, "response": {"status": 429}},
    ],
    more={"response": {"status": 403}},
    app="""
        from django.http import HttpResponse
        from django.urls import path
        from ratelimit_mw.django import limited
        from ratelimit_mw.drf import RateLimitThrottle
        from rest_framework.response import Response
        from rest_framework.views import APIView

        @limited("2/h", by="user|ip", shared="mail", algorithm="fixed_window")
        def mail(request):
            return HttpResponse("sent")

        @limited("2/d", key=lambda request: request.POST.get("username"), methods=["POST"])
        def login(request):
            return HttpResponse("welcome")

        def search(request):
            return HttpResponse(status=200 if request.ratelimit.check("search").allowed else 202)

        @limited("1/h", by="header:X-Tenant|ip")
        def tenant(request):
            return HttpResponse("yours")

        class Upload(APIView):
            authentication_classes = []
            throttle_classes = [RateLimitThrottle]
            throttle_scope = "uploads"

            def post(self, request):
                return Response({})

        urlpatterns = [
            path("mail", mail), path("letter", mail), path("login", login), path("search", search),
            path("upload", Upload.as_view()), path("tenant", tenant),
        ]
    """,
    tests=[
        Ask("/mail", [200]),
        Ask("/letter", [200, 403]),
        Wait(3600),
        Ask("/mail", [200]),
        Ask("/login", [200, 200, 403], method="POST", form={"username": "ann"}),
        Ask("/login", [200], method="POST", form={"username": "bob"}),
        Ask("/login", [200] * 3),
        Ask("/search", [200, 202]),
        Ask("/upload", [200, 200, 429], method="POST"),
        Ask("/tenant", [200, 403], headers={"X-Tenant": "a"}),
        Ask("/tenant", [200, 403]),
    ],
)
MOVES = {"slowapi": SLOWAPI, "flask-limiter": FLASK_LIMITER, "fastapi-limiter": FASTAPI_LIMITER, "django": DJANGO}


def module_of(move):
    """The app after the move, as a module, and its rules."""
    rules = {"domain": "shop", "storage": {"timeout": "5s"}, "rules": move.rules, **move.more}
    module = ModuleType("moved")
    module.RULES = rules
    text = "\n".join(line[8:] for line in move.app.split("\n"))
    exec(compile(text, "moved.py", "exec"), vars(module))
    return module


@pytest.fixture
def clock():
    """The clock of all limits, at the beginning of an hour."""
    clock = ManualClock(1_699_999_200)
    with machine_clock_is(clock):
        yield clock


def statuses(ask, moves, clock):
    """Send the requests of the old app's tests, and return the same table with the statuses that came."""
    found = []
    for each in moves:
        if isinstance(each, Wait):
            clock.advance(each.seconds)
            found.append(each)
        else:
            found.append(each._replace(statuses=[ask(each) for _ in each.statuses]))
    return found


@pytest.mark.parametrize("team", ["slowapi", "fastapi-limiter"])
def test_a_fastapi_app_passes_the_tests_of_its_old_limiter(team, clock):
    move = MOVES[team]
    with TestClient(from_address(module_of(move).app, "203.0.113.7")) as client:

        def ask(each):
            return client.request(each.method, each.path, headers=each.headers, data=each.form).status_code

        assert statuses(ask, move.tests, clock) == move.tests


def test_a_flask_app_passes_the_tests_of_flask_limiter(clock):
    client = module_of(FLASK_LIMITER).app.test_client()

    def ask(each):
        return client.open(each.path, method=each.method, headers=each.headers, data=each.form).status_code

    assert statuses(ask, FLASK_LIMITER.tests, clock) == FLASK_LIMITER.tests


def test_a_django_project_passes_the_tests_of_django_ratelimit_and_rest_framework(clock):
    module = module_of(DJANGO)
    assert django_app.urlpatterns  # the import has configured Django
    middleware = ["ratelimit_mw.django.RateLimitMiddleware"]
    with override_settings(ROOT_URLCONF=module, RATELIMIT=module.RULES, MIDDLEWARE=middleware):
        client = Client()

        def ask(each):
            return client.generic(
                each.method,
                each.path,
                "&".join(f"{name}={value}" for name, value in each.form.items()),
                content_type="application/x-www-form-urlencoded",
                headers=each.headers,
            ).status_code

        assert statuses(ask, DJANGO.tests, clock) == DJANGO.tests


def test_code_with_limits_gives_the_same_answers(clock):
    """The fifth team: `limiter = FixedWindowRateLimiter(storage)`, `item = parse("2/hour")`, and another item."""
    other = {"name": "other", "limit": "1/hour"}
    mail = {"name": "mail", "by": "user", "limit": "2/hour", "algorithm": "fixed_window"}
    with RateLimiter({"domain": "shop", "rules": [other, mail]}, storage="memory://", clock=clock) as limiter:

        def hit(name, cost=1):  # limiter.hit(item, "mail", name, cost=cost)
            return bool(limiter.check({}, cost=cost, rule="mail", key=name))

        def test(name):  # limiter.test(item, "mail", name)
            return bool(limiter.peek({}, rule="mail", key=name))

        assert [hit("ann"), hit("ann"), hit("ann"), hit("bob"), hit("cat", cost=2)] == [True, True, False, True, True]
        assert [test("ann"), test("bob"), test("cat")] == [False, True, False]
        limiter.reset({}, rule="mail", key="ann")  # limiter.clear(item, "mail", "ann")
        assert [hit("ann"), test("cat")] == [True, False]
        clock.advance(3600)
        assert asyncio.run(limiter.acheck({}, rule="mail", key="cat")).remaining == 1
