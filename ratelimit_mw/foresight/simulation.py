"""The production engine, on memory, with a clock that a log moves, and what it decides, counted.

It never opens the storage, the overrides or the switch that the rules name, and the variable RATELIMIT_MW has no
effect. Rules that are in a database are read from there.
"""

import heapq
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from operator import itemgetter

from ratelimit_mw.algorithms.concurrency import PERIOD
from ratelimit_mw.clock import Clock
from ratelimit_mw.decision.engine import Engine
from ratelimit_mw.decision.planning import Plan
from ratelimit_mw.decision.settlement import Account
from ratelimit_mw.decision.storage import InFlight, InFlightPlace, Storage
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.foresight.logs.entry import LogEntry
from ratelimit_mw.foresight.requests import Requests
from ratelimit_mw.foresight.results import DeniedRequest, RuleResult, RulesOutcome
from ratelimit_mw.foresight.wording import namer
from ratelimit_mw.identity.address import UNKNOWN_ADDRESS
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import Ask, Charge
from ratelimit_mw.reload.watcher import Retriever
from ratelimit_mw.rules.compiled import BLOCKED
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.stores import Store
from ratelimit_mw.stores.base import ReplyFields
from ratelimit_mw.stores.denials import LRU

_MOST_PLANS = 1 << 16
"""The most plans that are kept. With five rules, they take about 100 MB."""

_LONGEST = 1000
"""The most characters of a path whose plan is kept. Clients may write much longer ones, all of them different."""

_ADMITTED = Verdict((), None)
"""The verdict on each request that its counters simply admit. What they have left is of no use here."""

_ALLOWED = itemgetter(0)

Planned = tuple[Plan, Sequence[RuleResult], bool, int]
"""The plan of a request, the results of the rules that it asks, if one counts by an address that is unknown, and the
number of the plan: -1 if it asks nothing."""

_Key = tuple[str, str, str, tuple[str | None, ...]]
"""The address, the method, the path and the further values of a line. The path is "" if no plan depends on it."""


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
        """See `InFlight.hold`. It starts no thread."""
        self._due = min(self._due, at + PERIOD // 3)
        place = InFlightPlace(asks, at, self._now())
        self._places.add(place)
        return place

    def renew(self) -> None:
        """See `InFlight.renew`. Before the first place is due, it takes no time."""
        if self._now() >= self._due:
            super().renew()
            self._due = min([place.renewed_at for place in self._places], default=float("inf")) + PERIOD // 3


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
        self._settling = self.rules.settling
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
        charges = self.rules.plan(request)
        if self._answerable is not None and charges is not BLOCKED:
            charges = tuple(filter(self._answerable, charges))
        return self.plan_of(charges)

    def plan_of(self, charges: Sequence[Charge]) -> Plan:
        """Return the plan with these charges."""
        return self._engine.planner.plan_of(charges, direct=not self.rules.holding)

    def decide(self, at: int, status: int, lasted: int, plan: Plan) -> Verdict:
        """Decide on a request at its time. See `LogEntry` for the arguments; `plan` is that of the request.

        The verdict on a request that is simply admitted may tell nothing of its counters, because making a full one
        takes longer than to decide.
        """
        reply = self.taken(at, plan)
        if reply is not None:
            brief = plan.shape.brief and all(map(_ALLOWED, reply[1]))
            return _ADMITTED if brief else plan.concluded(reply)
        rules, engine = self.rules, self._engine
        if self._ends and self._ends[0][0] <= at:
            self._end_until(at)
        self._clock.at = at
        verdict = engine.execute(plan, rules)
        if self._settling and verdict.allowed:
            account = engine.settlement.account(verdict)
            if account.settles:
                self._count += 1
                heapq.heappush(self._ends, (at + max(lasted, 0), self._count, account, status))
                if lasted <= 0:
                    self._end_until(at)
        return verdict

    def taken(self, at: int, plan: Plan) -> ReplyFields | None:
        """Decide on a request at its time, and return the reply of its counters alone, in a third of the time.

        None if it takes more than one step, or responses are settled: nothing is decided then.
        """
        place = plan.place or self._engine.place(plan)
        if place is None or self._settling:
            return None
        self._clock.at = at
        reply: ReplyFields = plan.shape.decide(place)
        return reply

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


class Decider:
    """Decides on requests by one set of rules, and counts the result in `outcome`.

    Args:
        simulation: The engine with the rules.
        requests: Makes the requests.
        hashed: Show clients only as hashes.
    """

    def __init__(self, simulation: Simulation, requests: Requests, *, hashed: bool) -> None:
        rules = simulation.rules.rules
        self.outcome = outcome = RulesOutcome(rules)
        """What the rules did so far."""
        self.on_denial: Callable[[DeniedRequest], None] | None = None
        """Is called with each denial."""
        self.on_plan: Callable[[LogEntry, Sequence[Charge]], int] | None = None
        """Is called with a request and what it asks, and numbers this plan."""
        self.on_verdict: Callable[[LogEntry, int, bool], None] | None = None
        """Is called with each request that asks something, the number of its plan, and if it is allowed."""
        self._places = {id(rule): place for place, rule in enumerate(rules)}
        """The places of the rules by the identities of their objects: hashing a rule takes much longer."""
        self._results = {id(rule): outcome.rules[place] for place, rule in enumerate(rules)}
        self._requests = requests
        self._simulation = simulation
        rule_set = simulation.rules
        self._by_path = rule_set.plans is None or rule_set.plans.by_path
        known = rule_set.plans is not None and all(part.attributes.headers is not None for part in rule_set.parts)
        self._plans: LRU[_Key, Planned] | None = LRU(_MOST_PLANS) if known else None
        """The plans of recent requests, by what plans depend on. None if they may depend on more. See `Plans`."""
        self._name = namer(simulation.rules, hashed=hashed)

    def decide(self, entry: LogEntry) -> Verdict:
        """Decide on the request of a line, and count the result. Requests must be in order of time."""
        at, ip, method, target, status, lasted, extra, _ = entry
        plans = self._plans
        if plans is None:
            planned = self._planned(self._requests.make(entry), entry)
        else:
            key = (ip, method, target.partition("?")[0] if self._by_path else "", extra)
            planned = plans.get(key) or self._remembered(key, entry)
        plan, results, unaddressed, number = planned
        verdict = self._simulation.decide(at, status, lasted, plan)
        if number >= 0 and self.on_verdict is not None:
            self.on_verdict(entry, number, verdict.allowed)
        self.outcome.requests += 1
        for result in results:
            result.asked += 1
        if unaddressed:
            self.outcome.without_address += 1
            self.outcome.unreadable_address = self.outcome.unreadable_address or ip
        if not verdict.simple:
            self._count(entry, verdict)
        return verdict

    def client_of(self, verdict: Verdict, entry: LogEntry) -> str:
        """Return the identity of the client of a request that was denied, as the denying counter has it."""
        if verdict.binding >= 0:
            return identity_of(verdict.charges[verdict.binding].ask.key)
        request = self._read(entry)
        return f"ip={request.values.get('ip') or request.peer or '?'}"

    def name_of(self, verdict: Verdict, entry: LogEntry) -> str:
        """Return the name of the client of a request that was denied."""
        return self._name(self.client_of(verdict, entry), self._read(entry))

    def named(self, identity: str, entry: LogEntry | None) -> str:
        """Return the name of the client with an identity, which sent the request of a line, if one is known."""
        return self._name(identity, None if entry is None else self._read(entry))

    def _planned(self, request: Request, entry: LogEntry) -> Planned:
        """Return the plan of a request of a line, and what is counted with it."""
        plan = self._simulation.plan(request)
        results: list[RuleResult] = []
        last = None
        for rule, _ in () if plan.charges is BLOCKED else plan.charges:
            if rule is not last:  # the counters of one rule follow each other
                last = rule
                results.append(self._results[id(rule)])
        number = self.on_plan(entry, plan.charges) if plan.charges and self.on_plan is not None else -1
        return plan, results, any(UNKNOWN_ADDRESS in ask.key for ask in plan.asks), number

    def _remembered(self, key: _Key, entry: LogEntry) -> Planned:
        """Return the plan of a request, and keep it for similar requests if it depends on nothing else."""
        request = self._requests.make(entry)
        planned = self._planned(request, entry)
        plain = request.method != "OPTIONS" and not (request.forms or request.several)
        if self._plans is not None and plain and len(key[2]) <= _LONGEST:
            self._plans.put(key, planned)
        return planned

    def _read(self, entry: LogEntry) -> Request:
        """Return the request of a line, with the values that the rules have read."""
        request = self._requests.make(entry)
        self._simulation.plan(request)
        return request

    def _count(self, entry: LogEntry, verdict: Verdict) -> None:
        """Count a verdict that is more than an admission."""
        if not verdict.allowed:
            outcome = self.outcome
            outcome.denied += 1
            outcome.reasons[verdict.reason or "limited"] += 1
            outcome.limited.add(self.client_of(verdict, entry), entry.at)
        counted: set[int] = set()
        for place, (charge, row) in enumerate(zip(verdict.charges, verdict.rows, strict=True)):
            allowed, _, _, retry_after, delay = row
            if allowed and not (delay or verdict.over):
                continue
            rule, ask = charge
            result = self._results[id(rule)]
            if allowed:
                result.over += place in verdict.over
                result.delayed += bool(delay)
            elif (not rule.quota_group or not verdict.allowed) and id(rule) not in counted:
                if verdict.allowed and not counted:
                    self.outcome.shadow_denied += 1
                    self.outcome.shadowed.add(identity_of(ask.key), entry.at)
                counted.add(id(rule))
                self._deny(entry, verdict, charge, retry_after)
        if verdict.reason == "blocked" and self.on_denial is not None:
            name = self.name_of(verdict, entry)
            self.on_denial(
                DeniedRequest(
                    entry.at, name, "", False, "blocked", float("inf"), entry.method, entry.target, entry.status
                )
            )

    def _deny(self, entry: LogEntry, verdict: Verdict, charge: Charge, retry_after: int) -> None:
        rule, ask = charge
        outcome, result = self.outcome, self._results[id(rule)]
        result.deny(entry.at)
        key = self._places[id(rule)], identity_of(ask.key)
        if outcome.clients.add(key, entry.at):
            result.clients += 1
            if len(outcome.names) > 2 * len(outcome.clients):  # most of them have lost their place in the table
                outcome.names = {each: name for each, name in outcome.names.items() if each in outcome.clients}
            outcome.names[key] = self._name(key[1], self._read(entry))
        if self.on_denial is not None:
            reason = verdict.reason if not verdict.allowed and not ask.shadow else "limited"
            wait = float("inf") if retry_after < 0 else retry_after / 1e6
            self.on_denial(
                DeniedRequest(
                    entry.at,
                    outcome.names[key],
                    rule.name,
                    rule.shadow,
                    reason or "limited",
                    wait,
                    entry.method,
                    entry.target,
                    entry.status,
                )
            )


def identity_of(key: str) -> str:
    """Return the identity in the key of a counter."""
    return key[key.index("{") + 1 : -1]
