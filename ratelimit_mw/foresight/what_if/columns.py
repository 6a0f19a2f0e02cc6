"""The requests that a replay kept, as arrays: those at a counter, and what one client does. This module needs numpy."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from ratelimit_mw.foresight.clients import LEAST, Facts, Having
from ratelimit_mw.foresight.simulation import identity_of
from ratelimit_mw.foresight.what_if.collection import STATUS, Recording, Series
from ratelimit_mw.foresight.what_if.exact import Bools, Ints, Sequences, in_sequence
from ratelimit_mw.model import SECOND

_PARTS = re.compile(r".*\.(?:css|js|mjs|png|jpe?g|gif|svg|ico|webp|avif|woff2?|ttf|map)", re.IGNORECASE)
"""The paths of what a page consists of, apart from itself."""

_STATUSES = (1 << STATUS) - 1
_SHOWN = 3
_FREQUENT = 0.2
_NO_OTHER = 2
"""The numbers of agents, if the log has none: that of `OTHERS`, and that of "no user agent"."""
_MOST_PATHS = 1000
"""The most paths of a client whose folders are counted."""
"""The most paths, statuses and agents of a client."""


class Columns:
    """The columns of a recording.

    Args:
        recording: The requests.

    Attributes:
        series: The place of each series.
        having: What the log has: of images, styles and scripts, at least a twentieth of the requests.
    """

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.series = {series: place for place, series in enumerate(recording.series)}
        self.keys = list(recording.keys)
        self.times = np.frombuffer(recording.times, np.int64)
        signed = np.frombuffer(recording.plans, np.int32)
        self.allowed = signed >= 0
        self.plans = np.where(self.allowed, signed, ~signed)
        self._paths = np.frombuffer(recording.paths, np.uint16)
        self._marks = np.frombuffer(recording.marks, np.uint32)
        self.members = np.frombuffer(recording.members, np.int32)
        ends = np.frombuffer(recording.ends, np.int32)
        self.sizes = np.diff(ends, prepend=np.int32(0))
        self.plan_of_member = np.repeat(np.arange(len(ends), dtype=np.int32), self.sizes)
        self.series_of = np.frombuffer(recording.series_of, np.int32)
        self._part = np.array([_PARTS.fullmatch(name) is not None for name in recording.path_names.names])
        parts = int(np.count_nonzero(self._part[self._paths]))
        self.having = Having(20 * parts >= len(self.times), len(recording.agents.names) > _NO_OTHER)

    def limits(self, rule: int) -> int:
        """Return the number of different limits of a rule."""
        return sum(series.rule == rule for series in self.recording.series)

    def requests_of(self, series: Series) -> tuple[Ints, Ints]:
        """Return the rows of the requests that asked a series, and the counter of each. A row may come twice."""
        chosen = self.series_of[self.members] == self.series[series]
        plans, counters = self.plan_of_member[chosen], self.members[chosen]
        found: list[tuple[Ints, Ints]] = []
        while len(plans):  # a plan may ask several counters of a series: one of each plan at a time
            first = np.concatenate((np.ones(1, np.bool_), plans[1:] != plans[:-1]))
            counter_of = np.full(len(self.sizes), -1, np.int32)
            counter_of[plans[first]] = counters[first]
            asked = counter_of[self.plans]
            rows = np.flatnonzero(asked >= 0)
            found.append((np.asarray(rows, np.int64), np.asarray(asked[rows], np.int64)))
            plans, counters = plans[~first], counters[~first]
        if len(found) == 1:
            return found[0]
        every: Ints = np.concatenate([each for each, _ in found])
        numbers: Ints = np.concatenate([each for _, each in found])
        order = np.argsort(every, kind="stable")
        return every[order], numbers[order]

    def asked(self, series: Series, *, charging_all: bool = False) -> tuple[Sequences, Ints, Ints]:
        """Return the arrivals at a series, the client of each of its counters, and the number of each counter.

        Args:
            series: The series.
            charging_all: As if each arrival were charged. Otherwise, a shadow is not charged for denied requests.
        """
        rows, counters = self.requests_of(series)
        known, numbered = np.unique(counters, return_inverse=True)
        charged = None
        if series.shadow and not charging_all:
            charged = self.allowed[rows] | (self.sizes[self.plans[rows]] == 1)
        numbers: dict[str, int] = {}
        clients = [numbers.setdefault(identity_of(self.keys[each]), len(numbers)) for each in known.tolist()]
        return in_sequence(self.times[rows], numbered, charged), np.array(clients, np.int64), known

    def asking(self, counters: Bools, seeds: Bools) -> Ints:
        """Return the rows of the requests that ask some of these counters and depend on the seeds.

        Counters that the same request asks depend on each other, and so do those that depend on the same counter.

        Args:
            counters: Which counters are meant.
            seeds: Some of them.
        """
        chosen = counters[self.members]
        plans, members = self.plan_of_member[chosen], self.members[chosen]
        reached, number = seeds.copy(), -1
        asking = np.zeros(len(self.sizes), np.bool_)
        while np.count_nonzero(reached) > number:
            number = int(np.count_nonzero(reached))
            asking[plans[reached[members]]] = True
            reached[members[asking[plans]]] = True
        return np.asarray(np.flatnonzero(asking[self.plans]), np.int64)

    def decidable(self, rows: Ints) -> Iterator[tuple[int, int, int, int]]:
        """Yield the time, the number of the plan, the status and the duration of requests. It is -1 if unknown."""
        times, plans, marks = (each[rows].tolist() for each in (self.times, self.plans, self._marks))
        held = self.recording.durations
        durations = np.frombuffer(held, np.int64)[rows].tolist() if held else repeat(-1)
        for at, plan, mark, duration in zip(times, plans, marks, durations, strict=False):
            yield at, plan, mark & _STATUSES, duration

    def clients(self, rule: int) -> int:
        """Return the number of different clients of a rule."""
        places = {place for place, series in enumerate(self.recording.series) if series.rule == rule}
        numbers = np.flatnonzero(np.isin(self.series_of, list(places))).tolist()
        return len({identity_of(self.keys[number]) for number in numbers})

    def facts(self, series: Series, counters: Mapping[int, int], number: int) -> list[Facts]:
        """Return what the log tells of clients.

        Args:
            series: The series that they asked.
            counters: The client of each counter.
            number: The number of clients.
        """
        client_of = np.full(len(self.keys), -1, np.int64)
        client_of[list(counters)] = list(counters.values())
        rows, asked = self.requests_of(series)
        owners = client_of[asked]
        rows, owners = rows[owners >= 0], owners[owners >= 0]
        order = np.argsort(owners, kind="stable")
        bounds = np.searchsorted(owners[order], np.arange(number + 1))
        return [self._facts(rows[order[bounds[each] : bounds[each + 1]]]) for each in range(number)]

    def _main_paths(self, paths: npt.NDArray[np.uint16]) -> list[tuple[str, int]]:
        """Return the paths that occur most. If none is frequent, the folders."""
        names = self.recording.path_names.names
        counted = _most(paths, most=_MOST_PATHS)
        if counted[0][1] >= _FREQUENT * len(paths):
            return [(names[each], many) for each, many in counted[:_SHOWN]]
        folders: Counter[str] = Counter()
        for each, many in counted:
            folders[_folder(names[each])] += many
        return folders.most_common(_SHOWN)

    def _facts(self, rows: Ints) -> Facts:
        paths, marks = self._paths[rows], self._marks[rows]
        recording = self.recording
        return Facts(
            len(rows),
            self._main_paths(paths),
            _most(marks & _STATUSES),
            [(recording.agents.names[each], many) for each, many in _most(marks >> STATUS, most=9)],
            float(np.count_nonzero(self._part[paths]) / len(rows)),
            _period(self.times[rows]),
        )


def _folder(path: str) -> str:
    """Return the first folder of a path with a star behind it. A path without one is itself."""
    first, slash, _ = path[1:].partition("/")
    return f"/{first}/*" if slash else path


def _most(values: npt.NDArray[Any], most: int = _SHOWN) -> list[tuple[int, int]]:
    """Return the values that occur most, with their numbers."""
    found, counts = np.unique(values, return_counts=True)
    return Counter(dict(zip(found.tolist(), counts.tolist(), strict=True))).most_common(most)


def _period(times: Ints) -> int:
    """Return the median time between requests if the middle 80 % of all times between them are near it, otherwise 0.

    Near is a tenth of the median, or the second by which the clock of most logs is inexact. A period below two seconds
    can therefore not be told from chance.
    """
    gaps = np.sort(np.diff(times))
    if len(gaps) < LEAST:
        return 0
    median, tenth = int(gaps[len(gaps) // 2]), len(gaps) // 10
    near = max(median // 10, SECOND)
    regular = median - gaps[tenth] <= near and gaps[-1 - tenth] - median <= near
    return median if regular and median >= 2 * SECOND else 0
