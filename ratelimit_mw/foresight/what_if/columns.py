"""The requests that a replay kept, as arrays: those at a counter, and what one client does. This module needs numpy."""

import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ratelimit_mw.foresight.clients import Facts, Having, regular_period
from ratelimit_mw.foresight.simulation import identity_of
from ratelimit_mw.foresight.what_if import COLUMNS, STATUS, Recording, Series
from ratelimit_mw.foresight.what_if.exact import Bools, Ints, Sequences, changes
from ratelimit_mw.model import Ask, Charge

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


_MOST_SORTED = 1 << 20
"""The most requests of several counters, or clients, that are sorted at once."""

_MOST_JUDGED = 1 << 18
"""The most requests of a client from which it is judged: its first ones."""


class _Block:
    """Requests that follow each other, as columns, see `Recording`. `plans` has no signs."""

    def __init__(self, packed: Mapping[str, bytes]) -> None:
        self._packed = packed
        signed = self.column("plans")
        self.allowed = signed >= 0
        self.plans = np.where(self.allowed, signed, ~signed)

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return the column with a name."""
        return np.frombuffer(zlib.decompress(self._packed[name]), COLUMNS[name])


Read = Callable[[_Block], npt.NDArray[Any]]


class Asked:
    """The requests that asked a series. They are sorted by counter and time, a part of the counters at a time.

    Attributes:
        series: The series.
        counters: The numbers of its counters, those of a client together.
        clients: The number of the client of each of them, from 0 on, ascending.
        sizes: How many requests asked each of them.
        requests: How many requests each client has at them.
    """

    def __init__(self, columns: "Columns", series: Series) -> None:
        self.series = series
        self._columns = columns
        place = columns.series[series]
        chosen = columns.series_of[columns.members] == place
        self._members = columns.members[chosen]
        self._sizes = np.bincount(columns.plan_of_member[chosen], minlength=len(columns.sizes))
        self._firsts = np.cumsum(self._sizes) - self._sizes
        counters = np.flatnonzero(columns.series_of == place)
        numbers: dict[str, int] = {}
        names = (identity_of(columns.keys[each]) for each in counters.tolist())
        clients = np.array([numbers.setdefault(name, len(numbers)) for name in names], np.int64)
        order = np.argsort(clients, kind="stable")
        self.counters, self.clients = counters[order], clients[order]
        by_number = np.zeros(len(columns.keys), np.int64)
        for _, _, asked in self._blocks():
            by_number += np.bincount(asked, minlength=len(by_number))
        self.sizes = by_number[self.counters]
        self.requests = np.add.reduceat(self.sizes, changes(self.clients))

    def arrivals(self, *, charging_all: bool = False) -> Iterator[tuple[Sequences, slice]]:
        """Yield the arrivals, and which counters they asked: all counters of some clients at a time.

        Args:
            charging_all: As if each arrival were charged. Otherwise, a shadow is not charged for denied requests.
        """
        sizes_of_plans = self._columns.sizes
        reads: list[Read] = [lambda block: block.column("times")]
        if self.series.shadow and not charging_all:
            reads.append(lambda block: block.allowed | (sizes_of_plans[block.plans] == 1))
        bounds = np.append(changes(self.clients), len(self.clients))  # the first counter of each client, and the end
        for first, end in _parts(self.requests):
            part = slice(int(bounds[first]), int(bounds[end]))
            sizes = self.sizes[part]
            times, *others = self.sorted(self.counters[part], np.arange(len(sizes)), sizes, reads)
            charged = others[0] if others else np.ones(len(times), np.bool_)
            yield Sequences(times, charged, np.cumsum(sizes) - sizes), part

    def sorted(self, counters: Ints, groups: Ints, sizes: Ints, reads: Sequence[Read]) -> list[npt.NDArray[Any]]:
        """Return columns of the requests that asked some counters, by group, and in order of time for each.

        Args:
            counters: The numbers of the counters.
            groups: The number of the group of each of them, from 0 on.
            sizes: How many requests of each group are returned: its first ones.
            reads: Read the columns.
        """
        other = len(sizes)
        group_of = np.full(len(self._columns.keys), other, np.min_scalar_type(other))  # two bytes are sorted fast
        group_of[counters] = groups
        ends = np.cumsum(sizes)
        filled = ends - sizes
        found: list[npt.NDArray[Any]] = []
        for block, places, asked in self._blocks():
            values = [read(block) for read in reads]
            found = found or [np.empty(int(ends[-1]), each.dtype) for each in values]
            of_request = group_of[asked]
            inside = np.flatnonzero(of_request < other)
            order = inside[np.argsort(of_request[inside], kind="stable")]
            of_request, starts = of_request[order], changes(of_request[order])
            lengths = np.diff(starts, append=len(order))
            at = filled[of_request] + np.arange(len(order)) - np.repeat(starts, lengths)
            filled[of_request[starts]] += lengths
            fits = at < ends[of_request]
            for column, each in zip(found, values, strict=True):
                column[at[fits]] = each[places[order[fits]]]
        return found

    def _blocks(self) -> Iterator[tuple[_Block, Ints, npt.NDArray[np.int32]]]:
        """Yield each block, the places of its requests that asked the series, and the counter of each of these.

        A place comes several times if the request asked several counters.
        """
        for block in self._columns.blocks():
            number = self._sizes[block.plans]
            places = np.repeat(np.arange(len(number)), number)
            nth = np.arange(len(places)) - np.repeat(np.cumsum(number) - number, number)
            yield block, places, self._members[self._firsts[block.plans[places]] + nth]


def _parts(sizes: Ints) -> Iterator[tuple[int, int]]:
    """Yield the first and the end of consecutive groups of these sizes, of which so many are sorted at once."""
    ends = np.cumsum(sizes)
    yield from pairwise([*changes((ends - 1) // _MOST_SORTED).tolist(), len(sizes)])


class Columns:
    """The columns of a recording.

    Args:
        recording: The requests.

    Attributes:
        series: The place of each series.
        having: What the log has: of images, styles and scripts, at least a twentieth of the requests.
    """

    def __init__(self, recording: Recording) -> None:
        recording.pack()
        self.recording = recording
        self.series = {series: place for place, series in enumerate(recording.series)}
        self.keys = list(recording.keys)
        self.members = np.frombuffer(recording.members, np.int32)
        ends = np.frombuffer(recording.ends, np.int32)
        self.sizes = np.diff(ends, prepend=np.int32(0))
        self.plan_of_member = np.repeat(np.arange(len(ends), dtype=np.int32), self.sizes)
        self.series_of = np.frombuffer(recording.series_of, np.int32)
        self._part = np.array([_PARTS.fullmatch(name) is not None for name in recording.path_names.names])
        parts = [self._part[block.column("paths")] for block in self.blocks()]
        shares = sum(map(np.count_nonzero, parts)), sum(map(len, parts))
        self.having = Having(20 * shares[0] >= shares[1], len(recording.agents.names) > _NO_OTHER)

    def blocks(self) -> Iterator[_Block]:
        """Yield the requests, in order of time."""
        return map(_Block, self.recording.blocks)

    def charges_of(self, plan: int, replaced: Callable[[int, Charge], Charge | None]) -> list[Charge]:
        """Return what a plan asks.

        Args:
            plan: The number of the plan.
            replaced: (number of the counter, charge) → the charge to take in its place, or None to leave it out.
        """
        numbers = self.members[self.places_of(plan)].tolist()
        charges = self.recording.unusual.get(plan) or map(self._charge, numbers)
        found = (replaced(number, charge) for number, charge in zip(numbers, charges, strict=True))
        return [charge for charge in found if charge is not None]

    def places_of(self, plan: int) -> slice:
        """Return where the counters of a plan are in `members`."""
        end = self.recording.ends[plan]
        return slice(end - int(self.sizes[plan]), end)

    def _charge(self, number: int) -> Charge:
        place, quota, shadow = self.recording.series[self.series_of[number]]
        return Charge(self.recording.rules[place], Ask(self.keys[number], quota, 1, shadow))

    def limits(self, rule: int) -> int:
        """Return the number of different limits of a rule."""
        return sum(series.rule == rule for series in self.recording.series)

    def asking(self, counters: Bools, seeds: Bools) -> Bools:
        """Return which plans ask some of these counters and depend on the seeds.

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
        return asking

    def decidable(self, asking: Bools) -> Iterator[tuple[int, int, int, int]]:
        """Yield time, plan, status and duration of the requests with these plans. The duration is -1 if unknown."""
        for block in self.blocks():
            rows = np.flatnonzero(asking[block.plans])
            times, statuses, lasted = (block.column(name) for name in ("times", "marks", "durations"))
            columns = times, block.plans, statuses & _STATUSES, lasted
            yield from zip(*(column[rows].tolist() for column in columns), strict=True)

    def clients(self, rule: int) -> int:
        """Return the number of different clients of a rule."""
        places = {place for place, series in enumerate(self.recording.series) if series.rule == rule}
        numbers = np.flatnonzero(np.isin(self.series_of, list(places))).tolist()
        return len({identity_of(self.keys[number]) for number in numbers})

    def facts(self, asked: Asked, chosen: Sequence[int]) -> list[Facts]:
        """Return what the log tells of some clients that asked a series."""
        reads: list[Read] = [partial(_Block.column, name=name) for name in ("times", "paths", "marks")]
        number_of = np.full(len(asked.requests), -1, np.int64)
        number_of[list(chosen)] = np.arange(len(chosen))
        numbers = number_of[asked.clients]
        sizes = np.minimum(asked.requests[list(chosen)], _MOST_JUDGED)
        found: list[Facts] = []
        for first, end in _parts(sizes) if chosen else ():
            inside = np.flatnonzero((numbers >= first) & (numbers < end))
            sorted_ = asked.sorted(asked.counters[inside], numbers[inside] - first, sizes[first:end], reads)
            cuts = np.cumsum(sizes[first:end])[:-1]
            found += map(self._facts, *(np.split(each, cuts) for each in sorted_))
        return found

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

    def _facts(self, times: Ints, paths: npt.NDArray[np.uint16], marks: npt.NDArray[np.uint32]) -> Facts:
        return Facts(
            len(times),
            self._main_paths(paths),
            _most(marks & _STATUSES),
            [(self.recording.agents.names[each], many) for each, many in _most(marks >> STATUS, most=9)],
            float(np.count_nonzero(self._part[paths]) / len(paths)),
            regular_period(np.sort(np.diff(times)).tolist()),
        )


def _folder(path: str) -> str:
    """Return the first folder of a path with a star behind it. A path without one is itself."""
    first, slash, _ = path[1:].partition("/")
    return f"/{first}/*" if slash else path


def _most(values: npt.NDArray[Any], most: int = _SHOWN) -> list[tuple[int, int]]:
    """Return the values that occur most, with their numbers."""
    found, counts = np.unique(values, return_counts=True)
    return Counter(dict(zip(found.tolist(), counts.tolist(), strict=True))).most_common(most)
