"""What one process did in the last 15 minutes: its rates and series, made from samples of its tally.

It is reported to other processes as JSON text.
"""

import json
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ratelimit_mw.model import SECOND
from ratelimit_mw.snapshots import Totals
from ratelimit_mw.tally import OUTCOMES, Tally

STEP = 10
"""The seconds of one step of a series."""

STEPS = 90
"""The most steps of a series: 15 minutes."""

MOST_LIMITED = 50
"""The most limited clients that are shown."""

_WINDOW = 10 * SECOND
"""Rates are means over this time, in microseconds."""

_APART = SECOND * 9 // 10
"""The shortest time between two samples that are kept for rates, in microseconds. It bounds their number."""

RuleId = tuple[str, str]
"""The domain and the name of a rule."""

Series = dict[int, int]
"""Counts by the number of their step since the epoch. A step without a count is left out."""


class RuleActivity(NamedTuple):
    """What one rule did.

    Attributes:
        rates: Requests a second, in the order of `OUTCOMES`.
        bans: The bans that began in the last 15 minutes.
    """

    rates: tuple[float, ...]
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
        shadow: True if its requests pass, and a shadow rule would deny them.
    """

    client: str
    domain: str
    rule: str
    reason: str
    denials: int
    since: float
    until: float | None
    shadow: bool = False


class Activity(NamedTuple):
    """What one process did, or what several did together.

    Attributes:
        requests: Decisions a second.
        denials: Denied requests a second.
        steps: The decisions and the denials of each step.
        rules: What each rule did, without those with no decision in 10 seconds and no ban in 15 minutes.
        limited: The clients that are limited now, the most denied first.
        load: The load, from 0 to 1. Of several processes, the largest load. None if it is not measured.
    """

    requests: float
    denials: float
    steps: tuple[Series, Series]
    rules: Mapping[RuleId, RuleActivity]
    limited: tuple[LimitedClient, ...]
    load: float | None


NO_COUNTS = Totals(0, 0, {}, {})
"""The counts of a process that has decided nothing."""


class _Mark(NamedTuple):
    """A sample that is kept as the beginning of rates, and its time in microseconds."""

    at: int
    totals: Totals


class Recorder:
    """Records what a process counted in the last 15 minutes. One thread at a time may use it.

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
        for (domain, name, enforced), number in found.bans.items():
            begun = number - before.bans.get((domain, name, enforced), 0)
            _add(self._bans.setdefault((domain, name), {}), step, begun)
        if now - self._marks[-1].at >= _APART:
            self._marks.append(_Mark(now, found))
        while len(self._marks) > 1 and self._marks[1].at <= now - _WINDOW:
            self._marks.popleft()
        _forget(step - STEPS, self._steps[0], self._steps[1], *self._bans.values())

    def activity(self, limited: tuple[LimitedClient, ...], load: float | None) -> Activity:
        """Return what the process did, as of the last sample.

        Args:
            limited: The clients that are limited now.
            load: The load of the process.
        """
        mark, found = self._marks[0], self._last
        seconds = max(self._at - mark.at, SECOND) / SECOND
        rules = {}
        for rule, counts in found.rules.items():
            before = mark.totals.rules.get(rule, _NOTHING)
            bans = self._bans.get(rule)
            if counts != before or bans:
                rates = _divided(counts, before, seconds) if counts != before else _NO_RATES
                rules[rule] = RuleActivity(rates, sum(bans.values()) if bans else 0)
        return Activity(
            (found.requests - mark.totals.requests) / seconds,
            (found.denials - mark.totals.denials) / seconds,
            (dict(self._steps[0]), dict(self._steps[1])),
            rules,
            limited,
            load,
        )


_NOTHING = (0,) * len(OUTCOMES)
_NO_RATES = (0.0,) * len(OUTCOMES)


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


def together(activities: Sequence[Activity]) -> Activity:
    """Return what several processes did together. There must be at least one."""
    if len(activities) == 1:
        return activities[0]
    rules: dict[RuleId, RuleActivity] = dict(activities[0].rules)
    for activity in activities[1:]:
        for rule, one in activity.rules.items():
            other = rules.get(rule)
            rules[rule] = one if other is None else _sum(one, other)
    loads = [one.load for one in activities if one.load is not None]
    return Activity(
        sum(one.requests for one in activities),
        sum(one.denials for one in activities),
        (
            _series(*(one.steps[0] for one in activities)),
            _series(*(one.steps[1] for one in activities)),
        ),
        rules,
        _clients(activities),
        max(loads, default=None),
    )


def _sum(one: RuleActivity, other: RuleActivity) -> RuleActivity:
    # Unpacking is three times as fast as access by name. A hundred processes may have a thousand rules each.
    (a, b, c, d, e), bans = one
    (f, g, h, i, j), more = other
    return RuleActivity((a + f, b + g, c + h, d + i, e + j), bans + more)


def _series(*parts: Series) -> Series:
    found = dict(parts[0])
    for part in parts[1:]:
        for step, number in part.items():
            found[step] = found.get(step, 0) + number
    return found


def _clients(activities: Sequence[Activity]) -> tuple[LimitedClient, ...]:
    """Return the clients of all processes. One that several processes deny is one client, with its latest reason."""
    found: dict[tuple[str, str, str], LimitedClient] = {}
    for one in (client for activity in activities for client in activity.limited):
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


_PARTS = 1_000
"""Rates are encoded as whole numbers of 1/1000 request a second, which takes less time than fractions."""

_FORM = 3
"""The version of the format. Texts of another version come from another release and are ignored."""


class ProcessReport(NamedTuple):
    """What one limiter of one process reports.

    Attributes:
        process: A random name of the process. Several limiters of a process have the same.
        version: The version of the rules in force.
        switch: The setting of the kill switch.
        activity: What the process did.
    """

    process: str
    version: str
    switch: str
    activity: Activity


def encode_report(report: ProcessReport) -> str:
    """Return a report as text. A report of 1 000 rules has about 50 kB."""
    return json.dumps(
        {
            "form": _FORM,
            "process": report.process,
            "version": report.version,
            "switch": report.switch,
            "load": report.activity.load,
            "rates": [round(report.activity.requests, 3), round(report.activity.denials, 3)],
            "steps": [_packed(series) for series in report.activity.steps],
            "rules": [
                (*rule, [round(rate * _PARTS) for rate in did.rates], did.bans)
                for rule, did in report.activity.rules.items()
            ],
            "limited": report.activity.limited,
        },
        separators=(",", ":"),
    )


def decode_report(text: str | bytes) -> ProcessReport | None:
    """Return the report in a text. None if it cannot be decoded: another release or program may have written it."""
    try:
        found = json.loads(text)
        if found["form"] != _FORM:
            return None
        requests, denials = found["rates"]
        first, second = found["steps"]
        activity = Activity(
            requests,
            denials,
            (_unpacked(first), _unpacked(second)),
            {
                (domain, rule): RuleActivity((a / _PARTS, b / _PARTS, c / _PARTS, d / _PARTS, e / _PARTS), bans)
                for domain, rule, (a, b, c, d, e), bans in found["rules"]
            },
            tuple([LimitedClient(*client) for client in found["limited"]]),
            found["load"],
        )
        return ProcessReport(found["process"], found["version"], found["switch"], activity)
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
        return None


def _packed(series: Series) -> list[int]:
    """Return the number of the first step, and then the counts of it and of all steps up to the last one."""
    if not series:
        return []
    first = min(series)
    return [first, *[series.get(step, 0) for step in range(first, max(series) + 1)]]


def _unpacked(packed: Sequence[Any]) -> Series:
    if not packed:
        return {}
    first, *counts = packed
    return {step: count for step, count in enumerate(counts, first) if count}
