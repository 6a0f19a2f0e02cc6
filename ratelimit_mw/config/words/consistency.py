"""`consistency` and `shards`: where the counters of a rule are decided and stored, and which rules may use them."""

from dataclasses import replace
from typing import Literal

from ratelimit_mw.algorithms import ALGORITHMS, IN_FLIGHT, algorithm_names
from ratelimit_mw.algorithms.algorithm import Algorithm
from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Problems
from ratelimit_mw.config.word import Values, Word
from ratelimit_mw.config.words.charging import COST, COUNT
from ratelimit_mw.config.words.limit import ALGORITHM, BURST, LIMIT, is_concurrent, is_concurrent_only
from ratelimit_mw.config.words.throttle import MAX_WAIT
from ratelimit_mw.model import Quota


def _validate_consistency(rule: Values, problems: Problems) -> None:
    """Report a consistency that the rule's algorithm does not support."""
    lease = rule[CONSISTENCY] == "lease"
    algorithm = ALGORITHMS[rule[ALGORITHM]]
    why = algorithm.no_lease if lease else algorithm.no_write_back
    if why:
        message = f"can't be combined with {rule[ALGORITHM]}: {why}"
        problems.add(rule.place("consistency"), message, _instead(algorithm, lease=lease))
    _validate_refunds(rule, "consistency", problems)


def _instead(algorithm: Algorithm, *, lease: bool) -> str:
    """Return the hint for a consistency that `algorithm` does not support. `lease` is False for `write_back`."""
    if algorithm.queue or algorithm.in_flight:
        return "remove this key"  # no other algorithm is a queue, or counts requests in flight
    others = algorithm_names(lambda other: not (other.no_lease if lease else other.no_write_back))
    return f"use algorithm: {others}" + ("" if algorithm.no_lease else ", or consistency: lease")


def _validate_shards(rule: Values, problems: Problems) -> None:
    """Report shards that the rule cannot have."""
    place, shards = rule.place("shards"), rule[SHARDS]
    if rule.differs(CONSISTENCY):
        message = f"can't be combined with consistency: {rule[CONSISTENCY]}"
        problems.add(place, message, "remove shards: with this consistency, the store gets too few calls to need them")
        return
    _validate_refunds(rule, "shards", problems)
    why = ALGORITHMS[rule[ALGORITHM]].no_shards or (rule.differs(MAX_WAIT) and "a queue needs a single counter")
    if why:
        problems.add(place, f"must be 1: {why}", "remove shards")
        return
    fixed = rule[COST].fixed
    # The limit of an override is not checked: an override with a small limit has fewer shards.
    for window, _ in rule[LIMIT].all() if rule.has_key("shards") else ():
        for capacity, name in ((window.limit, "limit"), (window.burst or rule[BURST] or 0, "burst")):
            if 0 < capacity < shards:
                hint = f"at most {capacity}"
                problems.add(place, f"a {name} of {capacity} can't be spread over {shards} shards", hint)
                return
            if 0 < capacity < fixed * shards:
                message = f"a cost of {fixed} does not fit into each of {shards} shards of a {name} of {capacity}"
                problems.add(place, message, f"at most {capacity // fixed}")
                return


def _validate_refunds(rule: Values, word: str, problems: Problems) -> None:
    """Report limits whose charges may be refunded, because a refund must reach the counter that was charged."""
    if is_concurrent(rule) and not ALGORITHMS[rule[ALGORITHM]].in_flight:
        message = "can't be combined with a concurrent limit: requests in flight are counted one by one, in one place"
        hint = "remove this key" if is_concurrent_only(rule) else "split it into two rules"
        problems.add(rule.place(word), message, hint)
    if rule.differs(COUNT) or rule[COST].header:
        what = "count" if rule.differs(COUNT) else "cost: response:…"
        message = "a charge may be refunded later, and the refund must reach the counter that was charged"
        problems.add(rule.place(word), f"can't be combined with {what}: {message}")


def _alter_consistency(quota: Quota, rule: Values, _prefix: str) -> Quota:
    """Return the quota with the consistency of the rule. Concurrent limits of the same rule stay strict."""
    return quota if quota.algorithm == IN_FLIGHT else replace(quota, consistency=rule[CONSISTENCY])


def _alter_shards(quota: Quota, rule: Values, _prefix: str) -> Quota:
    """Return the quota with the shards of the rule. Each shard must admit at least one request of the fixed cost."""
    if quota.algorithm == IN_FLIGHT:
        return quota
    # The limit of an override may be smaller than the number of shards.
    fitting = (quota.burst or quota.limit) // (rule[COST].fixed or 1)
    return replace(quota, shards=max(min(rule[SHARDS], fitting), 1))


CONSISTENCY: Word[Literal["strict", "lease", "write_back"]] = kinds.choice(
    "consistency",
    ("strict", "lease", "write_back"),
    "strict",
    "Where requests are decided: always in the store, or in the process, which synchronises with the store.",
    compared=True,
    validate=_validate_consistency,
    alter=_alter_consistency,
)

SHARDS = kinds.number(
    "shards",
    1,
    64,
    1,
    "The number of keys over which each counter is spread.",
    validate=_validate_shards,
    alter=_alter_shards,
)
