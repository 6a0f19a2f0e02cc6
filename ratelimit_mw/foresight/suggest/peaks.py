"""How busy clients are: the busiest minute of each, the fence beyond which a client is not ordinary, and round limits.

All numbers are whole, so the result does not depend on how a machine rounds.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction

from ratelimit_mw.units import MINUTE

HEADROOM = Fraction(3, 2)
"""A limit is so many times what ordinary clients need."""

MOST = 999
"""A limit covers so many in a thousand of the ordinary clients."""

_ROUND = (10, 12, 15, 20, 25, 30, 40, 50, 60, 80)
"""The first two digits of round numbers."""

_LEAST_RATIO = 2
"""The least ratio of the quartiles. If most clients have one request in their busiest minute, both quartiles are 1,
and without this, every client with two requests would be beyond the fence."""


_GAP = 3
"""The ratio of two neighboring peaks above the fence, from which on the larger one is far beyond."""


def busiest_minute(times: Iterable[int]) -> int:
    """Return the number of requests in the busiest minute, as the algorithm `sliding_window` counts them.

    This is the smallest limit per minute that denies none of these requests.

    Args:
        times: The times of a client's requests in ascending order, in microseconds since the epoch.
    """
    most = previous = current = 0
    last = -2
    for at in times:
        window, elapsed = divmod(at, MINUTE)
        if window != last:
            previous = current if window == last + 1 else 0
            current, last = 0, window
        current += 1
        weighted = current if not previous else current - (-previous * (MINUTE - elapsed) // MINUTE)
        most = max(most, weighted)
    return most


def quantile(ascending: Sequence[int], thousandths: int) -> int:
    """Return the smallest value that at least so many thousandths of the values do not exceed (nearest rank)."""
    rank = -(-len(ascending) * thousandths // 1000)
    return ascending[max(rank, 1) - 1]


def fence(ascending: Sequence[int]) -> int:
    """Return the largest peak of an ordinary client: Tukey's upper outer fence of the logarithms of the peaks.

    On logarithms, Q3 + 3 (Q3 - Q1) is Q3 × (Q3 / Q1)³. Source: J. W. Tukey, "Exploratory Data Analysis" (1977).

    Args:
        ascending: The peaks in ascending order. At least one.
    """
    lower, upper = quantile(ascending, 250), quantile(ascending, 750)
    ratio = max(Fraction(upper, lower), Fraction(_LEAST_RATIO))
    return int(upper * ratio**3)


def extended(edge: int, ascending: Iterable[int]) -> int:
    """Return the largest peak that is reached from `edge` without a gap: each is at most three times the one before.

    The requests of clients often follow Zipf's law, and the busiest clients are then beyond any fence. They are still
    the end of one distribution. What is far beyond comes after a gap.

    Args:
        edge: The fence.
        ascending: The peaks in ascending order.
    """
    reached = edge
    for peak in ascending:
        if peak > _GAP * reached:
            break
        reached = max(reached, peak)
    return reached


def round_limit(number: Fraction) -> int:
    """Return the round number next to this one, such as 60, 80, 100, 120 or 150. The larger one if both are as near."""
    return min(_round_numbers(number), key=lambda each: (abs(each - number), -each))


def next_round(number: int) -> int:
    """Return the smallest round number that is at least this number."""
    return min(each for each in _round_numbers(Fraction(number)) if each >= number)


def _round_numbers(number: Fraction) -> list[int]:
    """Return the round numbers with as many digits as this number, and the first one with more."""
    power = 1
    while 10 * power <= number:
        power *= 10
    return [each * power // 10 for each in (*_ROUND, 100) if each * power % 10 == 0]
