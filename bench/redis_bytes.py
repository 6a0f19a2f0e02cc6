"""Bytes of a counter on each server, by MEMORY USAGE, once it is as full as it gets."""

from bench.measure import Figure
from ratelimit_mw import ManualClock, RateLimiter
from tests.support.servers import BINARIES, Server

CASES = {
    "fixed_window": ("100 per minute", 160),
    "token_bucket": ("100 per minute", 160),
    "sliding_window": ("100 per minute", 190),
    "bucketed_window": ("500 per hour", 600),
    "sliding_log": ("500 per hour", 4500),
}


def figures() -> list[Figure]:
    found = []
    for binary in BINARIES:
        with Server(binary) as server:
            for algorithm, (limit, bar) in CASES.items():
                clock = ManualClock()
                rules = [{"name": "api", "by": "ip", "limit": limit, "algorithm": algorithm}]
                with RateLimiter({"domain": "shop", "rules": rules}, storage=server.url, clock=clock) as limiter:
                    for _ in range(600):
                        limiter.check({"ip": "203.0.113.7"})
                        clock.advance(7.3)
                with server.client() as client:
                    (key,) = client.keys("shop:*")
                    size = client.memory_usage(key)
                    client.flushall()
                found.append(Figure(f"Redis bytes per counter: {algorithm}", binary.name, size, "B", f"bar: {bar}"))
    return found
