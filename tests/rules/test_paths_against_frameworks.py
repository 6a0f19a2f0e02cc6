"""Rules against the routers of the other frameworks: where a handler runs, the rule of its route must have counted."""

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.identity.http_request import asgi_requests_of
from ratelimit_mw.identity.path_forms import framework_of
from tests.shells.asking import exchange
from tests.support.routers import ASGI, WSGI, Routed, ran, requests_to, scopes

APPS = [*(("asgi", name) for name in ASGI), *(("wsgi", name) for name in WSGI)]
UUID = "0e0cbbd4-1a6d-4f23-9c5e-2f8f10a1b2c3"


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
    ("asgi fastapi", "/items/0-7", "", "/items/{id:int}"),
    ("asgi fastapi", "/items/" + "0" * 5000 + "7", "", "/items/{id:int}"),
    ("asgi fastapi", "/prices/1_.5", "", "/prices/{x:float}"),
    ("asgi starlette", "/../enter%0A", "", "/{tenant}/enter"),
    ("asgi falcon", "/items/+7", "", "/items/{id:int}"),
    ("asgi falcon", "/users/", "", "/users/{name}"),
    ("wsgi falcon", "/users//edit", "", "/users/{name}/edit"),
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
@pytest.mark.parametrize("root", ["", "/api", "/other"])
def test_djangos_forced_script_name_is_cut_off_as_django_cuts_it(target, root):
    routed = Routed("asgi", "django", FORCE_SCRIPT_NAME="/api")
    try:
        assert root == "/other" or routed.ran(target.encode(), root)
        assert routed.missed(target.encode(), root) == []
    finally:
        routed.close()


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


class Wrapper:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)


@pytest.mark.parametrize(("kind", "name"), APPS)
@pytest.mark.parametrize("wrap", [lambda app: app, Wrapper, lambda app: Wrapper(Wrapper(app))])
def test_a_framework_is_recognised_inside_other_middlewares(kind, name, wrap):
    routed = Routed(kind, name)
    try:
        assert framework_of(wrap(routed.app.app)) in {name, "starlette" if name == "fastapi" else name}
    finally:
        routed.close()


def test_what_no_framework_is_known_of_is_cut_in_every_way():
    async def app(scope, receive, send):
        pass

    requests = asgi_requests_of(app)
    scope = {"type": "http", "path": "/x/api/login", "root_path": "/api"}
    assert set(requests(scope).readings) == {"/login", "/x/api/login"}
    assert requests({**scope, "path": "/api/login"}).readings == ()
    assert requests({**scope, "path": "/api/login"}).path == "/login"
