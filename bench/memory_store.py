"""A million counters in process: what they weigh, and the longest that one decision took among them."""

import gc
import multiprocessing
import resource
import time
from pathlib import Path

from bench.measure import Figure
from ratelimit_mw.model import Ask, Quota
from ratelimit_mw.stores.memory import MemoryStore

COUNTERS = 1_000_000
MINUTE = 60_000_000


def fill() -> tuple[float, float, float]:
    """Megabytes, the longest decision in milliseconds, and how many took more than 5."""
    quota = Quota("sliding_window", 100, MINUTE)
    store = MemoryStore(max_counters=COUNTERS)
    gc.collect()
    before = resident()
    longest, over = 0, 0
    for number in range(COUNTERS * 5 // 4):
        ask = Ask(f"shop:everything:sw60:{{ip=203.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}}}", quota)
        start = time.thread_time_ns()  # of this thread's own work: what others on the machine do is no pause of ours
        store.decide((ask,))
        took = time.thread_time_ns() - start
        longest = max(longest, took)
        over += took > 5_000_000
    return (resident() - before) / 2**20, longest / 1e6, over


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def figures() -> list[Figure]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        size, longest, over = pool.apply(fill)
    case = "Memory store, a million counters"
    return [
        Figure(case, "ratelimit_mw", size, "MB", "bar: 300"),
        Figure(f"{case}: longest decision", "ratelimit_mw", longest, "ms", f"bar: 5; {over} were longer"),
    ]
