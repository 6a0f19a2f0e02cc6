"""Bans: after too many denials by a rule, the rule denies the client for a time, whatever its counters say.

A ban is asked before the counters that it watches. It is never charged.

State: the end of the last ban, the number of consecutive bans (the row), and the times of the denials since then. All
times are in microseconds since the epoch. The row is reset if the length of the longest ban has passed since the last
ban ended. The denials are reset when a ban begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct, pack, unpack_from
from typing import cast

from ratelimit_mw.algorithms.algorithm import Algorithm
from ratelimit_mw.model import Outcome, Quota

_HEAD = Struct("<QQ")


@dataclass(frozen=True, slots=True)
class BanQuota(Quota):
    """`limit` denials within `period` begin a ban. All times are in microseconds.

    Attributes:
        lasts: The length of a ban. 0: there is never a ban.
        longest: The longest ban. A ban that begins less than this time after the end of the last
            ban is longer by `growth`.
        growth: The factor by which such a ban is longer than the last one.
    """

    lasts: int = 0
    longest: int = 0
    growth: int = 1


def decide(state: bytes, quota: Quota, _cost: int, now: int) -> tuple[Outcome, bytes | None]:
    """Return whether no ban is active at `now`, and the state to store (None: leave it as it is).

    If allowed, `remaining` is how many more denials begin a ban. If denied, `retry_after` is the time until its end.
    """
    ban = cast("BanQuota", quota)
    ends, row, denials = _read(state)
    latest = now + _length(ban, row)
    clamped = ends > latest  # the clock stepped back, or the rule's bans have become shorter
    ends = min(ends, latest)
    if ends > now:
        state_after = _packed(ends, row, denials) if clamped else None
        return Outcome(False, 0, ends + _quiet(ban) - now, ends - now), state_after
    lately = _lately(denials, ban, now)
    return Outcome(True, max(ban.limit - len(lately), 0), _unused_in(ban, ends, row, lately, now)), None


def count_denial(state: bytes, quota: Quota, now: int) -> tuple[Outcome, bytes]:
    """Count a denial at `now` by a counter that the ban watches, while no ban is active. See `CountDenial`."""
    ban = cast("BanQuota", quota)
    ends, row, denials = _read(state)
    if ends + _quiet(ban) <= now:
        row = 0
    lately = _lately(denials, ban, now)
    if len(lately) + 1 >= ban.limit:
        row += _length(ban, row) < ban.longest  # the row stops growing at the longest ban
        length = _length(ban, row)
        return Outcome(True, 0, length + _quiet(ban), length), _packed(now + length, row, ())
    lately.append(now)
    outcome = Outcome(True, ban.limit - len(lately), _unused_in(ban, ends, row, lately, now))
    return outcome, _packed(ends, row, lately)


def _read(state: bytes) -> tuple[int, int, Sequence[int]]:
    if len(state) < _HEAD.size or len(state) % 8:
        return 0, 0, ()
    ends, row = _HEAD.unpack_from(state)
    return ends, row, unpack_from(f"<{len(state) // 8 - 2}Q", state, _HEAD.size)


def _packed(ends: int, row: int, denials: Sequence[int]) -> bytes:
    return _HEAD.pack(ends, row) + pack(f"<{len(denials)}Q", *denials)


def _lately(denials: Sequence[int], ban: BanQuota, now: int) -> list[int]:
    """Return the denials within `ban.period`. If the clock stepped back, denials after `now` count as at `now`."""
    return [min(denial, now) for denial in denials if now - ban.period < denial <= now + ban.period]


def _length(ban: BanQuota, row: int) -> int:
    """Return how long the ban with this number in its row lasts: lasts × growth^(row − 1), at most `longest`.

    The length is in microseconds. Number 0 means that there is no ban.
    """
    if row == 0:
        return 0
    length, place = ban.lasts, 1
    while ban.growth > 1 and place < row and length < ban.longest:
        length, place = length * ban.growth, place + 1
    return min(length, ban.longest)


def _quiet(ban: BanQuota) -> int:
    """Return how long a ban is remembered after its end, in microseconds. Without growth the row has no effect."""
    return ban.longest if ban.growth > 1 else 0


def _unused_in(ban: BanQuota, ends: int, row: int, lately: Sequence[int], now: int) -> int:
    """Return the time in microseconds until the state has no effect any more (`Outcome.reset_after`)."""
    counted = lately[-1] + ban.period - now if lately else 0
    return max(counted, ends + _quiet(ban) - now if row else 0, 0)


def refund(_state: bytes, _quota: Quota, _cost: int, _charged_at: int, _now: int) -> bytes | None:
    """Return None, because a ban is never charged."""
    return None


def numbers(quota: Quota) -> tuple[int, int, int, int]:
    """Return the numbers that ban.lua gets."""
    ban = cast("BanQuota", quota)
    return ban.limit + ban.growth * 65_536, ban.period, ban.lasts, ban.longest


ALGORITHM = Algorithm(code="ban", decide=decide, refund=refund, count_denial=count_denial, numbers=numbers)
