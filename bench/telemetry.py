"""What metrics cost: counting a request beside `labels().inc()`, and counting, logging and showing a denial."""

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from bench.measure import Effort, Figure, Run, alone, beside, in_turn
from ratelimit_mw import RateLimiter
from ratelimit_mw.decision.engine import Engine
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.operations.live import THE_RULES, live_of
from ratelimit_mw.rules.domains import Rules

REQUESTS = 20_000  # in each round
TOGETHER = 500  # requests in turn with as many others
ROUNDS = 60
CLIENT = {"ip": "203.0.113.7"}


class Silent(Engine):
    """Decides as the engine does, without a report of a denial."""

    def report(self, verdict: Verdict, rules: Rules, given: Any) -> None:
        pass


def _limiter(limit: str) -> RateLimiter:
    rules = [{"name": "all", "by": "ip", "limit": limit}]
    return RateLimiter({"domain": "bench", "client": {"secret": "s"}, "rules": rules})


def _spent(work: Callable[[int], object], number: int) -> float:
    """Microseconds of the processor for one of `number` requests."""
    start = time.process_time()
    work(number)
    return (time.process_time() - start) / number * 1e6


def counts(requests: int) -> Run:
    """A function that returns the microseconds of the processor to count one request, beside an empty loop.

    It does what `Engine.execute` and `Engine._concluded` do for the counts, and nothing else: less than the noise of a
    whole decision.
    """
    limiter = _limiter("1000000000 per minute")
    engine, rules, tally = limiter.engine, limiter.rules, limiter.engine.tally
    plan = engine.planner.plan_given(rules, CLIENT)
    engine.execute(plan, rules)
    verdict = engine.execute(plan, rules)  # the plan has its counts from the second request on

    def counted(number: int) -> None:
        for _ in range(number):
            due = tally.due
            started = time.perf_counter() if due() else 0.0
            passes: Any = plan.shape.passes
            passes.number += 1
            if started:
                tally.measured(time.perf_counter() - started, verdict.charges, verdict.rows)

    def empty(number: int) -> None:
        for _ in range(number):
            pass

    return lambda: _spent(counted, requests) - _spent(empty, requests)


def increments(requests: int) -> Run:
    """A function that returns the microseconds of the processor for the two counters of prometheus_client."""
    registry = CollectorRegistry()
    by_outcome = Counter("requests", "Requests.", ["outcome"], registry=registry)
    by_rule = Counter("rule_requests", "Requests by rule.", ["rule", "outcome"], registry=registry)

    def increment(number: int) -> None:
        for _ in range(number):
            by_outcome.labels("allowed").inc()
            by_rule.labels("all", "allowed").inc()

    return lambda: _spent(increment, requests)


def denials(requests: int) -> Run:
    """A function that returns the microseconds of the processor that the report of a denial adds to a `check`."""
    logging.disable(logging.DEBUG)
    logger = logging.getLogger("ratelimit_mw.denials")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    reported, silent = _limiter("1 per day"), _limiter("1 per day")
    silent.engine.__class__ = Silent
    live_of(reported).begin(THE_RULES)  # the table of denied clients

    def check(limiter: RateLimiter, number: int) -> None:
        for _ in range(number):
            limiter.check(CLIENT)

    def run() -> float:
        added = 0.0
        for _ in range(requests // TOGETHER):
            added += _spent(lambda number: check(reported, number), TOGETHER)
            added -= _spent(lambda number: check(silent, number), TOGETHER)
        return added / (requests // TOGETHER)

    return run


def counting(effort: Effort) -> Iterator[Figure]:
    """The counts of a request, its time and its used limit included."""
    requests = effort.part(REQUESTS)
    took = in_turn({"counts": (counts, requests), "prometheus": (increments, requests)}, effort.rounds(ROUNDS))
    what, ours, theirs = "the metrics of a request", took["counts"], took["prometheus"]
    yield alone(what, ours, "us", at_most=0.3)
    yield beside(what, ours, "prometheus_client: labels().inc()", theirs, "us")


def denial(effort: Effort) -> Iterator[Figure]:
    """The counts, the log and the table of a denial. Most of its records are left out of the log."""
    added = in_turn({"denials": (denials, effort.part(REQUESTS))}, effort.rounds(ROUNDS))["denials"]
    yield alone("a denial: its metrics, its log and the table of the live page", added, "us", at_most=1.5)
