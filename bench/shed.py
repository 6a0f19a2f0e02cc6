"""Load shedding at work: an analytics job must not hurt the main path.

One process is measured. Payments come at a steady rate. For a while, an analytics job asks for more than the process
has left, and does not wait for its answers. This is run twice: without priorities, and with `critical` and `low`. Draws
bench/results/shed.png.
"""

import asyncio
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.apps import receive
from bench.measure import Effort, Figure, alone
from bench.traffic import Request
from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware

PAYMENTS, PAYMENT = 40, 0.003  # a second, and seconds of processor that each takes
REPORTS, REPORT = 80, 0.015
BEGINS, ENDS, END = 4.0, 14.0, 26.0
EVERY = 0.25
PICTURE = Path(__file__).parent / "results" / "shed.png"

EVERYBODY = {"name": "everybody", "by": "ip", "limit": "1000000 per minute"}
PRIORITIES = [
    {"name": "payments", "match": {"path": "/pay"}, "limit": "unlimited", "priority": "critical"},
    {"name": "analytics", "match": {"path": "/analytics"}, "limit": "unlimited", "priority": "low"},
]


class Answer(NamedTuple):
    path: str
    asked: float
    took: float
    status: int


class Run(NamedTuple):
    answers: list[Answer]
    loads: list[tuple[float, float]]

    def of(self, path: str, since: float = 0.0, until: float = END) -> list[Answer]:
        return [answer for answer in self.answers if answer.path == path and since <= answer.asked < until]


def figures(effort: Effort) -> Iterator[Figure]:
    """Load shedding: 40 payments a second, while a job asks for 80 reports a second."""
    without = asyncio.run(_run([EVERYBODY]))
    with_priorities = asyncio.run(_run([EVERYBODY, *PRIORITIES]))
    if not effort.quick:
        _draw(without, with_priorities)
    for name, run in (("no priorities", without), ("critical and low", with_priorities)):
        before, during, reports = run.of("/pay", 0, BEGINS), run.of("/pay", BEGINS, ENDS), run.of("/analytics")
        served = [answer.status for answer in reports].count(200) / (ENDS - BEGINS)
        refused = sum(each.status == 503 for each in run.of("/pay"))
        yield alone(f"{name}: a payment before the job", [_quantile(before, 50)], "ms", note="median")
        yield alone(f"{name}: a payment during the job", [_quantile(during, 50)], "ms", note="median")
        yield alone(f"{name}: a payment during the job", [_quantile(during, 99)], "ms", note="99 of 100")
        yield alone(f"{name}: payments refused", [refused], "", note="of all")
        yield alone(f"{name}: reports served", [served], "/s", note=f"{REPORTS} are sent")
        yield alone(
            f"{name}: calm again after", [_calm(run) - ENDS], "s", note="no payment over 100 ms, no report refused"
        )


async def _run(rules: list[dict[str, Any]]) -> Run:
    run = Run([], [])

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        _spend(PAYMENT if scope["path"] == "/pay" else REPORT)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async with RateLimiter({"domain": "bench", "rules": rules}, storage="memory://") as limiter:
        served = RateLimitMiddleware(app, limiter=limiter)
        start = time.monotonic()
        meter = limiter.engine.planner.meter(limiter.rules) if len(rules) > 1 else None
        clients = [
            asyncio.create_task(_ask(served, "/pay", PAYMENTS, run, start, 0.0, END)),
            asyncio.create_task(_ask(served, "/analytics", REPORTS, run, start, BEGINS, ENDS)),
        ]
        while (at := time.monotonic() - start) < END:
            if meter is not None:
                run.loads.append((at, meter.pressure()))
            await asyncio.sleep(EVERY)
        await asyncio.gather(*clients)
    return run


async def _ask(  # noqa: PLR0917 - they are what a client is
    app: Any, path: str, rate: int, run: Run, start: float, since: float, until: float
) -> None:
    """Send requests at a fixed rate without waiting for the answers, as many clients do."""
    asked = []
    for number in range(int(rate * (until - since))):
        due = since + number / rate
        if start + due > time.monotonic():  # a client that is late sends all requests that are due at once
            await asyncio.sleep(start + due - time.monotonic())
        asked.append(asyncio.create_task(_one(app, path, run, start, due)))
    await asyncio.gather(*asked)


async def _one(app: Any, path: str, run: Run, start: float, due: float) -> None:
    status = 0

    async def send(message: Any) -> None:
        nonlocal status
        status = message.get("status", status)

    await app(Request(7, path).scope(), receive, send)
    run.answers.append(Answer(path, due, time.monotonic() - start - due, status))


def _spend(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def _quantile(answers: list[Answer], percent: int) -> float:
    return statistics.quantiles([answer.took * 1e3 for answer in answers], n=100)[percent - 1]


def _calm(run: Run) -> float:
    """The time of the answer to the last slow payment or the last refused report."""
    hurt = [each for each in run.of("/pay") if each.took > 0.1] + [each for each in run.answers if each.status != 200]
    return max([ENDS, *(each.asked + each.took for each in hurt)])


def _draw(without: Run, with_priorities: Run) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (above, middle, below) = plt.subplots(3, 1, sharex=True, figsize=(8, 7), height_ratios=(3, 2, 2))
    runs = (without, "no priorities", "tab:red"), (with_priorities, "critical and low", "tab:green")
    for run, name, colour in runs:
        payments = run.of("/pay")
        at, took = [each.asked for each in payments], [each.took * 1e3 for each in payments]
        above.semilogy(at, took, ".", markersize=3, color=colour, label=f"a payment, {name}")
    above.set_ylabel("ms")
    above.legend(loc="upper right", markerscale=3)
    edges = [n * EVERY * 2 for n in range(int(END / EVERY / 2) + 1)]
    for status, name, colour in ((200, "reports served", "tab:blue"), (503, "reports shed", "tab:orange")):
        middle.hist(
            [each.asked for each in with_priorities.of("/analytics") if each.status == status],
            bins=edges,
            histtype="step",
            color=colour,
            label=f"{name}, in half a second",
        )
    middle.legend(loc="upper right")
    below.plot(*zip(*with_priorities.loads, strict=True), color="tab:purple", label="pressure")
    for band, name in (((0.7, 0.85), "low"), ((0.95, 1.0), "critical")):
        below.axhspan(*band, color="grey", alpha=0.2)
        below.text(END, sum(band) / 2, name, ha="right", va="center", fontsize="small")
    below.set_ylim(0, 1.05)
    below.set_xlabel("seconds")
    below.legend(loc="lower right")
    for axes in (above, middle, below):
        axes.axvspan(BEGINS, ENDS, color="tab:blue", alpha=0.06)
    figure.tight_layout()
    figure.savefig(PICTURE, dpi=100)
    plt.close(figure)
