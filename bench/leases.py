"""Leases and write-back: 1 to 100 processes in simulation, and one process on Redis.

In the simulation, every process has its `Leases` over one memory store, under one clock that is moved by hand. Demand
is 150 % of the limit, spread over each minute or all within its first second. Draws
bench/results/leases.png.
"""

import asyncio
import random
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from bench.apps import config
from bench.measure import Effort, Figure, Run, alone, in_turn
from bench.traffic import NAMES, STREAMS
from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.model import SECOND, Ask, Quota
from ratelimit_mw.stores.base import Call, StoreRequest, Wrapper
from ratelimit_mw.stores.denials import DenyCache
from ratelimit_mw.stores.lease_store import Leases
from ratelimit_mw.stores.memory import MemoryStore
from tests.support.bounds import worst_over_admission
from tests.support.servers import BINARIES, Server

KINDS = ("strict", "lease", "write_back")
PROCESSES = (1, 2, 5, 10, 20, 50, 100)
LIMIT = 6_000
DEMAND = 9_000
MINUTES = 3
START = 1_700_000_040
SPREAD = {"over the minute": 60.0, "within a second": 1.0}
DECISIONS = 50_000
PICTURE = Path(__file__).parent / "results" / "leases.png"


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


Curves = dict[tuple[str, str], list[tuple[float, float]]]
"""By spread and kind: calls for each request and error of the admissions, for each number of processes."""


def simulation(effort: Effort) -> Curves:
    """All simulated processes."""
    return {
        (how, kind): [simulated(number, kind, seconds) for number in _numbers(effort)]
        for how, seconds in SPREAD.items()
        for kind in KINDS
    }


def _numbers(effort: Effort) -> tuple[int, ...]:
    """How many processes are simulated."""
    return PROCESSES[::3] if effort.quick else PROCESSES


def simulated_figures(curves: Curves, effort: Effort) -> Iterator[Figure]:
    """The main figures of the simulation, without the curves."""
    for kind in KINDS:
        for how, seconds in SPREAD.items():
            points = curves[how, kind]
            errors = [100 * error for _, error in points]
            exact = {} if kind == "write_back" else {"at_most": 0.0, "worst": True}
            note = f"{min(errors):+.1f} to {max(errors):+.1f} % of the limit"
            if kind == "write_back":
                bound = worst_over_admission(PROCESSES[-1], LIMIT, rate=DEMAND / seconds / PROCESSES[-1], delay=0)
                note += f"; at worst {bound / LIMIT:+.0%}"
            over = [max(error, 0.0) for error in errors]
            what = f"{kind}, 1 to {PROCESSES[-1]} processes, demand {how}: over-admission"
            yield alone(what, over, "%", note=note, detail=kind == "strict", **exact)
            for number, (calls, _) in zip(_numbers(effort), points, strict=True):
                what = f"{kind}, {number} process{'es' * (number > 1)}, demand {how}: store calls per request"
                yield alone(what, [calls], "", detail=True)


def plot(curves: Curves, path: Path) -> None:
    """Calls and errors, by the number of processes."""
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


def figures(effort: Effort) -> Iterator[Figure]:
    """Leases: over-admission, and decisions per second of one process, one after the other."""
    curves = simulation(effort)
    if not effort.quick:
        plot(curves, PICTURE)
    yield from simulated_figures(curves, effort)
    with Server(BINARIES[0]) as server:
        runs = {
            (how, kind, stream): (per_second, how, kind, stream, effort.part(DECISIONS), server.url)
            for how in ("acheck", "check")
            for kind in KINDS
            for stream in ("one", "Zipf")
        }
        rates = in_turn(runs, effort.rounds(5))
    for (how, kind, stream), rate in rates.items():
        bar = 100_000 if (kind, stream) == ("lease", "one") else None
        yield alone(f"{how} on Redis, {kind}: {NAMES[stream]}", rate, "/s", at_least=bar, detail=kind != "lease")


def per_second(how: str, kind: str, stream: str, decisions: int, url: str) -> Run:
    """Decisions of one process per second, one after the other. A contestant, see `bench.measure.Remote`."""
    number = decisions if stream == "one" and kind != "strict" else decisions // 10  # the others call Redis
    limiter, coming, runner = RateLimiter(config(consistency=kind), storage=url), STREAMS[stream](), asyncio.Runner()

    async def awaited(prepared: list[dict[str, str]]) -> float:
        start = time.perf_counter()
        for attributes in prepared:
            await limiter.acheck(attributes)
        return len(prepared) / (time.perf_counter() - start)

    def blocking(prepared: list[dict[str, str]]) -> float:
        start = time.perf_counter()
        for attributes in prepared:
            limiter.check(attributes)
        return len(prepared) / (time.perf_counter() - start)

    def run() -> float:
        prepared = [request.attributes() for request in islice(coming, number)]
        return runner.run(awaited(prepared)) if how == "acheck" else blocking(prepared)

    return run
