"""How much of what comes in is turned away under load, by its priority. Pure: time is a parameter.

Each priority has a band of loads: below it nothing is shed, above it everything, and in it a share that rises evenly.
What sheds is the pressure, which is the load's recent peak: it rises with the load at once and falls slowly, so
that the relief that shedding brings does not end it at once. Times are seconds by any clock that does not step back.
"""

from math import inf
from typing import NamedTuple

from ratelimit_mw.settings import Band

EASES = 0.02
"""How much pressure falls in a second, at most: from a full load to one that sheds nothing takes fifteen. If it fell
much faster, more would be let in than there is room for before the load shows it."""

RETURNS_IN = 5.0
"""The least that who was shed is asked to wait; the most is twice that."""

_GOLDEN = 0.6180339887498949


class Pressure(NamedTuple):
    """What the load has been of late, at a moment."""

    level: float
    at: float


NONE = Pressure(0.0, -inf)
"""Where the load was never looked at."""


def pressed(before: Pressure, load: float, now: float) -> Pressure:
    """The pressure at `now`, under a load that is that high."""
    at = max(now, before.at)
    return Pressure(max(load, before.level - EASES * (at - before.at), 0.0), at)


def share_shed(level: float, band: Band) -> float:
    """The share that is shed at a pressure, from 0 to 1."""
    begins, all_of_it = band
    if level <= begins:
        return 0.0
    return 1.0 if level >= all_of_it else (level - begins) / (all_of_it - begins)


def turn(number: int) -> float:
    """From 0 to 1: the `number`-th request is shed where this is less than the share.

    The multiples of the golden ratio, less their whole part, fill the interval evenly, however many they are and of
    whichever clients: out of n requests in a row n × share are shed, give or take three, and two clients who take turns
    are shed alike, which by counting to two they would not be.
    """
    return number * _GOLDEN % 1.0


def comes_back_in(drawn: float, share: float) -> float:
    """Seconds after which a request may come back whose turn was `drawn`: spread, so that not all come at once."""
    return RETURNS_IN * (1.0 + drawn / share)
