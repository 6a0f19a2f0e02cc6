"""CORS preflights: which OPTIONS requests are preflights, and which limits apply to them.

Any client can write the two headers of a preflight, and some apps do real work on OPTIONS. A preflight is therefore
limited by the rules of the method that it announces. It has separate counters and costs 1. So a client cannot do
uncounted work through preflights, and the preflights of a browser do not use up the limit of its requests.

A preflight carries no credentials. If a rule counts it by the address only for this reason, the limit is eased: it is
ten times as high, because many users may share an address. A limit is eased in three cases:

- `by: user|ip`, and the preflight has no user.
- The limit goes by tier, and the preflight has no tier.
- Another rule would replace this rule, but does not apply because the preflight has no user.
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

_EASED_FACTOR = 10
"""An eased limit is this many times the limit of the rule."""

_MARK = "preflight-"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a method, by RFC 9110
_METHODS = {method: method for method in ("GET", "POST", "PUT", "PATCH", "DELETE")} | {"HEAD": "GET"}
_ALWAYS_SENT = frozenset({"ip", "path", "method", "host", "route", "global", "connection"})
_MAX_LIMIT = 10**9  # the highest limit that a rule may have


def announced(request: Request) -> str | None:
    """Return the method that a CORS preflight announces, in upper case. None for any other request.

    A browser sends one origin and one method. An OPTIONS request with several of them, or with a method that is not a
    token, is not from a browser. It is counted like any other request.
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
    # WSGI servers join several lines with commas. An origin contains no comma.
    if not origin or "," in origin or not _TOKEN.fullmatch(method):
        return None
    return method.upper()


def as_announced(request: Request, method: str) -> Request:
    """Return a view of the preflight `request` in which rules read the announced request.

    All uncommon methods are one identity for `by: method`. A client could otherwise invent any number of counters.
    """
    view = copy.copy(request)
    view.method = method
    view.values = {**request.values, "method": _METHODS.get(method, "OPTIONS")}
    return view


def sent_with_preflights(name: str) -> bool:
    """Return True if a browser sends this attribute with the preflight as well. It is then not a credential."""
    name = canonical_name(name)
    return name in _ALWAYS_SENT or name.startswith(("path:", "query:"))


def counts_options(rule: CompiledRule) -> bool:
    """Return True if the rule's `methods` include OPTIONS. Such a rule counts preflights like any other request."""
    return "OPTIONS" in rule.further.methods


def needs_credentials(rule: CompiledRule) -> bool:
    """Return True if the rule applies only to requests with a credential, and so to no preflight of a browser."""
    return any(not sent_with_preflights(each.name) for each in rule.further.exact) or all(
        all(_names_credentials(choice) for choice in entry.split("|")) for entry in rule.by
    )


def preflight_key(key: str) -> str:
    """Return the key of the preflight counter that belongs to `key`. The key of a preflight is returned unchanged.

    `key` may also be only the first part of a key, up to and including the opening brace. The mark is placed before the
    code of the algorithm. No identity and no rule name can imitate it: identities are inside the braces, and the colons
    of names are escaped. The hash tag in the braces stays, so both counters are in the same slot of a cluster.
    """
    stem, brace, identity = key.partition("{")
    before, _, code = stem.removesuffix(":").rpartition(":")
    return key if code.startswith(_MARK) else f"{before}:{_MARK}{code}:{brace}{identity}"


def is_preflight_key(key: str) -> bool:
    """Return True if `preflight_key` has made this key."""
    return preflight_key(key) == key


def preflight_quota(quota: Quota, *, eased: bool = False) -> Quota:
    """Return the quota of the preflights that belong to requests with `quota`.

    It has no waiting and starts no bans. The ban of a client also denies its preflights, unless the quota is `eased`:
    the ban may then be that of another client at the same address.
    """
    result = _preflight_quota(quota, eased)
    if quota.elastic is None:
        return result
    # Quotas that compare equal may differ in `elastic`, so it must not come from the cache.
    quotas = tuple(_preflight_quota(each, eased) for each in quota.elastic.quotas)
    return replace(result, elastic=Elastic(quota.elastic.below, quotas))


@lru_cache(maxsize=1024)
def _preflight_quota(quota: Quota, eased: bool) -> Quota:
    same_limit = replace(
        quota,
        # A token bucket admits as many requests as a leaky bucket: the same burst, refilled at the same rate.
        algorithm=BUCKET if ALGORITHMS[quota.algorithm].queue else quota.algorithm,
        max_wait=0,
        elastic=None,
        ban=None if quota.ban is None or eased else replace(quota.ban, after=0),
    )
    if not eased:
        return same_limit
    if quota.burst:
        limit, burst = min(_EASED_FACTOR * quota.limit, quota.period), min(_EASED_FACTOR * quota.burst, _MAX_LIMIT)
        return replace(
            same_limit, limit=limit, burst=burst, spare=max(burst - _EASED_FACTOR * (quota.burst - quota.spare), 0)
        )
    largest = ALGORITHMS[quota.algorithm].largest
    limit = min(_EASED_FACTOR * quota.limit, _MAX_LIMIT if largest is None else largest.limit)
    return replace(same_limit, limit=limit, spare=max(limit - _EASED_FACTOR * quota.shown_limit, 0))


def falls_back(by: tuple[str, ...], identity: str) -> bool:
    """Return True if `by` gives a preflight this identity only because it has no credentials, as `user|ip` does."""
    return _falls_back(by, names_in(identity))


@lru_cache(maxsize=1024)
def _falls_back(by: tuple[str, ...], names: tuple[str, ...]) -> bool:
    if "ip" not in names:
        return False
    found = False
    for entry in by:
        choices = entry.split("|")
        for index, choice in enumerate(choices):
            if names_of(choice) == names:
                found = _names_credentials("|".join(choices[:index]))
                if not found:
                    return False
                break
    return found


def _names_credentials(by: str) -> bool:
    """Return True if the entry `by` has an attribute that a preflight does not carry."""
    return any(not sent_with_preflights(name) for name in attributes_of(by) if name)


class _Applying(NamedTuple):
    """A rule that applies to a preflight.

    `counters` are those of ordinary requests. `eased` is True if the limit goes by tier and the preflight has no tier.
    """

    candidate: Candidate
    rule: CompiledRule
    identities: Sequence[str]
    counters: tuple[Counter, ...]
    eased: bool


class Preflight(NamedTuple):
    """The rules that apply to one preflight.

    Args:
        request: the preflight itself.
        view: the announced request, see `as_announced`.
        applying: the rules that apply, before any rule replaces another.
        exempt: whether the announced request would be exempt. All limits are then eased.
        replaced: the rank of each rule that is replaced, with the name of the rule that replaces it.
        eased: the ranks of the rules whose limit is eased, because the rule that would replace them needs credentials.
    """

    request: Request
    view: Request
    applying: Sequence[_Applying]
    exempt: bool
    replaced: Mapping[int, str]
    eased: frozenset[int]

    def view_for(self, rule: CompiledRule) -> Request:
        """Return the request that this rule reads: the preflight itself, or the announced request."""
        return self.request if counts_options(rule) else self.view


class Preflights:
    """Makes the plans of preflights.

    Args:
        rules: the rules by name.
        tier: reads the tier of a request. None if no limit goes by tier.
    """

    def __init__(self, rules: Mapping[str, CompiledRule], tier: Reader | None) -> None:
        self._rules = rules
        self._tier = tier
        self._preflight_rules: dict[str, Rule] = {}

    def select(self, candidates: Sequence[Candidate], request: Request, method: str) -> Preflight:
        """Return the rules that apply to a preflight for `method`. The caller has checked that it is not exempt."""
        view = as_announced(request, method)
        # Any client can announce any method, so an exemption of that method only eases the limits.
        exempt = exemption(candidates, view) is not None
        applying = [
            found for candidate in candidates if (found := self._applying(candidate, request, view)) is not None
        ]
        replaced, eased = _replaced(applying)
        return Preflight(request, view, applying, exempt, replaced, eased)

    def charges(self, preflight: Preflight, cost: int, overrides: Overrides | None) -> list[Charge]:
        """Return the charges of a preflight."""
        charges: list[Charge] = []
        for found in preflight.applying:
            rank = found.rule.rank
            if rank in preflight.replaced:
                continue
            if counts_options(found.rule):
                charges += charges_of([found.candidate], preflight.request, cost, self._tier, overrides)
            else:
                eased = preflight.exempt or rank in preflight.eased
                charges += self._preflight_charges(found, min(cost, 1), overrides, eased=eased)
        return charges

    def _applying(self, candidate: Candidate, request: Request, view: Request) -> _Applying | None:
        """Return the rule of a candidate with its identities. None for an exemption or a rule that does not apply."""
        rank, program, route, parameters, _ = candidate
        if rank < 0:  # an exemption
            return None
        rule = self._rules[program.rule.name]
        read = request if counts_options(rule) else view
        if not applies(program, read):
            return None
        identities = [identify(read, parameters, route) for identify in program.identifiers]
        counters, eased = program.counters, False
        if callable(program.tiers):
            counters = program.tiers(read)
        elif program.tiers is not None and self._tier is not None:
            tier = self._tier(read)
            counters, eased = program.tiers.get(tier, counters), tier is None
        return _Applying(candidate, rule, list(dict.fromkeys(filter(None, identities))), counters, eased)

    def _preflight_charges(
        self, found: _Applying, cost: int, overrides: Overrides | None, *, eased: bool
    ) -> list[Charge]:
        """Return the charges of one rule to its separate counters for preflights."""
        rule = self._preflight_rule(found.rule.rule)
        charges: list[Charge] = []
        for identity in found.identities:
            counters = found.counters
            if overrides is not None:
                counters = overrides.counters(rule.name, identity, counters)
            eased_here = eased or found.eased or falls_back(found.rule.by, identity)
            for counter_key, quota in counters:
                if ALGORITHMS[quota.algorithm].in_flight:
                    continue  # a preflight takes no place in a limit of requests in flight
                key = f"{preflight_key(counter_key)}{identity}}}"
                charges.append(Charge(rule, Ask(key, preflight_quota(quota, eased=eased_here), cost, rule.shadow)))
        return charges

    def _preflight_rule(self, rule: Rule) -> Rule:
        """Return the rule for preflights. Their responses do not change the cost, and they are not deferred."""
        changed = self._preflight_rules.get(rule.name)
        if changed is None:
            changed = self._preflight_rules[rule.name] = replace(rule, cost_after=None, defers=False)
        return changed


def _replaced(applying: Sequence[_Applying]) -> tuple[dict[int, str], frozenset[int]]:
    """Return the ranks of the replaced rules with the name of the replacing rule, and the ranks of the eased rules.

    A rule may apply but not count the preflight: it needs credentials, it is unlimited for certain methods, or it
    limits requests in flight. Such a rule replaces nothing. A client could otherwise switch off the other rule by what
    it announces.
    """
    replaced: dict[int, str] = {}
    eased: set[int] = set()
    for candidate, rule, identities, counters, _ in applying:
        strict = candidate[4]
        if not rule.replaces or not strict:
            continue
        counted = any(not ALGORITHMS[quota.algorithm].in_flight for _, quota in counters)
        unlimited = not counters and not rule.further.methods
        if identities and (counted or unlimited or counts_options(rule)):
            for rank in rule.replaces:
                replaced.setdefault(rank, rule.rule.name)
        elif identities or _names_credentials("|".join(rule.by)):
            eased |= rule.replaces
    return replaced, frozenset(eased - replaced.keys())
