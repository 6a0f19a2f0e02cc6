"""CORS preflights: how one is told from other OPTIONS requests, and what it is held to.

Any client can write the two headers of a preflight, and some apps do real work on OPTIONS. So a preflight is held to
the rules of the method that it announces, in counters of its own and at a cost of 1. A client cannot use preflights to
do work uncounted, and a browser's preflights use up nothing that its requests need.

A preflight carries no credentials. Where that alone makes a rule count it by the address, it has ten times the limit,
because many users may share an address. Three things do so: `user|ip` without a user, a limit by tier without a tier,
and a rule that would replace another one but cannot, for want of a user.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from ratelimit_mw.algorithms import ALGORITHMS, BUCKET
from ratelimit_mw.identity.attributes import Reader, canonical_name
from ratelimit_mw.identity.identifier import attributes_of, names_in, names_of
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import Ask, Charge, Elastic, Quota, Rule
from ratelimit_mw.rules.compiled import CompiledRule, Counter, Overrides
from ratelimit_mw.rules.matching import Candidate, applies, charges_of, exemption

EASE = 10
"""How many times the limit a preflight has that is counted by the address for want of credentials."""

_MARK = "preflight-"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a method, by RFC 9110
_METHODS = {method: method for method in ("GET", "POST", "PUT", "PATCH", "DELETE")} | {"HEAD": "GET"}
_ALWAYS_SENT = frozenset({"ip", "path", "method", "host", "route", "global", "connection"})
_MOST = 10**9  # the cap of limits


def announced(request: Request) -> str | None:
    """The method that a CORS preflight announces, in upper case; None for any other request.

    A browser sends one origin and one method. An OPTIONS request with several of either, or with a method that is no
    token, comes from no browser and is counted like any request.
    """
    if request.method != "OPTIONS":
        return None
    origins = request.header_lines("origin")
    if len(origins) != 1:
        return None
    methods = request.header_lines("access-control-request-method")
    if len(methods) != 1:
        return None
    origin, method = origins[0].strip(), methods[0].strip(" \t")
    # WSGI servers join several lines by commas, which an origin has not.
    if not origin or "," in origin or not _TOKEN.fullmatch(method):
        return None
    return method.upper()


def as_announced(request: Request, method: str) -> Request:
    """The preflight `request` as rules read the request that it announces.

    Counters by method have one identity for all uncommon methods: a client can invent these without end.
    """
    view = copy.copy(request)
    view.method = method
    view.values = {**request.values, "method": _METHODS.get(method, "OPTIONS")}
    return view


def sent_with_preflights(name: str) -> bool:
    """True of an attribute that a browser's preflight has as well as the request behind it: it is no credential."""
    name = canonical_name(name)
    return name in _ALWAYS_SENT or name.startswith(("path:", "query:"))


def counts_options(rule: CompiledRule) -> bool:
    """True of a rule whose `methods` name OPTIONS: it counts preflights like any request."""
    return "OPTIONS" in rule.match.methods


def needs_credentials(rule: CompiledRule) -> bool:
    """True of a rule that applies only to requests with a credential: browsers' preflights show nothing of it."""
    return any(not sent_with_preflights(each.name) for each in rule.match.exact) or all(
        all(_names_credentials(choice) for choice in entry.split("|")) for entry in rule.by
    )


def preflight_key(key: str) -> str:
    """The key of the preflights beside a counter's own `key`, or beside its beginning, up to and with the brace.

    The mark stands before the braces, where no part of an identity does, and before the algorithm, where a rule's
    name cannot reach: its colons are escaped. Both counters lie in one slot of a cluster.
    """
    stem, brace, identity = key.partition("{")
    before, _, code = stem.removesuffix(":").rpartition(":")
    return key if code.startswith(_MARK) else f"{before}:{_MARK}{code}:{brace}{identity}"


def is_preflight_key(key: str) -> bool:
    """True of a key that `preflight_key` has made."""
    return preflight_key(key) == key


def preflight_quota(quota: Quota, *, eased: bool = False) -> Quota:
    """What preflights are held to where requests are held to `quota`: no turns, no new bans, maybe ten times the limit.

    A ban that stands holds for preflights as well, unless they are `eased`: then it may be another client's.
    """
    own = _preflight_quota(quota, eased)
    if quota.elastic is None:
        return own
    # Equal quotas may differ in how elastic they are, so that is left to no cache.
    quotas = tuple(_preflight_quota(each, eased) for each in quota.elastic.quotas)
    return replace(own, elastic=Elastic(quota.elastic.below, quotas))


@lru_cache(maxsize=1024)
def _preflight_quota(quota: Quota, eased: bool) -> Quota:
    held = replace(
        quota,
        # A leaky bucket without turns: both admit what a burst holds, refilled at the same rate.
        algorithm=BUCKET if ALGORITHMS[quota.algorithm].queue else quota.algorithm,
        max_wait=0,
        elastic=None,
        ban=None if quota.ban is None or eased else replace(quota.ban, after=0),
    )
    if not eased:
        return held
    if quota.burst:
        limit, burst = min(EASE * quota.limit, quota.period), min(EASE * quota.burst, _MOST)
        return replace(held, limit=limit, burst=burst, spare=max(burst - EASE * (quota.burst - quota.spare), 0))
    largest = ALGORITHMS[quota.algorithm].largest
    limit = min(EASE * quota.limit, _MOST if largest is None else largest.limit)
    return replace(held, limit=limit, spare=max(limit - EASE * quota.shown_limit, 0))


def falls_back(by: tuple[str, ...], identity: str) -> bool:
    """True where `by` gives this identity to a preflight only because its credentials are absent, as `user|ip` does."""
    return _falls_back(by, names_in(identity))


@lru_cache(maxsize=1024)
def _falls_back(by: tuple[str, ...], names: tuple[str, ...]) -> bool:
    if "ip" not in names:
        return False
    found = False
    for entry in by:
        choices = entry.split("|")
        for place, choice in enumerate(choices):
            if names_of(choice) == names:
                found = _names_credentials("|".join(choices[:place]))
                if not found:
                    return False
                break
    return found


def _names_credentials(by: str) -> bool:
    return any(not sent_with_preflights(name) for name in attributes_of(by) if name)


class _Applying(NamedTuple):
    """A rule that applies to a preflight: its identities, and its counters as they are for requests."""

    candidate: Candidate
    rule: CompiledRule
    identities: Sequence[str]
    counters: tuple[Counter, ...]
    eased: bool


class Preflight(NamedTuple):
    """What applies to one preflight. `view` is the request that it announces, as rules read it.

    `exempt` is whether that request would be exempt. `replaced` has the ranks of the rules that do not apply, with the
    name of the rule that replaces each; `eased` those of the rules whose limit is wider.
    """

    request: Request
    view: Request
    applying: Sequence[_Applying]
    exempt: bool
    replaced: Mapping[int, str]
    eased: frozenset[int]

    def asked_of(self, rule: CompiledRule) -> Request:
        """The request that a rule is asked about."""
        return self.request if counts_options(rule) else self.view


class Preflights:
    """Makes the plans of preflights, by `rules` with their names.

    `tier` reads a request's tier; None where no limit goes by it.
    """

    def __init__(self, rules: Mapping[str, CompiledRule], tier: Reader | None) -> None:
        self._rules = rules
        self._tier = tier
        self._own_rules: dict[str, Rule] = {}

    def select(self, candidates: Sequence[Candidate], request: Request, method: str) -> Preflight:
        """What applies to a preflight for `method` that is not exempt itself."""
        view = as_announced(request, method)
        # The client alone says which method it announces: what exempts that method makes a limit wider, and no more.
        exempt = exemption(candidates, view) is not None
        applying = [
            found for candidate in candidates if (found := self._applying(candidate, request, view)) is not None
        ]
        replaced, eased = _replaced(applying)
        return Preflight(request, view, applying, exempt, replaced, eased)

    def charges(self, preflight: Preflight, cost: int, overrides: Overrides | None) -> list[Charge]:
        """The counters that a preflight has to ask."""
        charges: list[Charge] = []
        for found in preflight.applying:
            rank = found.rule.rank
            if rank in preflight.replaced:
                continue
            if counts_options(found.rule):
                charges += charges_of([found.candidate], preflight.request, cost, self._tier, overrides)
            else:
                eased = preflight.exempt or rank in preflight.eased
                charges += self._apart(found, min(cost, 1), overrides, eased=eased)
        return charges

    def _applying(self, candidate: Candidate, request: Request, view: Request) -> _Applying | None:
        rank, program, route, parameters, _ = candidate
        if rank < 0:  # an exemption
            return None
        rule = self._rules[program.rule.name]
        asked = request if counts_options(rule) else view
        if not applies(program, asked):
            return None
        identities = [identify(asked, parameters, route) for identify in program.identifiers]
        counters, eased = program.counters, False
        if program.tiers is not None and self._tier is not None:
            tier = self._tier(asked)
            counters, eased = program.tiers.get(tier, counters), tier is None
        return _Applying(candidate, rule, list(dict.fromkeys(filter(None, identities))), counters, eased)

    def _apart(self, found: _Applying, cost: int, overrides: Overrides | None, *, eased: bool) -> list[Charge]:
        """The counters of one rule that are kept for preflights."""
        rule = self._rule(found.rule.rule)
        charges: list[Charge] = []
        for identity in found.identities:
            counters = found.counters
            if overrides is not None:
                counters = overrides.counters(rule.name, identity, counters)
            wide = eased or found.eased or falls_back(found.rule.by, identity)
            for key, quota in counters:
                if not ALGORITHMS[quota.algorithm].in_flight:
                    ask = Ask(
                        f"{preflight_key(key)}{identity}}}", preflight_quota(quota, eased=wide), cost, rule.shadow
                    )
                    charges.append(Charge(rule, ask))
        return charges

    def _rule(self, rule: Rule) -> Rule:
        """A rule as preflights are held to it: their cost is 1, whatever the response says, and none is put off."""
        own = self._own_rules.get(rule.name)
        if own is None:
            own = self._own_rules[rule.name] = replace(rule, cost_after=None, defers=False)
        return own


def _replaced(applying: Sequence[_Applying]) -> tuple[dict[int, str], frozenset[int]]:
    """The ranks of the rules that another one replaces, with its name, and of those whose limit is wider.

    A rule that counts nothing of a preflight replaces nothing, if that is because of its credentials, its method or its
    place in flight: else a client could turn the other rule off by what it announces.
    """
    replaced: dict[int, str] = {}
    eased: set[int] = set()
    for candidate, rule, identities, counters, _ in applying:
        strict = candidate[4]
        if not rule.replaces or not strict:
            continue
        counted = any(not ALGORITHMS[quota.algorithm].in_flight for _, quota in counters)
        unlimited = not counters and not rule.match.methods
        if identities and (counted or unlimited or counts_options(rule)):
            for rank in rule.replaces:
                replaced.setdefault(rank, rule.rule.name)
        elif identities or _names_credentials("|".join(rule.by)):
            eased |= rule.replaces
    return replaced, frozenset(eased - replaced.keys())
