"""What a user's editor and type checker see of the package: tests/test_typing.py has mypy read this file."""

from typing import Annotated, Any, assert_type
from wsgiref.types import WSGIApplication

from django.http import HttpRequest
from fastapi import Depends, FastAPI, Request
from flask import Flask
from flask.views import MethodView
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import Route

from ratelimit_mw import ConfigurationError, Decision, ManualClock, RateLimiter, asgi, wsgi
from ratelimit_mw import fastapi as in_fastapi
from ratelimit_mw import flask as in_flask
from ratelimit_mw import starlette as in_starlette
from ratelimit_mw.types import AsyncHandle, BlockingHandle

rules = {"domain": "shop", "rules": [{"name": "everything", "by": "ip", "limit": "100 per minute"}]}
limiter = RateLimiter(rules, storage="memory://", clock=ManualClock(start=1.5))
decision = limiter.check({"remote_address": "203.0.113.7"}, cost=2)
assert_type(decision, Decision)
assert_type(decision.allowed, bool)
assert_type(decision.rule, str | None)
assert_type(decision.limit, int | None)
assert_type(decision.remaining, int | None)
assert_type(decision.reset_after, float)
assert_type(decision.retry_after, float)
assert_type(decision.delay, float)
assert_type(decision.reset_at, float)
assert_type(decision.used, int | None)
assert_type(decision.over, str | None)
assert_type(decision.policies, tuple[Decision, ...])
assert_type(limiter.peek({"user": "ann"}), Decision)
limiter.reset({"user": "ann"})


async def awaited() -> None:
    async with RateLimiter("ratelimits.yaml") as other:
        assert_type(await other.acheck({"user": "ann"}, cost=2), Decision)
        assert_type(await other.apeek({}, rule="mail", key=7, limit="5 per hour"), Decision)
        assert_type(await other.apeek({"user": "ann"}), Decision)
        await other.areset({"user": "ann"})


def problems() -> list[str]:
    try:
        with RateLimiter("ratelimits.yaml", storage="redis://localhost"):
            return []
    except ConfigurationError as error:
        return [f"{problem.file} {problem.line + 1} {problem.message}" for problem in error.problems]


starlette_app = Starlette(middleware=[Middleware(asgi.RateLimitMiddleware, config="ratelimits.yaml")])
starlette_app.add_middleware(asgi.RateLimitMiddleware, config="ratelimits.yaml", storage="redis://localhost")
fastapi_app = FastAPI()
fastapi_app.add_middleware(asgi.RateLimitMiddleware, limiter=limiter)
around = asgi.RateLimitMiddleware(asgi.RateLimitMiddleware(starlette_app, config=rules), limiter=limiter)
flask_app = Flask("app")
flask_app.wsgi_app = wsgi.RateLimitMiddleware(flask_app.wsgi_app, config="ratelimits.yaml")  # type: ignore[method-assign]  # Flask's own documentation does so
application: WSGIApplication = wsgi.RateLimitMiddleware(flask_app, limiter=limiter)


@fastapi_app.get("/")
def index(request: Request) -> dict[str, Any]:
    return {"remaining": request.scope["ratelimit"].remaining}


@fastapi_app.get("/search")
async def search(request: Request) -> int | None:
    handle: AsyncHandle = request.scope["ratelimit"]
    assert_type(handle.allowed, bool)
    assert_type(handle.rule, str | None)
    assert_type(handle.reset_after, float)
    assert_type(handle.policies, tuple[Decision, ...])
    assert_type(handle.decision, Decision)
    assert_type(await handle.check("mail"), Decision)
    decision, denial = await handle.enforce("mail", cost=2)
    assert_type(await handle.check("mail", key="ann", limit="5 per hour"), Decision)
    assert_type(decision, Decision)
    assert_type(denial.status if denial else None, int | None)
    await handle.charge(5)
    return handle.remaining


def blocking(environ: dict[str, Any]) -> bool:
    handle: BlockingHandle = environ["ratelimit.decision"]
    handle.refund()
    return handle.check("mail").allowed and handle.allowed


def in_a_view(request: HttpRequest) -> int | None:
    handle: BlockingHandle = request.ratelimit
    assert_type(handle.check("mail"), Decision)
    return handle.remaining


in_fastapi.add_rate_limits(fastapi_app, "ratelimits.yaml", storage="redis://localhost")
in_fastapi.add_rate_limits(fastapi_app, limiter=limiter)


@fastapi_app.get("/export")
async def export(decision: Annotated[Decision, Depends(in_fastapi.limited("exports", cost=2))]) -> int | None:
    return decision.remaining


@flask_app.get("/mail/<int:number>")
@in_flask.limited("mail", cost=2)
@in_flask.limited("5 per minute", key=lambda request: request.headers.get("X-Name"))
@in_flask.limited("10 per hour", by=["user|ip", "path"], shared="mails")
def mail(number: int) -> str:
    assert_type(in_flask.enforce("mail"), Decision)
    in_flask.enforce("mail", key=number, limit="5 per hour")
    in_flask.enforce("mail", key=None)
    return str(number)


@in_flask.limited("mail")
class Letters(MethodView):
    @in_flask.limited("5 per minute", by="user")
    def get(self, number: int) -> str:
        return str(number)


@in_starlette.limited("mail", cost=2)
async def page(request: Request) -> Response:
    return Response("page")


@in_starlette.limited("mail")
class Pages(HTTPEndpoint):
    @in_starlette.limited("exports")
    def get(self, request: Request) -> Response:
        return Response("page")


assert_type(Letters(), Letters)
assert_type(Letters().get(5), str)
pages = [Route("/page", page), Route("/pages", Pages)]
assert_type(mail(5), str)
mail("5")  # type: ignore[arg-type]  # the view's own parameters are kept
in_flask.enforce("mail", limit=5)  # type: ignore[arg-type]  # a limit is text
limiter.check({"remote_address": 5})  # type: ignore[dict-item]  # an address is text
limiter.check({"user": "ann"}, cost="2")  # type: ignore[arg-type]  # a cost is a whole number
RateLimiter()  # type: ignore[call-arg]  # there are no rules to guess
RateLimiter(rules, "memory://")  # type: ignore[call-arg]  # storage has a name
asgi.RateLimitMiddleware(starlette_app, limiter="ratelimits.yaml")  # type: ignore[arg-type]  # that is a config
decision.allowed = True  # type: ignore[misc]  # what was decided stays decided
