"""Denials remembered: a counter known to be exhausted denies without asking the store."""

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from ratelimit_mw.clock import Clock
from ratelimit_mw.model import NEVER, SECOND, Ask, Banned, Outcome, Quota, Reply
from ratelimit_mw.stores.bans import banned
from ratelimit_mw.stores.base import DECIDE, LRU, Call, Store, StoreRequest, Wrapper

T = TypeVar("T")

_LONGEST = 5 * SECOND
"""A denial is believed for so long at most: a reset made by another process shows within it."""


class _Watch(NamedTuple):
    """A ban that stands until `ends`; of the counters that it watched when learnt the one at `last` opens last."""

    ends: int
    watched: tuple[Ask, ...]
    last: int


class _Denial(NamedTuple):
    """From `since` to `until`, in local microseconds, `quota` denies a request of `cost`; it `opens` later.

    A ban denies everything. While it does not stand and what it watches denies, `counted` is true.
    """

    since: int
    until: int
    opens: int
    resets: int
    cost: int
    quota: Quota
    counted: bool = False
    watch: _Watch | None = None

    def holds(self, quota: Quota, cost: int, now: int) -> bool:
        """Whether this is the answer to the same question; another cost has another wait."""
        if quota.algorithm == "ban":
            return self.since <= now < self.until
        return cost == self.cost and self.since <= now < self.until and quota == self.quota

    def told(self, asks: Sequence[Ask], place: int) -> tuple[int, int, int]:
        """When it opens for these asks and when it is reset, and the place of the counter that says so.

        For how much longer than a ban its counters deny is known for the same asks alone.
        """
        if self.watch is None:
            return self.opens, self.resets, place
        ends, watched, last = self.watch
        if tuple(_watched(asks, place, asks[place].cost)) == watched:
            return self.opens, self.resets, place + 1 + last
        return ends, ends, place + 1


class DenyCache(Wrapper):
    """Asks `store`, unless a counter of the request is known to deny it.

    Certain, because nothing but time, a reset or another quota opens a counter, and each of these is seen: time
    from the store's own `retry_after`, counted from before it was asked; a reset through `forget`, or within five
    seconds where another process made it; another quota by comparison. What a response may open (`refundable`) is
    always asked, and what an app gives back itself shows as a reset does. Shadow asks are never answered from here.
    Where denials are counted towards a ban, each is put to the store until the ban stands.
    At most `most` counters are remembered.
    """

    def __init__(self, store: Store, *, clock: Clock | None = None, most: int = 65_536) -> None:
        super().__init__(store)
        self._now = clock.now if clock else _monotonic
        self._denials: LRU[str, _Denial] = LRU(most)
        self._offset = 0

    def asked(self, request: StoreRequest) -> Call | Reply:
        """Deny at once what is known to be denied; such a reply speaks of its own counter only.

        The note is when it was asked.
        """
        asked_at = self._now()
        if self._denials and request[1] is DECIDE:
            known = self._known(request[0], asked_at)
            if known is not None:
                return known
        return request, asked_at

    def answered(self, asked: StoreRequest, note: Any, reply: Reply) -> Reply:
        """Learn from a denial, and drop what was reset or given back."""
        asks, intent = asked
        if intent is DECIDE or intent.decides:
            for outcome in reply.outcomes:
                if not outcome.allowed:
                    self._learn(asks, note, reply)
                    break
        elif not intent.insist:
            for ask in asks:
                self._denials.drop(ask.key)
        return reply

    def _known(self, asks: Sequence[Ask], now: int) -> Reply | None:
        """The denial that is already certain."""
        found: tuple[int, int, int] | None = None
        kind: type[Outcome] = Outcome
        for place, (key, quota, cost, shadow) in enumerate(asks):
            denial = self._denials.get(key)
            if denial and not shadow and denial.holds(quota, cost, now):
                if denial.counted:
                    return None
                told = denial.told(asks, place)
                if found is None or _far(told[0]) > _far(found[0]):
                    found, kind = told, Outcome if denial.watch is None else Banned
        if found is None:
            return None
        opens, resets, only = found
        retry_after = opens - now if opens != NEVER else NEVER
        outcome = kind(False, 0, max(resets - now, 0), retry_after)
        return Reply(now + self._offset, (outcome,), only=only)

    def _learn(self, asks: Sequence[Ask], asked_at: int, reply: Reply) -> None:
        """Remember what was denied."""
        answered_at = self._now()
        self._offset = reply.now - answered_at
        learnt: list[tuple[str, _Denial]] = []
        longest = told = 0.0
        for place, ((key, quota, cost, shadow), said) in enumerate(zip(asks, reply.outcomes, strict=True)):
            if shadow or (quota.ban is not None and quota.algorithm != "ban"):
                continue  # a shadow denies nothing, and of what is watched the ban has the say
            wait, counted, watch = 0 if quota.refundable else said.retry_after, False, None
            if quota.ban is None:
                longest = max(longest, _far(said.retry_after))
            elif said.allowed:
                wait, counted = _soonest(_watched(reply.outcomes, place, cost)), True
            else:
                last, said = _last(_watched(reply.outcomes, place, cost), said)  # noqa: PLW2901  the ban's say in it
                watch = _Watch(answered_at + wait, tuple(_watched(asks, place, cost)), last)
            if wait:
                # The store decided between asking and answering: it is asked again from the earliest moment at which
                # it may allow, and promised is the latest.
                until = asked_at + (_LONGEST if wait == NEVER else min(wait, _LONGEST))
                opens = NEVER if said.retry_after == NEVER else answered_at + said.retry_after
                resets = answered_at + said.reset_after
                learnt.append((key, _Denial(asked_at, until, opens, resets, cost, quota, counted, watch)))
                told = told if counted else max(told, _far(said.retry_after))
        for key, denial in learnt:
            # What can't be remembered may be what takes longest, and then only the store can tell how long.
            if denial.counted or told >= longest:
                self._denials.put(key, denial)


def _watched(row: Sequence[T], place: int, cost: int) -> Sequence[T]:
    """Those behind the ban at that place."""
    return row[place + 1 : place + 1 + cost]


def _soonest(outcomes: Sequence[Outcome]) -> int:
    """The shortest wait of those that deny; 0 where none does."""
    return min([outcome.retry_after for outcome in outcomes if not outcome.allowed], default=0)


def _last(outcomes: Sequence[Outcome], ban: Outcome) -> tuple[int, Outcome]:
    """The place of the counter that denies longest while that ban stands, and what it says."""
    said = [banned(outcome, ban) for outcome in outcomes or (ban,)]
    last = max(range(len(said)), key=lambda place: _far(said[place].retry_after))
    return last, said[last]


def _far(moment: int) -> float:
    return math.inf if moment == NEVER else moment


def _monotonic() -> int:
    return time.monotonic_ns() // 1000
