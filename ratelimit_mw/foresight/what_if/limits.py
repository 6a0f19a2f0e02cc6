"""Chooses the limits of a what-if curve. This module needs no numpy."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, count, pairwise

MOST_LIMITS = 50
"""The most limits of an exact curve."""

REPLAYED_LIMITS = 8
"""The number of limits of a replayed curve. One of them is the limit in force."""

_DIGITS = (10, 12, 15, 18, 20, 25, 30, 35, 40, 45, 50, 60, 70, 80, 90)
"""The numbers of each decade that people write, in tenths."""

_FACTORS = (1 / 4, 1 / 2, 3 / 4, 3 / 2, 2, 4, 8)


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


def rows_to_show(limits: Sequence[int], limit: int, denied: Sequence[int], requests: int, most: int = 7) -> list[int]:
    """Return the indices of the limits that inform most, ascending, for a short table.

    These are the limit in force, half of it, twice it, and the smallest limits that deny nothing and at most 0.1 %, 1 %
    and 10 % of the requests. Limits between them fill the table.
    """
    in_force = limits.index(limit)
    end = len(limits) - 1

    def denying(share: float) -> int:
        return next((place for place, number in enumerate(denied) if number <= share * requests), end)

    last = max(denying(0), in_force)  # limits beyond it deny nothing, either
    found = {in_force, denying(0)}
    near = [min(bisect_left(limits, each), last) for each in (limit // 2, 2 * limit)]
    for place in (*near, denying(0.01), denying(0.1), denying(0.001)):
        if len(found) < most:
            found.add(place)
    while len(found) < min(most, last + 1):
        held = [-1, *sorted(found)]
        gap, before = max((after - before, before) for before, after in pairwise(held))
        found.add(before + gap // 2 if before >= 0 else gap // 2 - 1)
    return sorted(found)
