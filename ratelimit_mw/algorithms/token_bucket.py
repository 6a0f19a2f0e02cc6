"""Token bucket: `burst` tokens at most, refilled continuously at limit per period.

State: the moment at which the bucket is full again (the generic cell rate algorithm's theoretical arrival time,
ITU-T I.371), and the moment at which that was written. A token takes ⌈period ÷ limit⌉ microseconds to come back.
The second moment tells a clock that stepped back from a burst that was lowered: tiers share a counter, and a
request of the smaller one must not forgive what the greater one took.

With `max_wait` a request takes tokens that have yet to come, and waits for them.
"""

from struct import Struct

from ratelimit_mw.algorithms.algorithm import Algorithm, Stricter
from ratelimit_mw.model import NEVER, Outcome, Quota

_STATE = Struct("<QQ")


def decide(state: bytes, quota: Quota, cost: int, now: int) -> tuple[Outcome, bytes | None]:
    """What `quota` says to `cost` at `now`, and the state to store (None: leave it as it is)."""
    if not quota.limit:
        return Outcome(False, 0, 0, NEVER), None
    interval = -(-quota.period // quota.limit)
    capacity = quota.burst * interval
    missing, clamped = 0, False
    if len(state) == _STATE.size:
        full, written = _STATE.unpack(state)
        if written <= now + quota.period:
            missing = max(full - now, 0)
        most = capacity + quota.max_wait if written > now else 2 * max(capacity, quota.period) + quota.max_wait
        clamped = missing > most  # the clock stepped back, or the burst was far greater
        missing = min(missing, most)
    room = capacity - missing
    needed = cost * interval
    allowed = cost == 0 or (needed <= room + quota.max_wait and cost <= quota.burst)
    retry_after = delay = 0
    if allowed:
        missing += needed
        room -= needed
        delay = max(-room, 0) if cost else 0
    else:
        retry_after = needed - room - quota.max_wait if cost <= quota.burst else NEVER
    state_after = _STATE.pack(now + missing, now) if clamped or (allowed and cost) else None
    return tuple.__new__(Outcome, (allowed, max(room, 0) // interval, missing, retry_after, delay)), state_after


def refund(state: bytes, quota: Quota, cost: int, _charged_at: int, now: int) -> bytes | None:
    """The state with `cost` more tokens in the bucket, or None where it is full by now.

    If the bucket was full in between, the token has been refilled already and comes back a second time, because the
    state does not hold when the bucket was last full.
    """
    if not quota.limit or len(state) != _STATE.size:
        return None
    full, written = _STATE.unpack(state)
    if full <= now:
        return None
    return _STATE.pack(max(full - cost * -(-quota.period // quota.limit), now), written)


def _admits(quota: Quota, span: int) -> int:
    return quota.burst + span // -(-quota.period // quota.limit)


def _never_denies(quota: Quota, stricter: Stricter) -> bool:
    other = stricter.quota
    if other.algorithm != quota.algorithm or other.burst > quota.burst:
        return False
    # The longer interval is that of the slower bucket; one without a limit never refills.
    return not other.limit or (quota.limit > 0 and -(-other.period // other.limit) >= -(-quota.period // quota.limit))


ALGORITHM = Algorithm(
    code="tb",
    decide=decide,
    refund=refund,
    also_called=("gcra",),
    has_burst=True,
    can_wait=True,
    no_lease="a charge at another time would be refilled at another time",
    no_write_back="a charge at another time would be refilled at another time",
    admits=_admits,
    never_denies=_never_denies,
)
