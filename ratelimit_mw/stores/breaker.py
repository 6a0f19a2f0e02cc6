"""A circuit breaker for the time when a store is unavailable."""

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ratelimit_mw.algorithms import NOTHING
from ratelimit_mw.errors import PermanentFault
from ratelimit_mw.model import Ask
from ratelimit_mw.process_local import event, lazy

_chance = random.Random()  # separate, so that the app's seeded random numbers are not disturbed

_log = logging.getLogger("ratelimit_mw")

AWAY = "the store is away"
"""The reason why a request fails at once while the breaker is open."""

_PROBE = replace(NOTHING, limit=1_000_000_000, period=1_000_000)

_PAUSE = 0.25, 0.4
"""The range of seconds between two probes. Each pause is random, so that processes do not probe at the same time."""

_MANY_PROBES = 4
"""The number of unfinished probes from which the pauses become longer."""

_MAX_PAUSE = 1.0
"""The longest pause between two probes, in seconds."""


_REMINDER = 60.0
"""Seconds between two log lines about a fault that waiting cannot heal."""


class Breaker:
    """A circuit breaker: while it is closed, the store is asked; while it is open, requests fail at once.

    It closes when a probe succeeds. Probes run in the breaker's own threads, which exist only while it is open, so
    no request waits for them. A probe that hangs does not delay the next. One line is logged on opening and one on
    closing. `period` tells a failure from one before the store came back.

    The breaker is open exactly as long as its watching thread lives, and it has no lock. An asynchronous exception
    in any thread can therefore not leave it open.
    """

    _stopped = lazy(event)

    def __init__(self, name: str) -> None:
        self._name = name
        self.watching: dict[None, threading.Thread] = {}
        """Empty while it is closed, so that the usual request needs no call of `open`. Changed only in atomic steps."""
        self.period = Period(self, 0)
        self._logged_at = -_REMINDER  # when a fault that waiting cannot heal was last logged

    @property
    def closings(self) -> int:
        """How often the store came back."""
        return self.period.closings

    @property
    def open(self) -> bool:
        """Whether requests fail at once."""
        if not self.watching:  # the usual case
            return False
        watching = self.watching.get(None)
        return watching is not None and watching.is_alive()

    def trip(self, reason: object, probe: Callable[[], object], seen: int) -> None:
        """Open until a probe succeeds.

        Args:
            reason: the failure, for the log.
            probe: tries the store; raises if it is still unavailable.
            seen: the value of `closings` when the failed request began. If the store has come back since, the failure
                is outdated and ignored.
        """
        if self.watching or self._stopped.is_set() or seen != self.closings:
            return
        watch = threading.Thread(target=self._watch, args=(probe, seen), name="ratelimit_mw probe", daemon=True)
        try:
            if self.watching.setdefault(None, watch) is watch:  # otherwise another thread was first
                self._log(reason)
                watch.start()
        except BaseException as error:
            self._end(watch)  # if the thread did start, it ends by itself
            if not isinstance(error, RuntimeError):  # no thread available: stay closed
                raise

    def stop(self) -> None:
        """Stop probing, and do not open again."""
        self._stopped.set()

    def close(self, seen: int | None = None) -> None:
        """Close, because the store has answered. With `seen`, only if `closings` is still that number."""
        watch = self.watching.get(None)
        if watch is not None and seen in (None, self.closings):
            self.period = Period(self, self.closings + 1)  # first, so that failures until now do not open it again
            if self._end(watch):
                _log.warning("store %s is back: limits hold again", self._name)

    def _log(self, reason: object) -> None:
        """Log that the store is away. A fault that waiting cannot heal is an error, with its remedy."""
        line = "store %s is away (%s): each rule's on_error applies until it is back"
        if isinstance(reason, PermanentFault):
            self._logged_at = time.monotonic()
            _log.error(f"{line}. Waiting does not help: %s", self._name, reason, reason.remedy)
        else:
            _log.warning(line, self._name, reason)

    def _end(self, watch: threading.Thread) -> bool:
        """Close; False if another thread has closed it or opened it again."""
        return self.watching.get(None) is watch and self.watching.pop(None, None) is watch

    def _watch(self, probe: Callable[[], object], seen: int) -> None:
        """Start probes until the store is back."""
        probes: list[threading.Thread] = []
        try:
            while not self._stopped.wait(
                min(_chance.uniform(*_PAUSE) * max(len(probes) / _MANY_PROBES, 1), _MAX_PAUSE)
            ):
                if self.closings != seen or self.watching.get(None) is not threading.current_thread():
                    return
                thread = threading.Thread(target=self._try, args=(probe, seen), name="ratelimit_mw probe", daemon=True)
                with contextlib.suppress(RuntimeError):  # no thread available: try again after the pause
                    thread.start()
                probes = [each for each in (*probes, thread) if each.is_alive()]
        finally:
            self._end(threading.current_thread())

    def _try(self, probe: Callable[[], object], seen: int) -> None:
        try:
            probe()
        except Exception as error:  # noqa: BLE001  any failure means that the store is not back
            if isinstance(error, PermanentFault) and time.monotonic() - self._logged_at >= _REMINDER:
                self._log(error)
            _log.debug("store %s is still away: %s", self._name, error)
        else:
            self.close(seen)


class Period(NamedTuple):
    """The time between two closings of a breaker. A request keeps the period in which it began."""

    breaker: Breaker
    closings: int


def probe_ask(key: str) -> Ask:
    """The ask that a probe makes. It writes, because a store may answer but be unable to write."""
    return Ask(key, _PROBE)
