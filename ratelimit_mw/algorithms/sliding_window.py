"""Sliding window: the count of the current window plus a weighted part of the count of the previous window.

State: the number of the current window, the previous count, and the current count. Windows are aligned to the epoch
and one period long.
"""

from collections.abc import Sequence
from struct import Struct, error

from ratelimit_mw.algorithms.algorithm import (
    SKIPPED,
    STAMP,
    USED_UP,
    Admit,
    Algorithm,
    Counting,
    Numbers,
    first_share,
    window_of,
)
from ratelimit_mw.model import NEVER, Outcome, Quota, Row

_STATE = Struct("<QII")
_SIZE = _STATE.size
_VALUE, _STATE_OF_VALUE = Struct(STAMP + "QII"), Struct(SKIPPED + "QII")


def decide(state: bytes, quota: Quota, cost: int, now: int) -> tuple[Outcome, bytes | None]:
    """Admit if previous × rest ÷ period + current + cost ≤ limit.

    `rest` is the time until the current window ends, so rest ÷ period = 1 − the elapsed share of the window. All times
    are in microseconds. The weighted part is rounded up to a whole request. This changes no decision, because all
    other terms are whole numbers. The method is known as the sliding window counter. Source:
    Cloudflare, "How we built rate limiting capable of scaling to millions of domains" (2017). See `Decide` for the
    arguments and the result.
    """
    period, limit = quota.period, quota.limit
    window = now // period
    rest = period - now % period
    previous, current, clamped = 0, 0, False
    if len(state) == _SIZE:
        stored_window, stored_previous, stored_current = _STATE.unpack(state)
        clamped = stored_window == window + 1  # the clock stepped back
        if stored_window == window or clamped:
            previous, current = stored_previous, stored_current
        elif stored_window == window - 1:
            previous = stored_current
    left = limit - current
    if previous:
        left -= -(-previous * rest // period)
    allowed = cost <= left if limit else False
    if allowed:
        current += cost
        left -= cost
    elif left < 0:
        left = 0
    state_after = _STATE.pack(window, previous, current) if clamped or (allowed and cost) else None
    retry_after = 0 if allowed else _wait(previous, current, limit - cost, period, rest) if limit else NEVER
    reset_after = rest + period if current else rest if previous else 0
    return tuple.__new__(Outcome, (allowed, left, reset_after, retry_after, 0)), state_after


def admitting(quota: Quota, cost: int) -> Admit:
    """Compile `decide` for requests that are admitted at once. See `Admitting`."""
    period, limit = quota.period, quota.limit
    pack, unpack = _VALUE.pack, _STATE_OF_VALUE.unpack
    share_of_first = first_share(limit, cost)
    known = 0, 0, 0, b"", b""

    def admit(value: bytes, now: int) -> tuple[Row, bytes] | None:
        nonlocal known
        begin, end, window, expiry, first = known
        if not begin <= now < end:
            begin, end, window, expiry = window_of(now, period, 2)
            first = pack(expiry, share_of_first, window, 0, cost)  # one object for all clients that are new
            known = begin, end, window, expiry, first
        if not value:
            return (True, limit - cost, end - now + period, 0, 0), first
        try:
            written, previous, current = unpack(value)
        except error:  # another size
            return None
        if written != window:
            if written > window:  # the clock stepped back
                return None
            previous, current = current if written == window - 1 else 0, 0
        current += cost
        left, rest = limit - current, end - now
        if previous:
            left -= -(-previous * rest // period)
        if left < 0:
            return None
        share = USED_UP if left < cost else USED_UP * (limit - left) // limit
        return (True, left, rest + period, 0, 0), pack(expiry, share, window, previous, current)

    return admit


def _wait(previous: int, current: int, room: int, period: int, rest: int) -> int:
    """Return the time in microseconds until the weighted sum of both counts is at most `room`."""
    if room < 0:
        return NEVER
    if current <= room:
        # The wait ends in this window, when the weighted previous count has fallen to room - current. A denial means
        # that it is greater now, so `previous` is not 0.
        return rest - (room - current) * period // previous
    # The wait ends in the next window, in which the current count is the previous one.
    return rest + period - room * period // current


def refund(state: bytes, quota: Quota, cost: int, charged_at: int, _now: int) -> bytes | None:
    """Lower the count of the window that was charged, if the state still has it. See `Refund`."""
    if len(state) != _SIZE:
        return None
    window, previous, current = _STATE.unpack(state)
    charged = charged_at // quota.period
    if charged == window:
        return _STATE.pack(window, previous, max(current - cost, 0))
    if charged == window - 1:
        return _STATE.pack(window, max(previous - cost, 0), current)
    return None


def since(quota: Quota, now: Numbers) -> tuple[Numbers, Numbers]:
    """Return when the current window begins, and the one before it. See `Counting.since`."""
    begin = now // quota.period * quota.period
    return begin, begin - quota.period


def used(quota: Quota, counts: Sequence[Numbers], now: Numbers) -> Numbers:
    """Return the weighted sum of both windows, rounded up. See `Counting.used`."""
    current, both = counts
    rest = quota.period - now % quota.period
    return current - (current - both) * rest // quota.period


ALGORITHM = Algorithm(
    code="sw",
    decide=decide,
    refund=refund,
    admitting=admitting,
    no_lease="",
    no_write_back="",
    refunds_later=True,
    at_all_limits=Counting(since, used),
)
