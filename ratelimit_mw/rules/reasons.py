"""Why each rule applies to a request, or does not: the plan, taken apart for people."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.identity.attributes import Attributes, canonical_name
from ratelimit_mw.identity.identifier import attributes_of
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import Charge
from ratelimit_mw.rules import conditions
from ratelimit_mw.rules.compiled import CompiledRule
from ratelimit_mw.rules.conditions import Matching
from ratelimit_mw.rules.paths.match import NO_PARAMETERS, Hit, PathMatcher
from ratelimit_mw.rules.preflights import announced, as_announced, counts_options
from ratelimit_mw.rules.ruleset import RuleSet

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
