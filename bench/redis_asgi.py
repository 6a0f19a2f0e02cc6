"""ASGI on Redis: whole requests of one process, 100 in flight, through a Starlette app."""

import asyncio
import time
from collections.abc import Callable

from slowapi import Limiter
from slowapi.middleware import SlowAPIASGIMiddleware
from slowapi.util import get_remote_address

from bench.measure import Figure, in_turn
from bench.memory_asgi import App, config, receive, request_scope, send, starlette
from ratelimit_mw.asgi import RateLimitMiddleware
from tests.support.servers import BINARIES, Server

IN_FLIGHT = 100
EACH = 30


def per_second(app: App) -> Callable[[], float]:
    scope = request_scope()

    async def client() -> None:
        for _ in range(EACH):
            await app(dict(scope), receive, send)

    async def run() -> float:
        await app(dict(scope), receive, send)
        start = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(IN_FLIGHT)))
        return IN_FLIGHT * EACH / (time.perf_counter() - start)

    return lambda: asyncio.run(run())


def figures() -> list[Figure]:
    with Server(BINARIES[0]) as server:
        slow = Limiter(get_remote_address, default_limits=["1000000000/minute"], storage_uri=server.url)
        apps = {
            "ratelimit_mw": RateLimitMiddleware(starlette(), config("1000000000 per minute"), storage=server.url),
            "slowapi, ASGI": starlette(SlowAPIASGIMiddleware, slow),
            "no limiter": starlette(),
        }
        rate = in_turn({name: per_second(app) for name, app in apps.items()}, rounds=3)
    case = "ASGI, Redis, 100 in flight: requests of a Starlette app"
    mine, theirs = rate["ratelimit_mw"], rate["slowapi, ASGI"]
    return [
        Figure(case, "ratelimit_mw", mine, "/s"),
        Figure(case, "slowapi, ASGI", theirs, "/s", f"ours is {mine / theirs:.1f} x (bar: 10)"),
        Figure(case, "no limiter", rate["no limiter"], "/s"),
    ]
