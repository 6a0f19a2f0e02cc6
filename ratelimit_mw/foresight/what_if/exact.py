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

from collections.abc import Callable, Iterator, Sequence
from functools import partial
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
Moments = Callable[[Ints], Ints]

_CELLS = 6_000_000
"""The most running totals that are kept at once, of four bytes each."""

_PIECE = 1 << 19
"""About how many arrivals are decided at once."""

_ROWS = 1 << 19
"""About how many arrivals are put in the order of steps at once."""

_FOR_STEP = 8
"""As many totals as this take the room of what one step computes for a segment and a limit."""

_LARGEST = 2**62

_MOST = 2**31 - 1
"""A limit that no count reaches: not as many arrivals are kept."""


class WindowTooLong(ValueError):
    """The window and the times are too long, or the counts too high, for the arithmetic of 64 bits."""


class Sequences(NamedTuple):
    """Arrivals by counter, or by segment, and in order of time for each. Each costs 1.

    Attributes:
        times: The time of each arrival, in microseconds since the epoch.
        charged: False for an arrival that is decided, but not charged, because another rule denies the request.
        starts: The index of the first arrival of each counter, or segment.
    """

    times: Ints
    charged: Bools
    starts: Ints

    @property
    def begins(self) -> Ints:
        """The start of the counter, or segment, of each arrival."""
        return np.repeat(self.starts, self.sizes)

    @property
    def sizes(self) -> Ints:
        """The number of arrivals of each counter, or segment."""
        return np.diff(self.starts, append=len(self.times))


def changes(values: Ints) -> Ints:
    """Return the indices at which a value differs from the one before. The first index is one of them."""
    new = np.ones(len(values), np.bool_)
    new[1:] = values[1:] != values[:-1]
    return np.flatnonzero(new)


def _pieces(arrivals: Sequences, earliest: Moments) -> Iterator[tuple[Sequences, Ints]]:
    """Cut the arrivals into pieces of whole segments.

    Args:
        arrivals: The arrivals by counter.
        earliest: Returns the time from which on arrivals count at these times.

    Returns:
        The arrivals of each piece by segment, and the place of the counter of each of its segments.
    """
    times, charged, of_counters = arrivals
    fresh = np.ones(len(times), np.bool_)
    for begin in range(1, len(times), _PIECE):
        now = times[begin : begin + _PIECE]
        fresh[begin : begin + _PIECE] = times[begin - 1 : begin - 1 + len(now)] < earliest(now)
    fresh[of_counters] = True
    starts = np.flatnonzero(fresh)
    cuts = changes(starts // _PIECE)
    for first, end in pairwise([*cuts.tolist(), len(starts)]):
        found = starts[first:end]
        part = slice(found[0], starts[end] if end < len(starts) else len(times))
        counters = np.searchsorted(of_counters, found, side="right") - 1
        yield Sequences(times[part], charged[part], found - found[0]), counters


def _first_since(arrivals: Sequences, moments: Ints) -> Ints:
    """Return, for each arrival, the index of its segment's first arrival at a moment, which is not later, or after it.

    Raises:
        WindowTooLong: The times cannot be put in one line.
    """
    times = arrivals.times
    back = np.minimum(times - moments, int(times.max() - times.min()))
    apart = int(back.max()) + 1
    # One line of time for all segments: each begins so long after the one before that no window has both.
    steps = np.minimum(np.diff(times, prepend=times[0]), apart)
    steps[arrivals.starts] = apart
    if float(steps.sum(dtype=np.float64)) > _LARGEST:
        raise WindowTooLong
    line = np.cumsum(steps)
    found: Ints = np.searchsorted(line, line - back, side="left")
    return found


def busiest_windows(arrivals: Sequences, quota: Quota) -> Ints:
    """Return the most requests in any window, for each counter, in their order.

    If the algorithm counts in one window, this is its own. Otherwise a window is any span of one period.

    Raises:
        WindowTooLong: The window is too long for the arithmetic.
    """
    way = ALGORITHMS[quota.algorithm].at_all_limits

    in_one = isinstance(way, Counting) and way.used is None
    moments: Moments = _earliest(way, [quota]) if way and in_one else (lambda now: now - quota.period + 1)
    highest = np.zeros(len(arrivals.starts), np.int64)
    for piece, counters in _pieces(arrivals, moments):
        counts = np.arange(len(piece.times)) - _first_since(piece, moments(piece.times)) + 1
        np.maximum.at(highest, counters, np.maximum.reduceat(counts, piece.starts))
    return highest


def distribution(peaks: Ints) -> tuple[tuple[int, int], ...]:
    """Return how many clients have each peak, as (peak, clients), ascending.

    Ten million requests have at most 4 472 different peaks.
    """
    values, counts = np.unique(peaks, return_counts=True)
    return tuple(zip(values.tolist(), counts.tolist(), strict=True))


class Decided(NamedTuple):
    """What each limit denies.

    Attributes:
        denied: The number of requests.
        clients: The number of clients with at least one of them.
        last: The index of the highest limit that denies a request of each client. -1 if none does.
    """

    denied: Ints
    clients: Ints
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
    denied = np.zeros(len(quotas), np.int64)
    limited = np.zeros((int(clients.max(initial=-1)) + 1, len(quotas)), np.bool_)
    for piece, counters in _pieces(arrivals, _earliest(way, quotas)):
        owners = clients[counters]
        found = _buckets(piece, quotas, way) if isinstance(way, Refilling) else _windows(piece, quotas, way)
        for segments, counts, denies in found:
            denied[: len(counts)] += counts
            for limit, each in enumerate(denies.T):
                limited[owners[segments[each]], limit] = True
    last = np.where(limited.any(axis=1), len(quotas) - 1 - np.argmax(limited[:, ::-1], axis=1), -1)
    return Decided(denied, np.count_nonzero(limited, axis=0), last)


def may_deny(way: Way, arrivals: Sequences, quotas: Sequence[Quota]) -> Ints:
    """Return the index of the highest limit that denies a request of each counter if all are charged, or -1.

    This takes no steps. For the arguments and the exception see `decide_all`.
    """
    last = np.full(len(arrivals.starts), -1)
    for piece, counters in _pieces(arrivals, _earliest(way, quotas)):
        found = _overfull(piece, quotas, way) if isinstance(way, Refilling) else _Windows(piece, quotas, way).doubtful
        np.maximum.at(last, counters, found - 1)
    return last


def _overfull(arrivals: Sequences, quotas: Sequence[Quota], way: Refilling) -> Ints:
    """Return the number of the highest bucket that denies an arrival of each segment if all are charged, or 0."""
    found = np.zeros(len(arrivals.starts), np.int64)
    times = arrivals.times - arrivals.times[arrivals.begins]
    segments = np.repeat(np.arange(len(found)), arrivals.sizes)
    for number, (interval, room) in enumerate(zip(*_terms(quotas, way), strict=True), 1):
        # The k-th arrival finds missing what those before it took, less what was refilled since the bucket was full.
        moved = times - (np.arange(len(times)) - arrivals.begins) * interval
        apart = int(moved.max()) - int(moved.min()) + 1
        if float(apart) * len(found) > _LARGEST:
            raise WindowTooLong
        highest = np.maximum.accumulate(moved + segments * apart) - segments * apart
        found[np.logical_or.reduceat(highest - moved > room, arrivals.starts)] = number
    return found


def _earliest(way: Way, quotas: Sequence[Quota]) -> Moments:
    """Return the function that returns the time from which on arrivals count at these times, at any of the limits."""
    if isinstance(way, Refilling):
        intervals, rooms = _terms(quotas, way)
        longest = int((rooms + intervals).max())
        return lambda now: now - longest + 1
    return partial(_first_moment, way, quotas[0])


def _first_moment(way: Counting, quota: Quota, now: Ints) -> Ints:
    moments: Ints = way.since(quota, now)[-1]
    return moments


Denials = Iterator[tuple[Ints, Ints, Bools]]
"""The places of some segments, how many of their arrivals each of the lowest limits denies, and whether each of these
limits denies an arrival of each segment. A limit that is left out denies none."""


class _Steps:
    """Arrivals in the order of steps: first the first arrival of each segment, then the second of each, and so on.

    Args:
        starts: The starts of the segments.
        sizes: Their sizes, descending.

    Attributes:
        rows: The index of each arrival.
        bounds: For each step, how many segments take part, and their first row and the row after their last one.
    """

    def __init__(self, starts: Ints, sizes: Ints) -> None:
        active = len(sizes) - np.cumsum(np.bincount(sizes))[:-1]  # how many segments have an arrival in each step
        self._offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(active)))
        self._segments = np.arange(self._offsets[-1]) - np.repeat(self._offsets[:-1], active)
        self._starts = starts[self._segments]
        self.rows = self._starts + np.repeat(np.arange(len(active)), active)
        firsts = self._offsets.tolist()
        self.bounds = list(zip(active.tolist(), firsts, firsts[1:], strict=False))

    def before(self, indices: Ints) -> Ints:
        """Return the rows of running totals before the arrival with an index, for each row. 0 is before any arrival."""
        places = indices[self.rows] - self._starts
        return np.where(places, self._offsets[places - 1] + self._segments + 1, 0)


def _in_steps(
    arrivals: Sequences,
    doubtful: Ints,
    kept: Ints,
    quotas: Sequence[Quota],
    decide: Callable[[_Steps, Sequence[Quota]], Counts],
) -> Denials:
    """Decide on segments, the longest first, as many at once as there is room for.

    Args:
        arrivals: The arrivals by segment.
        doubtful: How many of the limits may deny an arrival of each segment: these are the lowest.
        kept: How many totals of each segment have to be kept for each limit.
        quotas: The limits.
        decide: (steps, quotas) → how many arrivals of each segment each quota admits.
    """
    sizes = arrivals.sizes
    below, width = 0, 1
    while below < len(quotas):  # segments of which similarly many limits are doubtful
        chosen = np.flatnonzero((doubtful > below) & (doubtful <= width))
        chosen = chosen[np.argsort(-sizes[chosen], kind="stable")]
        load = np.maximum((kept[chosen] + _FOR_STEP) * (width / _CELLS), sizes[chosen] / _ROWS)
        cuts = changes(np.floor(np.cumsum(load))) if len(chosen) else chosen
        for first, end in pairwise([*cuts.tolist(), len(chosen)]):
            part = chosen[first:end]
            steps = _Steps(arrivals.starts[part], sizes[part])
            counts = sizes[part, np.newaxis] - decide(steps, quotas[:width])
            yield part, counts.sum(axis=0), counts > 0
        below, width = width, min(4 * width, len(quotas))


class _Windows:
    """What an algorithm that counts has used when all arrivals are charged.

    Args:
        arrivals: The arrivals by segment.
        quotas: The limits.
        way: How the algorithm decides.

    Attributes:
        firsts: For each time since which requests count, the index of the first of them, for each arrival.
        before: How many charged arrivals precede each index. The last index is the end.
        doubtful: See `_in_steps`.

    Raises:
        WindowTooLong: The numbers are too large for the arithmetic.
    """

    def __init__(self, arrivals: Sequences, quotas: Sequence[Quota], way: Counting) -> None:
        self.firsts = [_first_since(arrivals, moments) for moments in way.since(quotas[0], arrivals.times)]
        self.before = np.concatenate((np.zeros(1, np.int64), np.cumsum(arrivals.charged, dtype=np.int64)))
        counts = [self.before[:-1] - self.before[first] for first in self.firsts]
        if way.used is not None and float(counts[-1].max() + 1) * quotas[0].period > _LARGEST:  # the largest product
            raise WindowTooLong
        self.most = (way.used or _count)(quotas[0], counts, arrivals.times)
        limits = [quota.limit for quota in quotas]
        self.doubtful: Ints = np.searchsorted(limits, np.maximum.reduceat(self.most, arrivals.starts), side="right")


def _windows(arrivals: Sequences, quotas: Sequence[Quota], way: Counting) -> Denials:
    """Decide by running totals, or without steps if each arrival counts in all of its segment."""
    windows = _Windows(arrivals, quotas, way)
    used, firsts = way.used or _count, windows.firsts
    if way.used is None and np.array_equal(firsts[0], arrivals.begins):
        limits = [quota.limit for quota in quotas]
        denied = len(windows.most) - np.searchsorted(np.sort(windows.most), limits)
        yield np.arange(len(arrivals.starts)), denied, windows.doubtful[:, np.newaxis] > np.arange(len(limits))
        return

    def decide(steps: _Steps, quotas: Sequence[Quota]) -> Counts:
        since = [steps.before(first) for first in firsts]
        rows = np.arange(1, len(steps.rows) + 1)
        # The earliest row of totals that each row or a later one needs.
        needed = np.minimum.reduce([rows, *(np.where(each, each, _MOST) for each in since)])
        needed = np.minimum.accumulate(needed[::-1])[::-1]
        room = int((rows - needed).max()) + steps.bounds[0][0]
        width = max(_CELLS // room, 1)
        parts = [quotas[first : first + width] for first in range(0, len(quotas), width)]
        return np.concatenate([admitted(steps, part, since, needed, room) for part in parts], axis=1)

    def admitted(steps: _Steps, quotas: Sequence[Quota], since: Sequence[Ints], needed: Ints, room: int) -> Counts:
        limits = np.array([min(quota.limit, _MOST) for quota in quotas], np.int32)
        now, taken = arrivals.times[steps.rows, np.newaxis], arrivals.charged[steps.rows, np.newaxis]
        room = max(room, min(len(needed), _CELLS // len(quotas)))
        totals = np.zeros((room + 1, len(quotas)), np.int32)  # row 0 is before any arrival
        found = np.zeros((steps.bounds[0][0], len(quotas)), np.int32)
        held, dropped = np.zeros(found.shape, np.int32), 0
        for active, first, end in steps.bounds:
            held = held[:active]
            if end - dropped > room:  # drop the rows that no later one needs
                held, more = held.copy(), int(needed[first]) - 1 - dropped
                totals[1 : first - dropped - more + 1] = totals[more + 1 : first - dropped + 1]
                since = [np.maximum(each - more, 0) for each in since]
                dropped += more
            counts = [held - totals[each[first:end]] for each in since]
            admits = used(quotas[0], counts, now[first:end]) < limits
            found[:active] += admits
            held = np.add(held, admits & taken[first:end], out=totals[first + 1 - dropped : end + 1 - dropped])
        return found

    kept = np.maximum.reduceat(np.arange(len(arrivals.times)) - firsts[-1], arrivals.starts)
    yield from _in_steps(arrivals, windows.doubtful, kept, quotas, decide)


def _count(_quota: Quota, counts: Sequence[Counts], _now: Ints) -> Counts:
    """Return the only count. See `Counting.used`."""
    return counts[0]


def _terms(quotas: Sequence[Quota], way: Refilling) -> tuple[Ints, Ints]:
    """Return the interval and the room of each bucket. A bucket with the limit 0 admits nothing."""
    intervals = [-(-quota.period // quota.limit) if quota.limit else 1 for quota in quotas]
    rooms = [way.room(*each) if each[0].limit else -1 for each in zip(quotas, intervals, strict=True)]
    if max(rooms) + max(intervals) > _LARGEST:
        raise WindowTooLong
    return np.array(intervals, np.int64), np.array(rooms, np.int64)


def _buckets(arrivals: Sequences, quotas: Sequence[Quota], way: Refilling) -> Denials:
    """Decide by the time at which each bucket is full. All are full before a segment."""

    def decide(steps: _Steps, quotas: Sequence[Quota]) -> Counts:
        intervals, rooms = _terms(quotas, way)
        now, taken = arrivals.times[steps.rows, np.newaxis], arrivals.charged[steps.rows, np.newaxis]
        full = np.zeros((steps.bounds[0][0], len(quotas)), np.int64)
        admitted = np.zeros(full.shape, np.int32)
        for active, first, end in steps.bounds:
            due, at = full[:active], now[first:end]
            np.maximum(due, at, out=due)
            admits = due - at <= rooms
            admitted[:active] += admits
            due += (admits & taken[first:end]) * intervals
        return admitted

    intervals, rooms = _terms(quotas, way)
    at_once = np.minimum.accumulate((rooms // intervals + 1)[::-1])[::-1]  # what the bucket or a larger one admits
    doubtful = np.searchsorted(at_once, arrivals.sizes)
    yield from _in_steps(arrivals, doubtful, np.ones(len(doubtful), np.int64), quotas, decide)
