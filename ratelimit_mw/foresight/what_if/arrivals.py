"""Collects when each counter was asked during a replay. Collecting needs no numpy, and little time for each request."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.model import Charge, Quota, Rule
from ratelimit_mw.rules.compiled import BLOCKED

MOST_ARRIVALS = 10_000_000
"""The most arrivals that are kept, of twelve bytes each."""

MOST_COUNTERS = 1_000_000
"""The most counters whose arrivals are kept."""


class Series(NamedTuple):
    """The counters of one limit: the place of its rule in the order of the files, and its quota."""

    rule: int
    quota: Quota


class Arrivals:
    """The arrivals at all counters, in order of time.

    Args:
        rules: The rules, in the order of the files.

    Attributes:
        times: The time of each arrival, in microseconds since the epoch.
        counters: The number of the counter of each arrival. It is ~number if the arrival was decided, but not charged,
            because another rule denied the request.
        series: The limits whose counters were asked.
        series_of: The number of the series of each counter.
        coupled: Why the decisions of a rule depend on more than one counter, as a phrase, by the place of the rule.
            This is what happened in the log: a rule may also be coupled by its own words.
        too_many: Why no arrivals are kept, as a sentence. "" if they are.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.times = array("q")
        self.counters = array("i")
        self.series: list[Series] = []
        self.series_of = array("i")
        self.coupled: dict[int, str] = {}
        self.too_many = ""
        self._places = {id(rule): place for place, rule in enumerate(rules)}
        self._names = [rule.name for rule in rules]
        self._numbers: dict[str, int] = {}
        self._quotas: list[Quota] = []
        self._known: dict[Series, int] = {}

    @property
    def keys(self) -> list[str]:
        """The keys of the counters, by their numbers."""
        return list(self._numbers)

    def add(self, at: int, charges: Sequence[Charge], verdict: Verdict) -> None:
        """Add a request that asked these counters at a time. Requests must be in order of time."""
        if self.too_many or not charges or charges is BLOCKED:
            return
        if len(self.times) >= MOST_ARRIVALS:
            self._stop(f"more than {MOST_ARRIVALS:,} requests at rules")
        elif len(charges) == 1:
            rule, (key, quota, cost, _) = charges[0]
            number = self._numbers.get(key)
            if number is None:
                number = self._counter(rule, key, quota)
            if cost != 1 or quota is not self._quotas[number]:
                self._odd(rule, number, quota, cost)
            self.times.append(at)
            self.counters.append(number)
        else:
            self._add_several(at, charges, allowed=verdict.allowed)
        if len(self._quotas) > MOST_COUNTERS:
            self._stop(f"more than {MOST_COUNTERS:,} counters")

    def merge(self, other: "Arrivals") -> None:
        """Add the arrivals of another process, which replayed other clients of the same rules and log."""
        if self.too_many or other.too_many:
            self.too_many = self.too_many or other.too_many
            self._clear()
            return
        numbers = array("i")
        for key, quota, place in zip(other._numbers, other._quotas, other.series_of, strict=True):  # noqa: SLF001
            number = self._numbers.get(key)
            numbers.append(self._numbered(key, Series(other.series[place].rule, quota)) if number is None else number)
        self.times += other.times
        self.counters.extend(numbers[each] if each >= 0 else ~numbers[~each] for each in other.counters)
        for rule, why in other.coupled.items():
            self.coupled.setdefault(rule, why)

    def _stop(self, what: str) -> None:
        self.too_many = f"there is no what-if: the log has {what}"
        self._clear()

    def _clear(self) -> None:
        """Release what was collected."""
        del self.times[:], self.counters[:], self.series[:], self.series_of[:], self._quotas[:]
        self._numbers.clear()
        self._known.clear()

    def _add_several(self, at: int, charges: Sequence[Charge], *, allowed: bool) -> None:
        """Add a request with several counters. A shadow rule is not charged for a request that another rule denies."""
        times, counters = self.times, self.counters
        enforced, last, repeated, grouped = 0, None, False, False
        for rule, (key, quota, cost, shadow) in charges:
            number = self._numbers.get(key)
            if number is None:
                number = self._counter(rule, key, quota)
            if cost != 1 or quota is not self._quotas[number]:
                self._odd(rule, number, quota, cost)
            times.append(at)
            if shadow:
                counters.append(number if allowed else ~number)
            else:
                enforced += 1
                counters.append(number)
            repeated |= rule is last
            grouped |= rule.quota_group != ""
            last = rule
        if enforced > 1 or repeated or grouped:
            self._couple(charges, grouped=grouped)

    def _couple(self, charges: Sequence[Charge], *, grouped: bool) -> None:
        """Note which rules of a request depend on each other."""
        places = [self._places[id(rule)] for rule, _ in charges]
        coupled = [grouped or not ask.shadow for _, ask in charges]
        if coupled.count(True) < 2:
            coupled = [False] * len(charges)
        for index, place in enumerate(places):
            if place in self.coupled:
                continue
            if places.count(place) > 1:
                self.coupled[place] = "it asks several counters for a request"
            elif coupled[index]:
                other = next(each for n, each in enumerate(places) if n != index and coupled[n])
                self.coupled[place] = f"it decides together with {self._names[other]}"

    def _counter(self, rule: Rule, key: str, quota: Quota) -> int:
        """Return the number of a new counter."""
        return self._numbered(key, Series(self._places[id(rule)], quota))

    def _numbered(self, key: str, series: Series) -> int:
        place = self._known.get(series)
        if place is None:
            place = self._known[series] = len(self.series)
            self.series.append(series)
        number = self._numbers[key] = len(self._numbers)
        self._quotas.append(series.quota)
        self.series_of.append(place)
        return number

    def _odd(self, rule: Rule, number: int, quota: Quota, cost: int) -> None:
        if cost != 1:
            self.coupled.setdefault(self._places[id(rule)], "a request may cost more or less than 1")
        elif quota != self._quotas[number]:
            self.coupled.setdefault(self._places[id(rule)], "its limit depends on the request")
