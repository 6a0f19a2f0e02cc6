"""The circuit breaker: while the store is away requests do not wait for it, and a probe notices its return."""

import contextlib
import logging
import random
import threading
from collections.abc import Callable

from ratelimit_mw.late import event, late

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

    The breaker is open exactly as long as its watching thread lives, and there is no lock. So a thread that is
    interrupted by an exception from elsewhere, at whatever line, can't leave it open.
    """

    _stopped = late(event)

    def __init__(self, name: str) -> None:
        self._name = name
        self._watching: dict[None, threading.Thread] = {}  # set and taken away in one step
        self.closings = 0

    @property
    def open(self) -> bool:
        """True while the store is left alone."""
        if not self._watching:  # nearly always
            return False
        watching = self._watching.get(None)
        return watching is not None and watching.is_alive()

    def trip(self, reason: object, probe: Callable[[], object], seen: int) -> None:
        """Open, because of `reason`, until `probe` returns.

        `seen` is what `closings` was when that began which failed: news from before the last return is old.
        """
        if self._watching or self._stopped.is_set() or seen != self.closings:
            return
        watch = threading.Thread(target=self._watch, args=(probe, seen), name="ratelimit_mw probe", daemon=True)
        try:
            if self._watching.setdefault(None, watch) is watch:  # else another thread was first
                _log.warning("store %s is away (%s): each rule's on_error applies until it is back", self._name, reason)
                watch.start()
        except BaseException as error:
            self._end(watch)  # if it did start, it finds that it is not wanted
            if not isinstance(error, RuntimeError):  # no more threads: every request finds out for itself
                raise

    def stop(self) -> None:
        """Probe no more."""
        self._stopped.set()

    def close(self, seen: int | None = None) -> None:
        """Close, if it is open: the store has answered. With `seen`, only if it has not closed since."""
        watch = self._watching.get(None)
        if watch is not None and seen in (None, self.closings):
            self.closings += 1  # before, so that what failed until now does not open it again
            if self._end(watch):
                _log.warning("store %s is back: limits hold again", self._name)

    def _end(self, watch: threading.Thread) -> bool:
        """Be closed; False where another thread has closed it, or it was opened again."""
        return self._watching.get(None) is watch and self._watching.pop(None, None) is watch

    def _watch(self, probe: Callable[[], object], seen: int) -> None:
        """Begin one probe after the other until the store is back."""
        probes: list[threading.Thread] = []
        try:
            while not self._stopped.wait(min(random.uniform(*_PAUSE) * max(len(probes) / _AT_ONCE, 1), _LONGEST_PAUSE)):
                if self.closings != seen or self._watching.get(None) is not threading.current_thread():
                    return
                thread = threading.Thread(target=self._try, args=(probe, seen), name="ratelimit_mw probe", daemon=True)
                with contextlib.suppress(RuntimeError):  # no more threads: the next may have more luck
                    thread.start()
                probes = [each for each in (*probes, thread) if each.is_alive()]
        finally:
            self._end(threading.current_thread())

    def _try(self, probe: Callable[[], object], seen: int) -> None:
        try:
            probe()
        except Exception as error:  # noqa: BLE001  whatever is wrong with it, the store is not back
            _log.debug("store %s is still away: %s", self._name, error)
        else:
            self.close(seen)
