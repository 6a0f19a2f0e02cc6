"""Decisions on several lists of entries (Envoy descriptors): their plan, and one status for each list.

Most apps do not use them, so the limiter imports this module when it is needed.
"""

import math
from collections.abc import Sequence

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.decision.engine import Engine
from ratelimit_mw.decision.planning import Plan, Refusal, whole
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import NEVER, SECOND, Charge, EntryList, ListsDecision, ListStatus
from ratelimit_mw.rules.compiled import BLOCKED
from ratelimit_mw.rules.lists import ListLimits, plan_lists
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.units import UNITS

_UNIT_NAMES = {period: unit for unit, period in UNITS.items()}


class ListsQuestion:
    """The question whether a request of several lists may pass.

    Args:
        engine: the engine, whose rules and switch apply.
        rules: the rules of the domain.
        lists: the lists.
        hits: what a list charges that has no hits of its own.

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
        """What the engine executes."""

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
        """Return the decision, with one status for each list, and log a denial.

        The rules count for each list, because their attributes are the entries of all lists.
        """
        decision, planned = verdict.decision, self._planned
        if not verdict.allowed:
            self._engine.report(verdict, self.rules, planned.request)
            if not verdict.charges:  # blocked, shed or without a store: no counter denies
                denied = ListStatus(False, retry_after=decision.retry_after)
                return ListsDecision(decision, (denied,) * len(planned.lists))
        self._count_hits(verdict)
        found = _Counters(self.plan, verdict)
        of_rules = [charge.ask.key for charge in planned.rules]
        return ListsDecision(decision, tuple([found.status(own, of_rules) for own in planned.lists]))

    def _count_hits(self, verdict: Verdict) -> None:
        """Count the hits of the descriptors, which are the charges after those of the rules."""
        tally = self._engine.tally
        outcomes = {charge.ask.key: outcome for charge, outcome in zip(verdict.charges, verdict.outcomes, strict=True)}
        for rule, ask in self.plan.charges:
            if rule.descriptor:
                tally.hit(rule, ask.quota, ask.cost, outcomes.get(ask.key), shadow=ask.shadow)


def _read(given: EntryList | Sequence[tuple[str, str]]) -> EntryList:
    each = given if isinstance(given, EntryList) else EntryList(given)
    return each if each.hits is None else each._replace(hits=whole(each.hits))


def _unchanged(charges: Sequence[Charge]) -> Sequence[Charge]:
    return charges


class _Counters:
    """The counters of a request by their keys, after the store was asked."""

    def __init__(self, plan: Plan, verdict: Verdict) -> None:
        self._charges = {charge.ask.key: charge for charge in plan.charges}
        pairs = list(zip(verdict.charges, verdict.outcomes, strict=True))
        self._outcomes = {charge.ask.key: outcome for charge, outcome in pairs}
        # If one quota admits the request, the others of its group deny nothing.
        self._passed = {charge.rule.quota_group for charge, outcome in pairs if outcome.allowed}

    def status(self, own: ListLimits, of_rules: Sequence[str]) -> ListStatus:
        """Return the status of a list: that of its counter which binds most. Shadow counters come last."""
        charges = [self._charges[key] for key in (*own.names, *of_rules) if key in self._charges]
        if not charges:
            return ListStatus(True, unlimited=own.unlimited)
        found = [(self._enforced(charge), self._of_counter(own, charge)) for charge in charges]
        return min(found, key=_rank)[1]

    def _enforced(self, charge: Charge) -> bool:
        group = charge.rule.quota_group
        return group not in self._passed if group else not charge.ask.shadow

    def _of_counter(self, own: ListLimits, charge: Charge) -> ListStatus:
        rule, ask = charge
        quota, outcome = ask.quota, self._outcomes.get(ask.key)
        status = ListStatus(
            allowed=True,
            rule=rule.name,
            name=own.names.get(ask.key, rule.name) or None,
            limit=quota.shown_limit,
            period=quota.period / SECOND,
            unit=_UNIT_NAMES.get(quota.period),
        )
        if outcome is None:
            return status
        status = status._replace(remaining=outcome.remaining, reset_after=outcome.reset_after / SECOND)
        if outcome.allowed or not self._enforced(charge):
            return status
        wait = math.inf if outcome.retry_after == NEVER else outcome.retry_after / SECOND
        return status._replace(allowed=False, retry_after=wait)


def _rank(found: tuple[bool, ListStatus]) -> tuple[bool, bool, float, float]:
    """Order the statuses of counters: enforced ones first, then denials, the longest wait, the least that remains."""
    enforced, status = found
    remaining = math.inf if status.remaining is None else status.remaining
    return not enforced, status.allowed, -status.retry_after, remaining
