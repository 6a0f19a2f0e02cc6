"""Token bucket: at most `burst` tokens, which refill continuously at limit per period.

State: the time at which the bucket is full again, and the time at which the state was written. Both are in microseconds
since the epoch. The first is the theoretical arrival time of the generic cell rate algorithm (GCRA, ITU-T I.371). One
token refills in ⌈period ÷ limit⌉ microseconds.

The time of writing tells two cases apart if more is missing than a bucket can hold. Either the clock stepped back, and
the state is clamped. Or a request of a smaller tier reads the counter of a larger tier: both tiers share the counter,
and the smaller tier must not clamp what the larger tier took.

With `longest_wait`, a request may take tokens that are not refilled yet. It then waits for them.
"""

from struct import Struct

from ratelimit_mw.algorithms.algorithm import SKIPPED, STAMP, USED_UP, Admit, Algorithm, Refilling
from ratelimit_mw.model import NEVER, Outcome, Quota, Row

_STATE = Struct("<QQ")
_SIZE = _STATE.size
_VALUE, _STATE_OF_VALUE = Struct(STAMP + "QQ"), Struct(SKIPPED + "QQ")


def decide(state: bytes, quota: Quota, cost: int, now: int) -> tuple[Outcome, bytes | None]:
    """Admit if the cost fits into the tokens that are there or that refill within `longest_wait`.

    In units of time, with interval = ⌈period ÷ limit⌉ and missing = max(full − now, 0): admit if
    cost × interval ≤ burst × interval − missing + longest_wait, and cost ≤ burst. All times are in microseconds.
    `delay` is the time until the last token that was taken is refilled. Source: GCRA, ITU-T I.371. See `Decide` for
    the arguments and the result.
    """
    if not quota.limit:
        return Outcome(False, 0, 0, NEVER), None
    interval = -(-quota.period // quota.limit)
    capacity = quota.burst * interval
    missing, clamped = 0, False
    if len(state) == _SIZE:
        full, written = _STATE.unpack(state)
        if written <= now + quota.period:
            missing = full - now if full > now else 0
        most = capacity + quota.longest_wait if written > now else 2 * max(capacity, quota.period) + quota.longest_wait
        clamped = missing > most  # the clock stepped back, or the burst was much larger
        if clamped:
            missing = most
    room = capacity - missing
    needed = cost * interval
    allowed = needed <= room + quota.longest_wait and cost <= quota.burst
    retry_after = delay = 0
    if allowed:
        missing += needed
        room -= needed
        delay = -room if room < 0 and cost else 0
    else:
        retry_after = needed - room - quota.longest_wait if cost <= quota.burst else NEVER
    state_after = _STATE.pack(now + missing, now) if clamped or (allowed and cost) else None
    remaining = room // interval if room > 0 else 0
    return tuple.__new__(Outcome, (allowed, remaining, missing, retry_after, delay)), state_after


def admitting(quota: Quota, cost: int) -> Admit:
    """Compile `decide` for requests that are admitted at once. See `Admitting`."""
    burst, interval = quota.burst, -(-quota.period // quota.limit)
    capacity, needed = burst * interval, cost * interval
    pack, unpack, size = _VALUE.pack, _STATE_OF_VALUE.unpack, _VALUE.size

    def admit(value: bytes, now: int) -> tuple[Row, bytes] | None:
        missing = needed
        if len(value) == size:
            full, written = unpack(value)
            if written > now:  # the clock stepped back
                return None
            if full > now:
                missing += full - now
        if missing > capacity:
            return None
        left, full = (capacity - missing) // interval, now + missing
        share = USED_UP if left < cost else USED_UP * (burst - left) // burst
        return (True, left, missing, 0, 0), pack(full.to_bytes(8), share, full, now)

    return admit


def refund(state: bytes, quota: Quota, cost: int, _charged_at: int, now: int) -> bytes | None:
    """Put `cost` tokens back, unless the bucket is full. See `Refund`.

    If the bucket was full in the meantime, the tokens have already been refilled and are put back a second time. The
    state does not hold the time at which the bucket was last full.
    """
    if not quota.limit or len(state) != _SIZE:
        return None
    full, written = _STATE.unpack(state)
    if full <= now:
        return None
    return _STATE.pack(max(full - cost * -(-quota.period // quota.limit), now), written)


ALGORITHM = Algorithm(
    code="tb",
    decide=decide,
    refund=refund,
    admitting=admitting,
    also_called=("gcra",),
    has_burst=True,
    can_wait=True,
    no_lease="the refill starts at the time of each charge, so requests can't be charged earlier or later",
    no_write_back="the refill starts at the time of each charge, so requests can't be charged earlier or later",
    refunds_later=True,
    at_all_limits=Refilling(lambda quota, interval: (quota.burst - 1) * interval + quota.longest_wait),
)
