"""Why a request would be decided as it would be: each rule, its counters, and what would have to change."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ratelimit_mw.algorithms import ALGORITHMS, NOTHING
from ratelimit_mw.decision.engine import Engine, idle
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.identity.attributes import canonical_name
from ratelimit_mw.identity.identifier import Identifier, attributes_of
from ratelimit_mw.identity.request import EntriesRequest, Request
from ratelimit_mw.model import NEVER, SECOND, Banned, Charge, Decision, Outcome, Reply
from ratelimit_mw.rules.compiled import BLOCKED, CompiledRule, Condition, Matching, Overrides
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.matching import Candidate
from ratelimit_mw.rules.ruleset import RuleSet, Selection
from ratelimit_mw.units import spell_period


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that a `match` asks for. `found` says what the request has, in words where that may be secret."""

    name: str
    wanted: tuple[str, ...]
    found: str
    met: bool

    def __str__(self) -> str:
        wanted = self.wanted[0] if len(self.wanted) == 1 else f"one of {', '.join(self.wanted)}"
        return f"{self.name} is {self.found}, and has to be {wanted}"


@dataclass(frozen=True, slots=True)
class Reason:
    """What became of one rule. `why` is a sentence, empty where the rule applies and nothing is to be said.

    `status`: "applies"; "no match"; "replaced" by another rule; "no counter", as what it counts by is absent;
    "unlimited"; "exempt", as the request or its client is.
    """

    rule: str
    status: str
    why: str
    criteria: tuple[Criterion, ...] = ()
    charges: tuple[Charge, ...] = ()


def reasons(rules: RuleSet, request: Request, charges: Iterable[Charge]) -> tuple[list[Reason], str]:
    """What became of each rule of one domain, and what bears on all of them, as an exemption does; maybe nothing.

    `charges` is the plan that the domain made for the request. All answers come from what the plan goes by.
    """
    asked: dict[str, list[Charge]] = {}
    for charge in charges:
        asked.setdefault(charge.rule.name, []).append(charge)
    readings = [_Reading(rules, view, selection) for view, selection in rules.selections(request)]
    found = [_of_all(rule, readings, tuple(asked.pop(rule.rule.name, ()))) for rule in rules.compiled]
    # What is left was asked by descriptors, which are matched by entries.
    found += [Reason(name, "applies", "", (), tuple(own)) for name, own in asked.items()]
    if all(reading.free for reading in readings):
        return found, readings[0].free
    return found, _IN_SHADOW if rules.shadow else readings[0].apart


def _of_all(rule: CompiledRule, readings: Sequence["_Reading"], charges: tuple[Charge, ...]) -> Reason:
    """What became of a rule that asks `charges`, in all readings of the request."""
    found = [reading.reason(rule) for reading in readings]
    # A rule applies if it does in one reading; else the reading in which it comes closest says most.
    wanted = [reason for reason in found if reason.status == "applies"]
    closer = [reason for reason in found if reason.status != "no match"]
    return replace((wanted or closer or found)[0], charges=charges)


class _Reading:
    """One reading of a request, and what the plan selects for it."""

    def __init__(self, rules: RuleSet, request: Request, selection: Selection) -> None:
        self._rules = rules
        self._request = request
        _, self._replaced, self._exemption, self._preflight = selection
        self.free = self._free()
        """Why no rule is asked; empty where rules are."""

    def _free(self) -> str:
        rank, rules = self._exemption, self._rules
        if rank is None:
            return ""
        if rank >= 0:
            return "an override exempts this client"
        match = rules.exempt[rank]  # negative ranks are places, counted from the end
        criteria = _criteria(match, True, (), match.conditions(rules.attributes.address), self._request)
        names = ", ".join(f"{criterion.name} {' '.join(criterion.wanted)}" for criterion in criteria)
        return f"exempt[{len(rules.exempt) + rank}] ({names}) exempts it"

    @property
    def apart(self) -> str:
        """What is special about a preflight; empty for other requests."""
        preflight = self._preflight
        return "" if preflight is None else f"a CORS preflight for {preflight.view.method}: it has counters of its own"

    def reason(self, rule: CompiledRule) -> Reason:
        """What becomes of one rule. It has no charges yet."""
        preflight = self._preflight
        request = self._request if preflight is None else preflight.asked_of(rule)
        candidate = self._rules.candidate(rule, self._request)
        address = self._rules.attributes.address
        looked_up, tried = rule.match.split()
        conditions = tried.conditions(address) if candidate is None else candidate[1].conditions
        criteria = _criteria(rule.match, candidate is not None, looked_up.conditions(address), conditions, request)
        status, why = self._status(rule, candidate, criteria, request)
        return Reason(rule.rule.name, status, why, criteria)

    def _status(
        self, rule: CompiledRule, candidate: Candidate | None, criteria: Iterable[Criterion], request: Request
    ) -> tuple[str, str]:
        if rule.on_demand:
            return "no match", "it applies where the app asks for it"
        if rule.rule.messages:
            return "no match", "it counts the messages of WebSockets, not requests"
        unmet = [str(criterion) for criterion in criteria if not criterion.met]
        if candidate is None or unmet:
            return "no match", "; ".join(unmet)
        if self.free:
            return "exempt", self.free
        other = self._replaced.get(rule.rank)
        if other is not None:
            return "replaced", f"it matches, but '{other}' does too, and replaces it"
        absent = self._absent(rule, candidate, request)
        if self._charges(candidate, self._rules.overrides):
            return "applies", f"in part, for {absent}" if absent else ""
        if not self._counts(candidate):
            return "no counter", f"it matches, but has nothing to count by: {absent}"
        if self._charges(candidate, None):
            return "unlimited", "it matches, and an override makes it unlimited for this client"
        if self._preflight and any(ALGORITHMS[quota.algorithm].in_flight for quota in rule.quotas):
            return "unlimited", "it matches, but a CORS preflight takes no place in flight"
        return "unlimited", "it matches, and is unlimited"

    def _charges(self, candidate: Candidate, overrides: Overrides | None) -> tuple[Charge, ...]:
        return self._rules.charges_alone(candidate, self._request, 1, overrides)

    def _counts(self, candidate: Candidate, identifiers: tuple[Identifier, ...] = ()) -> bool:
        """Whether the rule finds something to count by; with `identifiers`, whether these do."""
        rank, program, route, parameters, strict = candidate
        probe = program._replace(
            counters=_PROBE, tiers=None, weigh=None, identifiers=identifiers or program.identifiers
        )
        return bool(self._charges((rank, probe, route, parameters, strict), None))

    def _absent(self, rule: CompiledRule, candidate: Candidate, request: Request) -> str:
        """Which counters a rule has not, for want of an attribute."""
        names: dict[str, None] = {}
        for entry, identify in zip(rule.by, rule.identifiers, strict=True):
            if not self._counts(candidate, (identify,)):
                names |= dict.fromkeys(name for name in attributes_of(entry) if not self._has(name, candidate, request))
        return f"the request has no {' and no '.join(names)}" if names else ""

    def _has(self, name: str, candidate: Candidate, request: Request) -> bool:
        name, parameters, attributes = canonical_name(name), candidate[3], self._rules.attributes
        if name.startswith("path:") and name.removeprefix("path:") in parameters:
            return True
        return not attributes.known(name) or attributes.reader(name)(request) is not None


_PROBE = (("", NOTHING),)
"""A counter that every rule with an identity asks."""


def _criteria(
    match: Matching, found: bool, looked_up: Iterable[Condition], tried: Iterable[Condition], request: Request
) -> tuple[Criterion, ...]:
    """What a `match` asks for. The index has looked the rule up by its path, or `looked_up`, and has `found` it or not.

    `tried` are the conditions that the plan tries one by one.
    """
    criteria = []
    if match.templates:
        wanted = tuple(template.text for template in match.templates)
        criteria.append(Criterion("the path", wanted, request.path or "not given", found))
    met = dict.fromkeys(looked_up, found) | {each: each.holds(request) for each in tried}
    told = [Criterion(each.name, each.wanted, each.found(request), met[each]) for each in met]
    return (*criteria, *sorted(told, key=_place))


def _place(criterion: Criterion) -> int:
    """The method comes first, the address second."""
    return {"the method": 0, "the address": 1}.get(criterion.name, 2)


_IN_SHADOW = "the whole file is in shadow: it denies no request"


@dataclass(frozen=True, slots=True)
class CounterState:
    """One counter as it is now. Times are in seconds; `retry_after` is `inf` where no waiting helps.

    `cost` is what the request would take, `remaining` what there is before it does. `limit` is in words.
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
    """What became of one rule; `status` and `why` are those of `Reason`.

    `keys` are those of its counters, and `counters` their states, missing where the store did not answer.
    """

    name: str
    status: str
    why: str
    shadow: bool
    criteria: tuple[Criterion, ...]
    counters: tuple[CounterState, ...]
    keys: tuple[str, ...]

    @property
    def allowed(self) -> bool:
        """False where one of its counters has no room."""
        return all(counter.allowed for counter in self.counters)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What would become of a request now, and why. Nothing was charged. `str()` tells it in lines.

    `client` is the address that the request comes from, as the rules see it. `note` says what bears on all rules: an
    exemption, a block, the kill switch, a store that is away; `error` is then what it said. `changes` are the ways to
    another outcome. `priority` tells of the request's priority and what is shed of its like, where rules have any.
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
        lines += [f"  {said}" for said in (self.note, self.priority) if said]
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
        """What would become of the request, in words."""
        decision = self.decision
        if not decision.allowed:
            by = f" by '{decision.rule}'" if decision.rule else ""
            wait = f", for {seconds(decision.retry_after)}" if 0 < decision.retry_after < math.inf else ""
            return f"would be {'shed' if decision.reason == 'shed' else 'denied'}{by}{wait}"
        if decision.rule is None:
            return "would pass, uncounted"
        late = f" after a wait of {seconds(decision.delay)}" if decision.delay else ""
        return f"would pass{late}; '{decision.rule}' has {decision.remaining} of {decision.limit} left"


def explain(
    parts: Sequence[RuleSet],
    request: Request,
    cost: int,
    verdict: Verdict,
    *,
    note: str,
    error: str,
    priority: str = "",
    shed: Verdict | None = None,
) -> Explanation:
    """Put together what the rules of each domain plan for a request, and what the store said to a peek.

    `error` is what it said where it did not answer. `shed` is the denial of a request that would not come that far.
    """
    said = {}
    if error:
        note = note or f"the store did not answer ({error}), so on_error decides"
    else:
        said = dict(zip((charge.ask.key for charge in verdict.charges), verdict.outcomes, strict=True))
    rules: list[RuleExplanation] = []
    for part in parts:
        domain = f"{part.domain}: " if len(parts) > 1 else ""
        found, why = _reasons(part, request, cost)
        note = note or (f"{domain}{why}" if why else "")
        rules += [_explained(reason, domain, said) for reason in found]
    client = parts[0].attributes.address(request)
    changes = [*(["the load falls"] if shed is not None else []), *_changes(verdict, rules)]
    decision = (shed or verdict).decision
    return Explanation(
        decision, _spelled(request), client, note, error, tuple(rules), tuple(changes), priority=priority
    )


def _reasons(part: RuleSet, request: Request, cost: int) -> tuple[list[Reason], str]:
    if isinstance(request, EntriesRequest):
        asked: dict[str, list[Charge]] = {}
        for charge in part.plan_entries(request.entries, cost):
            asked.setdefault(charge.rule.name, []).append(charge)
        found = [Reason(name, "applies", "", (), tuple(charges)) for name, charges in asked.items()]
        return found, _IN_SHADOW if part.shadow else ""
    charges = part.plan(request, cost)
    if charges is BLOCKED:
        return [], "an override blocks this client, with 403"
    return reasons(part, request, charges)


def _spelled(request: Request) -> str:
    if isinstance(request, EntriesRequest):
        return ", ".join(f"{key}={value}" for key, value in request.entries)
    return f"{request.method} {request.path}".strip() or "a request"


def _explained(reason: Reason, domain: str, said: Mapping[str, Outcome]) -> RuleExplanation:
    keys = tuple(charge.ask.key for charge in reason.charges)
    shadow = any(charge.ask.shadow for charge in reason.charges)
    states = tuple(_state(charge, said[charge.ask.key]) for charge in reason.charges if charge.ask.key in said)
    return RuleExplanation(domain + reason.rule, reason.status, reason.why, shadow, reason.criteria, states, keys)


def _state(charge: Charge, outcome: Outcome) -> CounterState:
    key, quota, cost, _ = charge.ask
    burst = f", {quota.burst} at once" if quota.burst and quota.burst != quota.limit else ""
    over = "concurrent" if ALGORITHMS[quota.algorithm].in_flight else f"per {spell_period(quota.period)}{burst}"
    return CounterState(
        key,
        f"{quota.shown_limit} {over}",
        quota.algorithm,
        cost,
        outcome.allowed,
        outcome.remaining,
        outcome.reset_after / SECOND,
        math.inf if outcome.retry_after == NEVER else outcome.retry_after / SECOND,
        type(outcome) is Banned,
    )


def _changes(verdict: Verdict, rules: Sequence[RuleExplanation]) -> list[str]:
    """What would let a denied request pass."""
    if verdict.reason == "unavailable":
        return ["the store answers again", "on_error of the rules that apply is allow or local"]
    if verdict.allowed:
        return []
    full = [rule for rule in rules if not rule.shadow and not rule.allowed]
    counters = [counter for rule in full for counter in rule.counters if not counter.allowed]
    changes = []
    wait = max((counter.retry_after for counter in counters), default=math.inf)
    if wait < math.inf:
        changes.append(f"{seconds(wait)} pass, and no other request takes what comes free")
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
    """Seconds in words, rounded up to where a person stops reading."""
    if number < 120:
        return f"{math.ceil(number * 10) / 10:g} s"
    minutes = math.ceil(number / 60)
    return f"{minutes} min" if minutes < 120 else f"{math.ceil(minutes / 60)} h"


class Question:
    """Why `engine` would decide on a request as it would; `asks` are what to peek at, maybe nothing."""

    def __init__(self, engine: Engine, rules: Rules, request: Request, cost: int) -> None:
        self._engine = engine
        self._rules = rules
        self._request = request
        self._cost = cost
        self._plan = engine.planner.plan(rules, request, cost)
        self.asks = self._plan.asks

    def answered(self, reply: Reply | None) -> Explanation:
        """The explanation, by what the store said."""
        return self._explained(Verdict(self._plan.charges, reply) if self.asks else idle(self._plan))

    def unanswered(self, error: StoreUnavailable) -> Explanation:
        """The explanation where the store said nothing."""
        return self._explained(self._engine.without_store(self._plan.charges, commit=False), str(error))

    def _explained(self, verdict: Verdict, error: str = "") -> Explanation:
        switch, priority = self._engine.planner.switch, ""
        note = switch.note if switch.thrown else ""
        shed: Verdict | None = None
        if self._rules.shedding:
            standing = self._engine.planner.shedder.standing(self._rules, self._request, commit=False)
            priority = str(standing or "")
            shed = standing and standing.denial
        parts, request, cost = self._rules.parts, self._request, self._cost
        return explain(parts, request, cost, verdict, note=note, error=error, priority=priority, shed=shed)
