"""Leaky bucket: a queue of `burst` places that moves on at limit per period, one request every ⌈period ÷ limit⌉.

State: the time at which the bucket is empty, the turn of the next request, and the time at which both were written.
The first two are equal until a charge is refunded. A refund makes room in the bucket, but it moves no turn, because
later requests already have theirs. Admits while level + cost ≤ burst and the turn is at most `max_wait` away; `delay`
is the time until that turn. The time of writing tells a clock that stepped back from a burst that was lowered, as in
the token bucket.
"""

from struct import Struct

from ratelimit_mw.algorithms.algorithm import Algorithm
from ratelimit_mw.model import NEVER, Outcome, Quota

_STATE = Struct("<QQQ")


def decide(state: bytes, quota: Quota, cost: int, now: int) -> tuple[Outcome, bytes | None]:
    """What `quota` says to `cost` at `now`, and the state to store (None: leave it as it is)."""
    if not quota.limit:
        return Outcome(False, 0, 0, NEVER), None
    interval = -(-quota.period // quota.limit)
    capacity = quota.burst * interval
    level, wait, clamped = 0, 0, False
    if len(state) == _STATE.size:
        dry, turn, written = _STATE.unpack(state)
        if written <= now + quota.period:
            level, wait = max(dry - now, 0), max(turn - now, 0)
        most = capacity if written > now else 2 * max(capacity, quota.period)
        longest = most + quota.max_wait
        clamped = level > most or wait > longest  # the clock stepped back, or the burst was far greater
        level, wait = min(level, most), min(wait, longest)
    needed = cost * interval
    allowed = cost == 0 or (level + needed <= capacity and wait <= quota.max_wait)
    retry_after = delay = 0
    if allowed:
        delay = wait if cost else 0
        level += needed
        wait += needed
    else:
        retry_after = max(level + needed - capacity, wait - quota.max_wait) if cost <= quota.burst else NEVER
    state_after = _STATE.pack(now + level, now + wait, now) if clamped or (allowed and cost) else None
    remaining = max(capacity - level, 0) // interval
    return Outcome(allowed, remaining, max(level, wait), retry_after, delay), state_after


def refund(state: bytes, quota: Quota, cost: int, _charged_at: int, now: int) -> bytes | None:
    """The state with `cost` less in the bucket, or None where it has run dry by now. No turn comes earlier."""
    if not quota.limit or len(state) != _STATE.size:
        return None
    dry, turn, written = _STATE.unpack(state)
    if dry <= now:
        return None
    dry = max(dry - cost * -(-quota.period // quota.limit), now)
    return _STATE.pack(dry, max(turn, dry), written)


ALGORITHM = Algorithm(
    code="lb",
    decide=decide,
    refund=refund,
    also_called=("leaky",),
    has_burst=True,
    can_wait=True,
    queue=True,
    no_lease="only the store knows how long a request must wait",
    no_write_back="only the store knows how long a request must wait",
    no_shards="a queue needs a single counter",
)
