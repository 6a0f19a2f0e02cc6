"""Sliding log: the times of the last admissions. No window of one period ever holds more than the limit.

State: the slot for the next time, the number of times, then a ring of times of eight bytes each (microseconds since the
epoch), in the byte order of the machine: bisection reads them in place. A cost of n is stored as n times. The ring
starts small and doubles up to the limit, so a client with few requests needs little memory.
"""

from bisect import bisect_right
from collections.abc import Sequence
from struct import Struct

from ratelimit_mw.algorithms.algorithm import (
    STAMP,
    USED_UP,
    Admit,
    Algorithm,
    Counting,
    LimitCap,
    first_share,
    twice_the_limit,
)
from ratelimit_mw.model import NEVER, Outcome, Quota, Row

_HEADER = Struct("=II")
_TIME = Struct("=Q")
_VALUE = Struct(STAMP.replace("<", "=") + "II")
_MIN_CAPACITY = 4


def decide(state: bytes, quota: Quota, cost: int, now: int) -> tuple[Outcome, bytes | None]:
    """Admit if used + cost ≤ limit, where `used` is the number of admissions in (now − period, now].

    All times are in microseconds. `retry_after` is the time until enough admissions have left the window. The method
    is known as the sliding window log. The number is found by bisection, and only the cost is written.
    See `Decide` for the arguments and the result.
    """
    period, limit = quota.period, quota.limit
    ring = _Ring(state)
    clamped = ring.held > 0 and ring.time(0) > now  # the clock stepped back
    if clamped:
        ring = _Ring(ring.clamped(now) if ring.time(0) <= now + period else b"")
    used = ring.younger_than(now - period)
    left = limit - used
    if limit and cost <= left:
        reset_after = period if cost else ring.time(0) + period - now if used else 0
        state_after = ring.appended(used, cost, now, limit) if cost else ring.state if clamped else None
        return tuple.__new__(Outcome, (True, max(left - cost, 0), reset_after, 0, 0)), state_after
    retry_after = ring.time(limit - cost) + period - now if limit and cost <= limit else NEVER
    reset_after = ring.time(0) + period - now if used else 0
    outcome = tuple.__new__(Outcome, (False, max(left, 0), reset_after, retry_after, 0))
    return outcome, ring.state if clamped else None


def admitting(quota: Quota, cost: int) -> Admit:
    """Compile `decide` for requests that are admitted at once, if their times fit behind those in the ring.

    See `Admitting`.
    """
    period, limit, size = quota.period, quota.limit, _TIME.size
    pack, unpack, begin, time_at = _VALUE.pack, _HEADER.unpack_from, _VALUE.size, _TIME.unpack_from
    share_of_first, room = first_share(limit, cost), min(max(_MIN_CAPACITY, cost), limit)
    unused = bytes(size * (room - cost))

    def admit(value: bytes, now: int) -> tuple[Row, bytes] | None:
        expiry = (now + period).to_bytes(8)
        if not value:
            stamped = pack(expiry, share_of_first, cost % room, cost)
            return (True, limit - cost, period, 0, 0), b"".join((stamped, _TIME.pack(now) * cost, unused))
        capacity, odd = divmod(len(value) - begin, size)
        if odd or capacity < 1 or value[:8] > expiry:  # the last: the clock stepped back
            return None
        slot, held = unpack(value, begin - _HEADER.size)
        after, since = slot + cost, now - period
        if after > capacity or held > capacity:
            return None
        used = held
        if time_at(value, begin + (slot - held) % capacity * size)[0] <= since:  # otherwise the oldest time counts, too
            used = _younger_than(since, memoryview(value)[begin:].cast("Q"), slot, held)
        used += cost
        if used > limit or used > capacity:
            return None
        left = limit - used
        share = USED_UP if left < cost else USED_UP * used // limit
        stamped = pack(expiry, share, after % capacity, min(held + cost, capacity))
        start, end = begin + slot * size, begin + after * size
        return (True, left, period, 0, 0), b"".join((stamped, value[begin:start], _TIME.pack(now) * cost, value[end:]))

    return admit


def refund(state: bytes, _quota: Quota, cost: int, charged_at: int, _now: int) -> bytes | None:
    """Remove up to `cost` times that are equal to `charged_at`. See `Refund`."""
    ring = _Ring(state)
    newer = ring.younger_than(charged_at)
    found = min(ring.younger_than(charged_at - 1) - newer, cost)
    return ring.without(newer, found) if found else None


class _Ring:
    """The ring in a state. An `age` is an index that counts from the newest time (0) back."""

    __slots__ = ("capacity", "held", "slot", "state", "times")

    def __init__(self, state: bytes) -> None:
        self.state = state
        self.slot = self.held = 0
        self.times: Sequence[int] = ()
        self.capacity, odd = divmod(len(state) - _HEADER.size, _TIME.size)
        if self.capacity < 1 or odd:
            self.capacity = 0
            return
        self.times = memoryview(state)[_HEADER.size :].cast("Q")
        slot, held = _HEADER.unpack_from(state)
        if slot < self.capacity and held <= self.capacity:
            self.slot, self.held = slot, held

    def time(self, age: int) -> int:
        """Return the time with this age."""
        return self.times[(self.slot - 1 - age) % self.capacity]

    def younger_than(self, moment: int) -> int:
        """Return the number of times that are later than `moment`."""
        return _younger_than(moment, self.times, self.slot, self.held)

    def newest(self, count: int) -> bytes:
        """Return the packed `count` newest times, oldest first."""
        start, end = self.slot - count, self._at(self.slot)
        if start >= 0:
            return self.state[self._at(start) : end]
        return self.state[self._at(start + self.capacity) :] + self.state[_HEADER.size : end]

    def clamped(self, now: int) -> bytes:
        """Return the state in which the times after `now` are replaced by `now`."""
        ahead = self.younger_than(now)
        kept = self.newest(self.held)[: -ahead * _TIME.size]
        return _packed(kept + _TIME.pack(now) * ahead, self.capacity)

    def appended(self, used: int, cost: int, now: int, limit: int) -> bytes:
        """Return the state with `cost` times of `now` appended. Times older than the `used` newest may be dropped."""
        new = _TIME.pack(now) * cost
        if used + cost > self.capacity:
            room = min(max(2 * self.capacity, _MIN_CAPACITY), limit)
            return _packed(self.newest(used) + new, max(room, used + cost))
        after = self.slot + cost
        wrapped = max(after - self.capacity, 0) * _TIME.size
        body = self.state[_HEADER.size + wrapped : self._at(self.slot)] + new + self.state[self._at(after) :]
        if wrapped:
            body = body[-wrapped:] + body[:-wrapped]
        return _HEADER.pack(after % self.capacity, min(self.held + cost, self.capacity)) + body

    def without(self, newer: int, count: int) -> bytes:
        """Return the state without the `count` times whose ages start at `newer`."""
        times = self.newest(self.held)
        end = len(times) - newer * _TIME.size
        return _packed(times[: end - count * _TIME.size] + times[end:], self.capacity)

    @staticmethod
    def _at(slot: int) -> int:
        return _HEADER.size + slot * _TIME.size


def _younger_than(moment: int, times: Sequence[int], slot: int, held: int) -> int:
    """Return how many of the `held` times before a slot of a ring are later than `moment`."""
    start = slot - held
    if start >= 0:
        return slot - bisect_right(times, moment, start, slot)
    if slot and times[0] <= moment:
        return slot - bisect_right(times, moment, 0, slot)
    capacity = len(times)
    return slot + capacity - bisect_right(times, moment, start + capacity, capacity)


def _packed(times: bytes, capacity: int) -> bytes:
    """Return a state with these packed times, oldest first, in a ring of this capacity."""
    held = len(times) // _TIME.size
    return _HEADER.pack(held % capacity, held) + times.ljust(capacity * _TIME.size, b"\0")


ALGORITHM = Algorithm(
    code="sl",
    decide=decide,
    refund=refund,
    admitting=admitting,
    also_called=("moving_window", "rolling_window", "sliding_window_log"),
    largest=LimitCap(10_000, "remembers every request", "bucketed_window is as strict and takes any limit"),
    no_lease="the log has the time of each request, so requests can't be charged earlier",
    no_write_back="it never exceeds its limit, but write_back may",
    widen=twice_the_limit,
    at_all_limits=Counting(lambda quota, now: (now - quota.period + 1,)),
)
