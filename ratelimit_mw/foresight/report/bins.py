"""Groups values into the bars of a chart: denials by spans of time, and clients by their numbers of requests."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

DAY = 1440
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, DAY, 2 * DAY, 7 * DAY, 28 * DAY)
"""Round spans of time, in minutes."""

_MOST_BARS = 88


class Bars(NamedTuple):
    """The spans of time that share a bar, in minutes since the epoch.

    Attributes:
        begin: The beginning of the first one.
        minutes: The length of each.
        number: How many there are.
    """

    begin: int
    minutes: int
    number: int

    def heights(self, minutes: Mapping[int, int]) -> list[int]:
        """Return the sum of the counts in each span."""
        found = [0] * self.number
        for minute, count in minutes.items():
            found[(minute - self.begin) // self.minutes] += count
        return found


def bars_of(first: int, last: int) -> Bars:
    """Return the spans of time for bars from the first to the last minute: few, of a round length."""

    def number(step: int) -> int:
        return last // step - first // step + 1

    step = next((step for step in STEPS if number(step) <= _MOST_BARS), 0)
    if not step:
        step = DAY * -(-(last - first + 1) // (DAY * (_MOST_BARS - 1)))
    return Bars(first // step * step, step, number(step))


def spans_of(counts: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield spans of numbers that grow by a tenth of a power of ten: the lowest and highest number, and the count.

    Args:
        counts: How often each number occurs, as (number, count), ascending by the number.
    """
    edges = [1]
    while counts and edges[-1] < counts[-1][0]:
        edges.append(max(edges[-1] + 1, round(edges[-1] * 10 ** (1 / 10))))
    found = [0] * len(edges)
    for number, count in counts:
        found[bisect_left(edges, number)] += count
    for place, count in enumerate(found):
        if count:
            yield edges[place - 1] + 1 if place else 1, edges[place], count
