"""Counters in Redis, asyncio: what one process decides with 100 requests in flight, and how long one decision takes."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Any

from bench.apps import IN_FLIGHT, PEER_LIMIT, PER_MINUTE, asgi_rate, config, empty_app, faster, rate_of, receive, send
from bench.measure import OURS, Effort, Figure, Run, beside, in_turn
from bench.traffic import NAMES, STREAMS, Request
from tests.support.servers import BINARIES, Server

REQUESTS = 2_500  # of a peer in a round
OURS_MORE = 4  # times as many of ours, because a round has to be long beside its first and its last hundred
ROUNDS = 11
ALONE = 200  # one after the other, in a round
ALONE_ROUNDS = 40

Ask = Callable[[Any], Awaitable[object]]

COUNTING = """
local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return {count, redis.call('PTTL', KEYS[1])}
"""
"""What a limiter of a few lines does: it counts, and tells how long."""

LIMITS = ("limits, fixed window", "limits, sliding window", "limits, moving window")
THROTTLED = "throttled-py"
EVALSHA = "redis-py EVALSHA"


def decisions(effort: Effort) -> Iterator[Figure]:
    """100 in flight: decisions of `acheck`, and requests around an empty app.

    The bars hold beside the fixed window of `limits`, which is the fastest of its strategies. Ours is a sliding window.
    """
    bars = {("acheck", "Zipf"): 8, ("middleware", "Zipf"): 6, ("middleware", "new"): 4}
    names = {"acheck": "acheck", "middleware": "middleware around an empty app"}
    peers = (*LIMITS, THROTTLED)
    with Server(BINARIES[0]) as server:
        number = effort.part(REQUESTS)
        for stream in ("Zipf", "one", "new"):
            asked = {who: (decider_rate, who, stream, number, server.url) for who in peers}
            asked["acheck"] = (decider_rate, "acheck", stream, number * OURS_MORE, server.url)
            asked["middleware"] = (asgi_rate, "empty", OURS, stream, number * OURS_MORE, server.url)
            rate = in_turn(asked, effort.rounds(ROUNDS))
            server.flush()
            for mine, name in names.items():
                for peer in peers:
                    first = peer == LIMITS[0]
                    bar = bars.get((mine, stream)) if first else None
                    what = f"{name}: {NAMES[stream]}"
                    yield faster(what, rate[mine], peer, rate[peer], at_least=bar, detail=not first)


def starlette(effort: Effort) -> Iterator[Figure]:
    """100 in flight: requests of a Starlette app."""
    peers = ("slowapi", "asgi-ratelimit", "no limiter")
    with Server(BINARIES[0]) as server:
        number = effort.part(REQUESTS)
        for stream in ("Zipf", "one", "new"):
            asked = {who: (asgi_rate, "Starlette", who, stream, number, server.url) for who in peers}
            asked[OURS] = (asgi_rate, "Starlette", OURS, stream, number * OURS_MORE, server.url)
            rate = in_turn(asked, effort.rounds(ROUNDS))
            server.flush()
            for peer in peers:
                bar = 13 if (stream, peer) == ("Zipf", "slowapi") else None
                detail = stream != "Zipf" and peer != "slowapi"
                yield faster(NAMES[stream], rate[OURS], peer, rate[peer], at_least=bar, detail=detail)


def latency(effort: Effort) -> Iterator[Figure]:
    """One request at a time: the mean time of a decision."""
    with Server(BINARIES[0]) as server:
        asked = {who: (mean_alone, who, effort.part(ALONE), server.url) for who in (EVALSHA, "acheck", "middleware")}
        took = in_turn(asked, effort.rounds(ALONE_ROUNDS))
    took = {who: [seconds * 1e6 for seconds in values] for who, values in took.items()}
    for who, name in (("acheck", "acheck"), ("middleware", "middleware around an empty app")):
        yield beside(f"{name}: {NAMES['Zipf']}", took[who], EVALSHA, took[EVALSHA], "us", at_most=1.05)


# --------------------------------------------------------------------- contestants, see `bench.measure.Remote`


def decider_rate(who: str, stream: str, requests: int, url: str) -> Run:
    """How fast one process decides with 100 requests in flight."""
    coming, runner = STREAMS[stream](), asyncio.Runner()
    prepare, ask = runner.run(DECIDERS.get(who, limits)(who, url))

    async def warm() -> None:
        await ask(prepare(next(coming)))

    runner.run(warm())
    return lambda: runner.run(rate_of([prepare(request) for request in islice(coming, requests)], IN_FLIGHT, ask))


def mean_alone(who: str, requests: int, url: str) -> Run:
    """Seconds of a decision, by the mean, one after the other."""
    coming, runner = STREAMS["Zipf"](), asyncio.Runner()
    prepare, ask = runner.run(DECIDERS[who](who, url))

    async def run(number: int) -> float:
        prepared = [prepare(request) for request in islice(coming, number)]
        start = time.perf_counter()
        for request in prepared:
            await ask(request)
        return (time.perf_counter() - start) / number

    runner.run(run(100))
    return lambda: runner.run(run(requests))


async def ours(who: str, url: str) -> tuple[Callable[[Request], Any], Ask]:
    from ratelimit_mw import RateLimiter

    return Request.attributes, RateLimiter(config(), storage=url).acheck


async def middleware(who: str, url: str) -> tuple[Callable[[Request], Any], Ask]:
    app = empty_app(OURS, url)
    return Request.scope, lambda scope: app(scope, receive, send)


async def limits(who: str, url: str) -> tuple[Callable[[Request], Any], Ask]:
    from limits import parse
    from limits.aio.storage import RedisStorage
    from limits.aio.strategies import (
        FixedWindowRateLimiter,
        MovingWindowRateLimiter,
        SlidingWindowCounterRateLimiter,
    )

    strategies = FixedWindowRateLimiter, SlidingWindowCounterRateLimiter, MovingWindowRateLimiter
    strategy = strategies[LIMITS.index(who)](RedisStorage(f"async+{url}", implementation="redispy"))
    item = parse(PEER_LIMIT)
    # Its keys do not name the strategy. Two of them on one key end in WRONGTYPE.
    return _address, lambda address: strategy.hit(item, who, address)


async def throttled(who: str, url: str) -> tuple[Callable[[Request], Any], Ask]:
    from throttled.asyncio import RateLimiterType, Throttled, rate_limiter
    from throttled.asyncio.store import RedisStore

    throttle = Throttled(
        using=RateLimiterType.SLIDING_WINDOW.value,
        quota=rate_limiter.per_min(PER_MINUTE),
        store=RedisStore(server=url),
    )
    return _address, throttle.limit


async def evalsha(who: str, url: str) -> tuple[Callable[[Request], Any], Ask]:
    import redis.asyncio

    client = redis.asyncio.from_url(url)
    digest = await client.script_load(COUNTING)
    return _address, lambda address: client.evalsha(digest, 1, f"count:{address}", 60_000)


def _address(request: Request) -> str:
    return request.address


DECIDERS: dict[str, Callable[[str, str], Awaitable[tuple[Callable[[Request], Any], Ask]]]] = {
    "acheck": ours,
    "middleware": middleware,
    THROTTLED: throttled,
    EVALSHA: evalsha,
}
"""How a contestant prepares a request, and how it decides it. The strategies of `limits` are made by `limits`."""
