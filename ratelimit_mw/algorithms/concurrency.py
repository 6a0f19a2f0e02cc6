"""Concurrency: requests in flight, each with a lease that ends with it, or by itself after a period at most.

State: as that of a bucketed window, whose slices hold the leases that were taken in each. A request that ends is
refunded, one that lasts is charged anew in place of the old charge, and one whose process has died is forgotten as any
charge is.
"""

from ratelimit_mw.algorithms import bucketed_window
from ratelimit_mw.algorithms.algorithm import Algorithm
from ratelimit_mw.model import NEVER, SECOND, Outcome, Quota

PERIOD = 10 * SECOND
"""How long a lease lasts that nobody renews; and one slice longer at most."""

BUCKETS = 10


def decide(state: bytes, quota: Quota, cost: int, now: int) -> tuple[Outcome, bytes | None]:
    """What `quota` says to `cost` at `now`, and the state to store (None: leave it as it is).

    Nobody knows when a request will end: to come back after a second is a guess.
    """
    outcome, state_after = bucketed_window.decide(state, quota, cost, now)
    if outcome.retry_after != NEVER and not outcome.allowed:
        outcome = outcome._replace(retry_after=SECOND)
    return outcome, state_after


refund = bucketed_window.refund


ALGORITHM = Algorithm(
    code="cc",
    decide=decide,
    refund=refund,
    requires=("bucketed_window",),
    in_flight=True,
    no_lease="requests in flight are returned one by one",
    no_write_back="requests in flight are returned one by one",
    no_shards="requests in flight need a single counter",
)
