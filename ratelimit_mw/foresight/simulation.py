"""The production engine, on memory, with a clock that a log moves.

It never opens the storage, the overrides or the switch that the rules name, and the variable RATELIMIT_MW has no
effect. Rules that are in a database are read from there.
"""

import heapq
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat

from ratelimit_mw.algorithms.concurrency import PERIOD
from ratelimit_mw.clock import Clock
from ratelimit_mw.decision.engine import Engine
from ratelimit_mw.decision.planning import Plan, planned
from ratelimit_mw.decision.settlement import Account
from ratelimit_mw.decision.storage import InFlight, InFlightPlace, Storage
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.foresight.logs.entry import Entry
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import Ask, Charge
from ratelimit_mw.reload.watcher import Retriever
from ratelimit_mw.rules.compiled import BLOCKED
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.stores import Store


class LogClock:
    """A clock that shows the time of the current line. `at` is in microseconds since the epoch."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at = 0

    def now(self) -> int:
        """Return the time, in microseconds since the epoch."""
        return self.at


class LogInFlight(InFlight):
    """The concurrent places of requests in flight, renewed by the clock of the log alone, without a thread."""

    def __init__(self, store: Store, clock: Clock) -> None:
        super().__init__(store, clock)
        self._due: float = float("inf")

    def hold(self, asks: Sequence[Ask], at: int) -> InFlightPlace:
        """See `InFlight.hold`."""
        self._due = min(self._due, at + PERIOD // 3)
        return super().hold(asks, at)

    def renew(self) -> None:
        """See `InFlight.renew`. Before the first place is due, it takes no time."""
        if self._now() >= self._due:
            super().renew()
            self._due = min([place.renewed_at for place in self._places], default=float("inf")) + PERIOD // 3

    def _start(self) -> None:
        """Start no thread."""


class Simulation:
    """Decides on the requests of a log by the rules of one configuration.

    The requests must be in order of time.

    Args:
        config: The rules, as for `RateLimiter`.

    Raises:
        ConfigurationError: The rules cannot be used.
        StoreUnavailable: The rules are in a database that does not answer.
    """

    def __init__(self, config: str | os.PathLike[str] | Mapping[str, object]) -> None:
        self._clock = clock = LogClock()
        self._retriever = retriever = Retriever(config, clock)
        storage = Storage(retriever.rules, "memory://", clock)
        storage.in_flight = LogInFlight(storage.store, clock)
        self._storage = storage
        self._engine = Engine(retriever, storage, clock)
        self._engine.tally.due = repeat(False).__next__  # measure no decision: no one reads it
        self.rules: Rules = retriever.rules
        """The rules."""
        self._ends: list[tuple[int, int, Account, int]] = []
        self._count = 0
        self._answerable: Callable[[Charge], bool] | None = None

    def only_answerable(self, answerable: Callable[[Charge], bool]) -> None:
        """Ask only the counters for which this function returns True."""
        self._answerable = answerable

    def close(self) -> None:
        """Release what the rules hold open."""
        self._retriever.stop()

    def plan(self, request: Request) -> Plan:
        """Return what the rules ask for a request.

        They alone decide this: there is no switch, and no load that would shed requests or stretch elastic limits.
        """
        charges = planned(self.rules, request, 1)
        if self._answerable is not None and charges is not BLOCKED:
            charges = [charge for charge in charges if self._answerable(charge)]
        return Plan(charges)

    def decide(self, entry: Entry, plan: Plan) -> Verdict:
        """Decide on the request of a line, at its time. `plan` is that of the request."""
        at, _, _, _, status, lasted, _ = entry
        rules, engine = self.rules, self._engine
        if self._ends and self._ends[0][0] <= at:
            self._end_until(at)
        self._clock.at = at
        verdict = engine.execute(plan, rules)
        if rules.settling and verdict.allowed:
            account = engine.settlement.account(verdict)
            if account.settles:
                self._count += 1
                heapq.heappush(self._ends, (at + max(lasted, 0), self._count, account, status))
                if lasted <= 0:
                    self._end_until(at)
        return verdict

    def _end_until(self, at: int) -> None:
        """End the requests in flight whose end is at this time or before it, at the time of their end."""
        settlement = self._engine.settlement
        while self._ends and self._ends[0][0] <= at:
            end, _, account, status = heapq.heappop(self._ends)
            self._clock.at = end
            if status:
                settlement.settle(account, account.conclude(status, _no_header))
            settlement.settle(account, account.end())


def _no_header(_name: str) -> None:
    """Return None: a log does not have the headers of responses."""


@contextmanager
def quiet() -> Iterator[None]:
    """Log no warning of the package within the block. A warning about a request of a log would be about no request."""
    log = logging.getLogger("ratelimit_mw")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)
