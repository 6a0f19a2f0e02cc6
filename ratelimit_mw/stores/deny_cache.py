"""Denials remembered: a counter known to be exhausted denies without asking the store."""

import math
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from ratelimit_mw.clock import Clock
from ratelimit_mw.lru import LRU
from ratelimit_mw.model import NEVER, SECOND, Ask, Banned, Outcome, Quota, Reply
from ratelimit_mw.stores.bans import banned
from ratelimit_mw.stores.base import Store

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


class DenyCache:
    """Asks `store`, unless a counter of the request is known to deny it.

    Certain, because nothing but time, a reset or another quota opens a counter, and each of these is seen: time
    from the store's own `retry_after`, counted from before it was asked; a reset through `forget`, or within five
    seconds where another process made it; another quota by comparison. What a response may open (`refundable`) is
    always asked, and what an app gives back itself shows as a reset does. Shadow asks are never answered from here.
    Where denials are counted towards a ban, each is put to the store until the ban stands.
    At most `most` counters are remembered.
    """

    def __init__(self, store: Store, *, clock: Clock | None = None, most: int = 65_536) -> None:
        self._store = store
        self._now = clock.now if clock else _monotonic
        self._denials: LRU[str, _Denial] = LRU(most)
        self._offset = 0

    def decide(self, asks: Sequence[Ask], *, commit: bool = True) -> Reply:
        """See `Store.decide`. A denial made here speaks of its own counter only."""
        asked_at = self._now()
        reply = self._known(asks, asked_at) if commit and self._denials else None
        if reply is None:
            reply = self._store.decide(asks, commit=commit)
            for outcome in reply.outcomes:
                if not outcome.allowed:
                    self._learn(asks, asked_at, reply)
                    break
        return reply

    async def adecide(self, asks: Sequence[Ask], *, commit: bool = True) -> Reply:
        """See `decide`."""
        asked_at = self._now()
        reply = self._known(asks, asked_at) if commit and self._denials else None
        if reply is None:
            reply = await self._store.adecide(asks, commit=commit)
            for outcome in reply.outcomes:
                if not outcome.allowed:
                    self._learn(asks, asked_at, reply)
                    break
        return reply

    def forget(self, keys: Sequence[str]) -> None:
        """See `Store.forget`."""
        self._store.forget(keys)
        self._drop(keys)

    async def aforget(self, keys: Sequence[str]) -> None:
        """See `Store.forget`."""
        await self._store.aforget(keys)
        self._drop(keys)

    def refund(self, asks: Sequence[Ask], charged_at: int) -> None:
        """See `Store.refund`."""
        self._store.refund(asks, charged_at)
        self._drop([ask.key for ask in asks])

    async def arefund(self, asks: Sequence[Ask], charged_at: int) -> None:
        """See `Store.refund`."""
        await self._store.arefund(asks, charged_at)
        self._drop([ask.key for ask in asks])

    def charge(self, asks: Sequence[Ask], *, instead_of: int | None = None) -> int:
        """See `Store.charge`."""
        return self._store.charge(asks, instead_of=instead_of)

    async def acharge(self, asks: Sequence[Ask], *, instead_of: int | None = None) -> int:
        """See `Store.charge`."""
        return await self._store.acharge(asks, instead_of=instead_of)

    def keys(self, prefix: str) -> Iterator[str]:
        """See `Store.keys`."""
        return self._store.keys(prefix)

    def close(self) -> None:
        """See `Store.close`."""
        self._store.close()

    async def aclose(self) -> None:
        """See `Store.close`."""
        await self._store.aclose()

    @property
    def beneath(self) -> Store:
        """The store that is asked."""
        return self._store

    @beneath.setter
    def beneath(self, store: Store) -> None:
        self._store = store

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

    def _drop(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._denials.drop(key)


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
