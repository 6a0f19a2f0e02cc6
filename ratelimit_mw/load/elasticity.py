"""How loaded a process is, from 0 to 1, and how far that opens an elastic limit. Pure: time is a parameter.

Signals become a load: that of whatever is scarcest. The load opens a limit or closes it: it closes at `below`, opens
again a tenth under that, and in both directions it moves at a limited speed, so that a load that hovers around
the mark makes no limit flap. Times are seconds by any clock that does not step back.
"""

from math import exp
from typing import NamedTuple

FULL_LAG = 0.07
"""An event loop that wakes up so much too late is fully loaded (the mark of node's toobusy)."""

FULL_QUEUE = 0.1
"""So is a process whose requests wait so long for a thread (CoDel's interval)."""

OPENS_IN = 5.0
CLOSES_IN = 1.0
"""A limit opens with care, and gives back at once, but for the second in which the load may have been a spike."""

_REOPENS_AT = 0.9
_MEMORY = 1.0  # seconds that a smoothed load looks back

BRISK = 0.3
"""So much it looks back where it sheds requests: a queue grows faster than a limit needs to close."""


class Signals(NamedTuple):
    """What a process sees of its load; 0 where there is nothing to see.

    `lag` and `queued` are seconds: how late the event loop wakes up, how long a request waited for a thread. `busy`
    is the share of the capacity that requests in flight take, and `cpu` the share of the processor in use.
    """

    lag: float = 0.0
    queued: float = 0.0
    busy: float = 0.0
    cpu: float = 0.0


def load_of(signals: Signals) -> float:
    """The load: that of the scarcest of what the process needs."""
    lag, queued, busy, cpu = signals
    return min(max(lag / FULL_LAG, queued / FULL_QUEUE, busy, cpu, 0.0), 1.0)


def smoothed(average: float, value: float, elapsed: float, memory: float = _MEMORY) -> float:
    """The moving average that looks back `memory` seconds, now that `value` held for `elapsed`."""
    return value + (average - value) * exp(-max(elapsed, 0.0) / memory)


class Opening(NamedTuple):
    """How far a limit is open at a moment: `share` from 0 to 1, and whether that rises or falls."""

    share: float
    rising: bool
    at: float


def begun(load: float, below: float, now: float) -> Opening:
    """The opening of a limit that was never asked for: there is nothing yet to move smoothly from."""
    return Opening(1.0, True, now) if load < below else Opening(0.0, False, now)


def moved(opening: Opening, load: float, below: float, now: float) -> Opening:
    """The opening at `now`, under a load that held since it was last moved."""
    elapsed = max(now - opening.at, 0.0)
    rising = load < (below if opening.rising else below * _REOPENS_AT)
    share = opening.share + (elapsed / OPENS_IN if rising else -elapsed / CLOSES_IN)
    return Opening(min(max(share, 0.0), 1.0), rising, max(now, opening.at))
