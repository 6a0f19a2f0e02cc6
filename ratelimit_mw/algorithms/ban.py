"""Bans: who is denied again and again by a rule is denied by it for a time, whatever its counters say.

A ban is asked before the counters that it watches, and takes nothing. State: the moment at which the last ban ends,
how many bans have followed each other, and the moments of the denials since, fewer than bring the next one. The row of
bans is forgotten when the longest of them could have passed without another; the denials, when a ban begins.
"""

from collections.abc import Sequence
from struct import Struct, pack, unpack_from
from typing import cast

from ratelimit_mw.algorithms.algorithm import Algorithm
from ratelimit_mw.model import Ban, Outcome, Quota

_HEAD = Struct("<QQ")


def decide(state: bytes, quota: Quota, _cost: int, now: int) -> tuple[Outcome, bytes | None]:
    """Whether no ban stands at `now`, and the state to store (None: leave it as it is).

    Allowed, `remaining` is how many more denials bring one; denied, `retry_after` is until its end.
    """
    ban = cast("Ban", quota.ban)
    ends, row, denials = _read(state)
    latest = now + _length(ban, row)
    clamped = ends > latest  # the clock stepped back, or the rule's bans have become shorter
    ends = min(ends, latest)
    if ends > now:
        state_after = _packed(ends, row, denials) if clamped else None
        return Outcome(False, 0, ends + _quiet(ban) - now, ends - now), state_after
    lately = _lately(denials, ban, now)
    return Outcome(True, max(ban.after - len(lately), 0), _unused_in(ban, ends, row, lately, now)), None


def deny(state: bytes, quota: Quota, now: int) -> tuple[Outcome, bytes]:
    """Note that something that the ban watches denies at `now`, while no ban stands.

    If that begins one, the outcome is denied, and its `delay` is the place of the ban in its row, from 1 on.
    """
    ban = cast("Ban", quota.ban)
    ends, row, denials = _read(state)
    if ends + _quiet(ban) <= now:
        row = 0
    lately = _lately(denials, ban, now)
    if len(lately) + 1 >= ban.after:
        row += _length(ban, row) < ban.longest
        length = _length(ban, row)
        return Outcome(False, 0, length + _quiet(ban), length, row), _packed(now + length, row, ())
    lately.append(now)
    outcome = Outcome(True, ban.after - len(lately), _unused_in(ban, ends, row, lately, now))
    return outcome, _packed(ends, row, lately)


def _read(state: bytes) -> tuple[int, int, Sequence[int]]:
    if len(state) < _HEAD.size or len(state) % 8:
        return 0, 0, ()
    ends, row = _HEAD.unpack_from(state)
    return ends, row, unpack_from(f"<{len(state) // 8 - 2}Q", state, _HEAD.size)


def _packed(ends: int, row: int, denials: Sequence[int]) -> bytes:
    return _HEAD.pack(ends, row) + pack(f"<{len(denials)}Q", *denials)


def _lately(denials: Sequence[int], ban: Ban, now: int) -> list[int]:
    """The denials of the time that counts. Those of a clock that stepped back since are as of now."""
    return [min(denial, now) for denial in denials if now - ban.within < denial <= now + ban.within]


def _length(ban: Ban, row: int) -> int:
    """How long the ban at that place of its row lasts; the one at 0 is none."""
    if row == 0:
        return 0
    length, place = ban.lasts, 1
    while ban.growth > 1 and place < row and length < ban.longest:
        length, place = length * ban.growth, place + 1
    return min(length, ban.longest)


def _quiet(ban: Ban) -> int:
    """How long after its end a ban is remembered."""
    return ban.longest if ban.growth > 1 else 0


def _unused_in(ban: Ban, ends: int, row: int, lately: Sequence[int], now: int) -> int:
    counted = lately[-1] + ban.within - now if lately else 0
    return max(counted, ends + _quiet(ban) - now if row else 0, 0)


def refund(_state: bytes, _quota: Quota, _cost: int, _charged_at: int, _now: int) -> bytes | None:
    """None: a ban takes nothing, so nothing is given back."""
    return None


ALGORITHM = Algorithm(code="ban", decide=decide, refund=refund, in_rules=False)
