"""Denials remembered: a counter known to be exhausted denies without asking the store."""

import math
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ratelimit_mw.clock import Clock
from ratelimit_mw.model import NEVER, SECOND, Ask, Outcome, Quota, Reply
from ratelimit_mw.recent import Recent
from ratelimit_mw.stores.base import Store

_LONGEST = 5 * SECOND
"""A denial is believed for so long at most: a reset made by another process shows within it."""


class _Denial(NamedTuple):
    """From `since` to `until`, in local microseconds, `quota` denies a request of `cost`.

    A ban denies everything. While it does not stand and what it watches denies, `counted` is true.
    """

    since: int
    until: int
    opens: int
    resets: int
    cost: int
    quota: Quota
    counted: bool = False

    def holds(self, quota: Quota, cost: int, now: int) -> bool:
        """Whether this is the answer to the same question; another cost has another wait."""
        if quota.algorithm == "ban":
            return self.since <= now < self.until
        return cost == self.cost and self.since <= now < self.until and quota == self.quota


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
        self._denials: Recent[str, _Denial] = Recent(most)
        self._offset = 0

    def decide(self, asks: Sequence[Ask], *, commit: bool = True) -> Reply:
        """See `Store.decide`. A denial made here speaks of its own counter only."""
        asked_at = self._now()
        reply = self._known(asks, asked_at) if commit else None
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
        reply = self._known(asks, asked_at) if commit else None
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
        found: _Denial | None = None
        only = 0
        for place, (key, quota, cost, shadow) in enumerate(asks):
            denial = self._denials.get(key)
            if denial and not shadow and denial.holds(quota, cost, now):
                if denial.counted:
                    return None
                if found is None or _far(denial.opens) > _far(found.opens):
                    found, only = denial, place
        if found is None:
            return None
        retry_after = found.opens - now if found.opens != NEVER else NEVER
        outcome = Outcome(False, 0, max(found.resets - now, 0), retry_after)
        return Reply(now + self._offset, (outcome,), only=only)

    def _learn(self, asks: Sequence[Ask], asked_at: int, reply: Reply) -> None:
        """Remember what was denied."""
        answered_at = self._now()
        self._offset = reply.now - answered_at
        learnt: list[tuple[str, _Denial]] = []
        longest = told = 0.0
        for place, ((key, quota, cost, shadow), outcome) in enumerate(zip(asks, reply.outcomes, strict=True)):
            if quota.ban is not None:
                wait, counted = _told_by_ban(asks, reply, place)
            else:
                wait, counted = 0 if outcome.allowed or quota.refundable else outcome.retry_after, False
            if not shadow and not outcome.allowed and quota.ban is None:
                longest = max(longest, _far(outcome.retry_after))
            if wait and not shadow:
                # The store decided between asking and answering: it is asked again from the earliest moment at which
                # it may allow, and promised is the latest.
                until = asked_at + (_LONGEST if wait == NEVER else min(wait, _LONGEST))
                opens = NEVER if wait == NEVER else answered_at + wait
                resets = answered_at + outcome.reset_after
                learnt.append((key, _Denial(asked_at, until, opens, resets, cost, quota, counted)))
                told = told if counted else max(told, _far(wait))
        for key, denial in learnt:
            # What can't be remembered may be what takes longest, and then only the store can tell how long.
            if denial.counted or told >= longest:
                self._denials.put(key, denial)

    def _drop(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._denials.drop(key)


def _told_by_ban(asks: Sequence[Ask], reply: Reply, place: int) -> tuple[int, bool]:
    """For how long the ban at that place stands or, while it does not, something that it watches denies."""
    _, quota, watched, _ = asks[place]
    outcome = reply.outcomes[place]
    if quota.algorithm != "ban":
        return 0, False  # the ban has the say
    if not outcome.allowed:
        return outcome.retry_after, False
    waits = [said.retry_after for said in reply.outcomes[place + 1 : place + 1 + watched] if not said.allowed]
    return min(waits, default=0), True


def _far(moment: int) -> float:
    return math.inf if moment == NEVER else moment


def _monotonic() -> int:
    return time.monotonic_ns() // 1000
