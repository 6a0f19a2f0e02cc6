"""The clock of the machine, and a clock for tests."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Clock", "ManualClock"]


class Clock(Protocol):
    """A source of the time of day."""

    def now(self) -> int:
        """Return the time of day, in whole microseconds since the epoch."""
        ...


_time_ns = time.time_ns
"""The time of day in nanoseconds. `machine_clock_is` replaces it in tests."""

_stand_in: Clock | None = None
"""The clock that stands in for the clock of the machine. None outside of tests."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> int:
        """Return the time of day, in microseconds since the epoch."""
        return _time_ns() // 1_000


@contextmanager
def machine_clock_is(clock: Clock) -> Iterator[None]:
    """Internal. Let `clock` stand in for the clock of the machine, in the whole package. For tests."""
    global _time_ns, _stand_in
    before = _time_ns, _stand_in
    _time_ns, _stand_in = lambda: clock.now() * 1_000, clock
    try:
        yield
    finally:
        _time_ns, _stand_in = before


class ManualClock:
    """A clock for tests. It moves when `advance` or `set` is called, and when `RateLimiter.acquire` would sleep.

    Pass it as `RateLimiter(config, clock=clock)`. It drives the memory store, the scripts on Redis, the deny cache,
    leases and bans.

    Args:
        start: The first time of the clock, in epoch seconds.
    """

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._lock = threading.Lock()
        self._now = _microseconds(start)

    def now(self) -> int:
        """Return the time of the clock, in microseconds since the epoch."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move the clock.

        Args:
            seconds: The number of seconds. A negative number moves the clock back.
        """
        with self._lock:
            self._now += _microseconds(seconds)

    def set(self, epoch_seconds: float) -> None:
        """Set the clock to a time.

        Args:
            epoch_seconds: The time, in epoch seconds.
        """
        with self._lock:
            self._now = _microseconds(epoch_seconds)


def _microseconds(seconds: float) -> int:
    return round(seconds * 1_000_000)


def clock_to_move(clock: Clock | None) -> ManualClock | None:
    """Internal. Return the clock that is moved instead of sleeping. None if time passes by itself.

    Args:
        clock: The user's clock, or None for that of the machine.
    """
    used = clock or _stand_in
    return used if isinstance(used, ManualClock) else None


def monotonic() -> int:
    """Internal. Return a time that does not go back, in microseconds. A clock that a test moves replaces it."""
    moved = clock_to_move(None)
    return time.monotonic_ns() // 1_000 if moved is None else moved.now()
