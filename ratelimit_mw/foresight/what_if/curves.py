"""Makes the what-if curves of a replay from what was collected while it ran. This module needs numpy."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

import numpy as np

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.errors import quoted
from ratelimit_mw.foresight.results import Curve, RuleResult
from ratelimit_mw.foresight.what_if.collection import Arrivals, Collection, Replay, Series
from ratelimit_mw.foresight.what_if.exact import (
    Ints,
    Sequences,
    WindowTooLong,
    busiest_windows,
    decide_all,
    distribution,
    in_sequence,
)
from ratelimit_mw.foresight.what_if.limits import Subject, candidates
from ratelimit_mw.model import Quota

Peaks = tuple[tuple[int, int], ...]
"""See `Curve.peaks`."""

_COUPLED = "its decisions depend on more than its own counter"
"""Why a curve is replayed: another rule, another limit of the rule, its tiers, costs, bans or responses decide, too."""

_NAMED = 5
"""The most rules without a curve that a sentence names."""


def find_curves(collection: Collection, results: Mapping[int, RuleResult]) -> tuple[list[Curve], list[str]]:
    """Return the curves of all limits, in the order of the files, and why there are no others, as sentences.

    Args:
        collection: What was collected during the replay.
        results: What each rule did, by its place in the order of the files.
    """
    arrivals = collection.arrivals
    if arrivals.too_many:
        return [], [arrivals.too_many]
    collected = _Collected(arrivals)
    curves: list[Curve] = []
    coupled: dict[str, str] = {}
    for place, limits in groupby(collection.subjects, key=lambda subject: subject.place):
        for subject in limits:
            if Series(place, subject.quota) not in collected.series:
                continue
            together = subject.coupled or place in arrivals.coupled or collected.limits(place) > 1
            curve: Curve | str = _COUPLED if together else _exact(subject, results[place], collected)
            if isinstance(curve, str):
                curve = _replayed(subject, results[place], collected, collection.replays, curve) or curve
            if isinstance(curve, str):
                coupled[subject.rule.name] = curve
            else:
                curves.append(curve)
    return curves, list(_reasons(coupled))


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

    def limits(self, rule: int) -> int:
        """Return the number of different limits of a rule."""
        return self._rules.count(rule)

    def asked(self, series: Series) -> tuple[Sequences, Ints]:
        """Return the arrivals of a series, and the client of each of its counters, numbered from 0 on."""
        place = self.series[series]
        chosen = self._order[self._bounds[place] : self._bounds[place + 1]]
        known, counters = np.unique(self._counters[chosen], return_inverse=True)
        numbers: dict[str, int] = {}
        clients = [numbers.setdefault(self._identities[each], len(numbers)) for each in known.tolist()]
        return in_sequence(self._times[chosen], counters, self._charged[chosen]), np.array(clients, np.int64)

    def clients(self, rule: int) -> int:
        """Return the number of different clients of a rule."""
        pairs = zip(self._identities, self._series_of, strict=True)
        return len({identity for identity, series in pairs if self._rules[series] == rule})


def _peaks(quota: Quota, arrivals: Sequences, clients: Ints) -> Peaks:
    by_client = np.zeros(int(clients.max()) + 1, np.int64)
    np.maximum.at(by_client, clients, busiest_windows(arrivals, quota))
    return distribution(by_client)


Points = Mapping[int, tuple[int, int]]
"""The denied requests and the limited clients at each limit."""


def _curve(subject: Subject, points: Points, peaks: Peaks, *, requests: int, clients: int, why: str = "") -> Curve:
    denied, limited = zip(*points.values(), strict=True)
    return Curve(
        rule=subject.rule.name,
        shadow=subject.rule.shadow,
        quota=subject.spelled,
        algorithm=subject.quota.algorithm,
        method="replayed" if why else "exact",
        why_replayed=why,
        limit=subject.limit,
        limits=tuple(points),
        denied=denied,
        clients=limited,
        requests=requests,
        all_clients=clients,
        peaks=peaks,
    )


def _exact(subject: Subject, result: RuleResult, collected: _Collected) -> Curve | str:
    """Return the curve by arithmetic, or why there is none."""
    way = ALGORITHMS[subject.quota.algorithm].at_all_limits
    if way is None:
        return f"{subject.quota.algorithm} does not say how it decides at all limits at once"
    asked = collected.asked(Series(subject.place, subject.quota))
    try:
        peaks = _peaks(subject.quota, *asked)
        quotas = dict(subject.quotas(candidates(subject.limit, peaks)))
        decided = decide_all(way, *asked, list(quotas.values()))
    except WindowTooLong:
        return "its window is too long"
    points = dict(zip(quotas, zip(*decided, strict=True), strict=True))
    curve = _curve(subject, points, peaks, requests=result.asked, clients=sum(number for _, number in peaks))
    if curve.denied[curve.in_force] != result.denied:
        return "its counters did not fit into memory"  # the replay itself has dropped some
    return curve


def _replayed(
    subject: Subject, result: RuleResult, collected: _Collected, replays: Iterable[Replay], why: str
) -> Curve | None:
    """Return the curve by replays of this limit. None if it was not replayed."""
    found = {each.limit: (each.denied, len(each.clients)) for each in replays if each.subject is subject}
    if not found:
        return None
    found[subject.limit] = result.denied, result.clients
    try:
        peaks = _peaks(subject.quota, *collected.asked(Series(subject.place, subject.quota)))
    except WindowTooLong:
        peaks = ()
    return _curve(
        subject,
        dict(sorted(found.items())),
        peaks,
        requests=result.asked,
        clients=collected.clients(subject.place),
        why=why,
    )
