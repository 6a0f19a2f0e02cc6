"""What an algorithm is: its two functions, and the facts that everything else needs to know about it.

Each algorithm describes itself: its module ends with `ALGORITHM = Algorithm(…)`. The defaults are the facts of a
window that counts on the store alone, so a description states only what is different.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ratelimit_mw.model import Outcome, Quota

Decide = Callable[[bytes, Quota, int, int], tuple[Outcome, bytes | None]]
"""(state, quota, cost, now) → the outcome, and the state to store, or None to leave the state as it is.

The state of an unused counter is `b""`. A state that cannot be read counts as unused. The store may drop a state
`Outcome.reset_after` after it was written.
"""

Refund = Callable[[bytes, Quota, int, int, int], bytes | None]
"""(state, quota, cost, charged_at, now) → the state without `cost` of what was charged at `charged_at`, or None.

A refund is best effort: a charge that cannot be found any more stays. A counter never falls below zero, and the new
state may be dropped no later than the old one.
"""

Widen = Callable[[Quota], Quota]
"""The quota for a charge that must not be denied: what it charges beyond its own quota is a debt."""

Admits = Callable[[Quota, int], int]
"""(quota, span) → the most that the quota admits within `span` microseconds, wherever they begin."""

GREATEST = 4_000_000_000
"""The most that a debt may bring a count to: counts are stored in four bytes."""

_NOT_STATED = "its description does not say that a charge counts alike anywhere in its window"


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest limit of an algorithm, `why` it is not larger, and the hint for users who need a larger one."""

    limit: int
    why: str
    hint: str


@dataclass(frozen=True, slots=True)
class Stricter:
    """Another limit, to which all requests of this one are charged as well. The linter asks about it.

    `admits` is that of its algorithm. The windows of an `aligned` one begin at multiples of its period.
    """

    quota: Quota
    admits: Admits
    aligned: bool

    def within(self, span: int) -> int:
        """The most that it admits within `span` microseconds, wherever they begin."""
        return self.admits(self.quota, span) if self.quota.limit else 0

    def fills(self, period: int) -> bool:
        """True where whole windows of it fill an aligned window of `period`."""
        return self.aligned and period % self.quota.period == 0

    def in_window(self, period: int) -> int:
        """The most that it admits within one aligned window of `period`."""
        if self.fills(period):
            return period // self.quota.period * self.quota.limit
        return self.within(period)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way of counting.

    Args:
        code: Names the algorithm in the keys of its counters; it must be unique, and must not change.
        decide: Decides about a request, see `Decide`.
        refund: Gives back what was charged, see `Refund`.
        requires: Other algorithms whose Lua functions the Lua of this one calls.
        in_rules: Rules may name it. False for a part of the script that is no algorithm.
        also_called: Names that other tools use for it, for the hint "did you mean".
        has_burst: It is a bucket: it has a `burst`, and `limit` per `period` is the rate at which it refills.
        has_buckets: It divides its window into slices, and has `buckets`.
        can_wait: With `max_wait`, a request may wait for its turn.
        queue: Every request waits for its turn, also without `max_wait`. What it holds is a queue.
        in_flight: It counts the requests in flight. A request is given back when it ends.
        largest: The largest limit, where that is smaller than the largest of all.
        no_lease: Why its counters cannot be leased (`consistency: lease`); empty where they can.
        no_write_back: Why its counters cannot be written back; empty where they can.
        no_shards: Why its counters cannot be spread over several keys; empty where they can.
        windows: For how many windows a leased charge counts at most.
        widen: See `Widen`; None: as buckets and counts usually are.
        admits: See `Admits`; None: the linter assumes nothing.
        aligned: Its windows begin at multiples of the period.
        never_denies: (quota, stricter limit) → True where `quota` never denies what the stricter limit admits, for
            the linter; None: the linter says nothing.
    """

    code: str
    decide: Decide
    refund: Refund
    requires: tuple[str, ...] = ()
    in_rules: bool = True
    also_called: tuple[str, ...] = ()
    has_burst: bool = False
    has_buckets: bool = False
    can_wait: bool = False
    queue: bool = False
    in_flight: bool = False
    largest: Largest | None = None
    no_lease: str = _NOT_STATED
    no_write_back: str = _NOT_STATED
    no_shards: str = ""
    windows: int = 2
    widen: Widen | None = None
    admits: Admits | None = None
    aligned: bool = False
    never_denies: Callable[[Quota, Stricter], bool] | None = None

    def widened(self, quota: Quota) -> Quota:
        """The quota for a charge that must not be denied, see `Widen`."""
        if self.widen is not None:
            return self.widen(quota)
        return _widened_bucket(quota) if self.has_burst else replace(quota, limit=GREATEST)


def admitted_anywhere(quota: Quota, span: int) -> int:
    """The `Admits` of an algorithm that admits no more than the limit in any period, wherever it begins."""
    return -(-span // quota.period) * quota.limit


def admitted_in_windows(quota: Quota, span: int) -> int:
    """The `Admits` of aligned windows: two of them may be full where they meet."""
    return (-(-span // quota.period) + 1) * quota.limit


def twice_the_limit(quota: Quota) -> Quota:
    """The `Widen` of an algorithm that stores each request: two full windows are enough to decide."""
    return replace(quota, limit=2 * quota.limit)


def _widened_bucket(quota: Quota) -> Quota:
    """A bucket whose debt is as much as comes back within two windows, so that it is paid back by then."""
    if not quota.limit:
        return quota
    interval = -(-quota.period // quota.limit)
    most = max(2 * max(quota.burst, quota.period // interval), quota.burst)
    return replace(quota, burst=most, max_wait=most * interval)
