"""`Live`: the state that the live page shows, and the thread that reports it to other processes."""

import logging
import threading
import time
from itertools import count
from typing import NamedTuple
from weakref import ref

from ratelimit_mw.identity.sources import described
from ratelimit_mw.limiter import LIMITERS, RateLimiter
from ratelimit_mw.model import SECOND
from ratelimit_mw.operations.activity import together
from ratelimit_mw.operations.observer import Observer, process_name
from ratelimit_mw.operations.sharing import EVERY, Sharing
from ratelimit_mw.operations.state import LiveState, Outline, StoreState, state_of
from ratelimit_mw.process_local import abandon, lazy, lock, reset_after_fork

_log = logging.getLogger("ratelimit_mw")


_MANY = 100
"""If more rules than this did anything, the state is shown for a second, because it takes some milliseconds."""


class _Made(NamedTuple):
    """A state, and when it was made, by the monotonic clock."""

    at: float
    state: LiveState


class Live:
    """The state of a limiter, together with all processes that report to the same storage. Threads may share it.

    A process reports from `start` to `close`, or until the limiter is closed. If a limiter has several `Live`, its
    process reports once.

    Args:
        limiter: The limiter.
    """

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter
        self._number = next(_numbers)
        self._closed = False
        self._reporter = limiter.kept(_Reporter, lambda: _Reporter(limiter))

    def start(self) -> None:
        """Begin to report. The thread starts with the first request of each process, or with the first `state`."""
        self._closed = False
        self._reporter.begin(self._number)

    def close(self) -> None:
        """Stop reporting, unless another `Live` of the limiter reports. May be called twice."""
        self._closed = True
        self._reporter.end(self._number)

    def state(self) -> LiveState:
        """Return what the page shows, as values of JSON. The module `state` has the fields.

        The caller must not change it. It begins to report, unless this object or the limiter is closed. It never
        raises. It may wait for the store, so an event loop should call it in a thread.
        """
        if not self._closed and LIMITERS[self._limiter]:
            self._reporter.begin(self._number)
        return self._reporter.state(self._limiter)


def set_reporting(limiter: RateLimiter, *, reporting: bool) -> None:
    """Begin or end the reports of a limiter, as its rules say (`observe: {live: true}`).

    Args:
        limiter: The limiter.
        reporting: True to begin, False to end.
    """
    reporter = limiter.kept(_Reporter, lambda: _Reporter(limiter))
    if reporting:
        reporter.begin(_THE_RULES)
    else:
        reporter.end(_THE_RULES)


class _Reporter:
    """Observes a limiter, in a thread of its own. No request and no event loop waits for it."""

    _starting = lazy(lock)

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = ref(limiter)
        self._users: set[int] = set()  # not the objects: `Live(limiter).start()` reports without a reference to it
        self._observer: Observer | None = None
        self._sharing: Sharing | None = None
        self._thread: threading.Thread | None = None
        self._outline: Outline | None = None
        self._made: _Made | None = None
        self._failed = False

    def begin(self, user: int) -> None:
        """Observe the limiter for this user."""
        limiter = self._limiter()
        if limiter is None or user in self._users:
            return
        if self._observer is None:
            self._observer = Observer(limiter)
            reset_after_fork(self)
            limiter.engine.tally.at_close(self._stop)
            limiter.at_first_request(self._start)
        self._users.add(user)
        limiter.engine.on_denial = self._observer.table.add

    def end(self, user: int) -> None:
        """Stop observing the limiter if this was the last user."""
        self._users.discard(user)
        limiter = self._limiter()
        if not self._users:
            if limiter is not None:
                limiter.engine.on_denial = None
            self._stop()

    def state(self, limiter: RateLimiter) -> LiveState:
        """Return the state. If it has many rules, it may be a second old."""
        if LIMITERS[limiter]:  # after its end, only a request starts the thread
            self._start()
        made = self._made
        if made is None or time.monotonic() - made.at >= EVERY:
            made = _Made(time.monotonic(), self._make(limiter))
            self._made = made if len(made.state["rules"]) > _MANY else None
        return made.state

    def _make(self, limiter: RateLimiter) -> LiveState:
        sharing = self._sharing
        others = None if sharing is None else sharing.others()
        observer, rules = self._observer or Observer(limiter), limiter.rules
        outline = self._outline
        if outline is None or outline.rules_of is not rules:
            outline = self._outline = Outline(rules)
        observer.sample()
        own = activity = observer.activity(limiter)
        if others is not None and others.together is not None:
            activity = together([own, others.together])
        return state_of(
            activity,
            outline,
            version=limiter.state.version,
            switch=limiter.switch.setting.word,
            at=observer.now() / SECOND,
            store=_store(limiter, sharing, deciding=own.requests > 0),
            processes=len({process_name(), *(each.process for each in (others.reports if others else ()))}),
            shared=others is not None,
        )

    def after_fork(self) -> None:
        """Begin again in the child of a fork, which does not have the parent's thread."""
        abandon(self._sharing)
        self._thread = self._sharing = self._made = None
        limiter = self._limiter()
        if self._observer is not None and limiter is not None:
            self._observer.reset(limiter)

    def _start(self) -> None:
        """Start the thread, unless it runs. Never raises."""
        limiter = self._limiter()
        with self._starting:
            if self._thread is not None and self._thread.is_alive():
                return
            if limiter is None or not self._users:
                return
            self._sharing = sharing = Sharing(limiter.storage_url, limiter.rules.parts[0].domain)
            self._thread = threading.Thread(target=self._run, args=(sharing,), name="ratelimit_mw live", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no more threads: the next call of `state` tries again
                self._thread = self._sharing = None

    def _stop(self) -> None:
        with self._starting:
            sharing, self._sharing, self._thread = self._sharing, None, None
        if sharing is not None:
            sharing.stop()

    def _run(self, sharing: Sharing) -> None:
        try:
            while self._round(sharing) and sharing.wait():
                pass
        finally:
            sharing.end()

    def _round(self, sharing: Sharing) -> bool:
        """Sample the counts and share them. Return False if the limiter no longer exists."""
        limiter, observer = self._limiter(), self._observer
        if limiter is None or observer is None:
            return False
        try:
            observer.sample()
            if sharing.possible:
                sharing.send(observer.report(limiter, sharing.latency_ms))
        except Exception as error:  # noqa: BLE001 - the app must not notice, and the next round may succeed
            if not self._failed:
                self._failed = True
                _log.error("the live page can't be kept up to date: %s (logged once)", described(error))
        return True


def _store(limiter: RateLimiter, sharing: Sharing | None, *, deciding: bool) -> StoreState:
    """Return what is known of the store: by the last exchange, and by the last decision if there were some lately."""
    if sharing is None or not sharing.server:
        return StoreState(limiter.engine.tally.store, limiter.engine.tally.store_up, None)
    up = not sharing.away and (limiter.engine.tally.store_up or not deciding)
    return StoreState(limiter.engine.tally.store, up, sharing.latency_ms if up else None)


_THE_RULES = 0
"""The number of the user of a reporter that is not a `Live`."""

_numbers = count(1)
"""Numbers each `Live`."""
