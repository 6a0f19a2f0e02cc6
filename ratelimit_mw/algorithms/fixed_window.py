"""Fixed window: one count for each window. Windows are aligned to the epoch and one period long.

State: the number of the window and its count. Up to twice the limit may be admitted around the boundary of two
windows.
"""

from struct import Struct

from ratelimit_mw.algorithms.algorithm import (
    SKIPPED,
    STAMP,
    USED_UP,
    Admit,
    Algorithm,
    Counting,
    first_share,
    window_of,
)
from ratelimit_mw.model import NEVER, Outcome, Quota, Row

_STATE = Struct("<QI")
_SIZE = _STATE.size
_VALUE, _STATE_OF_VALUE = Struct(STAMP + "QI"), Struct(SKIPPED + "QI")


def decide(state: bytes, quota: Quota, cost: int, now: int) -> tuple[Outcome, bytes | None]:
    """Admit if count + cost ≤ limit. The count is that of the window number ⌊now ÷ period⌋.

    `now` and `period` are in microseconds. `retry_after` and `reset_after` are the time until the window ends. The
    method is known as the fixed window counter. See `Decide` for the arguments and the result.
    """
    period, limit = quota.period, quota.limit
    window = now // period
    count, clamped = 0, False
    if len(state) == _SIZE:
        stored_window, stored_count = _STATE.unpack(state)
        clamped = stored_window == window + 1  # the clock stepped back
        if stored_window == window or clamped:
            count = stored_count
    left = limit - count
    reset_after = period - now % period
    allowed = cost <= left if limit else False
    if allowed:
        count += cost
        left -= cost
    elif left < 0:
        left = 0
    state_after = _STATE.pack(window, count) if clamped or (allowed and cost) else None
    retry_after = 0 if allowed else reset_after if limit and cost <= limit else NEVER
    return tuple.__new__(Outcome, (allowed, left, reset_after, retry_after, 0)), state_after


def admitting(quota: Quota, cost: int) -> Admit:
    """Compile `decide` for requests that are admitted at once. See `Admitting`."""
    period, limit = quota.period, quota.limit
    pack, unpack, size = _VALUE.pack, _STATE_OF_VALUE.unpack, _VALUE.size
    share_of_first = first_share(limit, cost)
    known = 0, 0, 0, b"", b""

    def admit(value: bytes, now: int) -> tuple[Row, bytes] | None:
        nonlocal known
        begin, end, window, expiry, first = known
        if not begin <= now < end:
            begin, end, window, expiry = window_of(now, period, 1)
            first = pack(expiry, share_of_first, window, cost)  # one object for all clients that are new
            known = begin, end, window, expiry, first
        if not value:
            return (True, limit - cost, end - now, 0, 0), first
        count = cost
        if len(value) == size:
            stored_window, stored_count = unpack(value)
            if stored_window == window:
                count += stored_count
            elif stored_window > window:  # the clock stepped back
                return None
        left = limit - count
        if left < 0:
            return None
        share = USED_UP if left < cost else USED_UP * count // limit
        return (True, left, end - now, 0, 0), pack(expiry, share, window, count)

    return admit


def refund(state: bytes, quota: Quota, cost: int, charged_at: int, _now: int) -> bytes | None:
    """Lower the count if its window is still the one that was charged. See `Refund`."""
    if len(state) != _SIZE:
        return None
    window, count = _STATE.unpack(state)
    if window != charged_at // quota.period:
        return None
    return _STATE.pack(window, max(count - cost, 0))


ALGORITHM = Algorithm(
    code="fw",
    decide=decide,
    refund=refund,
    admitting=admitting,
    no_lease="",
    no_write_back="",
    windows=1,
    refunds_later=True,
    at_all_limits=Counting(lambda quota, now: (now // quota.period * quota.period,)),
)
