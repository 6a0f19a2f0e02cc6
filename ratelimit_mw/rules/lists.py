"""Several lists of entries (Envoy descriptors) as one plan.

The `descriptors` of the domain are matched against each list. The `rules` of the domain see one request, whose
attributes are the entries of all lists.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from ratelimit_mw.algorithms import with_overdraft
from ratelimit_mw.identity.attributes import canonical_name
from ratelimit_mw.identity.identifier import GLOBAL, encoder
from ratelimit_mw.identity.request import EntriesRequest, Entry, Request
from ratelimit_mw.model import SENT, Ask, Charge, EntryList, Quota, Rule
from ratelimit_mw.rules.compiled import BLOCKED, escaped
from ratelimit_mw.rules.descriptors import DEFAULT, DescriptorLimit, Found, asked, replaced_among
from ratelimit_mw.rules.ruleset import REFUSED, RuleSet
from ratelimit_mw.units import SECOND, UNITS

MOST = 2**32 - 1
"""The largest limit of a list."""

MOST_HITS = 10**15
"""A greater sum of hits is reduced to this number. It is above every limit, and every store represents it exactly."""


class ListLimits(NamedTuple):
    """The limits of one list.

    Attributes:
        names: The names of its limits in the file, by the keys of their counters. A limit may have no name ("").
        unlimited: Whether one of its limits is unlimited.
    """

    names: Mapping[str, str]
    unlimited: bool


_NO_LIMITS = ListLimits({}, unlimited=False)


class ListsPlan(NamedTuple):
    """The plan of several lists.

    Attributes:
        request: The attributes that the rules see.
        charges: All charges, each counter once: those of the rules, then those of the lists. `BLOCKED` if an override
            blocks the client.
        rules: The charges of the rules.
        lists: The limits of each list, in order.
    """

    request: Request
    charges: Sequence[Charge]
    rules: Sequence[Charge]
    lists: Sequence[ListLimits]


def plan_lists(
    rules: RuleSet, lists: Sequence[EntryList], hits: int, stretch: Callable[[Sequence[Charge]], Sequence[Charge]]
) -> ListsPlan:
    """Return the plan of these lists.

    Rules are charged the most hits of a list. If several lists lead to one counter, it is charged the sum.

    Args:
        rules: The rules of one domain.
        lists: The lists.
        hits: What a list charges that has no hits of its own.
        stretch: Chooses the limits of rules for the current load.

    Raises:
        ValueError: An entry is not a pair, or the limit of a list is invalid.
    """
    entries = [EntriesRequest(each.entries).entries for each in lists]
    request = _request(rules, entries)
    costs = [hits if each.hits is None else each.hits for each in lists]
    most = max(costs, default=hits)
    applied = _of_rules(rules, request, most)
    if applied is None or applied is BLOCKED:  # all rules are off for this client, or all requests
        return ListsPlan(request, applied or (), (), [_NO_LIMITS] * len(lists))
    applied = stretch(applied)
    if most and any(each.hits == most for each in lists):
        applied = [_late(charge) for charge in applied]
    found = [_found(rules, each, own) for each, own in zip(lists, entries, strict=True)]
    replaced = replaced_among([match for own in found for match in own])
    found = [[match for match in own if match.limit.name not in replaced] for own in found]
    limits = [
        ListLimits(
            {match.key: match.limit.name for match in own if match.limit.quota is not None},
            any(match.limit.quota is None for match in own),
        )
        for own in found
    ]
    return ListsPlan(request, (*applied, *_merged(lists, costs, found)), applied, limits)


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
    ((_, (candidates, replaced, free, _)),) = rules.selections(request)  # plain attributes have one reading
    if free is not None:
        return BLOCKED if free == REFUSED else None
    charges: list[Charge] = []
    for candidate in candidates:
        if candidate[0] not in replaced:
            charges += rules.charges_alone(candidate, request, cost, rules.overrides)
    return tuple(charges)


def _found(rules: RuleSet, each: EntryList, entries: Sequence[Entry]) -> list[Found]:
    """Return the limits of one list: those of the file, or the one that it brings."""
    if each.limit is not None:
        return [_brought(rules, each.limit, entries)]
    return rules.descriptors.match(entries) if rules.descriptors is not None else []


def _brought(rules: RuleSet, limit: tuple[int, str], entries: Sequence[Entry]) -> Found:
    quota = _quota(*limit)
    keys = [key for key, _ in entries]
    rule = _rule(tuple(keys), rules.storage.on_error, rules.shadow, rules.domain)
    # Neither the path of a descriptor, which begins with a slash, nor the escaped name of a rule is like this.
    path = "/".join(["sent", *map(escaped, keys)])
    key = f"{escaped(rules.domain)}:{path}:fw{quota.period // SECOND}:{{"
    identity = "+".join([encoder(key, rules.attributes)(value) for key, value in entries]) or GLOBAL
    return Found(DescriptorLimit(rule, "", key, quota, frozenset()), identity)


@lru_cache(maxsize=1024)
def _rule(keys: tuple[str, ...], on_error: str, shadow: bool, domain: str) -> Rule:
    return Rule("/".join(keys), on_error, shadow, domain=domain, descriptor=(SENT,), sent=True)


@lru_cache(maxsize=1024)
def _quota(requests: object, unit: object) -> Quota:
    if not isinstance(requests, int) or not 0 <= requests <= MOST:
        raise ValueError(f"the limit of a list is {requests!r} requests: it has to be a whole number up to {MOST}")
    if not isinstance(unit, str) or unit.lower() not in UNITS or unit.lower() == "millisecond":
        raise ValueError(f"the limit of a list is per {unit!r}: it has to be a unit from second to year")
    return Quota(DEFAULT, requests, UNITS[unit.lower()])


def _merged(lists: Sequence[EntryList], costs: Sequence[int], found: Sequence[Sequence[Found]]) -> tuple[Charge, ...]:
    """Return one charge for each counter. Of different limits for one counter, the lowest counts."""
    charges: dict[str, Charge] = {}
    for each, cost, own in zip(lists, costs, found, strict=True):
        for match in own:
            quota, rule, key = match.limit.quota, match.limit.rule, match.key
            if quota is None:
                continue
            known = charges.get(key)
            late, before = bool(each.hits), 0
            if known is not None:
                late, before = late or known.ask.quota.overdraft, known.ask.cost
                quota = min(known.ask.quota, quota, key=lambda either: either.limit)
            ask = Ask(key, with_overdraft(quota) if late else quota, min(before + cost, MOST_HITS), rule.shadow)
            charges[key] = Charge(rule, ask)
    return asked(tuple(charges.values()))


def _late(charge: Charge) -> Charge:
    return charge._replace(ask=charge.ask._replace(quota=with_overdraft(charge.ask.quota)))
