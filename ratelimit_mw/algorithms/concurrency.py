"""Concurrency: limits the requests in flight. Each is charged when it begins and refunded when it ends.

State: that of a bucketed window, whose slices hold the charges taken in each. A request that takes longer than a
period is charged again, in place of the old charge. The charge of a process that died expires with its slice.
"""

from ratelimit_mw.algorithms import bucketed_window
from ratelimit_mw.algorithms.algorithm import Algorithm
from ratelimit_mw.model import NEVER, SECOND, Outcome, Quota

PERIOD = 10 * SECOND
"""How long a charge lasts that is not renewed, in microseconds. It may last one slice longer."""

BUCKETS = 10


def decide(state: bytes, quota: Quota, cost: int, now: int) -> tuple[Outcome, bytes | None]:
    """What `quota` says to `cost` at `now`, and the state to store (None: leave it as it is).

    It is unknown when a request in flight will end, so the `retry_after` of one second is a guess.
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
