"""Rules against the routers of the other frameworks: where a handler runs, the rule of its route must have counted."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from tests.shells.asking import exchange
from tests.support.routers import (
    ASGI,
    TEMPLATES,
    WSGI,
    Routed,
    django_settings,
    limiter,
    ran,
    requests_to,
    scopes,
    served,
)

APPS = [*(("asgi", name) for name in ASGI), *(("wsgi", name) for name in WSGI)]
UUID = "0e0cbbd4-1a6d-4f23-9c5e-2f8f10a1b2c3"


class Wrapper:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)


@pytest.fixture(params=APPS, ids=" ".join)
def routed(request) -> Iterator[Routed]:
    found = Routed(*request.param)
    yield found
    found.close()


def test_no_spelling_of_a_target_runs_a_handler_uncounted(routed):
    @settings(max_examples=60, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(requests_to(routed.kind))
    def check(sent):
        assert routed.missed(*sent) == []

    check()


# Each runs the handler: framework, target, root_path, template.
NAMED = [
    ("asgi quart", "http://h/login", "", "/login"),
    ("asgi quart", "foo:/login", "", "/login"),
    ("asgi quart", "%0A/login", "", "/login"),
    ("asgi quart", "http://h/login;x", "", "/login"),
    ("asgi quart", "http://h/login%3Fx", "", "/login"),
    ("asgi quart", "http://h/items/7", "", "/items/{id:int}"),
    ("asgi quart", "/apilogin", "/api", "/login"),
    ("asgi quart", "login", "/api", "/login"),
    ("asgi litestar", "login", "", "/login"),
    ("asgi litestar", "/x/api/login", "/api", "/login"),
    ("asgi litestar", "/apilogin", "/api", "/login"),
    ("asgi litestar", "http://h/api/login", "/api", "/login"),
    ("asgi litestar", "/items/+7", "", "/items/{id:int}"),
    ("asgi litestar", "/things/" + "-".join(UUID.replace("-", "")), "", "/things/{u:uuid}"),
    ("asgi litestar", "/prices/" + "0" * 5000 + "7.5", "", "/prices/{x:float}"),
    ("asgi litestar", "//users/..", "", "/users/{name}"),
    ("asgi fastapi", "/items/+7", "", "/items/{id:int}"),
    ("asgi fastapi", "/items/7%0D", "", "/items/{id:int}"),
    ("asgi fastapi", "/items/7.0", "", "/items/{id:int}"),
    ("asgi fastapi", "/items/" + "0" * 5000 + "7", "", "/items/{id:int}"),
    ("asgi starlette", "/../enter%0A", "", "/{tenant}/enter"),
    ("asgi falcon", "/items/+7", "", "/items/{id:int}"),
    ("wsgi falcon", "/items/1_0", "", "/items/{id:int}"),
    ("wsgi falcon", f"/things/{{{UUID}}}", "", "/things/{u:uuid}"),
    ("wsgi flask", "/items/%EF%BC%97", "", "/items/{id:int}"),
    ("wsgi flask", "/prices/%D9%A1.%D9%A5", "", "/prices/{x:float}"),
    ("wsgi flask", "//users/..", "", "/users/{name}"),
    ("wsgi bottle", "/login%FF", "", "/login"),
    ("wsgi bottle", "/items/7%C3", "", "/items/{id:int}"),
    ("wsgi flask", "../enter", "", "/{tenant}/enter"),
    ("wsgi falcon", "../enter", "", "/{tenant}/enter"),
    ("asgi litestar", "../enter", "", "/{tenant}/enter"),
    ("wsgi bottle", "%FF/users/%EF%BF%BD", "", "/users/{name}"),
    ("wsgi flask", "users/%0A", "", "/users/{name}"),
    ("wsgi flask", "//users/%0A", "", "/users/{name}"),
    ("wsgi falcon", "users/%0A", "", "/users/{name}"),
    ("asgi litestar", "/users//%0A", "", "/users/{name}"),
    ("wsgi bottle", "/items/-7", "", "/items/{id:int}"),
]


@pytest.mark.parametrize(
    ("app", "target", "root", "template"), NAMED, ids=[f"{a} {t[:30]} {r}" for a, t, r, _ in NAMED]
)
def test_a_handler_that_runs_by_an_unusual_target_is_counted(app, target, root, template):
    routed = Routed(*app.split())
    try:
        assert template in routed.ran(target.encode(), root)
        assert routed.missed(target.encode(), root) == []
    finally:
        routed.close()


@pytest.mark.parametrize("target", ["/login", "/api/login", "/api/items/07", "/items/7"])
def test_the_middleware_of_django_cuts_its_forced_script_name_off(target):
    inside = {"MIDDLEWARE": ["ratelimit_mw.django.RateLimitMiddleware"], "RATELIMIT": limiter()}
    with django_settings(**inside, FORCE_SCRIPT_NAME="/api"):
        app = ASGI["django"]()
        for scope in scopes(target.encode()):
            ran.clear()
            first, *_ = asyncio.run(served(app, scope))
            assert (b"X-RateLimit-Limit" in dict(first["headers"])) == bool(ran)
            assert ran or not scope["path"].startswith("/api")


@pytest.mark.parametrize("wrap", [lambda app: app, Wrapper])
@pytest.mark.parametrize("target", ["/api/login", "/login", "/api//login", "/api/items/07"])
def test_the_root_path_of_a_fastapi_app_is_cut_off_from_outside(wrap, target):
    app = ASGI["fastapi"]()
    app.root_path = "/api"
    counting = Asgi(wrap(app), limiter=limiter())
    for scope in scopes(target.encode()):
        ran.clear()
        asyncio.run(exchange(counting, scope))
        names = [policy.rule for policy in scope["ratelimit"].policies]
        assert [TEMPLATES[int(name[1:])] for name in names] == (ran or ["/login"])
        assert ran or "//" in target


def exempt_by(path, app, root=""):
    config = {"domain": "d", "exempt": [{"path": "/health"}], "rules": [{"name": "all", "by": "ip", "limit": "9/s"}]}
    scope = {**next(iter(scopes(b"/health"))), "path": path, "root_path": root}
    asyncio.run(exchange(Asgi(app, limiter=RateLimiter(config, clock=ManualClock(1_700_000_000))), scope))
    return scope["ratelimit"].rule is None


def test_an_exemption_holds_where_the_app_routes_without_the_prefix():
    for name in ("starlette", "fastapi", "litestar", "quart", "django"):
        routed = Routed("asgi", name)
        app = routed.app.app
        assert exempt_by("/api/health", app, "/api")
        assert exempt_by("/health", app, "/api")
        assert not exempt_by("/apihealth", app, "/api")
        assert not exempt_by("/x/api/health", app, "/api")
        assert not exempt_by("/api//health", app, "/api")
        routed.close()
    falcon = ASGI["falcon"]()
    assert not exempt_by("/api/health", falcon, "/api")
    assert exempt_by("/health", Wrapper(falcon), "/api")


def test_litestars_own_middlewares_see_a_path_that_is_cut_already():
    from litestar import Litestar, get

    @get("/api/login")
    async def login() -> None:
        ran.append("/api/login")

    counted = []

    def spying(app):
        async def spy(scope, receive, send):
            counted.extend(policy.rule for policy in scope["ratelimit"].policies)
            await app(scope, receive, send)

        return Asgi(spy, limiter=engine)

    config = {"domain": "d", "rules": [{"name": "login", "match": {"path": "/api/login"}, "by": "ip", "limit": "9/s"}]}
    engine = RateLimiter(config, clock=ManualClock(1_700_000_000))
    app = Litestar([login], middleware=[spying], openapi_config=None, logging_config=None)
    (first, _) = scopes(b"/api/login", "/api")
    ran.clear()
    asyncio.run(exchange(app, first))
    assert (ran, counted) == (["/api/login"], ["login"])
