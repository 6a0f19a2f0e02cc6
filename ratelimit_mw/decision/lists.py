"""Decisions on several lists of entries (Envoy descriptors): their plan, and one status for each list.

Most apps do not use them, so the limiter imports this module when it is needed.
"""

import math
from collections.abc import Container, Sequence

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.decision.engine import Engine
from ratelimit_mw.decision.planning import Plan, Refusal, whole
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import NEVER, SECOND, Charge, EntryList, ListsDecision, ListStatus, Outcome
from ratelimit_mw.rules.compiled import BLOCKED
from ratelimit_mw.rules.lists import ListLimits, plan_lists
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.units import UNITS

_UNIT_NAMES = {period: unit for unit, period in UNITS.items()}


class ListsRequest:
    """A request that consists of several lists of entries, with its plan.

    Args:
        engine: the engine, whose rules and switch apply.
        rules: the rules of the domain.
        lists: the lists.
        hits: what a list charges if it has no hits of its own.

    Raises:
        ValueError: there are no lists, or hits, an entry or a limit are invalid.
    """

    def __init__(
        self, engine: Engine, rules: RuleSet, lists: Sequence[EntryList | Sequence[tuple[str, str]]], hits: int
    ) -> None:
        if not lists:
            raise ValueError("there are no lists of entries")
        self._engine = engine
        self._planner = engine.planner
        self.rules = rules
        stretch = self._planner.meter(rules).stretched if rules.elastic else _unchanged
        self._planned = plan_lists(rules, [_read(each) for each in lists], whole(hits), stretch)
        self.plan = self._plan()
        """What the engine executes. It may be executed several times, by requests of the same lists."""
        self._counters: list[tuple[ListLimits, list[_Counter]]] | None = None  # made when they are first needed
        self._grouped = False

    @property
    def request(self) -> Request:
        """The request that the rules see. Its attributes are the entries of all lists."""
        return self._planned.request

    def _plan(self) -> Plan:
        rules, planner, charges = self.rules, self._planner, self._planned.charges
        if rules.shedding:
            shed = planner.shedder.shed(rules, self._planned.request, None, commit=True)
            if shed is not None:
                return Refusal(shed)
        if planner.switch.thrown:
            charges = planner.switch.apply(charges)
        if rules.settling and charges is not BLOCKED:  # no response would end a place in flight
            charges = [charge for charge in charges if not ALGORITHMS[charge.ask.quota.algorithm].in_flight]
        return Plan(charges)

    def decided(self, verdict: Verdict) -> ListsDecision:
        """Return the decision, with one status for each list. See `statuses`."""
        return ListsDecision(verdict.decision, self.statuses(verdict))

    def statuses(self, verdict: Verdict) -> tuple[ListStatus, ...]:
        """Return one status for each list, count the hits of the descriptors, and log a denial.

        The rules count for each list, because their attributes are the entries of all lists.
        """
        if not verdict.allowed:
            self._engine.report(verdict, self.rules, self._planned.request)
            if not verdict.charges:  # blocked, shed or without a store: no counter denies
                return (ListStatus(False, retry_after=verdict.decision.retry_after),) * len(self._planned.lists)
        charges, outcomes = self.plan.charges, self._outcomes(verdict)
        hit = self._engine.tally.hit
        for (rule, (_, quota, cost, shadow)), outcome in zip(charges, outcomes, strict=True):
            if rule.descriptor:
                hit(rule, quota, cost, outcome, shadow=shadow)
        counters = self._counters
        if counters is None:
            counters = self._counters = self._counters_of_lists()
        # If one quota admits the request, the others of its group deny nothing.
        passed: Container[str] = ()
        if self._grouped:
            pairs = zip(charges, outcomes, strict=True)
            passed = {charge.rule.quota_group for charge, outcome in pairs if outcome is not None and outcome.allowed}
        return tuple([_status(limits, own, outcomes, passed) for limits, own in counters])

    def _outcomes(self, verdict: Verdict) -> Sequence[Outcome | None]:
        """Return the outcomes of all charges of the plan. None: the counter was not asked."""
        charges = self.plan.charges
        if verdict.charges is charges:
            return verdict.outcomes
        pairs = zip(verdict.charges, verdict.outcomes, strict=True)
        known = {charge.ask.key: outcome for charge, outcome in pairs}
        return [known.get(charge.ask.key) for charge in charges]

    def _counters_of_lists(self) -> "list[tuple[ListLimits, list[_Counter]]]":
        """Return the limits of each list, and its counters: its own, and those of the rules."""
        charges, planned = self.plan.charges, self._planned
        self._grouped = any(charge.rule.quota_group for charge in charges)
        places = {charge.ask.key: place for place, charge in enumerate(charges)}
        of_rules = [charge.ask.key for charge in planned.rules]

        def counter(key: str, own: ListLimits) -> _Counter:
            return _Counter(places[key], charges[places[key]], own.names.get(key))

        return [(own, [counter(key, own) for key in (*own.names, *of_rules) if key in places]) for own in planned.lists]


def _status(
    limits: ListLimits, counters: "Sequence[_Counter]", outcomes: Sequence[Outcome | None], passed: Container[str]
) -> ListStatus:
    """Return the status of a list: that of its counter which binds most. Shadow counters come last."""
    if not counters:
        return ListStatus(True, unlimited=limits.unlimited)
    if len(counters) == 1:
        return counters[0].status(outcomes, passed)[1]
    return min([each.status(outcomes, passed) for each in counters], key=_rank)[1]


def _read(given: EntryList | Sequence[tuple[str, str]]) -> EntryList:
    each = given if isinstance(given, EntryList) else EntryList(given)
    return each if each.hits is None else each._replace(hits=whole(each.hits))


def _unchanged(charges: Sequence[Charge]) -> Sequence[Charge]:
    return charges


class _Counter:
    """A counter of a list.

    Args:
        place: The index of its charge in the plan.
        charge: The charge.
        name: The name of the limit in the list. None if it is the limit of a rule.
    """

    __slots__ = ("_group", "_place", "_shadow", "_shown")

    def __init__(self, place: int, charge: Charge, name: str | None) -> None:
        rule, ask = charge
        quota = ask.quota
        self._place = place
        self._group = rule.quota_group
        self._shadow = ask.shadow
        shown = (rule.name if name is None else name) or None
        self._shown = rule.name, shown, quota.shown_limit, quota.period / SECOND, _UNIT_NAMES.get(quota.period)

    def status(self, outcomes: Sequence[Outcome | None], passed: Container[str]) -> tuple[bool, ListStatus]:
        """Return whether the counter is enforced, and the status of the list by this counter.

        Args:
            outcomes: The outcomes of all counters of the plan. None: it was not asked.
            passed: The groups of quotas of which one admits the request.
        """
        outcome, enforced = outcomes[self._place], not self._shadow
        if self._group:
            enforced = self._group not in passed
        if outcome is None:
            return enforced, ListStatus(True, *self._shown)
        allowed, remaining, reset_after, retry_after, _ = outcome
        wait = 0.0
        if not (allowed or enforced):
            allowed = True
        elif not allowed:
            wait = math.inf if retry_after == NEVER else retry_after / SECOND
        fields = (allowed, *self._shown, remaining, False, reset_after / SECOND, wait)
        return enforced, tuple.__new__(ListStatus, fields)


def _rank(found: tuple[bool, ListStatus]) -> tuple[bool, bool, float, float]:
    """Order the statuses of counters: enforced ones first, then denials, the longest wait, the least that remains."""
    enforced, status = found
    remaining = math.inf if status.remaining is None else status.remaining
    return not enforced, status.allowed, -status.retry_after, remaining
