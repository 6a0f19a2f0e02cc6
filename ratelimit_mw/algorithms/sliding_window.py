"""Sliding window: the count of this window, and a share of the one before.

State: the window's number, the previous count, the current count. Admits while
previous × (1 − elapsed share) + current + cost ≤ limit. The weighted share is rounded up to a whole request,
which changes no decision, since everything else is whole.
"""

from struct import Struct

from ratelimit_mw.algorithms.algorithm import Algorithm, Stricter, admitted_in_windows
from ratelimit_mw.model import NEVER, Outcome, Quota

_STATE = Struct("<QII")


def decide(state: bytes, quota: Quota, cost: int, now: int) -> tuple[Outcome, bytes | None]:
    """What `quota` says to `cost` at `now`, and the state to store (None: leave it as it is)."""
    period, limit = quota.period, quota.limit
    window = now // period
    rest = (window + 1) * period - now
    previous, current, clamped = 0, 0, False
    if len(state) == _STATE.size:
        stored, before, held = _STATE.unpack(state)
        clamped = stored == window + 1  # the clock stepped back
        if stored == window or clamped:
            previous, current = before, held
        elif stored == window - 1:
            previous = held
    left = limit - current - -(-previous * rest // period)
    allowed = cost <= left if cost else limit > 0
    if allowed:
        current += cost
        left -= cost
    state_after = _STATE.pack(window, previous, current) if clamped or (allowed and cost) else None
    retry_after = 0 if allowed else _wait(previous, current, limit - cost, period, rest) if cost else NEVER
    reset_after = rest + period if current else rest if previous else 0
    return tuple.__new__(Outcome, (allowed, max(left, 0), reset_after, retry_after, 0)), state_after


def _wait(previous: int, current: int, room: int, period: int, rest: int) -> int:
    """Until previous and current together weigh at most `room`."""
    if room < 0:
        return NEVER
    if current <= room:
        # Within this window: the previous count has to weigh room - current, which is less than it weighs now.
        return rest - (room - current) * period // previous
    # Within the next one, where the current count is the previous.
    return rest + period - room * period // current


def refund(state: bytes, quota: Quota, cost: int, charged_at: int, _now: int) -> bytes | None:
    """The state without `cost` of what was charged at `charged_at`, or None where nothing is left of it."""
    if len(state) != _STATE.size:
        return None
    window, previous, current = _STATE.unpack(state)
    charged = charged_at // quota.period
    if charged == window:
        return _STATE.pack(window, previous, max(current - cost, 0))
    if charged == window - 1:
        return _STATE.pack(window, max(previous - cost, 0), current)
    return None


def _never_denies(quota: Quota, stricter: Stricter) -> bool:
    # A share of the last window counts, and this one so far.
    whole = stricter.in_window(quota.period)
    before = stricter.quota.limit if stricter.fills(quota.period) else whole
    return whole + before <= quota.limit


ALGORITHM = Algorithm(
    code="sw",
    decide=decide,
    refund=refund,
    no_lease="",
    no_write_back="",
    admits=admitted_in_windows,
    aligned=True,
    never_denies=_never_denies,
)
