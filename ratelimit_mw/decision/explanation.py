"""Explains the decision on a request: each rule, its counters, and what would change the outcome.

`explaining` asks the counters without a charge. `Explanation` is the answer that users get.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.decision.engine import Engine
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.identity.attributes import canonical_name, read_app_route
from ratelimit_mw.identity.identifier import Identifier, attributes_of
from ratelimit_mw.identity.request import EntriesRequest, Request
from ratelimit_mw.model import NEVER, SECOND, Charge, Decision, Outcome, Quota
from ratelimit_mw.rules.compiled import BLOCKED, CompiledRule, Condition, Matching, NamedRule, Overrides
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.matching import Candidate
from ratelimit_mw.rules.preflights import counts_options
from ratelimit_mw.rules.ruleset import RuleSet, Selection
from ratelimit_mw.stores.base import LOOK, Steps
from ratelimit_mw.units import spell_period


@dataclass(frozen=True, slots=True)
class Criterion:
    """One condition of a `match`.

    Attributes:
        name: what the condition is about, such as "the path" or "header:X-Plan".
        wanted: the values that meet the condition.
        found: the value in the request. A value that may be secret is only described ("another", "absent").
        met: whether the request meets the condition.
    """

    name: str
    wanted: tuple[str, ...]
    found: str
    met: bool

    def __str__(self) -> str:
        wanted = self.wanted[0] if len(self.wanted) == 1 else f"one of {', '.join(self.wanted)}"
        return f"{self.name} is {self.found}, but must be {wanted}"


@dataclass(frozen=True, slots=True)
class CounterState:
    """The state of one counter before the request is charged.

    Attributes:
        key: the key of the counter in the store.
        limit: the limit in words, such as "5 per minute".
        algorithm: the name of the algorithm.
        cost: what the request would take.
        allowed: whether the counter has room for that cost.
        remaining: what is left before the request.
        reset_after: the seconds until the counter is as if unused.
        retry_after: the seconds until the counter has room; 0 if it has room now, `inf` if it never will.
        banned: whether a ban denies the request.
    """

    key: str
    limit: str
    algorithm: str
    cost: int
    allowed: bool
    remaining: int
    reset_after: float
    retry_after: float
    banned: bool = False

    def __str__(self) -> str:
        if self.banned:
            return f"banned for {seconds(self.retry_after)}"
        left = f"{self.remaining} left"
        if not self.allowed:
            left += f", {self.cost} needed" if self.cost > 1 else ""
            left += f"; room in {seconds(self.retry_after)}" if self.retry_after < math.inf else "; never room"
        return f"{left}; as if unused {f'in {seconds(self.reset_after)}' if self.reset_after else 'now'}"


@dataclass(frozen=True, slots=True)
class RuleExplanation:
    """Whether one rule applies to the request, and the state of its counters.

    Attributes:
        name: the name of the rule. If there are several domains, the domain comes first ("shop: login").
        status: "applies"; "no match"; "replaced" (another rule replaces it); "no counter" (the attribute that it
            counts by is absent); "unlimited"; "exempt" (the request or its client is exempt).
        why: the reason in words; empty if the rule applies without restriction.
        shadow: whether the rule is only counted, never enforced.
        criteria: the conditions of its `match`.
        counters: the states of its counters; empty if the store did not answer.
        keys: the keys of its counters in the store.
    """

    name: str
    status: str
    why: str = ""
    shadow: bool = False
    criteria: tuple[Criterion, ...] = ()
    counters: tuple[CounterState, ...] = ()
    keys: tuple[str, ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether all counters of the rule have room for the request."""
        return all(counter.allowed for counter in self.counters)


def _explained(
    rules: RuleSet, request: Request, cost: int, named: NamedRule | None, outcomes: Mapping[str, Outcome]
) -> tuple[list[RuleExplanation], str]:
    """Explain each rule of one domain, with the same matching code as the plan.

    Args:
        rules: the rules of the domain.
        request: the request.
        cost: multiplies the cost of each rule.
        named: the only rule that is asked, if it is asked for by name.
        outcomes: the outcomes of the counters by their keys. Empty if the store did not answer.

    Returns:
        The rules in their order, and a note that concerns all of them, such as an exemption. The note may be empty.
    """
    charges = rules.plan(request, cost) if named is None else rules.plan_rule(named, request, cost) or ()
    if charges is BLOCKED:
        return [], "an override blocks this client, with 403"
    asked: dict[str, list[Charge]] = {}
    for charge in charges:
        asked.setdefault(charge.rule.name, []).append(charge)
    # Only descriptors apply to a list of entries.
    whole = named is not None or not isinstance(request, EntriesRequest)
    readings = [_Reading(rules, view, selection) for view, selection in rules.selections(request)] if whole else []
    rule = None if named is None else rules.asked(named)
    if rule is not None:
        found = [_with_counters(readings[0].reason_asked(rule), charges, outcomes)]
        return found, _IN_SHADOW if rules.shadow else ""
    known = (*rules.compiled, *rules.inline.rules.values()) if whole else ()
    reasons = [(_reason_of_all(each, readings), asked.pop(each.rule.name, ())) for each in known]
    # The remaining charges come from descriptors, which match entries instead of requests.
    reasons += [(RuleExplanation(name, "applies"), own) for name, own in asked.items()]
    found = [_with_counters(reason, own, outcomes) for reason, own in reasons]
    if whole and all(reading.free for reading in readings):
        return found, readings[0].free
    return found, _IN_SHADOW if rules.shadow else readings[0].apart if whole else ""


def _with_counters(
    reason: RuleExplanation, charges: Sequence[Charge], outcomes: Mapping[str, Outcome]
) -> RuleExplanation:
    """The reason for a rule with the counters that it asks, and their states where there are outcomes."""
    keys = tuple(charge.ask.key for charge in charges)
    shadow = any(charge.ask.shadow for charge in charges)
    states = tuple(_state(charge, outcomes[charge.ask.key]) for charge in charges if charge.ask.key in outcomes)
    return replace(reason, shadow=shadow, counters=states, keys=keys)


def _reason_of_all(rule: CompiledRule, readings: Sequence["_Reading"]) -> RuleExplanation:
    """The reason for a rule, over all readings of the request."""
    found = [reading.reason(rule) for reading in readings]
    # A rule applies if it applies in one reading. Otherwise a reading in which it matches explains more than others.
    wanted = [reason for reason in found if reason.status == "applies"]
    closer = [reason for reason in found if reason.status != "no match"]
    return (wanted or closer or found)[0]


class _Reading:
    """One way to read a request (frameworks read some requests differently), and the rules selected for it."""

    def __init__(self, rules: RuleSet, request: Request, selection: Selection) -> None:
        self._rules = rules
        self._request = request
        _, self._replaced, self._exemption, self._announced = selection
        self.free = self._free()
        """Why the request is exempt from all rules; empty if it is not."""

    def _free(self) -> str:
        rank, rules = self._exemption, self._rules
        if rank is None:
            return ""
        if rank >= 0:
            return "an override exempts this client"
        match = rules.exempt[rank]  # a negative rank is an index from the end
        criteria = _criteria(match, True, (), match.conditions(rules.attributes.address), self._request)
        names = ", ".join(f"{criterion.name} {' '.join(criterion.wanted)}" for criterion in criteria)
        return f"exempt[{len(rules.exempt) + rank}] ({names}) exempts it"

    @property
    def apart(self) -> str:
        """A note if the request is a CORS preflight; empty for other requests."""
        view = self._announced
        return "" if view is None else f"a CORS preflight for {view.method}: it has counters of its own"

    def reason(self, rule: CompiledRule) -> RuleExplanation:
        """The reason for one rule, still without its counters."""
        request = self._request if self._announced is None or counts_options(rule) else self._announced
        candidate = self._rules.candidate(rule, self._request)
        address = self._rules.attributes.address
        looked_up, tried = rule.match.split()
        conditions = tried.conditions(address) if candidate is None else candidate[1].conditions
        criteria = _criteria(rule.match, candidate is not None, looked_up.conditions(address), conditions, request)
        status, why = self._status(rule, candidate, criteria, request)
        return RuleExplanation(rule.rule.name, status, why, criteria=criteria)

    def _status(
        self, rule: CompiledRule, candidate: Candidate | None, criteria: Iterable[Criterion], request: Request
    ) -> tuple[str, str]:
        if rule.on_demand:
            return "no match", "it applies only when the app asks for it by name"
        if rule.rule.messages:
            return "no match", "it counts the messages of WebSockets, not requests"
        unmet = [str(criterion) for criterion in criteria if not criterion.met]
        if candidate is None or unmet:
            return "no match", "; ".join(unmet)
        if self.free:
            return "exempt", self.free
        other = self._replaced.get(rule.rank)
        if other is not None:
            return "replaced", f"it matches, but '{other}' matches too and replaces it"
        return self._status_of_counters(rule, candidate, request)

    def reason_asked(self, rule: CompiledRule) -> RuleExplanation:
        """The reason for a rule that the app asks for by name, still without its counters."""
        if self.free:
            return RuleExplanation(rule.rule.name, "exempt", self.free)
        candidate = self._rules.candidate_asked(rule, self._request)
        return RuleExplanation(rule.rule.name, *self._status_of_counters(rule, candidate, self._request))

    def _status_of_counters(self, rule: CompiledRule, candidate: Candidate, request: Request) -> tuple[str, str]:
        absent = self._absent(rule, candidate, request)
        if self._charges(candidate, self._rules.overrides):
            return "applies", f"in part, because {absent}" if absent else ""
        if not self._counts(candidate):
            return "no counter", f"it matches, but has nothing to count by: {absent or 'its key is empty'}"
        if self._charges(candidate, None):
            return "unlimited", "it matches, and an override makes it unlimited for this client"
        if self._announced and any(ALGORITHMS[quota.algorithm].in_flight for quota in rule.quotas):
            return "unlimited", "it matches, but a CORS preflight takes no place in flight"
        if rule.read_limit is not None:
            return "unlimited", "it matches, but its function sets no limit for this request"
        return "unlimited", "it matches, and is unlimited"

    def _charges(self, candidate: Candidate, overrides: Overrides | None) -> tuple[Charge, ...]:
        return self._rules.charges_alone(candidate, self._request, 1, overrides)

    def _counts(self, candidate: Candidate, identifiers: tuple[Identifier, ...] = ()) -> bool:
        """Whether the request has an attribute that the rule counts by; with `identifiers`, that one of these needs.

        This is seen from the charges of the rule with another counter.
        """
        rank, rule, route, parameters, strict = candidate
        probe = replace(rule.probe, identifiers=identifiers or rule.identifiers)
        return bool(self._charges((rank, probe, route, parameters, strict), None))

    def _absent(self, rule: CompiledRule, candidate: Candidate, request: Request) -> str:
        """The absent attributes for which the rule lacks a counter, in words; empty if none is absent."""
        names: dict[str, None] = {}
        for entry, identify in zip(rule.by, rule.identifiers, strict=True):
            if not self._counts(candidate, (identify,)):
                names |= dict.fromkeys(name for name in attributes_of(entry) if not self._has(name, candidate, request))
        return f"the request has no {' and no '.join(names)}" if names else ""

    def _has(self, name: str, candidate: Candidate, request: Request) -> bool:
        name, parameters, attributes = canonical_name(name), candidate[3], self._rules.attributes
        if name.startswith("path:") and name.removeprefix("path:") in parameters:
            return True
        if name == "route":
            return bool(candidate[2]) or read_app_route(request) is not None
        return not attributes.known(name) or attributes.reader(name)(request) is not None


def _criteria(
    match: Matching, found: bool, looked_up: Iterable[Condition], tried: Iterable[Condition], request: Request
) -> tuple[Criterion, ...]:
    """The conditions of a `match`: the path first, then the method, the address and the others.

    Args:
        match: the `match` of the rule.
        found: whether the index of the rules has found the rule for this request.
        looked_up: the conditions that the index tests, as it tests the path.
        tried: the conditions that the plan tests one by one.
        request: the request.
    """
    criteria = []
    if match.templates:
        wanted = match.templates
        criteria.append(Criterion("the path", wanted, request.path or "not given", found))
    met = dict.fromkeys(looked_up, found) | {each: each.holds(request) for each in tried}
    others = [Criterion(each.name, each.wanted, each.found(request), met[each]) for each in met]
    return (*criteria, *sorted(others, key=lambda each: _ORDER.get(each.name, 2)))


_ORDER = {"the method": 0, "the address": 1}


_IN_SHADOW = "the whole file is in shadow: it denies no request"


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a request would be decided now, and why. Nothing is charged. `str()` returns all of it as text.

    Attributes:
        decision: the decision that the request would get.
        request: the request in words, such as "POST /login".
        client: the address of the client as the rules see it; None if it is unknown.
        note: what concerns all rules: an exemption, a block, the kill switch or an unavailable store. May be empty.
        error: the error of the store if it is unavailable; otherwise empty.
        rules: all rules, in the order of the file.
        changes: what would let a denied request pass. Each entry is enough by itself.
        priority: the priority of the request and the share of such requests that is shed; empty if the rules
            shed no requests.
    """

    decision: Decision
    request: str
    client: str | None
    note: str
    error: str
    rules: tuple[RuleExplanation, ...]
    changes: tuple[str, ...]
    priority: str = ""

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The explanation, line by line."""
        lines = [f"{self.request} from {self.client or 'an unknown address'}: {self.outcome}"]
        lines += [f"  {line}" for line in (self.note, self.priority) if line]
        width = max([len(rule.name) for rule in self.rules], default=0)
        for rule in self.rules:
            mark = "·" if rule.status != "applies" else "✓" if rule.allowed else "○" if rule.shadow else "✗"
            status = rule.status + (", shadow" if rule.shadow and rule.status == "applies" else "")
            lines += ["", f"{mark} {rule.name:<{width}}  {status}{f': {rule.why}' if rule.why else ''}"]
            states = {counter.key: counter for counter in rule.counters}
            for key in rule.keys:
                counter = states.get(key)
                lines += [f"    {key}"]
                lines += [f"      {counter.limit}, {counter.algorithm}: {counter}"] if counter else []
        if self.changes:
            lines += ["", "What would change that, each by itself:", *(f"  - {change}" for change in self.changes)]
        return lines

    @property
    def outcome(self) -> str:
        """The outcome in words, such as "would pass, uncounted"."""
        decision = self.decision
        if not decision.allowed:
            by = f" by '{decision.rule}'" if decision.rule else ""
            wait = f", for {seconds(decision.retry_after)}" if 0 < decision.retry_after < math.inf else ""
            return f"would be {'shed' if decision.reason == 'shed' else 'denied'}{by}{wait}"
        if decision.rule is None:
            return "would pass, uncounted"
        delay = f" after a wait of {seconds(decision.delay)}" if decision.delay else ""
        return f"would pass{delay}; '{decision.rule}' has {decision.remaining} of {decision.limit} left"


def _spelled(request: Request) -> str:
    if isinstance(request, EntriesRequest):
        return ", ".join(f"{key}={value}" for key, value in request.entries)
    return f"{request.method} {request.path}".strip() or "a request"


def limit_in_words(quota: Quota) -> str:
    """Return a limit as text, such as "5 per minute" or "5 per minute, 10 at once"."""
    burst = f", {quota.burst} at once" if quota.burst and quota.burst != quota.limit else ""
    over = "concurrent" if ALGORITHMS[quota.algorithm].in_flight else f"per {spell_period(quota.period)}{burst}"
    return f"{quota.shown_limit} {over}"


def _state(charge: Charge, outcome: Outcome) -> CounterState:
    key, quota, cost, _ = charge.ask
    return CounterState(
        key,
        limit_in_words(quota),
        quota.algorithm,
        cost,
        outcome.allowed,
        outcome.remaining,
        outcome.reset_after / SECOND,
        math.inf if outcome.retry_after == NEVER else outcome.retry_after / SECOND,
        outcome.reason == "banned",
    )


def _changes(verdict: Verdict, rules: Sequence[RuleExplanation]) -> list[str]:
    """What would let a denied request pass, in words. Each entry is enough by itself."""
    if verdict.reason == "unavailable":
        return ["the store answers again", "on_error of the rules that apply is allow or local"]
    if verdict.allowed:
        return []
    full = [rule for rule in rules if not rule.shadow and not rule.allowed]
    counters = [counter for rule in full for counter in rule.counters if not counter.allowed]
    changes = []
    wait = max((counter.retry_after for counter in counters), default=math.inf)
    if wait < math.inf:
        changes.append(f"{seconds(wait)} pass without another request")
    least = min((counter.remaining for counter in counters), default=0)
    if 0 < least < min((counter.cost for counter in counters), default=0):
        changes.append(f"the request costs no more than {least}")
    if full:
        limits = _listed([counter.limit for counter in counters])
        names = _listed([f"'{rule.name}'" for rule in full])
        banned = any(counter.banned for counter in counters)
        changes += [] if banned else [f"{names} may do more than {limits}"]
        lifted = ", which lifts the ban" if banned else ""
        changes += [f"the counters of {names} are reset{lifted}"] if wait < math.inf else []
    return changes


def _listed(words: Sequence[str]) -> str:
    return " and ".join(dict.fromkeys(words))


def seconds(number: float) -> str:
    """A duration in seconds as text, rounded up: to tenths of a second below two minutes, then to minutes or hours."""
    if number < 120:
        return f"{math.ceil(number * 10) / 10:g} s"
    minutes = math.ceil(number / 60)
    return f"{minutes} min" if minutes < 120 else f"{math.ceil(minutes / 60)} h"


def explaining(
    engine: Engine, rules: Rules, request: Request, cost: int, named: NamedRule | None
) -> Steps[Explanation]:
    """Make the explanation of a request in steps. The store is asked without a charge.

    With `named`, that rule alone is asked. Of several domains with a rule of this name, the first one has it.
    """
    planner, outcomes, error = engine.planner, {}, ""
    note = planner.switch.note if planner.switch.thrown else ""
    plan = planner.plan(rules, request, cost, named)
    parts: Sequence[RuleSet] = rules.parts
    if named is not None:
        parts = [part for part in parts if part.asked(named) is not None][:1] or parts
    try:
        reply = (yield plan.asks, LOOK) if plan.asks else None
        verdict = Verdict(plan.charges, reply) if plan.asks else plan.verdict
        outcomes = dict(zip((charge.ask.key for charge in verdict.charges), verdict.outcomes, strict=True))
    except StoreUnavailable as unavailable:
        error, verdict = str(unavailable), engine.without_store(plan.charges, commit=False)
        note = note or f"the store did not answer ({error}), so on_error decides"
    explained: list[RuleExplanation] = []
    for part in parts:
        domain = f"{part.domain}: " if len(parts) > 1 else ""
        found, why = _explained(part, request, cost, named, outcomes)
        note = note or (f"{domain}{why}" if why else "")
        explained += [replace(rule, name=domain + rule.name) for rule in found]
    standing = planner.shedder.standing(rules, request, named, commit=False) if rules.shedding else None
    shed = standing and standing.denial
    return Explanation(
        (shed or verdict).decision,
        _spelled(request),
        rules.attributes.address(request),
        note,
        error,
        tuple(explained),
        (*(["the load falls"] if shed is not None else []), *_changes(verdict, explained)),
        priority=str(standing or ""),
    )
