"""Makes the what-if curves of a replay from what was collected while it ran. This module needs numpy."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import NamedTuple

import numpy as np

from ratelimit_mw.errors import quoted
from ratelimit_mw.foresight.results import RuleResult
from ratelimit_mw.foresight.what_if.arrivals import Arrivals, Series
from ratelimit_mw.foresight.what_if.curve import Curve
from ratelimit_mw.foresight.what_if.exact import Asked, aligned, can_decide, decide_all
from ratelimit_mw.foresight.what_if.limits import candidates
from ratelimit_mw.foresight.what_if.replays import Replays
from ratelimit_mw.foresight.what_if.subjects import Subject
from ratelimit_mw.foresight.what_if.windows import Bools, TooLong, busiest_windows, distribution, in_sequence
from ratelimit_mw.model import Quota

_NAMED = 5
"""The most rules without a curve that a sentence names."""


class Found(NamedTuple):
    """The curves, and sentences that say why there are no others."""

    curves: list[Curve]
    without: list[str]


def find_curves(
    subjects: Iterable[Subject], results: Mapping[int, RuleResult], arrivals: Arrivals, replays: Replays | None
) -> Found:
    """Return the curves of all limits, in the order of the files.

    Args:
        subjects: The limits.
        results: What each rule did, by its place in the order of the files.
        arrivals: The arrivals at the counters.
        replays: What other limits of one rule denied in replays. None: there were none.
    """
    if arrivals.too_many:
        return Found([], [arrivals.too_many])
    collected = _Collected(arrivals)
    curves: list[Curve] = []
    coupled: dict[str, str] = {}
    for place, limits in groupby(subjects, key=lambda subject: subject.place):
        for subject in limits:
            if Series(place, subject.quota) not in collected.series:
                continue
            why = subject.coupled or arrivals.coupled.get(place, (0, ""))[1] or collected.coupled(place)
            curve: Curve | str = why or _exact(subject, results[place], collected)
            if isinstance(curve, str):
                curve = _replayed(subject, results[place], collected, replays, curve) or curve
            if isinstance(curve, str):
                coupled[subject.rule.name] = curve
            else:
                curves.append(curve)
    return Found(curves, list(_reasons(coupled)))


def _reasons(coupled: Mapping[str, str]) -> Iterator[str]:
    if coupled:
        named = [f"{quoted(name)} ({why})" for name, why in list(coupled.items())[:_NAMED]]
        if len(coupled) > _NAMED:
            named.append(f"{len(coupled) - _NAMED:,} more")
        text = f"{', '.join(named[:-1])} and {named[-1]}" if len(named) > 1 else named[0]
        yield f"no what-if for {text}: `--rule NAME` replays the log at eight limits of a rule"


class _Collected:
    """Arrivals by their series."""

    def __init__(self, arrivals: Arrivals) -> None:
        self.series = {series: place for place, series in enumerate(arrivals.series)}
        self._times = np.frombuffer(arrivals.times, np.int64) if arrivals.times else np.zeros(0, np.int64)
        numbers = np.array(arrivals.counters, np.int64)
        self._charged = numbers >= 0
        self._counters = np.where(self._charged, numbers, ~numbers)
        self._series_of = arrivals.series_of
        series_of = np.array(arrivals.series_of, np.int64)[self._counters]
        self._order = np.argsort(series_of, kind="stable")
        self._bounds = np.searchsorted(series_of[self._order], np.arange(len(arrivals.series) + 1)).tolist()
        self._identities = [key[key.index("{") + 1 : -1] for key in arrivals.keys]
        self._rules = [series.rule for series in arrivals.series]

    def coupled(self, rule: int) -> str:
        """Return why the limits of a rule cannot be calculated apart, as a phrase. "" if they can."""
        return "its limit depends on the client" if self._rules.count(rule) > 1 else ""

    def asked(self, series: Series) -> Asked:
        """Return the arrivals of a series, with its clients numbered from 0 on."""
        place = self.series[series]
        chosen = self._order[self._bounds[place] : self._bounds[place + 1]]
        known, counters = np.unique(self._counters[chosen], return_inverse=True)
        numbers: dict[str, int] = {}
        clients = [numbers.setdefault(self._identities[each], len(numbers)) for each in known.tolist()]
        arrivals = in_sequence(self._times[chosen], counters)
        charged: Bools | None = self._charged[chosen][arrivals.order]
        if charged is not None and charged.all():
            charged = None
        return Asked(arrivals, np.array(clients, np.int64), charged)

    def clients(self, rule: int) -> int:
        """Return the number of different clients of a rule."""
        pairs = zip(self._identities, self._series_of, strict=True)
        return len({identity for identity, series in pairs if self._rules[series] == rule})


def _peaks(subject: Subject, asked: Asked) -> tuple[tuple[int, int], ...]:
    arrivals, quota = asked.arrivals, subject.quota
    by_counter = busiest_windows(arrivals.times, arrivals.clients, quota.period, aligned=aligned(quota))
    by_client = np.zeros(int(asked.clients.max()) + 1, np.int64)
    np.maximum.at(by_client, asked.clients, by_counter)
    return distribution(by_client)


def _exact(subject: Subject, result: RuleResult, collected: _Collected) -> Curve | str:
    """Return the curve by arithmetic, or why there is none."""
    if not can_decide(subject.quota):
        return "its algorithm is not one of the package"
    asked = collected.asked(Series(subject.place, subject.quota))
    try:
        peaks = _peaks(subject, asked)
        quotas = dict(_quotas(subject, candidates(subject.limit, peaks)))
        decided = decide_all(asked, list(quotas.values()))
    except TooLong:
        return "its window is too long"
    curve = Curve(
        rule=subject.rule.name,
        shadow=subject.rule.shadow,
        quota=subject.spelled,
        algorithm=subject.quota.algorithm,
        method="exact",
        why_replayed="",
        limit=subject.limit,
        limits=tuple(quotas),
        denied=decided.denied,
        clients=decided.clients,
        requests=result.asked,
        all_clients=sum(number for _, number in peaks),
        peaks=peaks,
    )
    if curve.denied[curve.in_force] != result.denied:
        return "its counters did not fit into memory"  # the replay itself has dropped some
    return curve


def _quotas(subject: Subject, limits: Iterable[int]) -> Iterator[tuple[int, Quota]]:
    for limit in limits:
        try:
            yield limit, subject.quota if limit == subject.limit else subject.with_number(limit)
        except ValueError:
            continue  # the rule cannot have this limit


def _replayed(
    subject: Subject, result: RuleResult, collected: _Collected, replays: Replays | None, why: str
) -> Curve | None:
    """Return the curve by replays of this limit. None if it was not replayed."""
    if replays is None:
        return None
    found = {
        variant.limit: (count.denied, len(count.clients))
        for variant, count in zip(replays.variants, replays.counts, strict=True)
        if (variant.place, variant.quota) == (subject.place, subject.quota)
    }
    if not found:
        return None
    found[subject.limit] = result.denied, result.clients
    limits = sorted(found)
    try:
        peaks = _peaks(subject, collected.asked(Series(subject.place, subject.quota)))
    except TooLong:
        peaks = ()
    return Curve(
        rule=subject.rule.name,
        shadow=subject.rule.shadow,
        quota=subject.spelled,
        algorithm=subject.quota.algorithm,
        method="replayed",
        why_replayed=why,
        limit=subject.limit,
        limits=tuple(limits),
        denied=tuple(found[limit][0] for limit in limits),
        clients=tuple(found[limit][1] for limit in limits),
        requests=result.asked,
        all_clients=collected.clients(subject.place),
        peaks=peaks,
    )
