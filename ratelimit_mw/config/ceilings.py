"""How much one counter can let through to another: what is behind "this limit can never deny"."""

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.algorithms.algorithm import Stricter
from ratelimit_mw.model import Quota


def never_full(quota: Quota, stricter: Quota) -> bool:
    """True where `quota` admits all that `stricter` admits. Every charge to the one is a charge to the other, and more.

    False where that is not certain. How much an algorithm counts and admits is described with the algorithm.
    """
    own, other = ALGORITHMS[quota.algorithm], ALGORITHMS[stricter.algorithm]
    if own.never_denies is None or other.admits is None:
        return False
    if {(each.consistency, each.shards) for each in (quota, stricter)} != {("strict", 1)}:
        return False
    if any(each.elastic or each.max_wait for each in (quota, stricter)):
        return False
    alike = (quota.algorithm, quota.period, quota.buckets) == (stricter.algorithm, stricter.period, stricter.buckets)
    if alike and not own.has_burst:
        return stricter.limit <= quota.limit
    return own.never_denies(quota, Stricter(stricter, other.admits, other.aligned))
