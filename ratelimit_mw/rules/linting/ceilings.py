"""How much one counter can let through to another: the sums behind "this limit can never deny"."""

from ratelimit_mw.model import Quota

_ALIGNED = ("fixed_window", "sliding_window")
_EXACT = ("sliding_log", "bucketed_window")
_NEVER = 1 << 80  # an interval longer than any


def never_full(quota: Quota, stricter: Quota) -> bool:
    """True where `quota` admits all that `stricter` admits. Every charge to the one is a charge to the other, and more.

    False where that is not certain.
    """
    if not {quota.algorithm, stricter.algorithm} <= {*_ALIGNED, *_EXACT, "token_bucket"}:
        return False
    if {(each.consistency, each.shards) for each in (quota, stricter)} != {("strict", 1)}:
        return False
    if any(each.elastic or each.max_wait for each in (quota, stricter)):
        return False
    limit, period = quota.limit, quota.period
    if quota.algorithm == "token_bucket":
        return (
            stricter.algorithm == "token_bucket"
            and stricter.burst <= quota.burst
            and _interval(stricter) >= _interval(quota)
        )
    if (quota.algorithm, period, quota.buckets) == (stricter.algorithm, stricter.period, stricter.buckets):
        return stricter.limit <= limit
    aligned = stricter.algorithm in _ALIGNED and period % stricter.period == 0
    in_window = period // stricter.period * stricter.limit if aligned else _most(stricter, period)
    if quota.algorithm == "fixed_window":
        return in_window <= limit
    if quota.algorithm == "sliding_window":
        # A share of the last window, and this one so far: a stricter window may be full in both where they meet.
        return (in_window + stricter.limit if aligned else 2 * in_window) <= limit
    if quota.algorithm == "bucketed_window":
        return _most(stricter, period + -(-period // quota.buckets)) <= limit
    return _most(stricter, period) <= limit


def _most(quota: Quota, span: int) -> int:
    """What `quota` can admit within `span` microseconds, wherever they begin."""
    if not quota.limit:
        return 0
    if quota.algorithm == "token_bucket":
        return quota.burst + span // _interval(quota)
    windows = -(-span // quota.period)
    return (windows + (quota.algorithm in _ALIGNED)) * quota.limit


def _interval(quota: Quota) -> int:
    return -(-quota.period // quota.limit) if quota.limit else _NEVER
