"""A circuit breaker for the time when a store is unavailable."""

import contextlib
import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ratelimit_mw.algorithms import NOTHING
from ratelimit_mw.errors import PermanentFault
from ratelimit_mw.model import Ask
from ratelimit_mw.process_local import Repeating, event, lazy, lock

_chance = random.Random()  # separate, so that the app's seeded random numbers are not disturbed

_log = logging.getLogger("ratelimit_mw")

AWAY = "the store is away"
"""The reason why a request fails at once while the breaker is open."""

_PROBE = replace(NOTHING, limit=1_000_000_000, period=1_000_000)

_NEARLY_ALL = 0.9
"""The share of the timeout that counts as all of it. A store may be asked a little after the requests came."""

_PAUSE = 0.25, 0.4
"""The range of seconds between two probes. Each pause is random, so that processes do not probe at the same time."""

_MANY_PROBES = 4
"""The number of unfinished probes from which the pauses become longer, up to `_LONG_PAUSE`."""

_LONG_PAUSE = 1.0
_LONGEST_PAUSE = 5.0
"""The longest pause in seconds: without relapses, and with them."""

_RELAPSE = 10.0
"""Seconds after its return within which a store that leaves again has a relapse."""

_MINUTE = 60.0
"""Seconds between two log lines about a fault that waiting cannot heal, and about late requests."""

_FIRST_COUNT = 1.0
"""Seconds in which late requests are counted before the first line about them."""


def silent(now: float, since: float, timeout: float) -> bool:
    """Whether a store is away that has decided nothing since `since`. All times are monotonic seconds."""
    return now - since > timeout * _NEARLY_ALL


class Period(NamedTuple):
    """The time from one return of a store to the next. A request keeps the period in which it began.

    Attributes:
        breaker: The breaker of the store.
        closings: How often the store came back.
        began_at: When it came back, in monotonic seconds.
        relapses: How often in a row it left within 10 s of its return.
    """

    breaker: "Breaker"
    closings: int = 0
    began_at: float = -math.inf
    relapses: int = 0

    def left(self, now: float) -> "Period":
        """The period, after the store has left."""
        return self._replace(relapses=self.relapses + 1 if now - self.began_at < _RELAPSE else 0)

    def back(self, now: float) -> "Period":
        """The next period, after the store has come back."""
        return self._replace(closings=self.closings + 1, began_at=now)

    def pause(self, unfinished: int, chance: float) -> float:
        """The seconds before the next probe. Each relapse doubles them.

        Args:
            unfinished: The number of probes that are under way.
            chance: A random number from 0 to 1.
        """
        least, most = _PAUSE
        pause = min((least + (most - least) * chance) * max(unfinished / _MANY_PROBES, 1), _LONG_PAUSE)
        return min(pause * 2.0 ** min(self.relapses, 10), _LONGEST_PAUSE)


class Breaker:
    """A circuit breaker: while it is closed, the store is asked; while it is open, requests fail at once.

    It closes when a probe succeeds, and for no other reason. Probes run in the breaker's own threads, which exist only
    while it is open, so no request waits for them. A probe that hangs does not delay the next. One line is logged on
    opening and one on closing. `period` tells a failure from one before the store came back.

    The breaker is open exactly as long as its watching thread lives, and it has no lock on the way of a request. An
    asynchronous exception in any thread can therefore not leave it open.

    Args:
        name: the name of the store, for the log.
        now: the monotonic time in seconds, for the length of absences and the reminders of a permanent fault.
    """

    _stopped = lazy(event)
    _counting = lazy(lock)

    def __init__(self, name: str, now: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._now = now
        self.watching: dict[None, threading.Thread] = {}
        """Empty while it is closed, so that the usual request needs no call of `open`. Changed only in atomic steps."""
        self.period = Period(self)
        self._logged_at = -math.inf  # when a fault that waiting cannot heal was last logged
        self.late_requests = 0
        """How many requests had no answer in time while others had."""
        self._late_logged = 0
        self._reporting = Repeating("late requests", self._report, first=_FIRST_COUNT)

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
            probe: tries the store; raises if it is still unavailable. An answer that came too late is a failure.
            seen: the value of `closings` when the failed request began. If the store has come back since, the failure
                is outdated and ignored.
        """
        if self.watching or self._stopped.is_set() or seen != self.closings:
            return
        watch = threading.Thread(target=self._watch, args=(probe, seen), name="ratelimit_mw breaker", daemon=True)
        try:
            if self.watching.setdefault(None, watch) is watch:  # otherwise another thread was first
                self.period = self.period.left(self._now())
                self._log(reason)
                watch.start()
        except BaseException as error:
            self._end(watch)  # if the thread did start, it ends by itself
            if not isinstance(error, RuntimeError):  # no thread available: stay closed
                raise

    def late(self) -> None:
        """Count a request that had no answer in time while others had. At most once a minute, the number is logged."""
        with self._counting:
            self.late_requests += 1
        if not self._stopped.is_set():
            self._reporting.start()  # if there is no thread, the next late request tries again

    def stop(self) -> None:
        """Stop probing, and do not open again."""
        self._stopped.set()
        self._reporting.stop()
        self._report()

    def close(self, seen: int) -> None:
        """Close, because the store has answered a probe, unless `closings` is no longer `seen`."""
        watch = self.watching.get(None)
        if watch is not None and seen == self.closings:
            self.period = self.period.back(self._now())  # first: failures until now do not open it again
            if self._end(watch):
                _log.warning("store %s is back: limits apply again", self._name)

    def _log(self, reason: object) -> None:
        """Log that the store is away. A fault that waiting cannot heal is an error, with its remedy."""
        line = "store %s is away (%s): each rule's on_error applies until it is back"
        if isinstance(reason, PermanentFault):
            self._logged_at = self._now()
            _log.error(f"{line}. Waiting does not help: %s", self._name, reason, reason.remedy)
        else:
            _log.warning(line, self._name, reason)

    def _report(self) -> float | None:
        """Log the number of late requests of the last minute. Returns the seconds until the next line; None if 0."""
        with self._counting:
            number, self._late_logged = self.late_requests - self._late_logged, self.late_requests
        if not number:
            return None
        line = "store %s answered others, but not %d request%s in time: on_error applied to them"
        _log.warning(line, self._name, number, "" if number == 1 else "s")
        return _MINUTE

    def _end(self, watch: threading.Thread) -> bool:
        """Close; False if another thread has closed it or opened it again."""
        return self.watching.get(None) is watch and self.watching.pop(None, None) is watch

    def _watch(self, probe: Callable[[], object], seen: int) -> None:
        """Start probes until the store is back."""
        probes: list[threading.Thread] = []
        try:
            while not self._stopped.wait(self.period.pause(len(probes), _chance.random())):
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
            if isinstance(error, PermanentFault) and self._now() - self._logged_at >= _MINUTE:
                self._log(error)
            _log.debug("store %s is still away: %s", self._name, error)
        else:
            self.close(seen)


def probe_ask(key: str) -> Ask:
    """The ask that a probe makes. It writes, because a store may answer but be unable to write."""
    return Ask(key, _PROBE)
