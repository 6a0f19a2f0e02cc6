"""A denied client that hammers: how often the store is asked, and what a denial costs."""

import asyncio
import time

from bench.measure import Figure
from bench.memory_asgi import config, request_scope
from ratelimit_mw import RateLimiter
from ratelimit_mw.identity.asgi import AsgiRequest
from tests.support.servers import BINARIES, Server

REQUESTS = 20_000


def figures() -> list[Figure]:
    scope = request_scope()

    async def hammer(url: str) -> tuple[float, int]:
        async with RateLimiter(config("10 per hour"), storage=url) as limiter:
            for _ in range(10):
                await limiter.engine.adecide(AsgiRequest(scope))
            start, admitted = time.perf_counter(), 0
            for _ in range(REQUESTS):
                admitted += (await limiter.engine.adecide(AsgiRequest(scope))).allowed
            return (time.perf_counter() - start) / REQUESTS, admitted

    with Server(BINARIES[0]) as server, server.client() as client:
        took, admitted = asyncio.run(hammer(server.url))
        asked = client.info("commandstats")["cmdstat_evalsha"]["calls"] - 10
    case = "A denied client hammers, Redis"
    return [
        Figure(case, "calls per denied request", asked / (REQUESTS - admitted), "", "bar: 0.01"),
        Figure(case, "ratelimit_mw", took * 1e6, "us", "bar: 8"),
    ]
