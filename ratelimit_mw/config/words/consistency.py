"""`consistency` and `shards`: where a rule's counters are kept, and which rules allow which."""

from dataclasses import replace
from typing import Literal

from ratelimit_mw.algorithms import ALGORITHMS, IN_FLIGHT, named
from ratelimit_mw.algorithms.algorithm import Algorithm
from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Problems
from ratelimit_mw.config.word import Values, Word
from ratelimit_mw.config.words.charging import COST, COUNT
from ratelimit_mw.config.words.limit import ALGORITHM, BURST, LIMIT, is_concurrent, is_concurrent_only
from ratelimit_mw.config.words.throttle import MAX_WAIT
from ratelimit_mw.model import Quota


def _validate_consistency(rule: Values, problems: Problems) -> None:
    """Report a consistency that the rule's algorithm can't have."""
    consistency = rule[CONSISTENCY]
    if consistency != "strict":
        algorithm = ALGORITHMS[rule[ALGORITHM]]
        why = algorithm.no_lease if consistency == "lease" else algorithm.no_write_back
        if why:
            message = f"not with {rule[ALGORITHM]}: {why}"
            problems.add(rule.place("consistency"), message, _instead(algorithm, lease=consistency == "lease"))
        _validate_what_comes_back(rule, "consistency", problems)


def _instead(algorithm: Algorithm, *, lease: bool) -> str:
    if algorithm.queue or algorithm.in_flight:
        return "leave it out"  # another algorithm would be no queue, and not count what is in flight
    others = named(lambda other: not (other.no_lease if lease else other.no_write_back))
    return f"write algorithm: {others}" + ("" if algorithm.no_lease else ", or consistency: lease")


def _validate_shards(rule: Values, problems: Problems) -> None:
    """Report shards that make no sense."""
    place, shards = rule.place("shards"), rule[SHARDS]
    if shards < 2:
        return
    if rule[CONSISTENCY] != "strict":
        message = f"shards spread the calls that {rule[CONSISTENCY]} saves: a rule has one or the other"
        problems.add(place, message, "leave shards out: with fewer calls there is nothing left to spread")
        return
    _validate_what_comes_back(rule, "shards", problems)
    why = ALGORITHMS[rule[ALGORITHM]].no_shards or (rule[MAX_WAIT] is not None and "a queue has one place")
    if why:
        problems.add(place, f"{why}, and can't be spread over {shards}", "leave shards out")
        return
    fixed = rule[COST].fixed
    # An override has fewer shards where its limit is small, and so is not held to this.
    for window, _ in rule[LIMIT].all() if rule.states("shards") else ():
        for whole, what in ((window.limit, "limit"), (window.burst or rule[BURST] or 0, "burst")):
            if 0 < whole < shards:
                problems.add(place, f"a {what} of {whole} can't be spread over {shards} shards", f"at most {whole}")
                return
            if 0 < whole < fixed * shards:
                message = f"a cost of {fixed} does not fit into each of {shards} shards of a {what} of {whole}"
                problems.add(place, message, f"at most {whole // fixed}")
                return


def _validate_what_comes_back(rule: Values, word: str, problems: Problems) -> None:
    """Report limits whose charges have to come back to where they were taken."""
    if is_concurrent(rule) and not ALGORITHMS[rule[ALGORITHM]].in_flight:
        message = "not with a concurrent limit: what is in flight is counted in one place, one by one"
        hint = "leave it out" if is_concurrent_only(rule) else "make two rules of it"
        problems.add(rule.place(word), message, hint)
    if rule[COUNT] is not None or rule[COST].header:
        what = "count" if rule[COUNT] is not None else "a cost that the response tells"
        message = "what is taken here may come back later, and has to come back to where it was taken"
        problems.add(rule.place(word), f"not with {what}: {message}")


def _keep(quota: Quota, rule: Values, _prefix: str) -> Quota:
    return quota if quota.algorithm == IN_FLIGHT else replace(quota, consistency=rule[CONSISTENCY])


def _spread(quota: Quota, rule: Values, _prefix: str) -> Quota:
    if quota.algorithm == IN_FLIGHT:
        return quota
    # The limit of an override may be smaller than the number of shards.
    fitting = (quota.burst or quota.limit) // (rule[COST].fixed or 1)
    return replace(quota, shards=max(min(rule[SHARDS], fitting), 1))


CONSISTENCY: Word[Literal["strict", "lease", "write_back"]] = kinds.choice(
    "consistency",
    ("strict", "lease", "write_back"),
    "strict",
    "Where requests are decided: on the store each time, or in the process, which settles with the store.",
    compared=True,
    validate=_validate_consistency,
    alter=_keep,
)

SHARDS = kinds.number(
    "shards",
    1,
    64,
    1,
    "Over how many keys a counter is spread.",
    validate=_validate_shards,
    alter=_spread,
)
