"""Fixed window: one count for each window of the period, aligned to the epoch.

State: the window's number and its count. Admits while count + cost stays within the limit, and so up to
twice the limit around a boundary.
"""

from struct import Struct

from ratelimit_mw.algorithms.algorithm import Algorithm, Stricter, admitted_in_windows
from ratelimit_mw.model import NEVER, Outcome, Quota

_STATE = Struct("<QI")


def decide(state: bytes, quota: Quota, cost: int, now: int) -> tuple[Outcome, bytes | None]:
    """What `quota` says to `cost` at `now`, and the state to store (None: leave it as it is)."""
    period, limit = quota.period, quota.limit
    window = now // period
    count, clamped = 0, False
    if len(state) == _STATE.size:
        stored, held = _STATE.unpack(state)
        clamped = stored == window + 1  # the clock stepped back
        if stored == window or clamped:
            count = held
    left = limit - count
    reset_after = (window + 1) * period - now
    allowed = cost <= left if cost else limit > 0
    if allowed:
        count += cost
        left -= cost
    state_after = _STATE.pack(window, count) if clamped or (allowed and cost) else None
    retry_after = 0 if allowed else reset_after if 0 < cost <= limit else NEVER
    return tuple.__new__(Outcome, (allowed, max(left, 0), reset_after, retry_after, 0)), state_after


def refund(state: bytes, quota: Quota, cost: int, charged_at: int, _now: int) -> bytes | None:
    """The state without `cost` of what was charged at `charged_at`, or None where nothing is left of it."""
    if len(state) != _STATE.size:
        return None
    window, count = _STATE.unpack(state)
    if window != charged_at // quota.period:
        return None
    return _STATE.pack(window, max(count - cost, 0))


def _never_denies(quota: Quota, stricter: Stricter) -> bool:
    return stricter.in_window(quota.period) <= quota.limit


ALGORITHM = Algorithm(
    code="fw",
    decide=decide,
    refund=refund,
    no_lease="",
    no_write_back="",
    windows=1,
    admits=admitted_in_windows,
    aligned=True,
    never_denies=_never_denies,
)
