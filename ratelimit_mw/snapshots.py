"""What a limiter has counted: the counts of all requests, of each rule and of each descriptor.

`RateLimiter.tally.snapshot()` returns a `Snapshot`. Apps only read these values. Constructing them is internal.

The values are frozen, except `Histogram`: `ratelimit_mw.tally`, which does the counting, adds to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Distribution(NamedTuple):
    """Counts of values.

    Attributes:
        bounds: The upper bounds of the buckets, each inclusive, in ascending order.
        counts: The number of values in each bucket, and then the number of those above the last bound.
        total: The sum of all values.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    def plus(self, other: "Distribution") -> "Distribution":
        """Return the counts of both, which have the same bounds."""
        counts = tuple([one + another for one, another in zip(self.counts, other.counts, strict=True)])
        return self._replace(counts=counts, total=self.total + other.total)


@dataclass(slots=True)
class Histogram:
    """Counts values by the bounds of their buckets. A value that is equal to a bound is below it.

    Its user increments `counts` and `total`.
    """

    bounds: Sequence[float]
    counts: list[int]
    total: float = 0.0

    def read(self) -> Distribution:
        """Return the counts, which do not change any more."""
        return Distribution(tuple(self.bounds), tuple(self.counts), self.total)


class RuleSnapshot(NamedTuple):
    """The counts of one rule.

    A request counts once for each rule that it asked. What a rule decided may differ from what happened to the
    request: another rule may have denied it. A request that is denied from the cache of denials has asked one rule.

    Attributes:
        domain: The domain of the rule. "" for the rules beyond the first 1 000, which are counted together.
        name: The name of the rule.
        outcomes: The number of requests by outcome: "allowed", "over" (above the limit, by a soft or elastic
            throttle), "delayed", "denied" and "shadow_denied" (a shadow rule would have denied it).
        denials: The number of requests that were denied because of this rule, by `Decision.reason`. A request that
            several rules deny counts for the one that denies longest.
        delay: The sum of the delays of requests that waited for their turn, in seconds.
        used: How much of the limit was used after a decision, as a share of it, for one request in 16.
    """

    domain: str
    name: str
    outcomes: Mapping[str, int]
    denials: Mapping[str, int]
    delay: float
    used: Distribution


class HitsSnapshot(NamedTuple):
    """The counts of one descriptor that was asked through `check_lists`, in hits.

    Attributes:
        domain: The domain.
        path: The entries of the descriptor as the file has them, each as its key or as `key_value`, also with a `*`. No
            value of a client is here.
        total_hits: All hits.
        over_limit: The hits that were denied, or that a shadow limit would have denied.
        near_limit: The admitted hits above 0.8 of the limit (`--near` of `serve`).
        within_limit: The admitted hits.
        shadow_mode: The hits that a shadow limit would have denied.
        over_limit_with_local_cache: The hits that were denied without a call to the store.
    """

    domain: str
    path: tuple[str, ...]
    total_hits: int
    over_limit: int
    near_limit: int
    within_limit: int
    shadow_mode: int
    over_limit_with_local_cache: int


class Snapshot(NamedTuple):
    """What a limiter has counted in this process since it was made, or since the fork that made the process.

    Attributes:
        requests: The number of decisions by outcome: "allowed", "over", "delayed", "denied", "deferred", "unlimited"
            (no rule applied) and "unchecked" (the store was unavailable, and the rules allow requests then).
        rules: The counts of each rule that was asked.
        denials: The number of denials that no rule has decided, by the reason: "blocked", "shed" or "unavailable".
        decisions: How long decisions took, in seconds, for one request in 16.
        store_up: False if the last decision, or the check at start, found the store unavailable.
        store_failures: The number of decisions for which the store was unavailable.
        late: The number of requests that the store did not answer in time, while it answered others.
        local_denials: The number of denials from the cache of denials, without a call to the store.
        bans: The number of bans that began, by domain, rule, and whether they are enforced.
        shed: The number of requests that were shed under load, by priority.
        deferred: The number of deferred requests by domain, rule and fate: "queued", "refused" (the queue was full or
            unavailable), "replayed" or "returned" (a worker has to send it again later).
        hits: The counts of each descriptor that was asked through `check_lists`.
    """

    requests: Mapping[str, int]
    rules: tuple[RuleSnapshot, ...]
    denials: Mapping[str, int]
    decisions: Distribution
    store_up: bool
    store_failures: int
    late: int
    local_denials: int
    bans: Mapping[tuple[str, str, bool], int]
    shed: Mapping[str, int]
    deferred: Mapping[tuple[str, str, str], int]
    hits: tuple[HitsSnapshot, ...]


class Totals(NamedTuple):
    """Counts of a process at one moment.

    Attributes:
        requests: The number of decisions.
        denials: The number of denied requests.
        rules: The number of requests in the order of `tally.OUTCOMES`, by the domain and the name of the rule.
        bans: The number of bans that began, by domain, rule, and whether they are enforced.
    """

    requests: int
    denials: int
    rules: Mapping[tuple[str, str], tuple[int, ...]]
    bans: Mapping[tuple[str, str, bool], int]
