"""Why a request would be decided as it would be: each rule, its counters, and what would have to change."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.decision.engine import Engine, idle
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.identity.attributes import Attributes, canonical_name
from ratelimit_mw.identity.identifier import attributes_of
from ratelimit_mw.identity.request import EntriesRequest, Request
from ratelimit_mw.model import NEVER, SECOND, Banned, Charge, Decision, Outcome, Reply
from ratelimit_mw.rules import compiled as conditions
from ratelimit_mw.rules.compiled import BLOCKED, CompiledRule, Matching
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.path_matcher import NO_PARAMETERS, Hit, PathMatcher
from ratelimit_mw.rules.preflights import announced, as_announced, counts_options
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.units import spell_period

SHOWN = ("host", "tier")
"""Attributes whose values may be shown. Others may be secret."""


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


def why_free(rules: RuleSet, request: Request) -> str:
    """Why no rule at all is asked for a request, or nothing where rules are."""
    if rules.overrides is not None and rules.overrides.exempts(request):
        return "an override exempts this client"
    for n, match in enumerate(rules.exempt):
        criteria, hit = _examined(match, request, rules.attributes)
        if hit is not None and hit.strict and all(criterion.met for criterion in criteria):
            names = ", ".join(f"{criterion.name} {' '.join(criterion.wanted)}" for criterion in criteria)
            return f"exempt[{n}] ({names}) exempts it"
    return ""


def reasons(rules: RuleSet, request: Request, charges: Iterable[Charge]) -> list[Reason]:
    """What became of each rule of one domain. `charges` is the plan that it made for the request."""
    asked: dict[str, list[Charge]] = {}
    for charge in charges:
        asked.setdefault(charge.rule.name, []).append(charge)
    free = why_free(rules, request)
    method = announced(request)
    view = request if method is None else as_announced(request, method)
    asking = [request if counts_options(rule) else view for rule in rules.compiled]
    examined = [
        _examined(rule.match, asks, rules.attributes) for rule, asks in zip(rules.compiled, asking, strict=True)
    ]
    found = []
    for rule, asks, (criteria, hit) in zip(rules.compiled, asking, examined, strict=True):
        own = tuple(asked.pop(rule.rule.name, ()))
        if rule.on_demand:
            status, why = "no match", "it applies where the app asks for it"
        elif rule.rule.messages:
            status, why = "no match", "it counts the messages of WebSockets, not requests"
        elif own:
            # Without a hit it matches in another reading of a request that frameworks read differently.
            absent = _left_out(rule, hit, asks, rules.attributes) if hit is not None else ""
            status, why = "applies", f"in part, for {absent}" if absent else ""
        elif hit is None or not all(criterion.met for criterion in criteria):
            unmet = "; ".join(str(criterion) for criterion in criteria if not criterion.met)
            status, why = "no match", unmet
        elif free:
            status, why = "exempt", free
        else:
            status, why = _silent(rules, rule, hit, asks, examined)
            if method is not None and any(ALGORITHMS[quota.algorithm].in_flight for quota in rule.quotas):
                why = "it matches, but a CORS preflight takes no place in flight"
        found.append(Reason(rule.rule.name, status, why, criteria, own))
    # What is left was asked by descriptors, which are matched by entries.
    return [*found, *(Reason(name, "applies", "", (), tuple(own)) for name, own in asked.items())]


_Examined = tuple[tuple[Criterion, ...], Hit | None]

_ANYWHERE = Hit(0, "", NO_PARAMETERS, strict=True)


def _examined(match: Matching, request: Request, attributes: Attributes) -> _Examined:
    """Each criterion, and the path's match; None where the path does not."""
    criteria: list[Criterion] = []
    hit: Hit | None = _ANYWHERE
    if match.templates:
        found = PathMatcher((0, each) for each in match.templates).hits(request)
        hit = found[0] if found else None
        wanted = tuple(each.text for each in match.templates)
        criteria.append(Criterion("the path", wanted, request.path or "not given", hit is not None))
    if match.methods:
        met = conditions.methods(match.methods)(request)
        criteria.append(Criterion("the method", match.methods, request.method or "not given", met))
    if match.networks:
        address = attributes.address(request)
        met = conditions.within(attributes.address, match.networks)(request)
        criteria.append(Criterion("the address", tuple(map(str, match.networks)), address or "unknown", met))
    for name, read, wanted in ((each.name, each.read, each.values) for each in match.exact):
        value = read(request)
        shown = value if name in SHOWN or value in wanted else "another"
        criteria.append(Criterion(name, wanted, "absent" if value is None else str(shown), value in wanted))
    return tuple(criteria), hit


def _silent(
    rules: RuleSet, rule: CompiledRule, hit: Hit, request: Request, examined: Sequence[_Examined]
) -> tuple[str, str]:
    """Why a rule that matches has asked for nothing."""
    for other, (criteria, place) in zip(rules.compiled, examined, strict=True):
        if (
            rule.rank in other.replaces
            and place is not None
            and place.strict
            and all(criterion.met for criterion in criteria)
            and any(identify(request, place.parameters, place.route) is not None for identify in other.identifiers)
        ):
            return "replaced", f"it matches, but '{other.rule.name}' does too, and replaces it"
    if all(identify(request, hit.parameters, hit.route) is None for identify in rule.identifiers):
        return (
            "no counter",
            f"it matches, but has nothing to count by: {_left_out(rule, hit, request, rules.attributes)}",
        )
    if not (rule.counters if rule.tiers is None else _of_tier(rule, rule.tiers, request, rules.attributes)):
        return "unlimited", "it matches, and is unlimited"
    return "unlimited", "it matches, and an override makes it unlimited for this client"


def _of_tier(
    rule: CompiledRule, tiers: Mapping[str | None, object], request: Request, attributes: Attributes
) -> object:
    return tiers.get(attributes.reader("tier")(request), rule.counters)


def _left_out(rule: CompiledRule, hit: Hit, request: Request, attributes: Attributes) -> str:
    """Which counters a rule has not, for want of an attribute."""
    absent: dict[str, None] = {}
    for entry, identify in zip(rule.by, rule.identifiers, strict=True):
        if identify(request, hit.parameters, hit.route) is None:
            names = [name for name in attributes_of(entry) if not _has(name, hit, request, attributes)]
            absent |= dict.fromkeys(names)
    return f"the request has no {' and no '.join(absent)}" if absent else ""


def _has(name: str, hit: Hit, request: Request, attributes: Attributes) -> bool:
    name = canonical_name(name)
    if name.startswith("path:") and name.removeprefix("path:") in hit.parameters:
        return True
    read: Callable[[Request], str | None] | None = attributes.reader(name) if attributes.known(name) else None
    return read is None or read(request) is not None


_IN_SHADOW = "the whole file is in shadow: it denies nobody"


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
    method = announced(request)
    apart = f"a CORS preflight for {method}: it has counters of its own" if method is not None else ""
    why = why_free(part, request) or (_IN_SHADOW if part.shadow else apart)
    return reasons(part, request, charges), why


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
        changes.append(f"{seconds(wait)} pass, and nobody else takes what comes free")
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
        note, priority = self._engine.planner.switch.note, ""
        shed: Verdict | None = None
        if self._rules.shedding:
            standing = self._engine.planner.shedder.standing(self._rules, self._request, commit=False)
            priority = str(standing or "")
            shed = standing and standing.denial
        parts, request, cost = self._rules.parts, self._request, self._cost
        return explain(parts, request, cost, verdict, note=note, error=error, priority=priority, shed=shed)
