"""Decisions on several lists of entries: one plan and one call to the store, then one status for each list.

The `descriptors` of the domain are matched against each list. The `rules` of the domain see one request, whose
attributes are the entries of all lists.

Most apps do not use them, so the limiter imports this module when it is needed.
"""

import math
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from ratelimit_mw.algorithms import ALGORITHMS, with_overdraft
from ratelimit_mw.decision.engine import Engine
from ratelimit_mw.decision.load import Meter
from ratelimit_mw.decision.planning import Plan, Refusal
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.envoy.tree import DEFAULT, MOST, AppliedLimit, DescriptorLimit, asked, replaced_among
from ratelimit_mw.errors import StoreUnavailable, quoted
from ratelimit_mw.identity.attributes import canonical_name
from ratelimit_mw.identity.identifier import GLOBAL, encoder
from ratelimit_mw.identity.request import EntriesRequest, Entry, Request
from ratelimit_mw.model import (
    NEVER,
    SENT,
    Ask,
    Charge,
    EntryList,
    ListsDecision,
    ListStatus,
    Quota,
    Reply,
    Row,
    Rule,
)
from ratelimit_mw.rules.compiled import BLOCKED, escaped
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.ruleset import REFUSED, RuleSet
from ratelimit_mw.stores.base import LOOK, Intent, Steps
from ratelimit_mw.units import SECOND, UNITS, whole

_UNIT_NAMES = {period: unit for unit, period in UNITS.items()}

_MOST_HITS = MOST + 1
"""A greater sum of hits is reduced to this number, which is above every limit. A client may shape hits, and a metric
that adds up greater ones would soon be above 2**53, where a float does not grow by 1."""


class _ListLimits(NamedTuple):
    """The limits of one list.

    Attributes:
        names: The names of its limits in the file, by the keys of their counters. A limit may have no name ("").
        unlimited: Whether one of its limits is unlimited.
    """

    names: Mapping[str, str]
    unlimited: bool


_NO_LIMITS = _ListLimits({}, unlimited=False)


class _ListsPlan(NamedTuple):
    """The plan of several lists.

    Attributes:
        request: The request that the rules see.
        charges: All charges, each counter once: those of the rules, then those of the lists. `BLOCKED` if an override
            blocks the client.
        of_rules: The charges of the rules alone.
        limits: The limits of each list, in order.
        costs: What each list charges, by the key of a counter that several lists share.
        refunds: What is given back, before the request is decided.
    """

    request: Request
    charges: Sequence[Charge]
    of_rules: Sequence[Charge]
    limits: Sequence[_ListLimits]
    costs: Mapping[str, Sequence[int]]
    refunds: Sequence[Ask]


class NotRefundable(ValueError):
    """Hits cannot be given back to a limit. Its text names the algorithm and the rule."""


def _plan_lists(rules: RuleSet, lists: Sequence[EntryList], hits: int, meter: Meter | None) -> _ListsPlan:
    """Return the plan of these lists.

    Rules are charged the most hits of a list. If several lists lead to one counter, it is charged the sum. Hits below 0
    are given back: the counter is asked with 0.

    Args:
        rules: The rules of one domain.
        lists: The lists.
        hits: What a list charges that has no hits of its own.
        meter: Chooses the limits of rules for the current load. None: no limit depends on it.

    Raises:
        ValueError: An entry is not a pair, or the limit of a list is invalid.
        NotRefundable: Hits cannot be given back to one of the limits.
    """
    entries = [EntriesRequest(each.entries).entries for each in lists]
    request = _request(rules, entries)
    costs = [hits if each.hits is None else each.hits for each in lists]
    most = max(costs, default=hits)
    applied = _of_rules(rules, request, max(most, 0))
    if applied is None or applied is BLOCKED:  # all rules are off for this client, or all requests
        return _ListsPlan(request, applied or (), (), [_NO_LIMITS] * len(lists), {}, ())
    if meter is not None:
        applied = meter.stretched(applied)
    if most > 0 and any(each.hits == most for each in lists):
        applied = [_late(charge) for charge in applied]
    found = [_found(rules, each, own) for each, own in zip(lists, entries, strict=True)]
    replaced = replaced_among([match for own in found for match in own])
    if replaced:
        found = [[one for one in own if (one.limit.name, one.limit.rule.shadow) not in replaced] for own in found]
    limits = [
        _ListLimits(
            {match.key: match.limit.name for match in own if match.limit.quota is not None},
            any(match.limit.quota is None for match in own),
        )
        for own in found
    ]
    merged, shared = _merged(lists, costs, found)
    refunds = _refunds(applied, most, found, costs) if min(costs) < 0 else ()
    return _ListsPlan(request, (*applied, *merged), applied, limits, shared, refunds)


def _refunds(
    applied: Sequence[Charge], most: int, found: Sequence[Sequence[AppliedLimit]], costs: Sequence[int]
) -> Sequence[Ask]:
    """Return what rules and lists with hits below 0 give back. Raises NotRefundable."""
    refunds: dict[str, Ask] = {}
    for rule, ask in applied if most < 0 else ():
        if ALGORITHMS[ask.quota.algorithm].in_flight:  # it is not charged either
            continue
        _require_refunds(rule, ask.quota)
        refunds[ask.key] = ask._replace(cost=-most)
    for cost, own in zip(costs, found, strict=True):
        for match in own if cost < 0 else ():
            quota, key = match.limit.quota, match.key
            if quota is not None:
                _require_refunds(match.limit.rule, quota)
                before = refunds[key].cost if key in refunds else 0
                refunds[key] = Ask(key, quota, min(before - cost, _MOST_HITS))
    return tuple(refunds.values())


def _require_refunds(rule: Rule, quota: Quota) -> None:
    if not ALGORITHMS[quota.algorithm].refunds_later:
        raise NotRefundable(f"hits cannot be given back to {quoted(rule.logged)}: {quota.algorithm} needs their time")


def _request(rules: RuleSet, lists: Sequence[Sequence[Entry]]) -> Request:
    """Return a request with all entries as attributes. The first value of each attribute wins."""
    attributes: dict[str, str] = {}
    for entries in lists:
        for key, value in entries:
            attributes.setdefault(canonical_name(key), value)
    return rules.attributes.request_from(attributes, ignore_unknown=True)


def _of_rules(rules: RuleSet, request: Request, cost: int) -> Sequence[Charge] | None:
    """Return the charges of the rules without the descriptors. None if the client or the request is exempt."""
    if not (rules.compiled or rules.exempt or rules.overrides):
        return ()
    candidates, replaced, free, _ = rules.select(request)  # plain attributes have one reading
    if free is not None:
        return BLOCKED if free == REFUSED else None
    charges: list[Charge] = []
    for candidate in candidates:
        if candidate[0] not in replaced:
            charges += rules.charges_alone(candidate, request, cost, rules.overrides)
    return tuple(charges)


def _found(rules: RuleSet, each: EntryList, entries: Sequence[Entry]) -> list[AppliedLimit]:
    """Return the limits of one list: those of the file, or the one that it brings."""
    if each.limit is not None:
        return [_brought(rules, each.limit, entries)]
    return rules.descriptors.match(entries) if rules.descriptors is not None else []


def _brought(rules: RuleSet, limit: tuple[int, str], entries: Sequence[Entry]) -> AppliedLimit:
    quota = _quota(*limit)
    keys = [key for key, _ in entries]
    rule = _rule(tuple(keys), rules.storage.on_error, rules.shadow, rules.domain)
    # Neither the path of a descriptor, which begins with a slash, nor the escaped name of a rule is like this.
    path = "/".join(["sent", *map(escaped, keys)])
    key = f"{rules.key}:{path}:fw{quota.period // SECOND}:{{"
    identity = "+".join([encoder(key, rules.attributes)(value) for key, value in entries]) or GLOBAL
    return AppliedLimit(DescriptorLimit(rule, "", key, quota, frozenset()), identity)


@lru_cache(maxsize=1024)
def _rule(keys: tuple[str, ...], on_error: str, shadow: bool, domain: str) -> Rule:
    return Rule("/".join(keys), on_error, shadow, domain=domain, descriptor=(SENT,), sent=True)


@lru_cache(maxsize=1024)
def _quota(requests: object, unit: object) -> Quota:
    if not isinstance(requests, int) or not 0 <= requests <= MOST:
        raise ValueError(f"the limit of a list is {requests!r} requests: it must be a whole number up to {MOST}")
    if not isinstance(unit, str) or unit.lower() not in UNITS or unit.lower() == "millisecond":
        raise ValueError(f"the limit of a list is per {unit!r}: it must be a unit from second to year")
    return Quota(DEFAULT, requests, UNITS[unit.lower()])


def _merged(
    lists: Sequence[EntryList], costs: Sequence[int], found: Sequence[Sequence[AppliedLimit]]
) -> tuple[tuple[Charge, ...], Mapping[str, Sequence[int]]]:
    """Return one charge for each counter, and what each list charges to the counters that several lists share.

    Of different limits for one counter, the lowest counts.
    """
    charges: dict[str, Charge] = {}
    shared: dict[str, list[int]] = {}
    for each, cost, own in zip(lists, costs, found, strict=True):
        for match in own:
            quota, rule, key = match.limit.quota, match.limit.rule, match.key
            if quota is None:
                continue
            known = charges.get(key)
            late, before, taken = bool(each.hits), 0, max(cost, 0)
            if known is not None:
                late, before = late or known.ask.quota.overdraft, known.ask.cost
                shared.setdefault(key, [before]).append(taken)
                quota = min(known.ask.quota, quota, key=lambda either: either.limit)
            ask = Ask(key, with_overdraft(quota) if late else quota, min(before + taken, _MOST_HITS), rule.shadow)
            charges[key] = Charge(rule, ask)
    return asked(tuple(charges.values())), shared


def _late(charge: Charge) -> Charge:
    return charge._replace(ask=charge.ask._replace(quota=with_overdraft(charge.ask.quota)))


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
        self, engine: Engine, rules: Rules, lists: Sequence[EntryList | Sequence[tuple[str, str]]], hits: int
    ) -> None:
        if not lists:
            raise ValueError("there are no lists of entries")
        self._engine = engine
        self._planner = engine.planner
        self.rules = rules
        meter = self._planner.meter(rules) if rules.elastic else None
        planned = _plan_lists(rules.parts[0], [_read(each) for each in lists], whole(hits), meter)
        self.request = planned.request
        """The request that the rules see. Its attributes are the entries of all lists."""
        self._of_rules, self._limits, self._costs = planned.of_rules, planned.limits, planned.costs
        self.plan = self._plan(planned.charges)
        """What the engine executes. It may be executed several times, by requests of the same lists."""
        self.refunds = planned.refunds if self.plan.charges else ()
        """What `giving_back` gives back before the plan is executed."""
        # A plan is executed many times, and most of what a status tells is known from now on.
        self._counters = self._made_counters()
        self._hits = engine.tally.hits_of(self.plan.charges)
        self._grouped = any(charge.rule.quota_group for charge in self.plan.charges)

    def _plan(self, charges: Sequence[Charge]) -> Plan:
        rules, planner = self.rules, self._planner
        if rules.shedding:
            shed = planner.shedder.shed(rules, self.request, None, commit=True)
            if shed is not None:
                return Refusal(shed)
        if planner.switch.thrown:
            charges = planner.switch.apply(charges)
        if rules.settling and charges is not BLOCKED:  # no response would end a place in flight
            charges = [charge for charge in charges if not ALGORITHMS[charge.ask.quota.algorithm].in_flight]
        return planner.plan_of(charges)

    def giving_back(self) -> Steps[None]:
        """Give back the hits below 0, at most what is charged in the current window. The store may be away."""
        with suppress(StoreUnavailable):
            reply: Reply = yield [ask._replace(cost=0) for ask in self.refunds], LOOK
            yield self.refunds, Intent(charged_at=reply.now)

    def decided(self, verdict: Verdict) -> ListsDecision:
        """Return the decision, with one status for each list. See `statuses`."""
        return ListsDecision(verdict.decision, self.statuses(verdict))

    def statuses(self, verdict: Verdict) -> tuple[ListStatus, ...]:
        """Return one status for each list, count the hits of the descriptors, and log a denial.

        The rules count for each list, because their attributes are the entries of all lists.
        """
        if not verdict.simple:
            self._engine.report(verdict, self.rules, self.request)
            if not (verdict.allowed or verdict.charges):  # blocked, shed or without a store: no counter denies
                return (ListStatus(False, retry_after=verdict.decision.retry_after),) * len(self._limits)
        charges, rows, admitted = self.plan.charges, self._rows(verdict), verdict.allowed
        cached = not (admitted or verdict.local or verdict.charges is charges)
        self._engine.tally.hit(self._hits, rows, cached=cached)
        # If one quota admits the request, the others of its group deny nothing.
        passed: Container[str] = ()
        if self._grouped:
            pairs = zip(charges, rows, strict=True)
            passed = {charge.rule.quota_group for charge, row in pairs if row is not None and row[0]}
        return tuple(
            [
                own[0].status(rows, passed, admitted)[1]  # without a call, because most lists have one counter
                if len(own) == 1
                else _status(limits, own, rows, passed, admitted)
                for limits, own in self._counters
            ]
        )

    def _rows(self, verdict: Verdict) -> Sequence[Row | None]:
        """Return the outcomes of all charges of the plan. None: the counter was not asked."""
        charges = self.plan.charges
        if verdict.charges is charges:
            return verdict.rows
        pairs = zip(verdict.charges, verdict.rows, strict=True)
        known = {charge.ask.key: row for charge, row in pairs}
        return [known.get(charge.ask.key) for charge in charges]

    def _made_counters(self) -> "list[tuple[_ListLimits, list[_ListCounter]]]":
        """The limits of each list, and its counters: its own, and those of the rules."""
        charges = self.plan.charges
        places = {charge.ask.key: place for place, charge in enumerate(charges)}
        of_rules = [charge.ask.key for charge in self._of_rules]
        later = {key: list(costs) for key, costs in self._costs.items()}

        def counter(key: str, own: _ListLimits) -> _ListCounter:
            if key in later:
                later[key].pop(0)
            return _ListCounter(places[key], charges[places[key]], own.names.get(key), sum(later.get(key, ())))

        return [(own, [counter(key, own) for key in (*own.names, *of_rules) if key in places]) for own in self._limits]


def _status(
    limits: _ListLimits,
    counters: "Sequence[_ListCounter]",
    rows: Sequence[Row | None],
    passed: Container[str],
    admitted: bool,
) -> ListStatus:
    """Return the status of a list: that of its counter which binds most. Shadow counters come last."""
    if not counters:
        return ListStatus(True, unlimited=limits.unlimited)
    return min([each.status(rows, passed, admitted) for each in counters], key=_rank)[1]


def _read(given: EntryList | Sequence[tuple[str, str]]) -> EntryList:
    each = given if isinstance(given, EntryList) else EntryList(given)
    hits: object = each.hits
    if hits is None:
        return each
    return each._replace(hits=-whole(-hits) if isinstance(hits, int) and hits < 0 else whole(hits))


class _ListCounter:
    """A counter of a list.

    Args:
        place: The index of its charge in the plan.
        charge: The charge.
        name: The name of the limit in the list. None if it is the limit of a rule.
        later: What the lists after this one charge to the same counter.
    """

    __slots__ = ("_group", "_late", "_later", "_place", "_shadow", "_shown")

    def __init__(self, place: int, charge: Charge, name: str | None, later: int) -> None:
        rule, ask = charge
        quota = ask.quota
        self._place = place
        self._later = later
        self._late = quota.overdraft
        self._group = rule.quota_group
        self._shadow = ask.shadow
        shown = (rule.name if name is None else name) or None
        self._shown = rule.name, shown, quota.shown_limit, quota.period / SECOND, _UNIT_NAMES.get(quota.period)

    def status(self, rows: Sequence[Row | None], passed: Container[str], admitted: bool) -> tuple[bool, ListStatus]:
        """Return whether the counter is enforced, and the status of the list by this counter.

        Args:
            rows: The outcomes of all counters of the plan. None: it was not asked.
            passed: The groups of quotas of which one admits the request.
            admitted: The request is allowed, so that its counters were charged.
        """
        row, enforced = rows[self._place], not self._shadow
        if self._group:
            enforced = self._group not in passed
        if row is None:
            return enforced, ListStatus(True, *self._shown)
        allowed, remaining, reset_after, retry_after, _ = row
        if self._later and allowed and (admitted or self._late):
            remaining += self._later
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
