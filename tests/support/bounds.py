"""How inexact leased, written-back and sharded counters may be."""

from math import ceil


def worst_over_admission(
    processes: int, limit: int, *, rate: float | None = None, interval: float = 1.0, delay: float = 0.1
) -> int:
    """How much more than `limit` a `write_back` counter may admit in a window, while the store answers.

    No process admits more than the limit by its own count. P processes therefore admit at most (P − 1) × limit too
    much. If the `rate` is known, the bound is also 2 × P × rate × (interval + delay). The reason is that a process
    charges what it admits within (interval + delay), and the others learn of it within the same time again.

    Args:
        processes: the number of processes, P.
        limit: the limit of the counter.
        rate: the most that one process is asked for per second; None if it is unknown.
        interval: the seconds between two calls of a process to the store.
        delay: the seconds that a call takes at most.
    """
    most = (processes - 1) * limit
    if rate is None:
        return most
    return min(most, ceil(2 * processes * rate * (interval + delay)))


def worst_under_admission(
    processes: int, limit: int, *, rate: float | None = None, interval: float = 1.0, cost: int = 1
) -> int:
    """How much of `limit` a `lease` counter may leave unused when it denies a request of `cost`.

    This is the unspent part of the leases of the other processes. The lease of a process is at most twice what the
    process spent in the last interval, plus `cost`. All leases together are at most the limit.

    Args:
        processes: the number of processes.
        limit: the limit of the counter.
        rate: the most that one process is asked for per second; None if it is unknown.
        interval: the seconds between two calls of a process to the store.
        cost: the cost of the request.
    """
    if processes == 1:
        return cost - 1
    if rate is None:
        return limit
    return min(limit, ceil((processes - 1) * (2 * rate * interval + cost)) + cost - 1)


def worst_unused_of_shards(shards: int, cost: int = 1, *, sliding_window: bool = False) -> int:
    """How much of a sharded limit may be unused when it denies a request of `cost`.

    Each shard may have up to `cost` − 1 left, which is too little for the request. A `sliding_window` also rounds the
    share of the previous window up in each shard.
    """
    return shards * (cost - 1) + (shards - 1 if sliding_window else 0)
