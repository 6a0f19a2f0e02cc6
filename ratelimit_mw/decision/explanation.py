"""A decision explained: every rule, what it asked, what its counters said, and what would have to change."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.identity.entries import EntriesRequest
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import NEVER, SECOND, Banned, Charge, Decision, Outcome
from ratelimit_mw.rules.overrides import BLOCKED
from ratelimit_mw.rules.preflights import announced
from ratelimit_mw.rules.reasons import Criterion, Reason, reasons, why_free
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.units import spell_period

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
        f"{quota.told} {over}",
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
