"""What a replay counts: the requests of each rule, its denials over time, and the clients that were denied most."""

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import Generic, NamedTuple, TypeVar

from ratelimit_mw.model import SECOND, Rule

MINUTE = 60 * SECOND

_MOST_CLIENTS = 1_000_000
"""The most pairs of a rule and a client that are counted apart."""

K = TypeVar("K")


class Seen(NamedTuple):
    """The denials of one key.

    Attributes:
        total: The number of denials. If the table was full when the key came, it may be too large by up to `error`.
        error: By how much the total may be too large.
        first: The time of the first denial that was counted, in microseconds since the epoch.
        last: The time of the last denial.
    """

    total: int
    error: int
    first: int
    last: int

    @property
    def at_least(self) -> int:
        """The number of denials that are certain."""
        return self.total - self.error


class Heaviest(Generic[K]):
    """Counts keys in bounded memory, by the algorithm *space-saving* (Metwally, Agrawal, El Abbadi 2005).

    While there is room, all counts are exact. Then a new key takes the place of the key with the smallest count, and
    inherits that count as its possible error. A key with more than 1/`size` of all counts is always in the table.

    Args:
        size: The most keys.
    """

    def __init__(self, size: int = _MOST_CLIENTS) -> None:
        self._size = size
        self._counts: dict[K, list[int]] = {}  # count, error, first, last
        self._by_count: dict[int, dict[K, None]] = {}
        self._least = 0
        self.full = False
        """True if a key has lost its place. The number of keys is then unknown, but not smaller than `len`."""

    def __len__(self) -> int:
        return len(self._counts)

    def __iter__(self) -> Iterator[K]:
        return iter(self._counts)

    def __contains__(self, key: K) -> bool:
        return key in self._counts

    def add(self, key: K, at: int) -> bool:
        """Count a key at a time. Return True if the key is new in the table."""
        held = self._counts.get(key)
        if held is not None:
            held[0] += 1
            held[3] = at
            if self.full:
                self._move(key, held[0] - 1)
            return False
        if len(self._counts) < self._size:
            self._counts[key] = [1, 0, at, at]
            return True
        self._replace(key, at)
        return True

    def most(self, number: int) -> list[tuple[K, Seen]]:
        """Return the keys with the highest counts, the highest first.

        Of equal counts, the key that was first counted earlier is first, and of equal times, the lesser key.
        """
        best = heapq.nsmallest(number, self._counts.items(), key=lambda item: (-item[1][0], item[1][2], item[0]))
        return [(key, Seen(*held)) for key, held in best]

    def _index(self) -> None:
        """Find the keys of each count."""
        self._by_count = {}
        for key, held in self._counts.items():
            self._by_count.setdefault(held[0], {})[key] = None
        self._least = min(self._by_count)

    def _move(self, key: K, before: int) -> None:
        keys = self._by_count[before]
        del keys[key]
        self._by_count.setdefault(before + 1, {})[key] = None
        if not keys:
            del self._by_count[before]
            if before == self._least:
                self._least = before + 1

    def _replace(self, key: K, at: int) -> None:
        if not self.full:
            self.full = True
            self._index()
        least = self._least
        keys = self._by_count[least]
        victim = next(iter(keys))
        del keys[victim], self._counts[victim]
        keys[key] = None
        self._counts[key] = [least + 1, least, at, at]
        self._move(key, least)


class RuleResult:
    """What one rule did.

    Attributes:
        name: The name of the rule.
        shadow: True for a shadow rule: it denied nothing, and its denials are those that it would have made.
        asked: The requests that it was asked.
        denied: The requests that it denied, whether or not another rule denied them, too.
        delayed: The requests that had to wait for their turn at its bucket.
        over: The requests that it admitted above its limit.
    """

    def __init__(self, rule: Rule) -> None:
        self.name = rule.name
        self.shadow = rule.shadow
        self.asked = self.denied = self.delayed = self.over = 0
        self.minutes: Counter[int] = Counter()
        """The denials of each minute since the epoch that has any."""
        self.clients = 0
        """The clients that it denied, of those that are in the table."""

    def deny(self, at: int) -> None:
        """Count a denial."""
        self.denied += 1
        self.minutes[at // MINUTE] += 1

    @property
    def worst(self) -> tuple[int, int] | None:
        """The most denials in a minute, and when this minute began. None without denials."""
        if not self.minutes:
            return None
        minute, count = min(self.minutes.items(), key=lambda item: (-item[1], item[0]))
        return count, minute * MINUTE


class DeniedClient(NamedTuple):
    """A client that a rule denied.

    Attributes:
        client: The client, as "ip=192.0.2.1".
        rule: The name of the rule.
        shadow: True if the rule is a shadow rule.
        denied: How many of its requests the rule denied.
        certain: False if the number is too large, because not all clients could be counted: it is then `at_least`.
        at_least: The denials that are certain.
        first: The time of the first denial, in microseconds since the epoch.
        last: The time of the last denial.
    """

    client: str
    rule: str
    shadow: bool
    denied: int
    certain: bool
    at_least: int
    first: int
    last: int
