"""The limits of a configuration that have a what-if curve, and at which numbers. This module needs no numpy."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, count

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.model import Quota, Rule
from ratelimit_mw.rules.compiled import CompiledRule
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.units import spell_period

MOST_LIMITS = 50
"""The most limits of an exact curve."""

_DIGITS = (10, 12, 15, 18, 20, 25, 30, 35, 40, 45, 50, 60, 70, 80, 90)
"""The numbers of each decade that people write, in tenths."""

_FACTORS = (1 / 4, 1 / 2, 3 / 4, 3 / 2, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One limit of one rule: that of clients without a tier, and of tiers that have the same limit.

    Attributes:
        rule: The rule.
        place: The place of the rule in the order of the files.
        quota: The quota in force.
        coupled: True if the decisions depend on more than the counter itself, as far as the rule tells it.
        with_number: Returns the quota with another number of requests. Raises ValueError if the rule cannot have it.
    """

    rule: Rule
    place: int
    quota: Quota
    coupled: bool
    with_number: Callable[[int], Quota]

    @property
    def limit(self) -> int:
        """The number of requests."""
        return self.quota.shown_limit

    @property
    def spelled(self) -> str:
        """The limit as a person writes it."""
        in_flight = ALGORITHMS[self.quota.algorithm].in_flight
        return f"{self.limit} concurrent" if in_flight else f"{self.limit} per {spell_period(self.quota.period)}"

    def quotas(self, limits: Iterable[int]) -> Iterator[tuple[int, Quota]]:
        """Yield the quota with each of these numbers, in their order, after the number."""
        for limit in limits:
            with suppress(ValueError):  # the rule cannot have this limit
                yield limit, self.quota if limit == self.limit else self.with_number(limit)


def subjects_of(rules: Rules) -> list[Subject]:
    """Return the limits of all rules, in the order of the files, except those that a function of the app returns.

    The burst of a bucket stays as it is if the file sets it. Otherwise it is the number of the limit.
    """
    found: list[Subject] = []
    place = 0
    for part in rules.parts:
        for compiled in part.compiled:
            found += _of_rule(part, compiled, place)
            place += 1
        for limit in part.descriptors.limits if part.descriptors is not None else ():
            quota = limit.quota
            if quota is not None:
                coupled = _coupled(limit.rule, quota)
                number = partial(_of_descriptor, quota)
                found.append(Subject(rule=limit.rule, place=place, quota=quota, coupled=coupled, with_number=number))
            place += 1
    return found


def _of_rule(part: RuleSet, compiled: CompiledRule, place: int) -> Iterator[Subject]:
    if compiled.read_limit is not None:
        return
    for index, quota in enumerate(compiled.limits):
        number = partial(part.recompiler.with_number, compiled.rule.name, index)
        coupled = _coupled(compiled.rule, quota)
        yield Subject(rule=compiled.rule, place=place, quota=quota, coupled=coupled, with_number=number)


def _of_descriptor(quota: Quota, number: int) -> Quota:
    """Return the quota of a descriptor with another number. A burst that is equal to the number follows it."""
    algorithm = ALGORITHMS[quota.algorithm]
    largest = algorithm.largest
    if largest is not None and number > largest.limit:
        raise ValueError(f"at most {largest.limit}")
    burst = number if quota.burst == quota.limit else quota.burst
    return algorithm.in_turn(replace(quota, limit=number, burst=burst))


def _coupled(rule: Rule, quota: Quota) -> bool:
    """Return True if responses, bans or the requests in flight decide, too."""
    by_response = rule.cost_after is not None or rule.counts is not None or quota.overdraft
    return by_response or quota.penalty is not None or ALGORITHMS[quota.algorithm].in_flight


def candidates(limit: int, peaks: Sequence[tuple[int, int]]) -> list[int]:
    """Return the limits of an exact curve, ascending: numbers that people write, from half a usual client to all.

    Args:
        limit: The limit in force, which is one of them.
        peaks: How many clients have how many requests in their busiest window, see `Curve.peaks`. The highest is one of
            the limits, because a window with this limit denies nothing.
    """
    highest = peaks[-1][0] if peaks else 1
    lowest = min(_median(peaks), max(limit, 1), highest) // 2
    found = [each for each in _written(max(highest, limit)) if each >= lowest]
    fixed = {limit, highest}
    free = [each for each in found if each not in fixed]
    most = MOST_LIMITS - len(fixed)
    if len(free) > most:  # evenly: the numbers are about as far apart as their size demands
        free = [free[place * (len(free) - 1) // (most - 1)] for place in range(most)]
    return sorted(fixed.union(free))


def replayed_candidates(limit: int) -> list[int]:
    """Return the limits at which the engine replays a log, ascending, without the limit in force."""
    found: list[int] = []
    for factor in _FACTORS:
        wanted = max(round(limit * factor), 1)
        found.append(next(each for each in count(wanted) if each != limit and each not in found))
    return sorted(found)


def _written(highest: int) -> list[int]:
    """Return the numbers that people write, up to the first that is at least `highest`."""
    decades = range(len(str(highest)) + 1)
    numbers = [digits * 10**decade for decade in decades for digits in _DIGITS]
    found = [number // 10 for number in numbers if number % 10 == 0]
    return found[: bisect_left(found, highest) + 1]


def _median(peaks: Sequence[tuple[int, int]]) -> int:
    seen = list(accumulate(number for _, number in peaks))
    return peaks[bisect_left(seen, seen[-1] / 2)][0] if peaks else 1
