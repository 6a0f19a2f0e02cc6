"""Bucketed window: the counts of small slices of the period, summed over all that the window touches.

State: the newest slice's number, then one count for each of buckets + 1 slices, a ring indexed by slice number.
A slice is ⌈period ÷ buckets⌉ microseconds from the epoch on. A slice that the window touches counts whole, so
that it never admits too many.
"""

from functools import cache
from struct import Struct

from ratelimit_mw.algorithms.algorithm import Algorithm, Stricter, admitted_anywhere
from ratelimit_mw.model import NEVER, Outcome, Quota


def decide(state: bytes, quota: Quota, cost: int, now: int) -> tuple[Outcome, bytes | None]:
    """What `quota` says to `cost` at `now`, and the state to store (None: leave it as it is)."""
    period, limit = quota.period, quota.limit
    size = quota.buckets + 1
    width = -(-period // quota.buckets)
    current = now // width
    oldest = (now - period + 1) // width  # the first slice that ends inside (now - period, now]
    ring = _ring(size)
    newest, *counts = ring.unpack(state) if len(state) == ring.size else (0, *(0,) * size)
    clamped = current < newest and newest * width <= now + period  # the clock stepped back
    if clamped:
        for number in range(current + 1, newest + 1):
            counts[current % size] += counts[number % size]
            counts[number % size] = 0
    elif current - size < newest <= current:
        for number in range(newest + 1, current + 1):
            counts[number % size] = 0
    else:
        counts = [0] * size
    for number in range(current - size + 1, oldest):
        counts[number % size] = 0
    used = sum(counts)
    left = limit - used
    allowed = cost <= left if cost else limit > 0
    if allowed:
        counts[current % size] += cost
        left -= cost
    state_after = ring.pack(current, *counts) if clamped or (allowed and cost) else None
    reset_after = next((_leaves(n, width, period) - now for n in range(current, oldest - 1, -1) if counts[n % size]), 0)
    retry_after = 0
    if not allowed:
        retry_after = NEVER
        if 0 < cost <= limit:
            for number in range(oldest, current + 1):
                used -= counts[number % size]
                if used + cost <= limit:
                    retry_after = _leaves(number, width, period) - now
                    break
    return Outcome(allowed, max(left, 0), reset_after, retry_after), state_after


def refund(state: bytes, quota: Quota, cost: int, charged_at: int, _now: int) -> bytes | None:
    """The state without `cost` of what was charged at `charged_at`, or None where nothing is left of it."""
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


def _leaves(number: int, width: int, period: int) -> int:
    """When a slice is no longer touched by the window."""
    return (number + 1) * width - 1 + period


def _never_denies(quota: Quota, stricter: Stricter) -> bool:
    # The slice that the window only touches counts whole.
    return stricter.within(quota.period + -(-quota.period // quota.buckets)) <= quota.limit


ALGORITHM = Algorithm(
    code="bw",
    decide=decide,
    refund=refund,
    has_buckets=True,
    no_lease="",
    no_write_back="it never exceeds its limit, but write_back may",
    admits=admitted_anywhere,
    never_denies=_never_denies,
)
