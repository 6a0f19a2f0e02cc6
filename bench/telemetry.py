"""What metrics cost: counting a request beside `labels().inc()`, and counting, logging and showing a denial."""

import logging
import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter

from bench.measure import Effort, Figure, Run, alone, beside, in_turn
from ratelimit_mw import RateLimiter
from ratelimit_mw.decision.engine import Engine
from ratelimit_mw.decision.planning import Plan
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.operations.live import live_of
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.stores.base import DECIDE

REQUESTS = 20_000  # in each round: about 60 ms
ROUNDS = 60
CLIENT = {"ip": "203.0.113.7"}


class Uncounted(Engine):
    """Decides as the engine does, without a count. For requests that the store answers."""

    def execute(self, plan: Plan, rules: Rules, commit: bool = True, again: bool = False) -> Verdict:
        if rules.settling and self._clock:
            self.storage.renew()
        asks = plan.asks
        if not asks:
            return self._without_counters(plan, commit)
        reply = self.storage.store.ask((asks, DECIDE))
        verdict = Verdict(plan.charges, reply)
        if verdict.shadowed and commit and not again:
            self.shadows.count(verdict)
        return verdict

    def report(self, verdict: Verdict, rules: Rules, given: Any) -> None:
        pass


def _limiter(counted: bool, limit: str) -> RateLimiter:
    rules = [{"name": "all", "by": "ip", "limit": limit}]
    limiter = RateLimiter({"domain": "bench", "client": {"secret": "s"}, "rules": rules})
    if not counted:
        limiter.engine.__class__ = Uncounted
    return limiter


def checks(requests: int, counted: bool, limit: str, logged: bool) -> Run:
    """A function that returns the microseconds of the processor for one `check`."""
    logging.disable(logging.DEBUG)
    logger = logging.getLogger("ratelimit_mw.denials")
    logger.setLevel(logging.INFO if logged else logging.WARNING)
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    limiter = _limiter(counted, limit)
    if logged:
        live_of(limiter).begin(1)  # the table of denied clients
    check = limiter.check

    def run() -> float:
        start = time.process_time()
        for _ in range(requests):
            check(CLIENT)
        return (time.process_time() - start) / requests * 1e6

    return run


def increments(requests: int) -> Run:
    """A function that returns the microseconds of the processor for the two counters of prometheus_client."""
    registry = CollectorRegistry()
    by_outcome = Counter("requests", "Requests.", ["outcome"], registry=registry)
    by_rule = Counter("rule_requests", "Requests by rule.", ["rule", "outcome"], registry=registry)

    def run() -> float:
        start = time.process_time()
        for _ in range(requests):
            by_outcome.labels("allowed").inc()
            by_rule.labels("all", "allowed").inc()
        return (time.process_time() - start) / requests * 1e6

    return run


def counting(effort: Effort) -> Iterator[Figure]:
    """The counts of a request, its time and its used limit included."""
    requests = effort.part(REQUESTS)
    contestants = {
        "counted": (checks, requests, True, "1000000000 per minute", False),
        "uncounted": (checks, requests, False, "1000000000 per minute", False),
        "prometheus": (increments, requests),
    }
    took = in_turn(contestants, effort.rounds(ROUNDS))
    added = [one - other for one, other in zip(took["counted"], took["uncounted"], strict=True)]
    yield alone("the metrics of a request", added, "us", at_most=0.3)
    yield beside("the metrics of a request", added, "prometheus_client: labels().inc()", took["prometheus"], "us")


def denial(effort: Effort) -> Iterator[Figure]:
    """The counts, the log and the table of a denial. Most of its records are left out of the log."""
    requests = effort.part(REQUESTS)
    contestants = {
        "counted": (checks, requests, True, "1 per day", True),
        "uncounted": (checks, requests, False, "1 per day", False),
    }
    took = in_turn(contestants, effort.rounds(ROUNDS))
    added = [one - other for one, other in zip(took["counted"], took["uncounted"], strict=True)]
    yield alone("a denial: its metrics, its log and the table of the live page", added, "us", at_most=1.5)
