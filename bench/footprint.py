"""What the package takes up: bytes of a counter in Redis and in memory, and the time that its import takes."""

import gc
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Collections, Effort, Figure, Remote, Run, alone
from bench.traffic import Request
from ratelimit_mw import ManualClock, RateLimiter
from tests.support.servers import BINARIES, Server

ALGORITHMS = {
    "fixed_window": ("100 per minute", 110),
    "token_bucket": ("100 per minute", 110),
    "sliding_window": ("100 per minute", 110),
    "bucketed_window": ("500 per hour", 400),
    "sliding_log": ("500 per hour", 4_200),
}
"""The limit of each, and the bar for a counter on Valkey. Elsewhere it may take 5 % more."""

COUNTERS = 1_000_000
PAUSE = 5_000_000  # nanoseconds

IMPORTS = {"ratelimit_mw.asgi": "starlette.applications", "ratelimit_mw.wsgi": "flask"}
IMPORT = """
import importlib, sys, time
importlib.import_module(sys.argv[1])
start = time.process_time()
importlib.import_module(sys.argv[2])
print(time.process_time() - start)
"""


def redis_bytes(effort: Effort) -> Iterator[Figure]:
    """Redis bytes per counter, by MEMORY USAGE, for a counter with its full state."""
    for binary in BINARIES:
        with Server(binary) as server:
            for algorithm, (limit, bar) in ALGORITHMS.items():
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
                elsewhere = not binary.name.startswith("valkey")
                at_most = bar * 1.05 if elsewhere else bar
                yield alone(f"{algorithm}, {binary.name}", [size], "B", at_most=at_most, detail=elsewhere)


def million_counters(effort: Effort) -> Iterator[Figure]:
    """Memory store, one million counters: what they take, and the longest that one decision among them took."""
    fill = Remote(filled)
    try:
        size, longest, over, collection = fill()
    finally:
        fill.close()
    yield alone("resident memory", [size], "MB", at_most=190)
    note = f"{over} took more than 5 ms; the longest garbage collection took {collection:.1f} ms"
    yield alone("the longest decision", [longest], "ms", at_most=5, note=note)


def filled() -> Run:
    """Fills a store with a quarter more counters than it holds. The run returns what `million_counters` says."""
    from ratelimit_mw.model import Ask, Quota
    from ratelimit_mw.stores.memory import MemoryStore

    def run() -> tuple[float, float, int, float]:
        quota = Quota("sliding_window", 100, 60_000_000)
        store = MemoryStore(max_counters=COUNTERS)
        gc.collect()
        before = resident()
        longest, over = 0, 0
        with Collections() as collections:
            for number in range(COUNTERS * 5 // 4):
                ask = Ask(f"shop:everything:sw60:{{ip={Request(number, '/').address}}}", quota)
                # The processor time of this thread. Other work on the machine does not count as a pause.
                start = time.thread_time_ns()
                store.decide((ask,))
                took = time.thread_time_ns() - start
                longest = max(longest, took)
                over += took > PAUSE
        return (resident() - before) / 2**20, longest / 1e6, over, collections.longest * 1e3

    return run


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def importing(effort: Effort) -> Iterator[Figure]:
    """Import beyond the framework: the time of the processor."""
    for module, framework in IMPORTS.items():
        command = [sys.executable, "-c", IMPORT, framework, module]
        # An installed package is compiled once. Without the compiled files, each import would compile it again.
        compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        took = []
        for number in range(1 + effort.rounds(15)):
            ran = subprocess.run(command, capture_output=True, text=True, check=True, env=compiled)
            if number:  # the first one may have had to compile
                took.append(float(ran.stdout) * 1e3)
        yield alone(f"import {module}, after {framework}", took, "ms", at_most=100)
