"""The README's day one: inside CORS, inside authentication, around both."""

import base64

import pytest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from ratelimit_mw.asgi import RateLimitMiddleware
from tests.shells.asking import limiter

ORIGIN = "https://shop.example"
PREFLIGHT = {"Origin": ORIGIN, "Access-Control-Request-Method": "GET"}
CORS = {"allow_origins": [ORIGIN], "expose_headers": ["Retry-After"]}


def app():
    async def index(_request):
        return PlainTextResponse("hello")

    return Starlette(routes=[Route("/", index)])


def test_inside_cors_a_browser_can_read_the_429():
    inner = app()
    inner.add_middleware(RateLimitMiddleware, limiter=limiter("1 per minute"))
    inner.add_middleware(CORSMiddleware, **CORS)
    client = TestClient(inner, headers={"Origin": ORIGIN})
    client.get("/")
    denied = client.get("/")
    assert denied.status_code == 429
    assert denied.headers["Access-Control-Allow-Origin"] == ORIGIN
    assert denied.headers["Access-Control-Expose-Headers"] == "Retry-After"


@pytest.mark.parametrize("outermost", ["limiter", "CORS"])
def test_a_preflight_takes_nothing_from_requests_on_either_side_of_cors(outermost):
    inner = app()
    limited, cors = (RateLimitMiddleware, {"limiter": limiter("2 per minute")}), (CORSMiddleware, CORS)
    for middleware, options in [cors, limited] if outermost == "limiter" else [limited, cors]:
        inner.add_middleware(middleware, **options)
    client = TestClient(inner)
    last = 429 if outermost == "limiter" else 200  # which CORS answers, and the limiter never sees
    assert [client.options("/", headers=PREFLIGHT).status_code for _ in range(21)] == [200] * 20 + [last]
    assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]
    assert client.options("/").status_code == 429, "a plain OPTIONS is a request like any other"


class Basic(AuthenticationBackend):
    async def authenticate(self, conn):
        if "Authorization" not in conn.headers:
            return None
        name = base64.b64decode(conn.headers["Authorization"].removeprefix("Basic ")).decode().partition(":")[0]
        return AuthCredentials(), SimpleUser(name)


def test_inside_authentication_it_counts_by_the_user_that_was_found():
    by_user = {"name": "users", "by": "user", "limit": "1 per minute"}
    inner = app()
    inner.add_middleware(RateLimitMiddleware, limiter=limiter(client={"user": "scope:user"}, rules=[by_user]))
    inner.add_middleware(AuthenticationMiddleware, backend=Basic())
    client = TestClient(inner)

    def statuses(**options):
        return [client.get("/", **options).status_code for _ in range(2)]

    assert statuses(auth=("ann", "1")) == [200, 429]
    assert client.get("/", auth=("ann", "another password")).status_code == 429, "it is the same user"
    assert statuses(auth=("bob", "2")) == [200, 429]
    assert statuses() == [200, 200], "nobody is logged in, so nobody is counted by user"
