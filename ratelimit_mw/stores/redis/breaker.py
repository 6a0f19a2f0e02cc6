"""The circuit breaker: while the store is away nobody waits for it, and a probe notices its return."""

import logging
import random
import threading
import time
from collections.abc import Callable

from ratelimit_mw.late import event, late, lock

_log = logging.getLogger("ratelimit_mw")

_PAUSE = 0.25, 0.4
"""Seconds from one probe to the next, drawn anew each time so that many processes don't knock together."""


class Breaker:
    """Closed, the store is asked; open, it is left alone, until `probe` succeeds.

    `probe` is called from a thread of the breaker's own, which lives only while it is open, so no request ever
    pays for it; it raises to say that the store is still away. One line is logged on opening, one on closing.
    `closings` counts how often the store came back.
    """

    _lock = late(lock)
    _stopped = late(event)

    def __init__(self, name: str) -> None:
        self._name = name
        self.open = False
        self.closings = 0

    def trip(self, reason: object, probe: Callable[[], object], seen: int) -> None:
        """Open, because of `reason`, until `probe` returns.

        `seen` is what `closings` was when that began which failed: news from before the last return is old.
        """
        with self._lock:
            if self.open or self._stopped.is_set() or seen != self.closings:
                return
            watch = threading.Thread(target=self._watch, args=(probe,), name="ratelimit_mw probe", daemon=True)
            self.open = True
            _log.warning("store %s is away (%s): each rule's on_error applies until it is back", self._name, reason)
            try:
                watch.start()
            except RuntimeError:  # no more threads: every request finds out for itself
                self.open = False

    def stop(self) -> None:
        """Probe no more."""
        self._stopped.set()

    def _watch(self, probe: Callable[[], object]) -> None:
        began = time.monotonic()
        while not self._stopped.wait(max(began + random.uniform(*_PAUSE) - time.monotonic(), 0)):
            began = time.monotonic()
            try:
                probe()
            except Exception as error:  # noqa: BLE001  whatever is wrong with it, the store is not back
                _log.debug("store %s is still away: %s", self._name, error)
            else:
                with self._lock:
                    self.open = False
                    self.closings += 1
                _log.warning("store %s is back: limits hold again", self._name)
                return
