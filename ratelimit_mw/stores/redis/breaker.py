"""The circuit breaker: while the store is away nobody waits for it, and a probe notices its return."""

import contextlib
import logging
import random
import threading
from collections.abc import Callable

from ratelimit_mw.late import event, late, lock

_log = logging.getLogger("ratelimit_mw")

_PAUSE = 0.25, 0.4
"""Seconds from one probe to the next, drawn each time so that many processes do not probe together."""

_AT_ONCE = 4
"""Probes under way from which on the pauses become longer."""

_LONGEST_PAUSE = 1.0
"""Seconds from one probe to the next where those before have not ended: the store is not left alone for longer."""


class Breaker:
    """Closed, the store is asked; open, it is left alone, until `probe` succeeds.

    `probe` is called from threads of the breaker's own, which live only while it is open, so no request ever
    pays for it; it raises to say that the store is still away. A probe that waits in vain does not hold up the next.
    One line is logged on opening, one on closing. `closings` counts how often the store came back.
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
            watch = threading.Thread(target=self._watch, args=(probe, seen), name="ratelimit_mw probe", daemon=True)
            self.open = True
            _log.warning("store %s is away (%s): each rule's on_error applies until it is back", self._name, reason)
            try:
                watch.start()
            except RuntimeError:  # no more threads: every request finds out for itself
                self.open = False

    def stop(self) -> None:
        """Probe no more."""
        self._stopped.set()

    def close(self, seen: int | None = None) -> None:
        """Close, if it is open: the store has answered. With `seen`, only if it has not closed since."""
        with self._lock:
            if not self.open or seen not in (None, self.closings):
                return
            self.open = False
            self.closings += 1
        _log.warning("store %s is back: limits hold again", self._name)

    def _watch(self, probe: Callable[[], object], seen: int) -> None:
        """Begin one probe after the other until the store is back."""
        probes: list[threading.Thread] = []
        while not self._stopped.wait(min(random.uniform(*_PAUSE) * max(len(probes) / _AT_ONCE, 1), _LONGEST_PAUSE)):
            if self.closings != seen:
                return
            thread = threading.Thread(target=self._try, args=(probe, seen), name="ratelimit_mw probe", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads: the next may have more luck
                thread.start()
            probes = [each for each in (*probes, thread) if each.is_alive()]

    def _try(self, probe: Callable[[], object], seen: int) -> None:
        try:
            probe()
        except Exception as error:  # noqa: BLE001  whatever is wrong with it, the store is not back
            _log.debug("store %s is still away: %s", self._name, error)
        else:
            self.close(seen)
