"""The algorithms, by the names that rules use.

Each is a pair of files: a pure Python function, which the memory store runs, and its Lua twin, which Redis
runs. A new one is those two files and a line in `ALGORITHMS`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files

from ratelimit_mw.algorithms import (
    ban,
    bucketed_window,
    concurrency,
    fixed_window,
    leaky_bucket,
    sliding_log,
    sliding_window,
    token_bucket,
)
from ratelimit_mw.model import Outcome, Quota

Decide = Callable[[bytes, Quota, int, int], tuple[Outcome, bytes | None]]
"""(state, quota, cost, now) → what the counter says, and the state to store, or None to leave it as it is.

The state of an unused counter is `b""`, and so is what can't be read. A state may be dropped
`Outcome.reset_after` after it was written.
"""

Refund = Callable[[bytes, Quota, int, int, int], bytes | None]
"""(state, quota, cost, charged_at, now) → the state without `cost` of what was charged at `charged_at`, or None.

Best effort: what can't be found any more stays as it is. Never less than nothing is charged, and the state may be
dropped no later than the one before.
"""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way of counting. `code` names it in the keys of its counters; `bucket` says that it has a burst."""

    name: str
    code: str
    decide: Decide
    refund: Refund
    bucket: bool = False


ALGORITHMS = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm("fixed_window", "fw", fixed_window.decide, fixed_window.refund),
        Algorithm("sliding_log", "sl", sliding_log.decide, sliding_log.refund),
        Algorithm("sliding_window", "sw", sliding_window.decide, sliding_window.refund),
        Algorithm("bucketed_window", "bw", bucketed_window.decide, bucketed_window.refund),
        Algorithm("token_bucket", "tb", token_bucket.decide, token_bucket.refund, bucket=True),
        Algorithm("leaky_bucket", "lb", leaky_bucket.decide, leaky_bucket.refund, bucket=True),
        Algorithm("concurrency", "cc", concurrency.decide, concurrency.refund),  # its Lua wants bucketed_window's
    )
}

DECIDE = {name: algorithm.decide for name, algorithm in ALGORITHMS.items()}
"""The decision functions alone: one look-up on the hot path."""

ANSWER = {**DECIDE, "ban": ban.decide}
"""The decision functions of all that a store may be asked: the algorithms, and whether a ban stands."""

REFUND = {name: algorithm.refund for name, algorithm in ALGORITHMS.items()}
"""The refund functions alone."""


_MOST = 4_000_000_000  # what a count of four bytes holds, and a little less


@lru_cache(maxsize=1024)
def widened(quota: Quota) -> Quota:
    """The quota that a charge goes by which is not to be denied: what is charged beyond `quota` itself is a debt.

    A debt is paid back within two windows, as whatever a counter holds. So a bucket's is as much at most as comes back
    in that time; and a log needs no more times than decide about two full ones.
    """
    if ALGORITHMS[quota.algorithm].bucket:
        if not quota.limit:
            return quota
        interval = -(-quota.period // quota.limit)
        most = max(2 * max(quota.burst, quota.period // interval), quota.burst)
        return replace(quota, burst=most, max_wait=most * interval)
    return replace(quota, limit=2 * quota.limit if quota.algorithm == "sliding_log" else _MOST)


def lua(name: str) -> str:
    """The Lua source of that name in this folder."""
    return files(__name__).joinpath(f"{name}.lua").read_text(encoding="utf-8")
