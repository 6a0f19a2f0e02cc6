"""Decisions of one process's threads on Redis: 1, 8 and 32 of them."""

import threading
import time
from collections.abc import Callable

from limits import parse
from limits.storage import RedisStorage
from limits.strategies import FixedWindowRateLimiter, SlidingWindowCounterRateLimiter
from throttled import RateLimiterType, Throttled, rate_limiter
from throttled.store import RedisStore

from bench.measure import Figure, in_turn
from bench.memory_asgi import config
from ratelimit_mw import RateLimiter
from tests.support.servers import BINARIES, Server

EACH = 300
LIMIT = "1000000000 per minute"
ITEM = parse("1000000000/minute")


def limits(strategy: type, url: str) -> Callable[[], object]:
    strategist = strategy(RedisStorage(url))
    # Its keys do not name the strategy: two of them on one key end in WRONGTYPE.
    return lambda: strategist.hit(ITEM, strategy.__name__, "203.0.113.7")


def throttled(url: str) -> Callable[[], object]:
    return Throttled(
        key="203.0.113.7",
        using=RateLimiterType.SLIDING_WINDOW.value,
        quota=rate_limiter.per_min(1_000_000_000),
        store=RedisStore(server=url),
    ).limit


def per_second(decide: Callable[[], object], threads: int) -> Callable[[], float]:
    def client() -> None:
        for _ in range(EACH):
            decide()

    def run() -> float:
        decide()
        clients = [threading.Thread(target=client) for _ in range(threads)]
        start = time.perf_counter()
        for each in clients:
            each.start()
        for each in clients:
            each.join()
        return threads * EACH / (time.perf_counter() - start)

    return run


def figures() -> list[Figure]:
    found = []
    request = {"remote_address": "203.0.113.7", "path": "/items"}
    with Server(BINARIES[0]) as server, RateLimiter(config(LIMIT), storage=server.url) as limiter:
        peers = {
            "limits, fixed": limits(FixedWindowRateLimiter, server.url),
            "limits, sliding": limits(SlidingWindowCounterRateLimiter, server.url),
            "throttled-py": throttled(server.url),
        }
        for threads in (1, 8, 32):
            decides = {"ratelimit_mw": lambda: limiter.check(request), **peers}
            rate = in_turn({name: per_second(decide, threads) for name, decide in decides.items()}, rounds=3)
            mine = rate["ratelimit_mw"]
            case = f"threads, Redis, {threads} at once: decisions of one process"
            found.append(Figure(case, "ratelimit_mw", mine, "/s"))
            found += [Figure(case, peer, rate[peer], "/s", f"ours is {mine / rate[peer]:.1f} x") for peer in peers]
    return found
