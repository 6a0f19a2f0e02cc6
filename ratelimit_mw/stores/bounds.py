"""How far from the limit the inexact ways of counting can get, at worst. docs/consistency.md derives the formulas."""

from math import ceil


def worst_over_admission(
    processes: int, limit: int, *, rate: float | None = None, interval: float = 1.0, delay: float = 0.1
) -> int:
    """How much more than `limit` a `write_back` counter may admit in a window, while the store answers.

    No process admits more than the limit by its own count, so P of them admit (P − 1) × limit too much. With `rate`,
    what one process is asked for per second, it is also at most 2 × P × rate × (interval + delay): what a process
    admits is charged within `interval` and the `delay` of the call (both in seconds), and known to the others as
    long after that again.
    """
    most = (processes - 1) * limit
    if rate is None:
        return most
    return min(most, ceil(2 * processes * rate * (interval + delay)))


def worst_under_admission(
    processes: int, limit: int, *, rate: float | None = None, interval: float = 1.0, cost: int = 1
) -> int:
    """How much of `limit` a `lease` counter may leave unused when it denies a request of `cost`.

    That is what the other processes hold and have not spent. Each holds at most twice what it spent in the interval
    before (`rate`: the most that one process is asked for per second), and `cost` more; all of them never more than
    the limit.
    """
    if processes == 1:
        return cost - 1
    if rate is None:
        return limit
    return min(limit, ceil((processes - 1) * (2 * rate * interval + cost)) + cost - 1)


def worst_unused_of_shards(shards: int, cost: int = 1, *, weighs: bool = False) -> int:
    """How much of a sharded limit may be left when it denies a request of `cost`: more fits into no single shard.

    `weighs` is for `sliding_window`, which rounds what the previous window weighs up in each shard.
    """
    return shards * (cost - 1) + (shards - 1 if weighs else 0)
