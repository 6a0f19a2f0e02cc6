"""ASGI on memory: what one rule adds to a request, and what a denial costs."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from slowapi import Limiter
from slowapi.middleware import SlowAPIASGIMiddleware, SlowAPIMiddleware
from slowapi.util import get_remote_address
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from bench.measure import Figure, in_turn
from ratelimit_mw.asgi import RateLimitMiddleware

REQUESTS = 3000
App = Callable[..., Awaitable[None]]


def config(limit: str) -> dict[str, object]:
    return {"domain": "bench", "rules": [{"name": "all", "by": "ip", "limit": limit}]}


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """The least an app can be, so that what is added stands out."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def endpoint(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


def starlette(limited_by: type | None = None, limiter: Limiter | None = None) -> App:
    app = Starlette(routes=[Route("/items", endpoint)])
    if limited_by:
        limits = ["1000000000/minute"]
        app.state.limiter = limiter or Limiter(get_remote_address, default_limits=limits, headers_enabled=True)
        app.add_middleware(limited_by)
    return app


def request_scope() -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/items",
        "raw_path": b"/items",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"user-agent", b"bench"), (b"accept", b"*/*")],
        "client": ("203.0.113.7", 40000),
        "server": ("127.0.0.1", 8000),
    }


async def receive() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}


async def send(message: dict[str, Any]) -> None:
    pass


def seconds_per_request(app: App) -> Callable[[], float]:
    scope = request_scope()

    async def run() -> float:
        start = time.perf_counter()
        for _ in range(REQUESTS):
            await app(dict(scope), receive, send)
        return (time.perf_counter() - start) / REQUESTS

    return lambda: asyncio.run(run())


def figures() -> list[Figure]:
    apps = {
        "bare": bare,
        "ratelimit_mw": RateLimitMiddleware(bare, config("1000000000 per minute")),
        "ratelimit_mw, denied": RateLimitMiddleware(bare, config("1 per hour")),
        "starlette": starlette(),
        "slowapi, ASGI": starlette(SlowAPIASGIMiddleware),
        "slowapi, BaseHTTP": starlette(SlowAPIMiddleware),
    }
    took = in_turn({name: seconds_per_request(app) for name, app in apps.items()})
    added = {
        "ratelimit_mw": took["ratelimit_mw"] - took["bare"],
        "slowapi, ASGI": took["slowapi, ASGI"] - took["starlette"],
        "slowapi, BaseHTTP": took["slowapi, BaseHTTP"] - took["starlette"],
    }
    ours = added["ratelimit_mw"]
    case = "ASGI, memory, one rule: time added"
    return [
        Figure(case, "ratelimit_mw", ours * 1e6, "us", "bar: 8"),
        *(
            Figure(case, peer, added[peer] * 1e6, "us", f"ours is {ours / added[peer]:.2f} of it (bar: 0.25)")
            for peer in ("slowapi, ASGI", "slowapi, BaseHTTP")
        ),
        Figure("ASGI, memory: a denied request", "ratelimit_mw", took["ratelimit_mw, denied"] * 1e6, "us", "whole"),
    ]
