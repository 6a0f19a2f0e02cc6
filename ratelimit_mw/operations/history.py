"""The last 15 minutes of one process: samples of its tally, and from them its rates and its series."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from typing import NamedTuple

from ratelimit_mw.model import SECOND
from ratelimit_mw.snapshots import Totals
from ratelimit_mw.tally import OUTCOMES, Tally

STEP = 10
"""The seconds of one step of a series."""

STEPS = 90
"""The most steps of a series: 15 minutes."""

MOST_LIMITED = 50
"""The most limited clients that are shown."""

MOST_SERIES = 100
"""The most rules whose series a process reports: those with the most denials in 15 minutes."""

_WINDOW = 10 * SECOND
"""Rates are those of this time, in microseconds."""

_APART = SECOND * 9 // 10
"""The shortest time between two samples that rates begin with, so that their number is bounded."""

_DENIED = OUTCOMES.index("denied")

RuleId = tuple[str, str]
"""The domain and the name of a rule."""

Series = dict[int, int]
"""Counts by the number of their step since the epoch. A step without a count is left out."""


class RuleReport(NamedTuple):
    """What one rule did.

    Attributes:
        rates: Requests a second, in the order of `OUTCOMES`.
        denials: The denied requests of each step. Empty unless the rule is one of those with the most denials.
        bans: The bans that began in the last 15 minutes.
    """

    rates: tuple[float, ...]
    denials: Series
    bans: int


class LimitedClient(NamedTuple):
    """A client that is limited now. Times are in epoch seconds.

    Attributes:
        client: The client, as `observe.identity` says.
        domain: The domain of the rule.
        rule: The name of the rule.
        reason: Why its last request was denied.
        denials: The number of denials since `since`.
        since: The time of the first denial.
        until: When the limit opens again. None if it does not.
    """

    client: str
    domain: str
    rule: str
    reason: str
    denials: int
    since: float
    until: float | None


class Report(NamedTuple):
    """What one process did, or what several did together.

    Attributes:
        requests: Decisions a second.
        denials: Denied requests a second.
        steps: The decisions and the denials of each step.
        rules: The reports of the rules that did anything in the last 15 minutes.
        limited: The clients that are limited now, the most denied first.
        load: The load, from 0 to 1. The largest of several processes. None if it is not measured.
    """

    requests: float
    denials: float
    steps: tuple[Series, Series]
    rules: Mapping[RuleId, RuleReport]
    limited: tuple[LimitedClient, ...]
    load: float | None


NO_COUNTS = Totals(0, 0, {}, {})
"""The counts of a process that has decided nothing."""


class _Mark(NamedTuple):
    """A sample with which rates may begin, and its time in microseconds."""

    at: int
    totals: Totals


class History:
    """Keeps what a process counted in the last 15 minutes. One thread at a time may use it.

    Args:
        tally: The counts of the process.
        now: The time in microseconds.
        totals: The counts with which it begins.
    """

    def __init__(self, tally: Tally, now: int, totals: Totals) -> None:
        self._tally = tally
        self._last = totals
        self._at = now
        self._marks = deque([_Mark(now, self._last)], maxlen=_WINDOW // _APART + 2)
        self._steps: tuple[Series, Series] = ({}, {})
        self._denials: dict[RuleId, Series] = {}
        self._bans: dict[RuleId, Series] = {}

    def sample(self, now: int) -> None:
        """Read the counts.

        Args:
            now: The time in microseconds. If it is before the last one, earlier samples are forgotten.
        """
        before, found = self._last, self._tally.totals()
        if now < self._at or found.requests < before.requests:  # the clock was set back, or a test has reset the counts
            self.__init__(self._tally, now, found)  # type: ignore[misc]
            return
        self._last, self._at = found, now
        step = now // (STEP * SECOND)
        _add(self._steps[0], step, found.requests - before.requests)
        _add(self._steps[1], step, found.denials - before.denials)
        for rule, counts in found.rules.items():
            denied = counts[_DENIED] - before.rules.get(rule, _NOTHING)[_DENIED]
            if denied:
                _add(self._denials.setdefault(rule, {}), step, denied)
        for ban, number in found.bans.items():
            _add(self._bans.setdefault(ban[:2], {}), step, number - before.bans.get(ban, 0))
        if now - self._marks[-1].at >= _APART:
            self._marks.append(_Mark(now, found))
        while len(self._marks) > 1 and self._marks[1].at <= now - _WINDOW:
            self._marks.popleft()
        _forget(step - STEPS, self._steps[0], self._steps[1], *self._denials.values(), *self._bans.values())

    def report(self, limited: tuple[LimitedClient, ...], load: float | None) -> Report:
        """Return what the process did, as of the last sample.

        Args:
            limited: The clients that are limited now.
            load: The load of the process.
        """
        mark, found = self._marks[0], self._last
        seconds = max(self._at - mark.at, SECOND) / SECOND
        series = self._most_denials()
        rules = {}
        for rule, counts in found.rules.items():
            before = mark.totals.rules.get(rule, _NOTHING)
            bans = self._bans.get(rule)
            if counts != before or bans or self._denials.get(rule):
                rates = _divided(counts, before, seconds) if counts != before else _NO_RATES
                rules[rule] = RuleReport(rates, series.get(rule, _NO_SERIES), sum(bans.values()) if bans else 0)
        return Report(
            (found.requests - mark.totals.requests) / seconds,
            (found.denials - mark.totals.denials) / seconds,
            (dict(self._steps[0]), dict(self._steps[1])),
            rules,
            limited,
            load,
        )

    def _most_denials(self) -> Mapping[RuleId, Series]:
        """Return copies of the series of the rules with the most denials."""
        found: Iterable[tuple[RuleId, Series]] = self._denials.items()
        if len(self._denials) > MOST_SERIES:
            found = nlargest(MOST_SERIES, found, key=lambda item: sum(item[1].values()))
        return {rule: dict(series) for rule, series in found if series}


_NOTHING = (0,) * len(OUTCOMES)
_NO_RATES = (0.0,) * len(OUTCOMES)
_NO_SERIES: Series = {}


def _divided(counts: Sequence[int], before: Sequence[int], seconds: float) -> tuple[float, ...]:
    differences = [count - less for count, less in zip(counts, before, strict=True)]
    return tuple([number / seconds if number else 0.0 for number in differences])


def _add(series: Series, step: int, number: int) -> None:
    if number:
        series[step] = series.get(step, 0) + number


def _forget(before: int, *all_series: Series) -> None:
    """Remove the steps before one. They are in order of time, so the first is the oldest."""
    for series in all_series:
        while series and (first := next(iter(series))) < before:
            del series[first]


def together(reports: Sequence[Report]) -> Report:
    """Return what several processes did together. There must be one report at least."""
    if len(reports) == 1:
        return reports[0]
    rules: dict[RuleId, RuleReport] = dict(reports[0].rules)
    for report in reports[1:]:
        for rule, one in report.rules.items():
            other = rules.get(rule)
            rules[rule] = one if other is None else _sum(one, other)
    loads = [report.load for report in reports if report.load is not None]
    return Report(
        sum(report.requests for report in reports),
        sum(report.denials for report in reports),
        (_series(*(report.steps[0] for report in reports)), _series(*(report.steps[1] for report in reports))),
        rules,
        _clients(reports),
        max(loads, default=None),
    )


def _sum(one: RuleReport, other: RuleReport) -> RuleReport:
    # Three times as fast as with names. There may be a thousand rules of a hundred processes.
    (a, b, c, d, e), denials, bans = one
    (f, g, h, i, j), further, more = other
    series = _series(denials, further) if denials and further else denials or further
    return RuleReport((a + f, b + g, c + h, d + i, e + j), series, bans + more)


def _series(*parts: Series) -> Series:
    found = dict(parts[0])
    for part in parts[1:]:
        for step, number in part.items():
            found[step] = found.get(step, 0) + number
    return found


def _clients(reports: Sequence[Report]) -> tuple[LimitedClient, ...]:
    """Return the clients of all processes. One that several processes deny is one client, with its latest reason."""
    found: dict[tuple[str, str, str], LimitedClient] = {}
    for one in (client for report in reports for client in report.limited):
        key = (one.domain, one.rule, one.client)
        other = found.get(key)
        if other is None:
            found[key] = one
        else:
            later = one if _end(one) >= _end(other) else other
            found[key] = later._replace(denials=one.denials + other.denials, since=min(one.since, other.since))
    return tuple(sorted(found.values(), key=lambda client: client.denials, reverse=True)[:MOST_LIMITED])


def _end(client: LimitedClient) -> float:
    return float("inf") if client.until is None else client.until
