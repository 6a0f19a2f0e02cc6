"""`Live`: what the live page shows. It samples the counts of this process, and reads those of the others."""

import logging
import threading
from weakref import WeakKeyDictionary, WeakSet, ref

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.identity.sources import described
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import NEVER, SECOND, SENT, Rule
from ratelimit_mw.operations.denial_table import DenialTable, Denied
from ratelimit_mw.operations.history import History, LimitedClient, Report
from ratelimit_mw.operations.state import Outline, State, StoreState, state_of
from ratelimit_mw.process_local import event, lazy, lock, reset_after_fork
from ratelimit_mw.rules.domains import Rules

_log = logging.getLogger("ratelimit_mw")

MOST_LIMITED = 50
"""The most limited clients that are shown."""

_EVERY = 1.0
"""Seconds between two samples."""

_LONGEST = 100
"""The most characters of a client that are shown."""

HIDDEN = "(hidden)"
"""The client of all denials if `observe.identity` is `none`."""


class Live:
    """The state of a limiter and of all processes that share its storage. Threads may share it.

    A process reports while it has a `Live` that was started. Several of one limiter share one report.

    Args:
        limiter: The limiter.
    """

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = limiter
        self._reporter = _REPORTERS.setdefault(limiter, Reporter(limiter))

    def start(self) -> None:
        """Begin to report. The thread starts at the first request of each process, or at the first `state`."""
        self._reporter.begin(self)

    def close(self) -> None:
        """Stop reporting, unless another `Live` of the limiter reports. May be called twice."""
        self._reporter.end(self)

    def state(self) -> State:
        """Return what the page shows, as values of JSON. It blocks for at most 300 ms, and never raises."""
        self._reporter.begin(self)
        return self._reporter.state(self._limiter)


class Reporter:
    """Samples the counts of a limiter once a second, in a thread of its own. No request waits for it."""

    _lock = lazy(lock)
    _starting = lazy(lock)
    _stopped = lazy(event)

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = ref(limiter)
        self._clock: Clock = limiter.clock or SystemClock()
        self._users: WeakSet[Live] = WeakSet()
        self._registered = False
        self._table = DenialTable()
        self._history: History | None = None
        self._outline: Outline | None = None
        self._thread: threading.Thread | None = None
        self._failed = False
        reset_after_fork(self)

    def begin(self, user: Live) -> None:
        """Report for this user."""
        limiter = self._limiter()
        if limiter is None or user in self._users:
            return
        self._users.add(user)
        with self._lock:
            if self._history is None:
                self._history = History(limiter.tally, self._clock.now())
        limiter.engine.on_denial = self._table.add
        if not self._registered:
            self._registered = True
            limiter.tally.at_close(self._stop)
            limiter.at_first_request(self._start)

    def end(self, user: Live) -> None:
        """Stop reporting if this was the last user."""
        self._users.discard(user)
        limiter = self._limiter()
        if not self._users:
            if limiter is not None:
                limiter.engine.on_denial = None
            self._stop()

    def state(self, limiter: RateLimiter) -> State:
        """Return the state."""
        self._start()
        now = self._clock.now()
        rules = limiter.rules
        report = self._report(limiter, rules, now)
        if self._outline is None or self._outline.of is not rules:
            self._outline = Outline(rules)
        return state_of(
            report,
            self._outline,
            version=limiter.state.version,
            switch=limiter.switch.setting.word,
            at=now / SECOND,
            store=StoreState(limiter.tally.store, limiter.tally.store_up, None),
            processes=1,
            shared=False,
        )

    def _report(self, limiter: RateLimiter, rules: Rules, now: int) -> Report:
        """Return what this process did."""
        clients = tuple(_client(key, entry, rules) for key, entry in self._table.limited(now, MOST_LIMITED))
        load = limiter.engine.load(rules) if rules.metered else None
        history = self._sampled(limiter, now)
        with self._lock:
            return history.report(clients, load)

    def _sampled(self, limiter: RateLimiter, now: int) -> History:
        """Read the counts of this process."""
        with self._lock:
            if self._history is None:
                self._history = History(limiter.tally, now)
            self._history.sample(now)
            return self._history

    def after_fork(self) -> None:
        """Begin again in the child of a fork, where the tally counts from 0."""
        for name in ("_lock", "_starting", "_stopped"):
            vars(self).pop(name, None)
        self._history = None
        self._thread = None
        self._table.clear()

    def _start(self) -> None:
        """Start the thread, unless it runs."""
        with self._starting:
            if not self._users or (self._thread is not None and self._thread.is_alive()):
                return
            vars(self).pop("_stopped", None)
            self._thread = threading.Thread(
                target=self._run, args=(self._stopped,), name="ratelimit_mw live", daemon=True
            )
            try:
                self._thread.start()
            except RuntimeError:  # no more threads: the next call of `state` tries again
                self._thread = None

    def _stop(self) -> None:
        self._stopped.set()

    def _run(self, stopped: threading.Event) -> None:
        while not stopped.wait(_EVERY):
            limiter = self._limiter()
            if limiter is None:
                return
            try:
                self._tick(limiter)
            except Exception as error:  # noqa: BLE001 - the app must not notice, and the next second may succeed
                if not self._failed:
                    self._failed = True
                    _log.error("the data of the live page could not be read: %s (logged once)", described(error))
            del limiter  # it may be collected while this thread waits

    def _tick(self, limiter: RateLimiter) -> None:
        now = self._clock.now()
        self._table.prune(now)
        self._sampled(limiter, now)


def _client(key: str, entry: Denied, rules: Rules) -> LimitedClient:
    rule: Rule = entry.rule
    client = key[key.index("{") + 1 : -1]
    if rules.observe.identity == "none":
        client = HIDDEN
    elif rules.observe.identity == "hashed":
        client = rules.attributes.digest(client)
    if len(client) > _LONGEST:
        client = client[: _LONGEST - 1] + "…"
    return LimitedClient(
        client,
        rule.domain,
        SENT if rule.sent else rule.name,
        entry.reason,
        entry.count,
        entry.first / SECOND,
        None if entry.until == NEVER else entry.until / SECOND,
    )


_REPORTERS: WeakKeyDictionary[RateLimiter, Reporter] = WeakKeyDictionary()
"""The reporter of each limiter. Several `Live` of one limiter share it, so that no request counts twice."""
