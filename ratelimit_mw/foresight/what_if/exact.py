"""What an algorithm denies at many limits at once, by arithmetic over the arrivals. This module needs numpy.

The results equal those of the algorithm itself, which describes its arithmetic in `Algorithm.at_all_limits`. There
are two ways:

* An algorithm that counts (`Counting`): T[arrival, limit] are running totals of what each limit has admitted. What it
  has admitted since a time is the difference of two totals.
* A bucket (`Refilling`): one time for each counter and limit.

The arrivals are decided in steps. One step decides the next arrival of all counters at all limits. Counters are cut
into segments, so that there are fewer steps: before a segment, a counter is as if unused. If no request counts from
one segment to another, and each counts in all of its own, a limit L denies all but the first L, without steps.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.algorithms.algorithm import Counting, Refilling
from ratelimit_mw.model import Quota

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Counts = npt.NDArray[Any]
Way = Counting | Refilling

_CELLS = 30_000_000
"""The most running totals that are kept at once, of four bytes each."""

_LARGEST = 2**62

_MOST = 2**31 - 1
"""A limit that no count reaches: not as many arrivals are kept."""


class WindowTooLong(ValueError):
    """The window and the times are too long, or the counts too high, for the arithmetic of 64 bits."""


class Sequences(NamedTuple):
    """Arrivals by counter, and in order of time for each counter. Each costs 1.

    Attributes:
        times: The time of each arrival, in microseconds since the epoch.
        counters: The number of the counter of each arrival.
        charged: False for an arrival that is decided, but not charged, because another rule denies the request.
        starts: The index of the first arrival of each counter that has any.
    """

    times: Ints
    counters: Ints
    charged: Bools
    starts: Ints


def in_sequence(times: Ints, counters: Ints, charged: Bools | None = None) -> Sequences:
    """Sort arrivals by counter. Those of one counter must be in order of time already, and stay in their order."""
    order = np.argsort(counters, kind="stable")
    held = np.ones(len(times), np.bool_) if charged is None else charged[order]
    return Sequences(times[order], counters[order], held, _changes(counters[order]))


def _changes(values: Ints) -> Ints:
    """Return the indices at which a value differs from the one before. The first index is one of them."""
    new = np.ones(len(values), np.bool_)
    new[1:] = values[1:] != values[:-1]
    return np.flatnonzero(new)


def _spread(starts: Ints, size: int) -> Ints:
    """Return the start of the group of each index, for groups that begin at `starts`."""
    return np.repeat(starts, np.diff(starts, append=size))


def _first_since(arrivals: Sequences, moments: Ints) -> Ints:
    """Return, for each arrival, the index of its counter's first arrival at a moment, which is not later, or after it.

    Raises:
        WindowTooLong: The times cannot be put in one line.
    """
    times = arrivals.times
    back = np.minimum(times - moments, int(times.max() - times.min()))
    apart = int(back.max()) + 1
    # One line of time for all counters: each begins so long after the one before that no window has both.
    steps = np.minimum(np.diff(times, prepend=times[0]), apart)
    steps[arrivals.starts] = apart
    if float(steps.sum(dtype=np.float64)) > _LARGEST:
        raise WindowTooLong
    line = np.cumsum(steps)
    found: Ints = np.searchsorted(line, line - back, side="left")
    return found


def busiest_windows(arrivals: Sequences, quota: Quota) -> Ints:
    """Return the most requests in any window, for each counter that has any, in their order.

    If the algorithm counts in one window, this is its own. Otherwise a window is any span of one period.

    Raises:
        WindowTooLong: The window is too long for the arithmetic.
    """
    size = len(arrivals.times)
    if not size:
        return arrivals.times
    way = ALGORITHMS[quota.algorithm].at_all_limits
    moments = arrivals.times - quota.period + 1
    if isinstance(way, Counting) and way.used is None:
        (moments,) = way.since(quota, arrivals.times)
    counts = np.arange(size) - _first_since(arrivals, moments) + 1
    return np.maximum.reduceat(counts, arrivals.starts)


def distribution(peaks: Ints, most: int = 400) -> tuple[tuple[int, int], ...]:
    """Return how many clients have each peak, as (peak, clients), ascending.

    If there are more than `most` different peaks, neighbours are joined under the greatest of them.
    """
    values, counts = np.unique(peaks, return_counts=True)
    if len(values) > most:
        edges = np.unique(np.geomspace(values[0], values[-1], most).astype(np.int64))
        edges[-1] = values[-1]
        starts = _changes(np.searchsorted(edges, values, side="left"))
        values, counts = values[np.append(starts[1:], len(values)) - 1], np.add.reduceat(counts, starts)
    return tuple(zip(values.tolist(), counts.tolist(), strict=True))


class Decided(NamedTuple):
    """What each limit denies.

    Attributes:
        denied: The number of requests.
        clients: The number of clients with at least one of them.
        last: The index of the highest limit that denies a request of each client. -1 if none does.
    """

    denied: tuple[int, ...]
    clients: tuple[int, ...]
    last: Ints


def decide_all(way: Way, arrivals: Sequences, clients: Ints, quotas: Sequence[Quota]) -> Decided:
    """Decide on all arrivals at all limits.

    Args:
        way: How the algorithm of the quotas decides.
        arrivals: The arrivals.
        clients: The number of the client of each counter, from 0 on. Several counters may belong to one client.
        quotas: The quotas, which differ only in what follows from their limits, ascending.

    Raises:
        WindowTooLong: The numbers are too large for the arithmetic.
    """
    if not len(arrivals.times):
        return Decided((0,) * len(quotas), (0,) * len(quotas), np.zeros(0, np.int64))
    if isinstance(way, Refilling):
        return _in_steps(arrivals, clients, quotas, _buckets(arrivals, quotas, way))
    if way.used is None:
        first = _first_since(arrivals, way.since(quotas[0], arrivals.times)[0])
        starts = np.flatnonzero(first == np.arange(len(first)))
        if np.array_equal(first, _spread(starts, len(first))):
            return _in_windows(arrivals, clients, quotas, first)
    return _in_steps(arrivals, clients, quotas, _windows(arrivals, quotas, way))


def _charged_before(arrivals: Sequences) -> Ints:
    """Return how many charged arrivals precede each index. The last index is the end."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(arrivals.charged, dtype=np.int64)))


def _in_windows(arrivals: Sequences, clients: Ints, quotas: Sequence[Quota], first: Ints) -> Decided:
    """Decide without steps. The window of each arrival begins with the arrival at `first`."""
    before = _charged_before(arrivals)
    ranks = before[:-1] - before[first]
    highest = np.full(int(clients.max()) + 1, -1)
    owners = clients[arrivals.counters[arrivals.starts]]
    np.maximum.at(highest, owners, np.maximum.reduceat(ranks, arrivals.starts))
    limits = [quota.limit for quota in quotas]
    denied, limited = (len(each) - np.searchsorted(np.sort(each), limits) for each in (ranks, highest))
    return Decided(tuple(denied.tolist()), tuple(limited.tolist()), np.searchsorted(limits, highest, "right") - 1)


class _Steps:
    """Arrivals in the order of steps: first the first arrival of each segment, then the second of each, and so on.

    Args:
        sizes: The sizes of the segments, descending.
    """

    def __init__(self, sizes: Ints) -> None:
        self.sizes = sizes
        active = len(sizes) - np.cumsum(np.bincount(sizes))[:-1]  # how many segments have an arrival in each step
        self.offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(active)))
        self.bounds = list(zip(active.tolist(), self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True))
        """For each step, how many segments take part, and their first row and the row after their last one."""

    def before(self, places: Ints) -> Ints:
        """Return the rows of running totals before these places in their segments. Row 0 is that before any arrival.

        Args:
            places: One place for each row.
        """
        segments = np.arange(len(places)) - np.repeat(self.offsets[:-1], np.diff(self.offsets))
        return np.where(places, self.offsets[places - 1] + segments + 1, 0)


class _Segments(NamedTuple):
    """Segments of arrivals: before each, its counter is as if unused.

    Attributes:
        starts: The index of the first arrival of each segment.
        doubtful: Whether a limit may deny an arrival of each segment.
        decide: (steps, indices of the arrivals in the order of steps, quotas) → how many arrivals of each segment each
            quota admits.
    """

    starts: Ints
    doubtful: Bools
    decide: Callable[[_Steps, Ints, Sequence[Quota]], Counts]


def _in_steps(arrivals: Sequences, clients: Ints, quotas: Sequence[Quota], segments: _Segments) -> Decided:
    """Decide on segments, the longest first, as many at once as there is room for."""
    starts, doubtful, decide = segments
    denied = np.zeros(len(quotas), np.int64)
    limited = np.zeros((int(clients.max()) + 1, len(quotas)), np.bool_)
    size = len(arrivals.times)
    sizes = np.diff(starts, append=size)
    chosen = np.flatnonzero(doubtful)
    chosen = chosen[np.argsort(-sizes[chosen], kind="stable")]
    ranks = np.full(len(sizes), -1)
    ranks[chosen] = np.arange(len(chosen))
    rank_of = np.repeat(ranks, sizes)
    places = np.arange(size) - _spread(starts, size)
    parts = _changes(np.cumsum(sizes[chosen]) // max(_CELLS // len(quotas), 1)).tolist()
    for first, end in pairwise([*parts, len(chosen)]):
        steps = _Steps(sizes[chosen[first:end]])
        inside = np.flatnonzero((rank_of >= first) & (rank_of < end))
        rows = np.empty(len(inside), np.int64)
        rows[steps.offsets[places[inside]] + rank_of[inside] - first] = inside
        owners = clients[arrivals.counters[starts[chosen[first:end]]]]
        width = max(_CELLS // len(rows), 1)
        for limit in range(0, len(quotas), width):
            counts = steps.sizes[:, np.newaxis] - decide(steps, rows, quotas[limit : limit + width])
            denied[limit : limit + width] += counts.sum(axis=0)
            segment, at = np.nonzero(counts)
            limited[owners[segment], limit + at] = True
    last = np.where(limited.any(axis=1), len(quotas) - 1 - np.argmax(limited[:, ::-1], axis=1), -1)
    return Decided(tuple(denied.tolist()), tuple(np.count_nonzero(limited, axis=0).tolist()), last)


def _windows(arrivals: Sequences, quotas: Sequence[Quota], way: Counting) -> _Segments:
    """Begin a segment where no earlier arrival counts, and decide by running totals."""
    times, charged = arrivals.times, arrivals.charged
    used = way.used or _count
    firsts = [_first_since(arrivals, moments) for moments in way.since(quotas[0], times)]
    before = _charged_before(arrivals)
    most = [before[:-1] - before[first] for first in firsts]  # if all earlier ones were admitted
    if way.used is not None and float(most[-1].max() + 1) * quotas[0].period > _LARGEST:  # the largest product
        raise WindowTooLong
    starts = np.flatnonzero(firsts[-1] == np.arange(len(times)))
    begin = _spread(starts, len(times))
    full = used(quotas[0], most, times) >= min(quota.limit for quota in quotas)

    def decide(steps: _Steps, rows: Ints, quotas: Sequence[Quota]) -> Counts:
        limits = np.array([min(quota.limit, _MOST) for quota in quotas], np.int32)
        since = [steps.before((first - begin)[rows]) for first in firsts]
        now, taken = times[rows, np.newaxis], charged[rows, np.newaxis]
        totals = np.zeros((len(rows) + 1, len(quotas)), np.int32)  # row 0 is before any arrival
        admitted = np.zeros((len(steps.sizes), len(quotas)), np.int32)
        held = np.zeros(admitted.shape, np.int32)
        for active, first, end in steps.bounds:
            held = held[:active]
            counts = [held - totals[each[first:end]] for each in since]
            admits = used(quotas[0], counts, now[first:end]) < limits
            admitted[:active] += admits
            held = np.add(held, admits & taken[first:end], out=totals[first + 1 : end + 1])
        return admitted

    return _Segments(starts, np.logical_or.reduceat(full, starts), decide)


def _count(_quota: Quota, counts: Sequence[Counts], _now: Ints) -> Counts:
    """Return the only count. See `Counting.used`."""
    return counts[0]


def _buckets(arrivals: Sequences, quotas: Sequence[Quota], way: Refilling) -> _Segments:
    """Begin a segment where all buckets are full. A bucket with the limit 0 admits nothing."""
    times = arrivals.times

    def terms(quotas: Sequence[Quota]) -> tuple[Ints, Ints]:
        intervals = [-(-quota.period // quota.limit) if quota.limit else 1 for quota in quotas]
        rooms = [way.room(*each) if each[0].limit else -1 for each in zip(quotas, intervals, strict=True)]
        if max(rooms) + max(intervals) > _LARGEST:
            raise WindowTooLong
        return np.array(intervals, np.int64), np.array(rooms, np.int64)

    def decide(steps: _Steps, rows: Ints, quotas: Sequence[Quota]) -> Counts:
        intervals, rooms = terms(quotas)
        now, taken = times[rows, np.newaxis], arrivals.charged[rows, np.newaxis]
        full = np.zeros((len(steps.sizes), len(quotas)), np.int64)
        admitted = np.zeros(full.shape, np.int32)
        for active, first, end in steps.bounds:
            due, at = full[:active], now[first:end]
            np.maximum(due, at, out=due)
            admits = due - at <= rooms
            admitted[:active] += admits
            due += (admits & taken[first:end]) * intervals
        return admitted

    intervals, rooms = terms(quotas)
    fresh = np.diff(times, prepend=times[0]) >= int((rooms + intervals).max())
    fresh[arrivals.starts] = True
    starts = np.flatnonzero(fresh)
    least = int((rooms // intervals + 1).min())  # what the smallest bucket admits at once
    return _Segments(starts, np.diff(starts, append=len(times)) > least, decide)
