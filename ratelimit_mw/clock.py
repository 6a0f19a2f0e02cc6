"""The clocks: that of the machine, and the one that tests move."""

import threading
import time
from typing import Protocol

__all__ = ["Clock", "ManualClock"]


class Clock(Protocol):
    """A source of the time of day, in whole microseconds since the epoch."""

    def now(self) -> int:
        """The time of day."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> int:
        """The time of day, in microseconds."""
        return time.time_ns() // 1_000


class ManualClock:
    """A clock for tests. It moves only when it is told to.

    Pass it as `RateLimiter(config, clock=clock)`. It drives the memory store, the scripts on Redis, the deny cache,
    leases and bans.

    Args:
        start: Where the clock stands first, in epoch seconds.
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._lock = threading.Lock()
        self._now = _microseconds(start)

    def now(self) -> int:
        """The time that the clock shows, in microseconds since the epoch."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock.

        Args:
            seconds: How far. A negative number moves it back.
        """
        with self._lock:
            self._now += _microseconds(seconds)

    def set(self, epoch_seconds: float) -> None:
        """Move the clock to a point in time.

        Args:
            epoch_seconds: Where to, in epoch seconds.
        """
        with self._lock:
            self._now = _microseconds(epoch_seconds)


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)
