"""Leaky bucket: a queue with `burst` places. One request leaves it every ⌈period ÷ limit⌉ microseconds.

State: the time at which the bucket is empty, the time of the next request's turn, and the time at which the state was
written. All are in microseconds since the epoch. The first two are equal until a charge is refunded. A refund makes
room in the bucket, but it does not move the next turn, because later requests already have their turns. Hits that are
given back at a later time than that of any charge are the last of the queue, and free their turns. The time of writing
tells a clock that stepped back from a burst that was lowered, as in the token bucket.
"""

from struct import Struct

from ratelimit_mw.algorithms.algorithm import Algorithm, Refilling
from ratelimit_mw.model import NEVER, Outcome, Quota

_STATE = Struct("<QQQ")


def decide(state: bytes, quota: Quota, cost: int, now: int) -> tuple[Outcome, bytes | None]:
    """Admit if level + cost ≤ burst and the next turn is at most `longest_wait` away.

    In units of time, with interval = ⌈period ÷ limit⌉: level = max(empty − now, 0), and admit if
    level + cost × interval ≤ burst × interval and max(turn − now, 0) ≤ longest_wait. All times are in microseconds.
    `delay` is the time until the turn, so an idle bucket delays no request. Source: the leaky bucket as a queue, in the
    timestamp form of ITU-T I.371 and docs/adr/0008. See `Decide` for the arguments and the result.
    """
    if not quota.limit:
        return Outcome(False, 0, 0, NEVER), None
    interval = -(-quota.period // quota.limit)
    capacity = quota.burst * interval
    level, wait, clamped = 0, 0, False
    if len(state) == _STATE.size:
        empty, turn, written = _STATE.unpack(state)
        if written <= now + quota.period:
            level, wait = max(empty - now, 0), max(turn - now, 0)
        most = capacity if written > now else 2 * max(capacity, quota.period)
        longest = most + quota.longest_wait
        clamped = level > most or wait > longest  # the clock stepped back, or the burst was much larger
        level, wait = min(level, most), min(wait, longest)
    needed = cost * interval
    late = wait - quota.longest_wait if cost else 0  # how much too late its turn would be
    allowed = level + needed <= capacity and late <= 0
    retry_after = delay = 0
    if allowed:
        delay = wait if cost else 0
        level += needed
        wait += needed
    else:
        retry_after = max(level + needed - capacity, late) if cost <= quota.burst else NEVER
    state_after = _STATE.pack(now + level, now + wait, now) if clamped or (allowed and cost) else None
    remaining = max(capacity - level, 0) // interval
    return Outcome(allowed, remaining, max(level, wait), retry_after, delay), state_after


def refund(state: bytes, quota: Quota, cost: int, charged_at: int, now: int) -> bytes | None:
    """Take `cost` out of the bucket, unless it is empty. The next turn stays if `charged_at` may be a charge's time.

    See `Refund`.
    """
    if not quota.limit or len(state) != _STATE.size:
        return None
    empty, turn, written = _STATE.unpack(state)
    if empty <= now:
        return None
    given = cost * -(-quota.period // quota.limit)
    empty = max(empty - given, now)
    return _STATE.pack(empty, max(turn - given if charged_at > written else turn, empty), written)


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
    refunds_later=True,
    at_all_limits=Refilling(lambda quota, interval: min((quota.burst - 1) * interval, quota.longest_wait)),
)
