"""Observes one limiter in this process: its counts of the last 15 minutes, and who is limited.

The table of denied clients is bounded: who was denied by which rule, how often, and until when.
"""

import os
import secrets

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.decision.denials import shown_client
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import NEVER, SECOND, Rule
from ratelimit_mw.operations.activity import MOST_LIMITED, NO_COUNTS, Activity, LimitedClient, ProcessReport, Recorder
from ratelimit_mw.process_local import lazy, lock
from ratelimit_mw.rules.domains import Rules

MOST = 1_024
"""The most entries. If one more is needed, the lower half (the clients with the fewest denials) is removed at once."""

LINGER = 60 * SECOND
"""How long an entry stays after its limit has opened again, in microseconds. Denials in this time add to its count."""


class ClientDenials:
    """The denials of one client by one rule. All times are in microseconds since the epoch, by the store's clock.

    Attributes:
        rule: The rule that denies.
        count: The number of denials.
        first: The time of the first denial.
        last: The time of the last denial.
        wait: The time from `last` until the limit opens again. `NEVER` if it does not.
        reason: Why the last request was denied, as in `Decision.reason`.
        shadow: True if the last request passed, because a shadow rule would have denied it.
    """

    __slots__ = ("count", "first", "last", "reason", "rule", "shadow", "wait")

    def __init__(self, rule: Rule, now: int) -> None:
        self.rule = rule
        self.count = self.wait = 0
        self.first = self.last = now
        self.reason = ""
        self.shadow = False

    def limits(self, now: int) -> bool:
        """Return True if the client is limited at this time. A limit that never opens counts for a minute.

        False if the last denial is more than a minute ahead, because the clock was set back.
        """
        if self.last - now > LINGER:
            return False
        return now < self.last + (LINGER if self.wait == NEVER else self.wait)


class DenialTable:
    """Counts the denials of each rule and client. Threads may share it.

    `add` is called on the path of each denied request. It takes a lock only to begin an entry.
    """

    _changing = lazy(lock)

    def __init__(self) -> None:
        self.entries: dict[str, ClientDenials] = {}
        """The entries by the key of the counter that denies, which has the rule and the client."""

    def clear(self) -> None:
        """Begin again."""
        self.entries = {}

    def add(self, verdict: Verdict, place: int, reason: str, shadow: bool) -> None:
        """Count a denial. A denial that no counter decided (blocked, shed, unavailable) has no client, and no entry.

        Args:
            verdict: The verdict on the request.
            place: The index of the counter that denies it. -1 if no counter does.
            reason: Why it is denied.
            shadow: A shadow rule would have denied the request.
        """
        if place < 0:
            return
        key = verdict.charges[place][1][0]  # indices are faster than the names of the fields
        entry = self.entries.get(key)
        if entry is None:
            entry = self._begin(key, verdict.charges[place].rule, verdict.now)
        entry.count += 1
        entry.last = verdict.now
        entry.wait = verdict.outcomes[place][3]
        entry.reason = reason
        entry.shadow = shadow

    def _begin(self, key: str, rule: Rule, now: int) -> ClientDenials:
        with self._changing:
            if len(self.entries) >= MOST:
                kept = sorted(self.entries.items(), key=lambda item: item[1].count, reverse=True)
                self.entries = dict(kept[: MOST // 2])
            return self.entries.setdefault(key, ClientDenials(rule, now))

    def prune(self, now: int) -> None:
        """Remove the clients whose limit opened at least a minute ago.

        Args:
            now: The time in microseconds.
        """
        with self._changing:
            for key, entry in list(self.entries.items()):
                if not entry.limits(now) and abs(now - entry.last - max(entry.wait, 0)) >= LINGER:
                    del self.entries[key]

    def limited(self, now: int, most: int) -> list[tuple[str, ClientDenials]]:
        """Return the clients that are limited at this time, each with its key. The most denied is the first.

        Args:
            now: The time in microseconds.
            most: The most entries to return.
        """
        with self._changing:
            found = [item for item in self.entries.items() if item[1].limits(now)]
        return sorted(found, key=lambda item: item[1].count, reverse=True)[:most]


HIDDEN = "(hidden)"
"""The client of all denials if `observe.identity` is `none`."""

_LONGEST = 100
"""The most characters of a client that are shown."""


_MADE = secrets.token_hex(8)


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

    def report(self, limiter: RateLimiter) -> ProcessReport:
        """Return the report of this process for the others."""
        switch = limiter.switch.setting.word
        return ProcessReport(process_name(), limiter.state.version, switch, self.activity(limiter))


def process_name() -> str:
    """Return the name of this process in its reports. It is random, and the child of a fork has another one."""
    return f"{_MADE}-{os.getpid()}"


def _client(key: str, entry: ClientDenials, rules: Rules) -> LimitedClient:
    """Return what is shown of a denied client. `key` is that of its counter, which ends with `{client}`."""
    rule = entry.rule
    client = shown_client(key, rule, rules) or HIDDEN
    if len(client) > _LONGEST:
        client = client[: _LONGEST - 1] + "…"
    name, until = rule.logged, None if entry.wait == NEVER else (entry.last + entry.wait) / SECOND
    return LimitedClient(
        client, rule.domain, name, entry.reason, entry.count, entry.first / SECOND, until, entry.shadow
    )
