"""The table of a rule's words, and the compilation of a rule.

Each word of the table reads its own value, checks its combinations with other words, and changes the quotas of the
counters. This module calls the words in the order of the table. It then checks the complete quotas.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ratelimit_mw.algorithms import ALGORITHMS, IN_FLIGHT
from ratelimit_mw.algorithms.concurrency import BUCKETS as IN_FLIGHT_BUCKETS
from ratelimit_mw.algorithms.concurrency import PERIOD as IN_FLIGHT_PERIOD
from ratelimit_mw.config.tree import Problems
from ratelimit_mw.config.word import Section, Values
from ratelimit_mw.config.words.charging import COST, COUNT, compile_cost
from ratelimit_mw.config.words.consistency import CONSISTENCY, SHARDS
from ratelimit_mw.config.words.limit import (
    ALGORITHM,
    BUCKETS,
    BURST,
    DEFAULT_BUCKETS,
    LIMIT,
    Window,
    burst_of,
    window_fault,
)
from ratelimit_mw.config.words.load import PRIORITY
from ratelimit_mw.config.words.on_limit import BAN, MESSAGES, ON_LIMIT
from ratelimit_mw.config.words.response import RULE_RESPONSE
from ratelimit_mw.config.words.selection import BY, MATCH, NAME, ON_DEMAND, ON_ERROR, REPLACES, SHADOW, compile_by
from ratelimit_mw.config.words.throttle import MAX_WAIT, MAX_WAITING, THROTTLE, raised
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.model import Elastic, Quota, Rule
from ratelimit_mw.rules.compiled import ANY, NO_RULES, CompiledRule, Counter, Matching, Tiers, escaped, key_of_domain
from ratelimit_mw.units import MILLISECOND, SECOND

RULE = Section(
    "Rule",
    "One rule.",
    (
        NAME,
        MATCH,
        BY,
        LIMIT,
        ALGORITHM,
        BURST,
        BUCKETS,
        COST,
        CONSISTENCY,
        SHARDS,
        COUNT,
        MAX_WAIT,
        MAX_WAITING,
        BAN,
        THROTTLE,
        REPLACES,
        SHADOW,
        ON_DEMAND,
        MESSAGES,
        PRIORITY,
        ON_LIMIT,
        ON_ERROR,
        RULE_RESPONSE,
    ),
)
"""The words of a rule. Quotas are altered in this order."""


def compile_rule(  # noqa: PLR0917 - each argument is needed
    rank: int,
    rule: Values,
    base: Rule,
    ranks: Mapping[str, int],
    match: Matching,
    attributes: Attributes,
    problems: Problems,
) -> CompiledRule:
    """Return the compiled rule.

    Args:
        rank: The index of the rule in the file.
        rule: The values of the rule.
        base: What the rules of the file have in common.
        ranks: The index of each rule that this one may replace, by its name.
        match: The compiled `match` of the rule.
        attributes: The attributes that rules may use.
        problems: Receives the errors. If there is one, the result must not be used.
    """
    validate_rule(rule, problems)
    counters, tiers = compile_counters(base.domain, rule)
    replaced = rule[REPLACES]
    return CompiledRule(
        rank=rank,
        rule=replace(base, name=rule[NAME], **_fields(rule)),
        templates=match.templates,
        further=ANY if not any(match[1:]) else match._replace(templates=()),
        by=rule[BY],
        identifiers=compile_by(rule, match.templates, attributes, problems),
        keys=tuple([key for key, _ in counters]),
        limits=tuple([quota for _, quota in counters]),
        tiers=tiers,
        cost=rule[COST].fixed,
        read_cost=compile_cost(rule, attributes, problems) if rule.differs(COST) else None,
        on_demand=rule[ON_DEMAND],
        replaces=frozenset(ranks[name] for name in replaced if name in ranks) if replaced else NO_RULES,
    )


def validate_rule(rule: Values, problems: Problems) -> None:
    """Report words that cannot be combined, and limits that cannot be counted or could never admit a request."""
    if rule.dropped & {"algorithm", "burst"}:
        return
    for word in RULE.words.values():
        word.check(rule, problems)
    for window in rule[LIMIT].all():
        _validate_window(rule, window, problems)


def compile_counters(domain: str, rule: Values) -> tuple[tuple[Counter, ...], Tiers | None]:
    """Return the counters for the default tier, and those of each listed tier (None if the limit has no tiers)."""
    tiers = rule[LIMIT].tiers
    return (
        _counters(domain, rule, rule[LIMIT].default),
        None if tiers is None else {tier: _counters(domain, rule, limits) for tier, limits in tiers.items()},
    )


def _fields(rule: Values) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in RULE.words.values():
        if word.fields is not None and rule.differs(word):
            found |= word.fields(rule[word])
    return found


def _counters(domain: str, rule: Values, limits: Sequence[Window]) -> tuple[Counter, ...]:
    # The key contains what the state of a counter depends on: the algorithm, the period, the buckets and the shards.
    # A rule that changes one of these therefore starts with new counters.
    buckets = rule[BUCKETS] or DEFAULT_BUCKETS
    sliced = f"/{buckets}" if ALGORITHMS[rule[ALGORITHM]].has_buckets and buckets != DEFAULT_BUCKETS else ""
    sharded = f"x{rule[SHARDS]}" if rule[SHARDS] > 1 else ""
    prefix = f"{key_of_domain(domain)}:{escaped(rule[NAME])}:"
    counters: list[Counter] = []
    for window in limits:
        quota = _quota(rule, window, prefix)
        code = f"{ALGORITHMS[quota.algorithm].code}{_period_code(quota.period)}"
        spread = sliced + sharded if window.period else ""
        # The braces are a hash tag of Redis Cluster: all counters of one identity are in one slot.
        counters.append((f"{prefix}{code}{spread}:{{", _first_equal(quota, quota.elastic)))
    return tuple(counters)


@lru_cache(maxsize=1024)
def _first_equal(quota: Quota, _elastic: Elastic | None) -> Quota:
    """Return the same object for all equal quotas. Most rules of a file have one of a few limits."""
    return quota  # `elastic` is an argument of its own, because the comparison of quotas leaves it out


def _period_code(period: int) -> str:
    return f"{period // SECOND}" if period % SECOND == 0 else f"{period // MILLISECOND}ms"


def _quota(rule: Values, window: Window, prefix: str = "") -> Quota:
    limit, period, *_ = window
    if period:
        algorithm, buckets = ALGORITHMS[rule[ALGORITHM]], rule[BUCKETS] or DEFAULT_BUCKETS
        quota = Quota(rule[ALGORITHM], limit, period, burst_of(rule, window), buckets)
        if algorithm.queue:
            quota = algorithm.in_turn(quota, raised(quota, rule[THROTTLE]).widest)
    else:
        quota = Quota(IN_FLIGHT, limit, IN_FLIGHT_PERIOD, buckets=IN_FLIGHT_BUCKETS, refundable=True)
    for word in RULE.words.values():
        if word.alter is not None and rule.differs(word):
            quota = word.alter(quota, rule, prefix)
    return quota


def _validate_window(rule: Values, window: Window, problems: Problems) -> None:
    fault = window_fault(rule, window)
    if fault is not None:
        problems.add(window.place, *fault)
        return
    if ALGORITHMS[rule[ALGORITHM]].in_flight and window.period:
        return  # `limit` has reported it
    quota, cost = _quota(rule, window).widest, rule[COST].fixed
    if cost > (quota.burst or quota.limit) > 0:
        capacity = f"a burst of {quota.burst}" if quota.burst else f"a limit of {quota.limit}"
        problems.add(rule.place("cost"), f"a cost of {cost} can never fit into {capacity}")
    elif rule.differs(THROTTLE):
        fault = window_fault(rule, Window(quota.limit, window.period, quota.burst or None))
        if fault is not None:
            problems.add(rule.place("throttle"), f"raises the limit too far: {fault[0]}", fault[1])
