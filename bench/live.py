"""The data of the live page: the time of a look at four processes that have a thousand rules."""

import logging
import time
from collections.abc import Iterator
from functools import partial

from bench.measure import Effort, Figure, Run, alone, in_turn
from ratelimit_mw import RateLimiter
from ratelimit_mw.operations.live import Live, live_of
from tests.support.servers import BINARIES, Server

RULES = 1_000
PROCESSES = 4
ROUNDS = 25
LOOKS = 5  # in each round


def looks(effort: Effort) -> Iterator[Figure]:
    """`Live.state()` where all rules of four processes have denied requests."""
    with Server(BINARIES[0]) as server:
        others = {f"process {number}": (process, server.url, None) for number in range(2, PROCESSES)}
        contestants = {"look": (process, server.url, "look"), "make": (process, server.url, "make"), **others}
        took = in_turn(contestants, effort.rounds(ROUNDS))
    note = f"{RULES} rules, each with denials in each of {PROCESSES} processes"
    yield alone("the state of the live page", took["look"], "ms", at_most=5, note=note)
    yield alone("making it, once a second: CPU", took["make"], "ms", detail=True)


def process(url: str, measured: str | None) -> Run:
    """A function that denies a request by each rule. It returns the milliseconds of what is measured."""
    limiter, live = _started(url)
    live.state()
    make = partial(live._make, limiter)
    measure = {"look": live.state, "make": make}.get(measured)

    def run() -> float:
        for number in range(RULES):
            limiter.check({"ip": "203.0.113.7", "path": f"/items/{number}"})
        if measure is None:
            return 0.0
        deadline = time.monotonic() + 30
        while live.state()["processes"] < PROCESSES:  # the others have not reported yet
            if time.monotonic() > deadline:
                return 0.0  # of the round that warms up
            time.sleep(0.05)
        timer = time.perf_counter if measured == "look" else time.thread_time
        start = timer()
        for _ in range(LOOKS):
            measure()
        return (timer() - start) / LOOKS * 1e3

    return run


def _started(url: str) -> tuple[RateLimiter, Live]:
    logging.getLogger("ratelimit_mw").setLevel(logging.ERROR)
    rules = [
        {"name": f"rule{number}", "by": "ip", "limit": "0 per day", "match": {"path": f"/items/{number}"}}
        for number in range(RULES)
    ]
    storage = {"url": url, "timeout": "5s"}
    limiter = RateLimiter({"domain": "bench", "client": {"secret": "s"}, "storage": storage, "rules": rules})
    live = live_of(limiter)
    live.begin(1)
    return limiter, live
