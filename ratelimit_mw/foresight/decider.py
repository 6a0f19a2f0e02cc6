"""Decides on the requests of a log by one set of rules, and counts what the rules do."""

from collections.abc import Callable, Sequence
from operator import itemgetter

from ratelimit_mw.decision.planning import Plan
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.foresight.clients import namer
from ratelimit_mw.foresight.logs.entry import Entry
from ratelimit_mw.foresight.outcome import Denial, Outcome
from ratelimit_mw.foresight.requests import Requests
from ratelimit_mw.foresight.results import RuleResult
from ratelimit_mw.foresight.simulation import Simulation
from ratelimit_mw.foresight.what_if.collection import Collection
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import Charge
from ratelimit_mw.rules.compiled import BLOCKED
from ratelimit_mw.stores.base import LRU

_admitted = itemgetter(0)
"""Reads `Outcome.allowed` of a counter, in a fifth of the time of its name."""

_MOST_PLANS = 1 << 15
"""The most plans that are kept. With five rules, they take about 50 MB."""

_LONGEST = 1000
"""The most characters of a path whose plan is kept. Clients may write much longer ones, all of them different."""

Planned = tuple[Plan, Sequence[RuleResult]]
"""The plan of a request, and the results of the rules that it asks."""

_Key = tuple[str, str, str, tuple[str | None, ...]]
"""The address, the method, the path and the further values of a line. The path is "" if no plan depends on it."""


class Decider:
    """Decides on requests by one set of rules, and counts the result in `outcome`.

    Args:
        simulation: The engine with the rules.
        requests: Makes the requests.
        hashed: Show clients only as hashes.
    """

    def __init__(self, simulation: Simulation, requests: Requests, *, hashed: bool) -> None:
        rules = [rule for part in simulation.rules.parts for rule in part.rules]
        self.outcome = outcome = Outcome(rules)
        """What the rules did so far."""
        self.on_denial: Callable[[Denial], None] | None = None
        """Is called with each denial."""
        self.collection: Collection | None = None
        """Collects the requests for the what-if curves."""
        self._rules = rules
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

    def decide(self, entry: Entry) -> Verdict:
        """Decide on the request of a line, and count the result. Requests must be in order of time."""
        _, ip, method, target, _, _, extra = entry
        plans = self._plans
        if plans is None:
            plan, results = self._planned(self._requests.make(entry))
        else:
            key = (ip, method, target.partition("?")[0] if self._by_path else "", extra)
            plan, results = plans.get(key) or self._remembered(key, entry)
        verdict = self._simulation.decide(entry, plan)
        if self.collection is not None:
            self.collection.add(entry, plan.charges, verdict)
        self.outcome.requests += 1
        for result in results:
            result.asked += 1
        if (
            not verdict.allowed
            or verdict.over
            or verdict.delay
            or (verdict.shadowed and not all(map(_admitted, verdict.outcomes)))
        ):
            self._count(entry, verdict)
        return verdict

    def request_of(self, entry: Entry) -> Request:
        """Return the request of a line."""
        return self._requests.make(entry)

    def client_of(self, verdict: Verdict, entry: Entry) -> str:
        """Return the identity of the client of a request that was denied, as the denying counter has it."""
        if verdict.binding >= 0:
            return identity_of(verdict.charges[verdict.binding].ask.key)
        request = self._read(entry)
        return f"ip={request.values.get('ip') or request.peer or '?'}"

    def name_of(self, verdict: Verdict, entry: Entry) -> str:
        """Return the name of the client of a request that was denied."""
        return self._name(self.client_of(verdict, entry), self._read(entry))

    def _planned(self, request: Request) -> Planned:
        """Return the plan of a request, and the results of the rules that it asks."""
        plan = self._simulation.plan(request)
        results: list[RuleResult] = []
        last = None
        for rule, _ in () if plan.charges is BLOCKED else plan.charges:
            if rule is not last:  # the counters of one rule follow each other
                last = rule
                results.append(self._results[id(rule)])
        return plan, results

    def _remembered(self, key: _Key, entry: Entry) -> Planned:
        """Return the plan of a request, and keep it for similar requests if it depends on nothing else."""
        request = self._requests.make(entry)
        planned = self._planned(request)
        plain = request.method != "OPTIONS" and not (request.forms or request.several)
        if self._plans is not None and plain and len(key[2]) <= _LONGEST:
            self._plans.put(key, planned)
        return planned

    def _read(self, entry: Entry) -> Request:
        """Return the request of a line, with the values that the rules have read."""
        request = self._requests.make(entry)
        self._simulation.plan(request)
        return request

    def _count(self, entry: Entry, verdict: Verdict) -> None:
        """Count a verdict that is more than an admission."""
        if not verdict.allowed:
            outcome = self.outcome
            outcome.denied += 1
            outcome.reasons[verdict.reason or "limited"] += 1
            outcome.limited.add(self.client_of(verdict, entry), entry.at)
        counted: set[int] = set()
        for place, (charge, decided) in enumerate(zip(verdict.charges, verdict.outcomes, strict=True)):
            rule = charge.rule
            result = self._results[id(rule)]
            if decided.allowed:
                result.over += place in verdict.over
                result.delayed += bool(decided.delay)
            elif (not rule.quota_group or not verdict.allowed) and id(rule) not in counted:
                counted.add(id(rule))
                self._deny(entry, verdict, charge, decided.retry_after)
        if verdict.reason == "blocked" and self.on_denial is not None:
            name = self.name_of(verdict, entry)
            self.on_denial(
                Denial(entry.at, name, "", False, "blocked", float("inf"), entry.method, entry.target, entry.status)
            )

    def _deny(self, entry: Entry, verdict: Verdict, charge: Charge, retry_after: int) -> None:
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
                Denial(
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
