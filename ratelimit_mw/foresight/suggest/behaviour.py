"""Finds clients that do one thing only: programs that ask at regular intervals, and programs that guess passwords."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from ratelimit_mw.foresight.suggest.traffic import TRACK, Request, route_of, status_of
from ratelimit_mw.units import SECOND

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
