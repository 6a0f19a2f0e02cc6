"""The interface of an algorithm: its two functions, and the facts that other modules need to know about it.

Each algorithm describes itself: its module ends with `ALGORITHM = Algorithm(…)`. The defaults suit a
window whose counter is only in the store, so a description states only the differences.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ratelimit_mw.model import Outcome, Quota, Row

Decide = Callable[[bytes, Quota, int, int], tuple[Outcome, bytes | None]]
"""Decides about one request: (state, quota, cost, now) → (outcome, state to store).

`now` is in microseconds since the epoch. All times in an `Outcome` are in microseconds. The returned state is None if
the state does not change. The state of an unused counter is `b""`. A state that cannot be read counts as unused. The
store may drop a state when `Outcome.reset_after` has passed since it was written.

A cost of 0 charges nothing. It is denied by a limit of 0 and by a counter in debt, whose charges exceed its limit. A
counter that is exactly full is not in debt.
"""

USED_UP = 255
"""The used share of a counter whose next request is denied."""

STAMP = "<8sB"
"""How the value that a store in Python keeps of a counter begins, as a format of `struct`: with a stamp.

The stamp is the time at which the counter is as if unused, as big-endian bytes, and the used share of its limit, from 0
to `USED_UP`. The state follows.
"""

SKIPPED = "<9x"
"""The format of a stamp that is not read."""

Admit = Callable[[bytes, int], tuple[Row, bytes] | None]
"""Does what `Decide` does, for one quota and one cost: (value, now) → (fields of the outcome, value to store).

It admits a request at once, or returns None. `Decide` is then asked.
"""

Window = tuple[int, int, int, bytes]
"""The window of a time: its begin, its end, its number, and when its counters are as if unused, as in a stamp."""


def window_of(now: int, period: int, windows: int) -> Window:
    """Return the window of `now`. A counter is as if unused when this many windows have ended."""
    number = now // period
    begin = number * period
    return begin, begin + period, number, (begin + windows * period).to_bytes(8)


def first_share(limit: int, cost: int) -> int:
    """Return the used share of a counter after its first request."""
    return USED_UP if limit < 2 * cost else USED_UP * cost // limit


Admitting = Callable[[Quota, int], Admit]
"""Makes the `Admit` of a quota and of a cost that fits into it and is above 0. Most requests are decided by it."""

Refund = Callable[[bytes, Quota, int, int, int], bytes | None]
"""Gives a charge back: (state, quota, cost, charged_at, now) → state to store.

Takes `cost` off the charges made at `charged_at` (microseconds since the epoch). The result is None if the state does
not change. A refund is best effort: a charge that is no longer in the state is not given back. A counter never falls
below zero. The new state has the expiry of the old one.
"""

CountDenial = Callable[[bytes, Quota, int], tuple[Outcome, bytes]]
"""Counts a denial of another counter, for a penalty: (state, quota, now) → (outcome, state to store).

The state does not deny at `now`. If it denies from now on, the outcome is allowed, with the time in `retry_after`.
"""

Widen = Callable[[Quota], Quota]
"""Returns the quota for a charge that must not be denied. What it charges beyond the given quota is a debt."""

Numbers = Any
"""A whole number, or an array of numpy of whole numbers. Arithmetic on both is written alike."""

_MAX_COUNT = 4_000_000_000
"""The largest count that a debt may lead to. Counts are stored in four bytes."""

_NOT_STATED = "its description does not say that a charge counts the same at any time in its window"


@dataclass(frozen=True, slots=True)
class LimitCap:
    """The largest limit of an algorithm, the reason (`why`), and a hint for users who need a larger limit."""

    limit: int
    why: str
    hint: str


@dataclass(frozen=True, slots=True)
class Counting:
    """How an algorithm that counts requests decides at many limits at once, for requests of cost 1.

    Its functions are pure arithmetic, so they take and return whole numbers and arrays of numpy alike.

    Args:
        since: (quota, now) → the times from which on requests count, the earliest last, in microseconds. They do not
            depend on the limit.
        used: (quota, counts, now) → what is used of the limit, where `counts` has the number of the requests that were
            admitted since each time. A request is admitted if this is below the limit. None: the count since the only
            time.
    """

    since: Callable[[Quota, Numbers], Sequence[Numbers]]
    used: Callable[[Quota, Sequence[Numbers], Numbers], Numbers] | None = None


@dataclass(frozen=True, slots=True)
class Refilling:
    """How a bucket decides at many limits at once, for requests of cost 1.

    Its state is the time at which it is full. Each admission moves this time by ⌈period ÷ limit⌉ (GCRA, ITU-T I.371).

    Args:
        room: (quota, interval) → the most that may be missing from the bucket if a request is to be admitted, in
            microseconds. The interval is ⌈period ÷ limit⌉.
    """

    room: Callable[[Quota, int], int]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """The description of one algorithm.

    Args:
        code: The name of the algorithm in the keys of its counters. It must be unique and must never change.
        decide: Decides about a request. See `Decide`.
        refund: Gives a charge back. See `Refund`.
        admitting: See `Admitting`. None: every request is decided by `decide`.
        requires: Other algorithms whose Lua functions the Lua of this one calls.
        count_denial: See `CountDenial`. It is the algorithm of penalties, which rules cannot name.
        numbers: Another way to make the numbers that its functions in Lua get. See `in_lua`.
        also_called: Names that other tools use for it, for the hint "did you mean".
        has_burst: It is a bucket. It has a `burst`, and `limit` per `period` is the rate at which it refills.
        has_buckets: It divides its window into slices. The rule may set their number with `buckets`.
        can_wait: With `longest_wait`, a request may wait for its turn.
        queue: Every request waits for its turn, even without `longest_wait`.
        in_flight: It counts the requests in flight. A charge is given back when its request ends.
        largest: The largest limit, if it is smaller than the general cap.
        no_lease: Why its counters cannot be leased (`consistency: lease`). Empty if they can.
        no_write_back: Why its counters cannot be written back. Empty if they can.
        no_shards: Why its counters cannot be spread over several keys. Empty if they can.
        windows: The largest number of windows in which a leased charge counts.
        refunds_later: A charge of the current window can be given back without the time at which it was made.
        widen: See `Widen`. None: the usual way for a bucket or a count.
        at_all_limits: How it decides at many limits at once, for the what-if of a replay. None: the what-if of its
            limits needs replays.
    """

    code: str
    decide: Decide
    refund: Refund
    admitting: Admitting | None = None
    requires: tuple[str, ...] = ()
    count_denial: CountDenial | None = None
    numbers: Callable[[Quota], tuple[int, int, int, int]] | None = None
    also_called: tuple[str, ...] = ()
    has_burst: bool = False
    has_buckets: bool = False
    can_wait: bool = False
    queue: bool = False
    in_flight: bool = False
    largest: LimitCap | None = None
    no_lease: str = _NOT_STATED
    no_write_back: str = _NOT_STATED
    no_shards: str = ""
    windows: int = 2
    refunds_later: bool = False
    widen: Widen | None = None
    at_all_limits: Counting | Refilling | None = None

    def widened(self, quota: Quota) -> Quota:
        """Return the quota for a charge that must not be denied. See `Widen`."""
        if self.widen is not None:
            return self.widen(quota)
        return _widened_bucket(quota) if self.has_burst else replace(quota, limit=max(quota.limit, _MAX_COUNT))

    def in_lua(self, quota: Quota) -> tuple[int, int, int, int]:
        """Return the numbers that the functions in Lua get as `limit`, `period`, `extra` and `longest_wait`."""
        if self.numbers is not None:
            return self.numbers(quota)
        return quota.limit, quota.period, quota.burst if self.has_burst else quota.buckets, quota.longest_wait

    def in_turn(self, quota: Quota, longest: Quota | None = None) -> Quota:
        """Return a quota whose requests may wait for the whole queue, if every request waits for its turn.

        Args:
            quota: Any quota. It is returned as it is if the algorithm has no queue.
            longest: The quota of the longest queue, where the burst may grow. None: `quota`.
        """
        full = longest or quota
        drained = full.burst * -(-full.period // full.limit) if full.limit else 0
        return replace(quota, longest_wait=drained) if self.queue else quota


def twice_the_limit(quota: Quota) -> Quota:
    """The `Widen` of an algorithm that stores each request. Two full windows are enough to decide."""
    return replace(quota, limit=2 * quota.limit)


def _widened_bucket(quota: Quota) -> Quota:
    """Return a bucket whose largest debt is what refills within two windows.

    It has room for at least one request in addition to those that wait for their turn.
    """
    if not quota.limit:
        return quota
    interval = -(-quota.period // quota.limit)
    most = max(2 * max(quota.burst, quota.period // interval), quota.burst - -quota.longest_wait // interval + 1)
    return replace(quota, burst=most, longest_wait=most * interval)
