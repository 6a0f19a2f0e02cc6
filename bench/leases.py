"""Leases and write-back: 1 to 100 processes in simulation, and one process on Redis.

The simulation is pure: every process has its `Leases` over one memory store, under one clock moved by hand. Demand
is half as much again as the limit, spread over each minute or all within its first second.
"""

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

from bench.measure import Figure, in_turn
from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.identity.request import MappingRequest
from ratelimit_mw.model import SECOND, Ask, Quota
from ratelimit_mw.stores.base import Call, StoreRequest, Wrapper, worst_over_admission
from ratelimit_mw.stores.deny_cache import DenyCache
from ratelimit_mw.stores.lease_store import Leases
from ratelimit_mw.stores.memory import MemoryStore
from tests.support.servers import BINARIES, Server

KINDS = ("strict", "lease", "write_back")
PROCESSES = (1, 2, 5, 10, 20, 50, 100)
LIMIT = 6_000
DEMAND = 9_000
MINUTES = 3
START = 1_700_000_040
SPREAD = {"over the minute": 60.0, "within a second": 1.0}
DECISIONS = 50_000


class Counted(Wrapper):
    """A store that counts its calls."""

    calls = 0

    def asked(self, request: StoreRequest) -> Call:
        self.calls += 1
        return request, None


def simulated(processes: int, kind: str, seconds: float, seed: int = 1) -> tuple[float, float]:
    """Calls for each request, and how far from the limit the admissions of a minute are (a part of the limit)."""
    dice = random.Random(seed)
    clock = ManualClock(START)
    store = Counted(MemoryStore(clock=clock))
    quota = Quota("fixed_window", LIMIT, 60 * SECOND, consistency=kind)
    ask = [Ask("shop:api:fw60:{*}", quota)]
    deciders = [DenyCache(Leases(store, clock), clock=clock) for _ in range(processes)]
    admitted = 0
    for minute in range(MINUTES):
        for moment in sorted(dice.uniform(0, seconds) for _ in range(DEMAND)):
            clock.set(START + 60 * minute + moment)
            admitted += dice.choice(deciders).decide(ask).outcomes[0].allowed
    return store.calls / (DEMAND * MINUTES), admitted / (LIMIT * MINUTES) - 1


def simulation() -> tuple[list[Figure], dict]:
    found, curves = [], {}
    for how, seconds in SPREAD.items():
        for kind in KINDS:
            curves[how, kind] = points = [simulated(processes, kind, seconds) for processes in PROCESSES]
            for processes, (calls, error) in zip(PROCESSES, points, strict=True):
                case = f"simulation, demand {how}, {processes} process{'es' * (processes > 1)}"
                worst = worst_over_admission(processes, LIMIT, rate=DEMAND / seconds / processes, delay=0) / LIMIT
                bound = f", at worst {worst:+.0%}" if kind == "write_back" else ""
                found.append(
                    Figure(case, kind, calls, "call", f"for each request; admitted {error:+.2%} of the limit{bound}")
                )
    return found, curves


def plot(curves: dict, path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, rows = plt.subplots(2, 2, figsize=(10, 7), sharex=True, layout="constrained")
    for row, how in zip(rows, SPREAD, strict=True):
        for kind in KINDS:
            calls, errors = zip(*curves[how, kind], strict=True)
            row[0].plot(PROCESSES, [100 * call for call in calls], marker="o", label=kind)
            row[1].plot(PROCESSES, [100 * error for error in errors], marker="o", label=kind)
        row[0].set(xscale="log", yscale="log", title=f"Store calls, demand {how}", ylabel="calls for 100 requests")
        row[1].set(xscale="log", title=f"Error of admission, demand {how}", ylabel="% of the limit")
        row[1].axhline(0, color="grey", linewidth=0.5)
        for axes in row:
            axes.set_xticks(PROCESSES, [str(number) for number in PROCESSES])
            axes.grid(visible=True, alpha=0.3)
            axes.legend()
    for axes in rows[1]:
        axes.set_xlabel("processes")
    figure.suptitle(f"{LIMIT:,} per minute, fixed window, demand {DEMAND / LIMIT:.0%} of it")
    figure.savefig(path, dpi=110)


def per_second(url: str, consistency: str, asking: str) -> Callable[[], float]:
    rule = {"name": "all", "by": "ip", "limit": "1000000000 per minute", "consistency": consistency}
    config = {"domain": "bench", "storage": {"timeout": "1s"}, "rules": [rule]}
    number = DECISIONS if consistency != "strict" else DECISIONS // 10

    async def awaited(limiter: RateLimiter) -> None:
        for _ in range(number):
            await limiter.engine.adecide(MappingRequest({"ip": "203.0.113.7"}))

    def run() -> float:
        with RateLimiter(config, storage=url) as limiter:
            if asking == "asyncio":
                start = time.perf_counter()
                asyncio.run(awaited(limiter))
            else:
                start = time.perf_counter()
                for _ in range(number):
                    limiter.engine.decide(MappingRequest({"ip": "203.0.113.7"}))
            return number / (time.perf_counter() - start)

    return run


def figures() -> list[Figure]:
    found, curves = simulation()
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    plot(curves, results / "leases.png")
    with Server(BINARIES[0]) as server:
        runs = {(how, kind): per_second(server.url, kind, how) for how in ("threads", "asyncio") for kind in KINDS}
        rates = in_turn(runs, rounds=5)
    for (how, kind), rate in rates.items():
        bar = "bar: 100000" if kind == "lease" else ""
        found.append(Figure(f"{how}, Redis, one process: decisions one by one", kind, rate, "/s", bar))
    return found
