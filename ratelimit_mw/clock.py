"""Where time comes from: the system, or a test's hand."""

import threading
import time
from typing import Protocol


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
    """A clock that moves only when told, for the tests of an app.

    Pass it as `RateLimiter(config, clock=clock)`; it drives the memory store and the Redis scripts
    alike. `start` and `set` take epoch seconds, `advance` a number of seconds (back, if negative).
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._lock = threading.Lock()
        self._now = _microseconds(start)

    def now(self) -> int:
        """The time it was last set to, in microseconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move by `seconds`."""
        with self._lock:
            self._now += _microseconds(seconds)

    def set(self, epoch_seconds: float) -> None:
        """Move to `epoch_seconds`."""
        with self._lock:
            self._now = _microseconds(epoch_seconds)


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)
