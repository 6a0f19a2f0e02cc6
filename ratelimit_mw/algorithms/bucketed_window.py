"""Bucketed window: one count for each small slice of the period. All slices that overlap the window are summed.

State: the number of the newest slice, then one count for each of buckets + 1 slices. The counts are a ring, indexed by
slice number modulo its size. A slice is ⌈period ÷ buckets⌉ microseconds long. Slices are aligned to the epoch. A slice
that overlaps the window in part counts in full, so the algorithm never admits more than the limit.
"""

from functools import cache
from struct import Struct

from ratelimit_mw.algorithms.algorithm import Algorithm, Counting, Numbers
from ratelimit_mw.model import NEVER, Outcome, Quota


def decide(state: bytes, quota: Quota, cost: int, now: int) -> tuple[Outcome, bytes | None]:
    """Admit if the sum of all slices that overlap (now − period, now], plus cost, is ≤ limit.

    All times are in microseconds. `retry_after` is the time until enough slices have left the window. The
    method is a sliding window log that stores counts of slices instead of single requests. See `Decide` for the
    arguments and the result.
    """
    period, limit = quota.period, quota.limit
    size = quota.buckets + 1
    width = -(-period // quota.buckets)
    current = now // width
    oldest = (now - period + 1) // width  # the first slice that ends inside (now - period, now]
    ring = _ring(size)
    newest, *counts = ring.unpack(state) if len(state) == ring.size else (0, *(0,) * size)
    clamped = current < newest and newest * width <= now + period  # the clock stepped back
    if clamped:  # add what the later slices hold to the current slice
        for number in range(current + 1, newest + 1):
            counts[current % size] += counts[number % size]
            counts[number % size] = 0
    elif current - size < newest <= current:  # clear the slices that begin after the newest one
        for number in range(newest + 1, current + 1):
            counts[number % size] = 0
    else:  # the state is too old, or more than a period ahead
        counts = [0] * size
    for number in range(current - size + 1, oldest):
        counts[number % size] = 0
    used = sum(counts)
    left = limit - used
    allowed = cost <= left if limit else False
    if allowed:
        counts[current % size] += cost
        left -= cost
    state_after = ring.pack(current, *counts) if clamped or (allowed and cost) else None
    filled = (number for number in range(current, oldest - 1, -1) if counts[number % size])
    reset_after = next((_leaves_at(number, width, period) - now for number in filled), 0)
    retry_after = 0
    if not allowed:
        retry_after = NEVER
        if limit and cost <= limit:  # find the slice after whose leaving the cost fits
            for number in range(oldest, current + 1):
                used -= counts[number % size]
                if used + cost <= limit:
                    retry_after = _leaves_at(number, width, period) - now
                    break
    return Outcome(allowed, max(left, 0), reset_after, retry_after), state_after


def refund(state: bytes, quota: Quota, cost: int, charged_at: int, _now: int) -> bytes | None:
    """Lower the count of the slice that was charged, if the ring still has it. See `Refund`."""
    size = quota.buckets + 1
    ring = _ring(size)
    if len(state) != ring.size:
        return None
    newest, *counts = ring.unpack(state)
    number = charged_at // -(-quota.period // quota.buckets)
    if not newest - size < number <= newest:
        return None
    counts[number % size] = max(counts[number % size] - cost, 0)
    return ring.pack(newest, *counts)


@cache
def _ring(size: int) -> Struct:
    return Struct(f"<Q{size}I")


def _leaves_at(number: int, width: int, period: int) -> int:
    """Return the time, in microseconds since the epoch, from which a slice no longer overlaps the window."""
    return (number + 1) * width - 1 + period


def _since(quota: Quota, now: Numbers) -> tuple[Numbers]:
    """Return when the oldest slice begins that overlaps the window."""
    width = -(-quota.period // quota.buckets)
    return ((now - quota.period + 1) // width * width,)


ALGORITHM = Algorithm(
    code="bw",
    decide=decide,
    refund=refund,
    has_buckets=True,
    no_lease="",
    no_write_back="it never exceeds its limit, but write_back may",
    at_all_limits=Counting(_since),
)
