"""What each algorithm denies at many limits at once, by arithmetic over the arrivals. This module needs numpy.

The results equal those of `ratelimit_mw.algorithms`, whose modules define the algorithms.

* `fixed_window`: an arrival is denied at the limit L if at least L charged arrivals of its window precede it. A window
  of n requests therefore denies max(0, n − L).
* `sliding_log`, `bucketed_window`, `sliding_window`: which earlier arrivals may count does not depend on the limit.
  T[arrival, limit] are running totals of what each limit has admitted, so what it has admitted in a window is the
  difference of two totals.
* `token_bucket`, `leaky_bucket`: one time for each counter and limit (GCRA, ITU-T I.371).

Except for the first, the arrivals are decided in steps. One step decides the next arrival of all counters at all
limits. Counters are cut into segments, so that there are fewer steps: before a segment, a counter is as if unused.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ratelimit_mw.foresight.what_if.windows import Bools, Ints, Sequences, TooLong, changes, first_within, spread
from ratelimit_mw.model import Quota

_CELLS = 30_000_000
"""The most running totals that are kept at once, of four bytes each."""

_LARGEST = 2**62

Counts = npt.NDArray[Any]


class Asked(NamedTuple):
    """The arrivals at the counters of one limit. Each costs 1.

    Attributes:
        arrivals: The arrivals. What they call a client is a counter here.
        clients: The number of the client of each counter, from 0 on. Several counters may belong to one client.
        charged: False for an arrival that is decided, but not charged, because another rule denies the request. None
            if all are charged.
    """

    arrivals: Sequences
    clients: Ints
    charged: Bools | None = None


class Decided(NamedTuple):
    """What each limit denies: the number of requests, and the number of clients with at least one of them."""

    denied: tuple[int, ...]
    clients: tuple[int, ...]


def can_decide(quota: Quota) -> bool:
    """Return True if `decide_all` knows the algorithm. The limits of other algorithms must be replayed."""
    return aligned(quota) or quota.algorithm in _ALGORITHMS


def aligned(quota: Quota) -> bool:
    """Return True if the windows of the algorithm begin at multiples of the period, at the same time for all."""
    return quota.algorithm == "fixed_window"


def decide_all(asked: Asked, quotas: Sequence[Quota]) -> Decided:
    """Decide on all arrivals at all limits.

    Args:
        asked: The arrivals.
        quotas: The quotas, which differ only in what follows from their limits.

    Raises:
        TooLong: The numbers are too large for the arithmetic.
    """
    tally = _Tally(int(asked.clients.max(initial=-1)) + 1, len(quotas))
    if not len(asked.arrivals.times):
        pass
    elif aligned(quotas[0]):
        _fixed_window(asked, quotas, tally)
    else:
        prepare, decide = _ALGORITHMS[quotas[0].algorithm]
        _in_steps(asked, quotas, prepare(asked, quotas), decide, tally)
    return Decided(tuple(tally.denied.tolist()), tuple(np.count_nonzero(tally.limited, axis=0).tolist()))


class _Tally:
    """Adds up what is denied: the requests at each limit, and whether each client is limited at each limit."""

    def __init__(self, clients: int, limits: int) -> None:
        self.denied = np.zeros(limits, np.int64)
        self.limited = np.zeros((clients, limits), np.bool_)

    def add(self, clients: Ints, first: int, denied: Counts) -> None:
        """Add denials: one row for each of these clients, and one column for each limit from the index `first` on."""
        self.denied[first : first + denied.shape[1]] += denied.sum(axis=0)
        rows, limits = np.nonzero(denied)
        self.limited[clients[rows], first + limits] = True


def _charged_before(asked: Asked) -> Ints:
    """Return how many charged arrivals precede each index. The last index is the end."""
    found = np.arange(len(asked.arrivals.times) + 1)
    if asked.charged is not None:
        np.cumsum(asked.charged, out=found[1:])
    return found


def _fixed_window(asked: Asked, quotas: Sequence[Quota], tally: _Tally) -> None:
    times, counters, starts, _ = asked.arrivals
    before = _charged_before(asked)
    windows = spread(changes(counters, times // quotas[0].period), len(times))
    ranks = before[:-1] - before[windows]
    highest = np.maximum.reduceat(ranks, starts)
    limits = np.array([quota.limit for quota in quotas])
    tally.denied += len(ranks) - np.searchsorted(np.sort(ranks), limits, side="left")
    for place, limit in enumerate(limits.tolist()):
        tally.limited[asked.clients[counters[starts[highest >= limit]]], place] = True


class _Prepared(NamedTuple):
    """Arrivals, prepared for steps.

    Attributes:
        starts: The index of the first arrival of each segment.
        needs: For each segment, a number such that no limit denies anything in it that admits this many at once.
        least: The smallest number that one of the limits admits at once.
        columns: What the decisions need of each arrival. Earlier arrivals are places in the segment.
    """

    starts: Ints
    needs: Ints
    least: int
    columns: Sequence[Ints]


class _Steps:
    """Arrivals in the order of steps: first the first arrival of each segment, then the second of each, and so on.

    Args:
        sizes: The sizes of the segments, descending.
    """

    def __init__(self, sizes: Ints) -> None:
        self.sizes = sizes
        active = len(sizes) - np.cumsum(np.bincount(sizes))[:-1]  # how many segments have an arrival in each step
        self.offsets = np.zeros(len(active) + 1, np.int64)
        np.cumsum(active, out=self.offsets[1:])
        self.rows = int(self.offsets[-1])
        self.last = self.offsets[sizes - 1] + np.arange(len(sizes))
        """The row of the last arrival of each segment."""
        self.bounds = list(zip(active.tolist(), self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True))
        """For each step, how many segments take part, and their first row and the row after their last one."""

    def before(self, places: Ints) -> Ints:
        """Return the rows of running totals before these places in their segments. Row 0 is that before any arrival.

        Args:
            places: One place for each row.
        """
        segments = np.arange(self.rows) - np.repeat(self.offsets[:-1], np.diff(self.offsets))
        return np.where(places, self.offsets[places - 1] + segments + 1, 0)


Decide = Callable[[_Steps, Sequence[Quota], Sequence[Ints], Bools | None], Counts]
"""(steps, quotas, columns in the order of steps, charged) → how many arrivals of each segment each quota admits."""


def _in_steps(asked: Asked, quotas: Sequence[Quota], prepared: _Prepared, decide: Decide, tally: _Tally) -> None:
    """Decide on segments, the longest first, as many at once as there is room for."""
    arrivals = asked.arrivals
    size = len(arrivals.times)
    sizes = np.diff(prepared.starts, append=size)
    chosen = np.flatnonzero(prepared.needs > prepared.least)
    chosen = chosen[np.argsort(-sizes[chosen], kind="stable")]
    clients = asked.clients[arrivals.clients[prepared.starts]]
    ranks = np.full(len(sizes), -1)
    ranks[chosen] = np.arange(len(chosen))
    rank_of = np.repeat(ranks, sizes)
    places = np.arange(size) - spread(prepared.starts, size)
    ends = np.cumsum(sizes[chosen])
    parts = changes(ends // max(_CELLS // len(quotas), 1))
    for first, end in zip(parts.tolist(), [*parts[1:].tolist(), len(chosen)], strict=False):
        steps = _Steps(sizes[chosen[first:end]])
        inside = np.flatnonzero((rank_of >= first) & (rank_of < end))
        rows = np.empty(steps.rows, np.int64)
        rows[steps.offsets[places[inside]] + rank_of[inside] - first] = inside
        columns = [column[rows] for column in prepared.columns]
        charged = None if asked.charged is None else asked.charged[rows, np.newaxis]
        width = max(_CELLS // steps.rows, 1)
        for limit in range(0, len(quotas), width):
            admitted = decide(steps, quotas[limit : limit + width], columns, charged)
            tally.add(clients[chosen[first:end]], limit, steps.sizes[:, np.newaxis] - admitted)


def _limits(quotas: Sequence[Quota]) -> Ints:
    return np.array([quota.limit for quota in quotas], np.int64)


def _segments(first: Ints, demand: Ints, limits: Ints, *columns: Ints) -> _Prepared:
    """Begin a segment where no earlier arrival counts.

    Args:
        first: For each arrival, the index of the first arrival that may count.
        demand: What each arrival needs if all earlier ones were admitted.
        limits: The limits.
        columns: See `_Prepared`. These are indices of arrivals.
    """
    size = len(first)
    starts = np.flatnonzero(first == np.arange(size))
    begin = spread(starts, size)
    needs = np.maximum.reduceat(demand, starts)
    return _Prepared(starts, needs, int(limits.min()), [column - begin for column in columns])


def _prepare_log(asked: Asked, quotas: Sequence[Quota]) -> _Prepared:
    """An arrival counts in (now − period, now]. In a bucketed window, all of the slice that is partly inside counts."""
    times, quota = asked.arrivals.times, quotas[0]
    back = np.full(len(times), quota.period - 1)
    if quota.algorithm == "bucketed_window":
        width = -(-quota.period // quota.buckets)
        back = times - (times - quota.period + 1) // width * width
    first = first_within(asked.arrivals, back)
    before = _charged_before(asked)
    return _segments(first, before[:-1] - before[first] + 1, _limits(quotas), first)


def _decide_log(steps: _Steps, quotas: Sequence[Quota], columns: Sequence[Ints], charged: Bools | None) -> Counts:
    limits = _limits(quotas).astype(np.int32)
    windows = steps.before(columns[0])

    def admits(totals: Counts, before: Counts, begin: int, end: int) -> Bools:
        admitted: Bools = before - totals[windows[begin:end]] < limits
        return admitted

    return _with_totals(steps, len(quotas), charged, admits)


def _prepare_weighted(asked: Asked, quotas: Sequence[Quota]) -> _Prepared:
    times, counters, _, _ = asked.arrivals
    period, size = quotas[0].period, len(times)
    number = times // period
    starts = changes(counters, number)
    earlier = np.roll(starts, 1)
    # The window before counts if it is the client's own, and ends where this window begins.
    follows = (counters[earlier] == counters[starts]) & (number[earlier] == number[starts] - 1)
    current = spread(starts, size)
    previous = np.repeat(np.where(follows, earlier, starts), np.diff(starts, append=size))
    before = _charged_before(asked)
    most = max(int((np.arange(size) - current).max()) + 1, int((current - previous).max()))
    if 3 * most * period > _LARGEST:  # the largest product
        raise TooLong
    full = before[current] - before[previous]
    rest = period - times % period
    demand = before[:-1] - before[current] + 1 - (-full * rest // period)
    prepared = _segments(previous, demand, _limits(quotas), current, previous)
    return prepared._replace(columns=[*prepared.columns, rest])


def _decide_weighted(steps: _Steps, quotas: Sequence[Quota], columns: Sequence[Ints], charged: Bools | None) -> Counts:
    """Admit if previous × rest ÷ period + current + 1 ≤ limit, multiplied by the period."""
    period = quotas[0].period
    # Two windows have at most twice the arrivals of the fullest window. A greater limit decides the same.
    places = np.repeat(np.arange(len(steps.bounds)), np.diff(steps.offsets))
    fullest = max(int((places - columns[0]).max()) + 1, int((columns[0] - columns[1]).max()))
    most = np.minimum(_limits(quotas), 2 * fullest) - 1
    current, previous = steps.before(columns[0]), steps.before(columns[1])
    rest = columns[2][:, np.newaxis]

    def admits(totals: Counts, before: Counts, begin: int, end: int) -> Bools:
        window = totals[current[begin:end]]
        weighted = (window - totals[previous[begin:end]]) * rest[begin:end]
        admitted: Bools = weighted <= (most - (before - window)) * period
        return admitted

    return _with_totals(steps, len(quotas), charged, admits)


def _with_totals(
    steps: _Steps, limits: int, charged: Bools | None, admits: Callable[[Counts, Counts, int, int], Bools]
) -> Counts:
    """Decide by running totals. Row 0 is before any arrival; row n + 1 is after the arrival in row n of the steps.

    Args:
        steps: The steps.
        limits: The number of limits.
        charged: See `Asked`.
        admits: (totals, totals before each arrival, first row, end) → which arrivals are admitted at which limits.
    """
    totals = np.zeros((steps.rows + 1, limits), np.int32)
    allowed = None if charged is None else np.zeros((len(steps.sizes), limits), np.int32)
    before = np.zeros((len(steps.sizes), limits), np.int32)
    for active, begin, end in steps.bounds:
        before = before[:active]
        admitted = admits(totals, before, begin, end)
        if charged is not None and allowed is not None:
            allowed[:active] += admitted
            admitted &= charged[begin:end]
        after = totals[begin + 1 : end + 1]
        np.add(before, admitted, out=after)
        before = after
    return totals[steps.last + 1] if allowed is None else allowed


def _buckets(quotas: Sequence[Quota]) -> tuple[Ints, Ints]:
    """Return the time that one request takes in each bucket, and the most that may be missing to admit it.

    A token bucket may take tokens that refill within `max_wait`. In a leaky bucket, the turn must be at most `max_wait`
    away. No number is missing from a bucket with the limit 0, and it admits nothing.
    """
    intervals = [-(-quota.period // quota.limit) if quota.limit else 0 for quota in quotas]
    rooms = []
    for quota, interval in zip(quotas, intervals, strict=True):
        room = (quota.burst - 1) * interval
        room = min(room, quota.max_wait) if quota.algorithm == "leaky_bucket" else room + quota.max_wait
        rooms.append(room if quota.limit else -1)
    return np.array(intervals, np.int64), np.array(rooms, np.int64)


def _prepare_bucket(asked: Asked, quotas: Sequence[Quota]) -> _Prepared:
    times, _, starts, _ = asked.arrivals
    intervals, rooms = _buckets(quotas)
    fresh = np.diff(times, prepend=times[0]) >= int((rooms + intervals).max())
    fresh[starts] = True
    segments = np.flatnonzero(fresh)
    least = min(room // interval + 1 if interval else 0 for room, interval in zip(rooms, intervals, strict=True))
    return _Prepared(segments, np.diff(segments, append=len(times)), int(least), [times])


def _decide_bucket(steps: _Steps, quotas: Sequence[Quota], columns: Sequence[Ints], charged: Bools | None) -> Counts:
    """Admit if max(full − now, 0) is at most the room. Then the bucket is full one interval later."""
    intervals, rooms = _buckets(quotas)
    now = columns[0][:, np.newaxis]
    full = np.zeros((len(steps.sizes), len(quotas)), np.int64)
    allowed = np.zeros(full.shape, np.int32)
    for active, begin, end in steps.bounds:
        due, at = full[:active], now[begin:end]
        np.maximum(due, at, out=due)
        admitted = due - at <= rooms
        allowed[:active] += admitted
        if charged is not None:
            admitted &= charged[begin:end]
        due += admitted * intervals
    return allowed


_ALGORITHMS: dict[str, tuple[Callable[[Asked, Sequence[Quota]], _Prepared], Decide]] = {
    "sliding_log": (_prepare_log, _decide_log),
    "bucketed_window": (_prepare_log, _decide_log),
    "sliding_window": (_prepare_weighted, _decide_weighted),
    "token_bucket": (_prepare_bucket, _decide_bucket),
    "leaky_bucket": (_prepare_bucket, _decide_bucket),
}
