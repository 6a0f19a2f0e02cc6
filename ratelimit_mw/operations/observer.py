"""Observes one limiter in this process: its counts of the last 15 minutes, and who is limited."""

import secrets

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import NEVER, SECOND, SENT
from ratelimit_mw.operations.activity import MOST_LIMITED, NO_COUNTS, Activity, LimitedClient, Recorder
from ratelimit_mw.operations.denial_table import ClientDenials, DenialTable
from ratelimit_mw.operations.report_codec import ProcessReport
from ratelimit_mw.process_local import lazy, lock, reset_after_fork
from ratelimit_mw.rules.domains import Rules

HIDDEN = "(hidden)"
"""The client of all denials if `observe.identity` is `none`."""

_LONGEST = 100
"""The most characters of a client that are shown."""


class _Name:
    """The random name of this process. The child of a fork gets another one."""

    def __init__(self) -> None:
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        self.text = secrets.token_hex(8)


_process = _Name()


class Observer:
    """The counts of a limiter in this process. Threads may share it. It counts from now on.

    Args:
        limiter: The limiter.
    """

    _lock = lazy(lock)

    def __init__(self, limiter: RateLimiter) -> None:
        self.table = DenialTable()
        """Who was denied. The engine adds to it while the limiter is observed."""
        self._clock: Clock = limiter.clock or SystemClock()
        self._recorder = Recorder(limiter.engine.tally, self._clock.now(), limiter.engine.tally.totals())

    def reset(self, limiter: RateLimiter) -> None:
        """Begin again in the child of a fork, where the tally counts from 0."""
        self.table.clear()
        self._recorder = Recorder(limiter.engine.tally, self._clock.now(), NO_COUNTS)

    def now(self) -> int:
        """Return the time in microseconds."""
        return self._clock.now()

    def sample(self) -> None:
        """Read the counts. It should be called once a second."""
        now = self.now()
        self.table.prune(now)
        with self._lock:
            self._recorder.sample(now)

    def activity(self, limiter: RateLimiter) -> Activity:
        """Return what this process did until the last sample."""
        now, rules = self.now(), limiter.rules
        clients = [_client(key, entry, rules) for key, entry in self.table.limited(now, MOST_LIMITED)]
        load = limiter.engine.load(rules) if rules.metered else None
        with self._lock:
            return self._recorder.activity(tuple(clients), load)

    def report(self, limiter: RateLimiter, latency_ms: float | None) -> ProcessReport:
        """Return the report of this process for the others."""
        switch = limiter.switch.setting.word
        return ProcessReport(_process.text, limiter.state.version, switch, latency_ms, self.activity(limiter))


def process_name() -> str:
    """Return the random name of this process in its reports."""
    return _process.text


def _client(key: str, entry: ClientDenials, rules: Rules) -> LimitedClient:
    """Return what is shown of a denied client. `key` is that of its counter, which ends with `{client}`."""
    client, rule = key[key.index("{") + 1 : -1], entry.rule
    if rules.observe.identity == "none":
        client = HIDDEN
    elif rules.observe.identity == "hashed":
        client = rules.attributes.digest(client)
    if len(client) > _LONGEST:
        client = client[: _LONGEST - 1] + "…"
    name, until = SENT if rule.sent else rule.name, None if entry.wait == NEVER else (entry.last + entry.wait) / SECOND
    return LimitedClient(client, rule.domain, name, entry.reason, entry.count, entry.first / SECOND, until)
