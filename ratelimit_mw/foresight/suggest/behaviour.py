"""How clients behave: how busy they are, the fence beyond which one is not ordinary, and if they do one thing only.

A client that does one thing only asks at regular intervals, or guesses passwords. All numbers are whole, so the result
does not depend on how a machine rounds.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from ratelimit_mw.algorithms import sliding_window
from ratelimit_mw.config.words.limit import DEFAULT
from ratelimit_mw.foresight.suggest.traffic import TRACK, Request, route_of, status_of
from ratelimit_mw.model import Quota
from ratelimit_mw.units import MINUTE, SECOND

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


_PER_MINUTE = Quota(DEFAULT, 0, MINUTE)
"""The quota of a proposed rule, whatever its limit."""


def busiest_minute(times: Sequence[int]) -> int:
    """Return the number of requests in the busiest minute, as the algorithm `sliding_window` counts them.

    This is the smallest limit per minute that denies none of these requests.

    Args:
        times: The times of a client's requests in ascending order, in microseconds since the epoch.
    """
    most = 0
    for place, at in enumerate(times):
        counts = [place - bisect_left(times, moment, 0, place) for moment in sliding_window.since(_PER_MINUTE, at)]
        most = max(most, sliding_window.used(_PER_MINUTE, counts, at) + 1)
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


WRITING = ("POST", "PUT", "PATCH", "DELETE")
"""The methods that change something. A route with such a method may be one where secrets are guessed."""

LEAST_REQUESTS = 20
"""A client with fewer requests is not one-track, because chance could make it look so."""

_SHARE = 0.9
"""The share of a client's requests that have one method, path and status, if it is one-track."""


class Track(NamedTuple):
    """What a one-track client does.

    Attributes:
        route: The index of the route in the traffic.
        status: The status of its requests.
        requests: The number of these requests.
        period: The time between two of them in microseconds, if it is regular. 0 if it is not.
    """

    route: int
    status: int
    requests: int
    period: int

    @property
    def fails(self) -> bool:
        """True if the requests are refused, as those of a client that guesses."""
        return self.status >= 400


def track_of(requests: Sequence[Request]) -> Track | None:
    """Return what a client does if it is one-track, otherwise None.

    A client is one-track if it has at least 20 requests, and at least 90 % of them have one method, path and status.
    """
    if len(requests) < LEAST_REQUESTS:
        return None
    ((track, number),) = Counter(packed & TRACK for _, packed in requests).most_common(1)
    if number < _SHARE * len(requests):
        return None
    own = [(at, packed) for at, packed in requests if packed & TRACK == track]
    _, packed = own[0]
    return Track(route_of(packed), status_of(packed), number, _period([at for at, _ in own]))


def _period(times: Sequence[int]) -> int:
    """Return the median time between requests if the middle 80 % of all times between them are near it, otherwise 0.

    Near is a tenth of the median, or the second by which the clock of most logs is inexact. A period below two seconds
    can therefore not be told from chance.
    """
    gaps = sorted(after - before for before, after in pairwise(times))
    tenth = len(gaps) // 10
    median = gaps[len(gaps) // 2]
    near = max(median // 10, SECOND)
    regular = median - gaps[tenth] <= near and gaps[-1 - tenth] - median <= near
    return median if regular and median >= 2 * SECOND else 0
