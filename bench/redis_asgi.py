"""ASGI on Redis: whole requests of one process, 100 in flight, through a Starlette app."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from ratelimit import RateLimitMiddleware as AsgiRatelimit
from ratelimit import Rule
from ratelimit.backends.redis import RedisBackend
from redis.asyncio import StrictRedis
from slowapi import Limiter
from slowapi.middleware import SlowAPIASGIMiddleware
from slowapi.util import get_remote_address

from bench.measure import Figure, in_turn
from bench.memory_asgi import App, config, receive, request_scope, send, starlette
from ratelimit_mw.asgi import RateLimitMiddleware
from tests.support.servers import BINARIES, Server

IN_FLIGHT = 100
EACH = 30


def per_second(app: App, end: Callable[[], Awaitable[None]] | None = None) -> Callable[[], float]:
    """Requests a second. `end` has an app let go of the event loop that ran."""
    scope = request_scope()

    async def client() -> None:
        for _ in range(EACH):
            await app(dict(scope), receive, send)

    async def run() -> float:
        await app(dict(scope), receive, send)
        start = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(IN_FLIGHT)))
        took = time.perf_counter() - start
        if end:
            await end()
        return IN_FLIGHT * EACH / took

    return lambda: asyncio.run(run())


def asgi_ratelimit(url: str) -> tuple[App, Callable[[], Awaitable[None]]]:
    async def client(_scope: Any) -> tuple[str, str]:
        return "203.0.113.7", "default"

    redis = StrictRedis.from_url(url)
    app = AsgiRatelimit(starlette(), client, RedisBackend(redis), {"^/": [Rule(minute=1_000_000_000)]})
    return app, redis.connection_pool.disconnect


def figures() -> list[Figure]:
    with Server(BINARIES[0]) as server:
        slow = Limiter(get_remote_address, default_limits=["1000000000/minute"], storage_uri=server.url)
        apps = {
            "ratelimit_mw": RateLimitMiddleware(starlette(), config("1000000000 per minute"), storage=server.url),
            "slowapi, ASGI": starlette(SlowAPIASGIMiddleware, slow),
            "no limiter": starlette(),
        }
        runs = {name: per_second(app) for name, app in apps.items()}
        runs["asgi-ratelimit"] = per_second(*asgi_ratelimit(server.url))
        rate = in_turn(runs, rounds=9)
    case = "ASGI, Redis, 100 in flight: requests of a Starlette app"
    mine, theirs, others = rate["ratelimit_mw"], rate["slowapi, ASGI"], rate["asgi-ratelimit"]
    return [
        Figure(case, "ratelimit_mw", mine, "/s"),
        Figure(case, "slowapi, ASGI", theirs, "/s", f"ours is {mine / theirs:.1f} x (bar: 10)"),
        Figure(case, "asgi-ratelimit", others, "/s", f"ours is {mine / others:.1f} x"),
        Figure(case, "no limiter", rate["no limiter"], "/s"),
    ]
