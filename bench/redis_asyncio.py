"""Decisions of one asyncio process on Redis: with 100 requests in flight, and one at a time."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import redis.asyncio
from limits import parse
from limits.aio.storage import RedisStorage
from limits.aio.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter, SlidingWindowCounterRateLimiter
from throttled.asyncio import RateLimiterType, Throttled, rate_limiter
from throttled.asyncio.store import RedisStore

from bench.measure import Figure, in_turn
from bench.memory_asgi import config
from ratelimit_mw import RateLimiter
from ratelimit_mw.model import Ask, Quota
from ratelimit_mw.stores.base import DECIDE
from ratelimit_mw.stores.redis.codec import Command, encode
from tests.support.servers import BINARIES, Server

IN_FLIGHT = 100
EACH = 100
ALONE = 500
LIMIT = "1000000000 per minute"
ITEM = parse("1000000000/minute")

Make = Callable[[str], Awaitable[tuple[Callable[[], Awaitable[object]], Callable[[], Awaitable[object]]]]]


async def ours(url: str):
    limiter = RateLimiter(config(LIMIT), storage=url)
    request = {"remote_address": "203.0.113.7", "path": "/items"}
    return lambda: limiter.acheck(request), limiter.aclose


def limits(strategy: type) -> Make:
    async def make(url: str):
        storage = RedisStorage(f"async+{url}", implementation="redispy")
        strategist = strategy(storage)
        # Its keys do not name the strategy: two of them on one key end in WRONGTYPE.
        return lambda: strategist.hit(ITEM, strategy.__name__, "203.0.113.7"), storage.bridge.storage.aclose

    return make


async def throttled(url: str):
    store = RedisStore(server=url)
    throttle = Throttled(
        key="203.0.113.7",
        using=RateLimiterType.SLIDING_WINDOW.value,
        quota=rate_limiter.per_min(1_000_000_000),
        store=store,
    )
    return throttle.limit, _nothing


NOTHING = "return 1"
COUNTING = """
local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return {count, redis.call('PTTL', KEYS[1])}
"""
"""What a limiter of a few lines does: it counts, and tells how long."""


def bare_evalsha(script: str, *arguments: str | bytes | int) -> Make:
    async def make(url: str):
        client = redis.asyncio.from_url(url)
        digest = await client.script_load(script)
        return lambda: client.evalsha(digest, *arguments), client.aclose

    return make


def our_own() -> tuple[str, Command]:
    """The script call that a decision makes, for redis-py to make."""
    message = encode([([Ask("key", Quota("sliding_window", 1_000_000_000, 60_000_000))], DECIDE)], None)
    return message.script.text, message.arguments


async def _nothing() -> None:
    pass


def per_second(make: Make, url: str) -> Callable[[], float]:
    async def run() -> float:
        decide, close = await make(url)
        await decide()

        async def client() -> None:
            for _ in range(EACH):
                await decide()

        start = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(IN_FLIGHT)))
        took = time.perf_counter() - start
        await close()
        return IN_FLIGHT * EACH / took

    return lambda: asyncio.run(run())


def seconds_alone(make: Make, url: str) -> Callable[[], float]:
    """The median of single decisions: what is held up by others' work now and then is no part of it."""

    async def run() -> float:
        decide, close = await make(url)
        await decide()
        taken = []
        for _ in range(ALONE):
            start = time.perf_counter()
            await decide()
            taken.append(time.perf_counter() - start)
        await close()
        return statistics.median(taken)

    return lambda: asyncio.run(run())


def figures() -> list[Figure]:
    peers = {
        "limits asyncio, fixed": limits(FixedWindowRateLimiter),
        "limits asyncio, sliding": limits(SlidingWindowCounterRateLimiter),
        "limits asyncio, moving": limits(MovingWindowRateLimiter),
        "throttled-py asyncio": throttled,
    }
    script, arguments = our_own()
    with Server(BINARIES[0]) as server:
        makes = {"ratelimit_mw": ours, **peers}
        rate = in_turn({name: per_second(make, server.url) for name, make in makes.items()}, rounds=7)
        alone = in_turn(
            {
                name: seconds_alone(make, server.url)
                for name, make in {
                    "ratelimit_mw": ours,
                    "redis-py EVALSHA, return 1": bare_evalsha(NOTHING, 1, "key"),
                    "redis-py EVALSHA, counting": bare_evalsha(COUNTING, 1, "count", 60_000),
                    "redis-py EVALSHA, our script": bare_evalsha(script, *arguments),
                }.items()
            },
            rounds=21,
        )
    case = "asyncio, Redis, 100 in flight: decisions of one process"
    mine = rate["ratelimit_mw"]
    return [
        Figure(case, "ratelimit_mw", mine, "/s"),
        *(Figure(case, peer, rate[peer], "/s", f"ours is {mine / rate[peer]:.1f} x (bar: 8)") for peer in peers),
        Figure("asyncio, Redis, one at a time", "ratelimit_mw", alone["ratelimit_mw"] * 1e6, "us"),
        *(
            Figure(
                "asyncio, Redis, one at a time",
                peer,
                took * 1e6,
                "us",
                f"ours is {alone['ratelimit_mw'] / took:.2f} of it (bar: 1.2)",
            )
            for peer, took in alone.items()
            if peer != "ratelimit_mw"
        ),
    ]
