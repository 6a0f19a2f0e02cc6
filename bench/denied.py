"""A denied client that hammers, and a banned one: how often the store is asked, and what a denial costs."""

import asyncio
import statistics
import time

from bench.measure import Figure
from bench.memory_asgi import config, request_scope
from ratelimit_mw import RateLimiter
from ratelimit_mw.identity.http_request import AsgiRequest
from tests.support.servers import BINARIES, Server

REQUESTS = 20_000
ROUNDS = 20

BAN = {"after": "10 denials in 1 minute", "for": "10 minutes"}


def figures() -> list[Figure]:
    return [
        *_hammered("A denied client hammers, Redis", config("10 per hour"), 10),
        *_hammered("A banned client hammers, Redis", _banning("10 per hour"), 20),
    ]


def _banning(limit: str) -> dict[str, object]:
    return {"domain": "bench", "rules": [{"name": "all", "by": "ip", "limit": limit, "ban": BAN}]}


def _hammered(case: str, rules: dict[str, object], before: int) -> list[Figure]:
    """What a client costs who is denied from the first request behind the `before` first ones on."""
    scope = request_scope()

    async def hammer(url: str) -> tuple[float, int]:
        async with RateLimiter(rules, storage=url) as limiter:
            for _ in range(before):
                await limiter.engine.adecide(AsgiRequest(scope))
            taken, admitted = [], 0
            for _ in range(ROUNDS):
                start = time.perf_counter()
                for _ in range(REQUESTS // ROUNDS):
                    admitted += (await limiter.engine.adecide(AsgiRequest(scope))).allowed
                taken.append((time.perf_counter() - start) / (REQUESTS // ROUNDS))
            return statistics.median(taken), admitted

    with Server(BINARIES[0]) as server, server.client() as client:
        took, admitted = asyncio.run(hammer(server.url))
        asked = client.info("commandstats")["cmdstat_evalsha"]["calls"] - before
    return [
        Figure(case, "calls per denied request", asked / (REQUESTS - admitted), "", "bar: 0.01"),
        Figure(case, "ratelimit_mw", took * 1e6, "us", "bar: 8"),
    ]
