"""Concurrency: limits the requests in flight. Each one is charged when it begins and refunded when it ends.

State: that of a bucketed window. If a request takes longer than the period, its charge is renewed: charged again and
refunded at the old time. The charge of a process that died expires with its slice.
"""

from ratelimit_mw.algorithms import bucketed_window
from ratelimit_mw.algorithms.algorithm import Algorithm
from ratelimit_mw.model import NEVER, SECOND, Outcome, Quota

PERIOD = 10 * SECOND
"""How long a charge lasts without renewal, in microseconds. It may last one slice longer."""

BUCKETS = 10
"""The number of slices of the period."""


def decide(state: bytes, quota: Quota, cost: int, now: int) -> tuple[Outcome, bytes | None]:
    """Admit if the requests in flight plus cost are ≤ limit. They are counted by `bucketed_window.decide`.

    The end of a request in flight is unknown, so `retry_after` is always one second (1 000 000 microseconds), which is
    a guess. See `Decide` for the arguments and the result.
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
