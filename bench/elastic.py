"""An elastic limit at work: spare capacity is used, and given back when the load rises.

One process is measured. A client always asks for twice its limit. Other work first leaves the process idle, then keeps
its event loop busy, then leaves it idle again. Draws bench/results/elastic.png.
"""

import asyncio
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.apps import receive, send
from bench.measure import Effort, Figure, alone
from bench.traffic import one
from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware

LIMIT = 40  # a second
ASKED = 2 * LIMIT
WORK = 0.001  # seconds of processor time for each request of the client
BUSY = 0.8  # the share of the processor that the other work takes
RISES, FALLS, END = 8.0, 16.0, 28.0
EVERY = 0.25
PICTURE = Path(__file__).parent / "results" / "elastic.png"


class Sample(NamedTuple):
    at: float
    admitted: float
    load: float
    share: float


def figures(effort: Effort) -> Iterator[Figure]:
    """An elastic limit of 40 a second, up to 200 % below a load of 0.7."""
    samples, late = asyncio.run(_experiment())
    if not effort.quick:
        _draw(samples)
    loaded, idle_again = _mean(samples, RISES + 4, FALLS), _mean(samples, FALLS + 8, END)
    yield alone("admitted, process idle", [_mean(samples, 3, RISES)], "/s", note=f"{ASKED} are sent")
    yield alone("admitted, process loaded", [loaded], "/s", note=f"the limit is {LIMIT}")
    yield alone("admitted, idle again", [idle_again], "/s", note=f"{ASKED} are sent")
    yield alone("closed after", [_until(samples, RISES, lambda s: s.share == 0.0)], "s")
    yield alone("open again after", [_until(samples, FALLS, lambda s: s.share == 1.0)], "s")
    yield alone("delay of the other work", [late * 1e3], "ms", note="median, while the process is loaded")


async def _experiment() -> tuple[list[Sample], float]:
    rule = {
        "name": "all",
        "by": "ip",
        "limit": f"{LIMIT} per second",
        "throttle": {"elastic": {"up_to": "200%", "below": 0.7}},
    }
    admitted = 0

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        nonlocal admitted
        admitted += 1
        _spend(WORK)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async with RateLimiter({"domain": "bench", "rules": [rule]}, storage="memory://") as limiter:
        served = RateLimitMiddleware(app, limiter=limiter)
        meter = limiter.engine.planner.meter(limiter.rules)
        start = time.monotonic()
        late: list[float] = []
        work = [asyncio.create_task(_ask(served, start)), asyncio.create_task(_other_work(start, late))]
        samples: list[Sample] = []
        before = 0
        while (at := time.monotonic() - start) < END:
            await asyncio.sleep(EVERY)
            elapsed = time.monotonic() - start - at
            share = meter.share(0.7)
            samples.append(Sample(at + elapsed, (admitted - before) / elapsed, meter.load(), share))
            before = admitted
        await asyncio.gather(*work)
    return samples, statistics.median(late)


async def _ask(app: Any, start: float) -> None:
    due, requests = start, one()
    while time.monotonic() - start < END:
        due += 1 / ASKED
        if due > time.monotonic():
            await asyncio.sleep(due - time.monotonic())
        await app(next(requests).scope(), receive, send)


async def _other_work(start: float, late: list[float]) -> None:
    due = start + RISES
    await asyncio.sleep(RISES)
    while time.monotonic() - start < FALLS:
        late.append(max(time.monotonic() - due, 0.0))
        _spend(BUSY * 0.05)
        due = max(due + 0.05, time.monotonic())
        await asyncio.sleep(max(due - time.monotonic(), 0))


def _spend(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def _mean(samples: list[Sample], since: float, until: float) -> float:
    return statistics.mean(sample.admitted for sample in samples if since <= sample.at < until)


def _until(samples: list[Sample], since: float, reached: Any) -> float:
    return next((sample.at - since for sample in samples if sample.at > since and reached(sample)), float("inf"))


def _draw(samples: list[Sample]) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    at = [sample.at for sample in samples]
    figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(8, 5), height_ratios=(3, 2))
    above.step(at, [sample.admitted for sample in samples], label="admitted per second")
    above.plot(at, [LIMIT * (1 + sample.share) for sample in samples], "--", label="what the limit is opened to")
    above.axhline(LIMIT, color="grey", linewidth=0.8)
    above.set_ylim(0, ASKED * 1.4)
    above.legend(loc="lower right")
    below.plot(at, [sample.load for sample in samples], color="tab:red", label="load")
    below.axhline(0.7, color="grey", linewidth=0.8)
    below.set_ylim(0, 1.05)
    below.set_xlabel("seconds")
    below.legend(loc="upper right")
    for axes in (above, below):
        axes.axvspan(RISES, FALLS, color="tab:red", alpha=0.08)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=100)
    plt.close(figure)
