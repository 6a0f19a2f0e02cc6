"""The table of denied clients: who was denied by which rule, how often, and until when. It is bounded."""

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.model import NEVER, SECOND, Rule
from ratelimit_mw.process_local import lazy, lock

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
    """

    __slots__ = ("count", "first", "last", "reason", "rule", "wait")

    def __init__(self, rule: Rule, now: int) -> None:
        self.rule = rule
        self.count = self.wait = 0
        self.first = self.last = now
        self.reason = ""

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

    def add(self, verdict: Verdict, reason: str) -> None:
        """Count a denial. A denial that no counter decided (blocked, shed, unavailable) has no client, and no entry.

        Args:
            verdict: The verdict that denies the request.
            reason: Why it is denied.
        """
        place = verdict.binding
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
