"""`consistency` and `shards`: where the counters of a rule are decided and stored, and which rules may use them."""

from dataclasses import replace
from typing import Literal

from ratelimit_mw.algorithms import ALGORITHMS, IN_FLIGHT, algorithm_names
from ratelimit_mw.algorithms.algorithm import Algorithm
from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Problems
from ratelimit_mw.config.word import Conflict, Values, Word
from ratelimit_mw.config.words.charging import COST, COUNT, no_cost_of_response
from ratelimit_mw.config.words.limit import ALGORITHM, BURST, LIMIT, SPLIT, is_concurrent
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


def _instead(algorithm: Algorithm, *, lease: bool) -> str:
    """Return the hint for a consistency that `algorithm` does not support. `lease` is False for `write_back`."""
    if algorithm.queue or algorithm.in_flight:
        return "remove this key"  # no other algorithm is a queue, or counts requests in flight
    others = algorithm_names(lambda other: not (other.no_lease if lease else other.no_write_back))
    return f"use algorithm: {others}" + ("" if algorithm.no_lease else ", or consistency: lease")


def _validate_shards(rule: Values, problems: Problems) -> None:
    """Report shards that the rule cannot have."""
    place, shards, fixed = rule.place("shards"), rule[SHARDS], rule[COST].fixed
    why = ALGORITHMS[rule[ALGORITHM]].no_shards or (rule.differs(MAX_WAIT) and "a queue needs a single counter")
    # The limit of an override is not checked: an override with a small limit has fewer shards.
    windows = rule[LIMIT].all() if rule.has_key("shards") else []
    capacities = [(window.limit, "limit") for window in windows]
    capacities += [(window.burst or rule[BURST] or 0, "burst") for window in windows]
    least, name = min(((capacity, name) for capacity, name in capacities if capacity), default=(0, ""))
    if why:
        problems.add(place, f"must be 1: {why}", "remove shards")
    elif 0 < least < shards:
        problems.add(place, f"a {name} of {least} can't be spread over {shards} shards", f"at most {least}")
    elif 0 < least < fixed * shards:
        message = f"a cost of {fixed} does not fit into each of {shards} shards of a {name} of {least}"
        problems.add(place, message, f"at most {least // fixed}")


_REFUNDED = "a charge may be refunded later, and the refund must reach the counter that was charged"
_REFUNDS = (
    Conflict(
        LIMIT,
        "requests in flight are counted one by one, in one place",
        SPLIT,
        lambda rule: is_concurrent(rule) and not ALGORITHMS[rule[ALGORITHM]].in_flight,
        "a concurrent limit",
    ),
    Conflict(COUNT, _REFUNDED),
    no_cost_of_response(_REFUNDED),
)
"""The words whose charges are refunded. Only one counter can be."""


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
    conflicts=_REFUNDS,
    validate=_validate_consistency,
    alter=_alter_consistency,
)

SHARDS = kinds.number(
    "shards",
    1,
    64,
    1,
    "The number of keys over which each counter is spread.",
    conflicts=(
        Conflict(CONSISTENCY, "the store gets too few calls to need shards", "remove shards"),
        *_REFUNDS,
    ),
    validate=_validate_shards,
    alter=_alter_shards,
)
