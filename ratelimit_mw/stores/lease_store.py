"""The store that decides in this process by leases, and settles them with the store beneath it.

The logic is written once for threads and tasks, as generators (`Steps`) that yield the calls to make.
"""

import asyncio
import atexit
import contextlib
import time
import weakref
from collections import Counter
from collections.abc import Awaitable, Collection, Sequence
from concurrent.futures import Future
from typing import Any

from ratelimit_mw.clock import Clock
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.logs import logger
from ratelimit_mw.model import SECOND, Ask, Quota, Reply
from ratelimit_mw.process_local import Repeating, lazy, lock, reset_after_fork
from ratelimit_mw.stores.base import (
    DECIDE,
    LOOK,
    Call,
    Denied,
    Intent,
    Steps,
    Store,
    StoreRequest,
    Wrapper,
    adrive,
    drive,
    tell_denials,
    time_of,
)
from ratelimit_mw.stores.denials import asked_again, has_begun
from ratelimit_mw.stores.lease import Claim, Due, LeaseLedger

_MAX_PER_CALL = 100
"""The most counters in one call, so that no call occupies the store for long."""

_MAX_PER_GUARD = 1_000
"""The most leases that are handled while the guard is locked, so that no request waits for long."""

_LONGEST_WAIT = 2.0
"""The seconds that a request waits for a payment at most. A thread that was killed may never finish its own."""


class Leases(Wrapper):
    """Decides by the leases of this process, and asks `store` for what they do not cover and for new leases.

    A counter that this process asks for rarely gets no lease; its requests go to the store unchanged. Leases are
    settled with the store after each interval: what is left of a lease is returned, and what was spent on account is
    charged. A thread does so, which runs only while there are leases. Under a user's clock, the next decision does so.
    The child of a fork starts without leases. `forget` drops the leases of the counters.

    Args:
        store: the store to ask.
        clock: the user's clock; None for the system's.
        interval: the seconds between two settlements.
        most: the most counters that may have a lease. All other counters are strict.
    """

    guard = lazy(lock)
    """Protects the ledger and the payments."""

    def __init__(self, store: Store, clock: Clock | None = None, *, interval: float = 1.0, most: int = 65_536) -> None:
        super().__init__(store)
        self._clock = clock
        self._now = clock.now if clock else _local_time
        """The local time by which leases are timed, in microseconds."""
        self._interval = interval
        self._most = most
        self.ledger: LeaseLedger
        self.settling = Repeating("settle", self._keep_settling, first=interval)
        """The thread that settles. Without one, the next request tries to start it again."""
        self.after_fork()
        atexit.register(_settle_at_exit, weakref.ref(self))
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Start without leases in the child of a fork, because the leases belong to the parent."""
        self.ledger = LeaseLedger(round(self._interval * SECOND), self._most)
        self._under_way: set[_UnderWay] = set()
        self._next_turn = 0

    def asked(self, request: StoreRequest) -> Call | Reply | Steps[Reply]:
        """Decide here if leases cover the request. If no counter is hot, the request goes to the store unchanged."""
        asks, intent = request
        if intent is not DECIDE:
            if intent.forget:
                return request, asks
            if not intent.decides:
                return request, None
        now = self._now()
        cold = self.ledger.none_is_hot(asks, now)
        if not self._turn_is_due(now):
            if cold:
                return request, None
            if intent.commit and (reply := self._spend(asks, now)):
                return reply
        return self._decide(asks, intent.commit)

    def decision(self, asks: Sequence[Ask], denied: Denied) -> Awaitable[Reply]:
        """See `Store`. Of most apps, most counters are not hot: their requests are passed on with few steps."""
        if self._clock:
            return super().decision(asks, denied)
        now = self._now()
        if self.ledger.none_is_hot(asks, now):
            return self.beneath.decision(asks, denied)
        reply = self._spend(asks, now)
        if reply is not None:  # it denies nothing
            return self._carried_out(reply)
        return tell_denials(self._carried_out(self._decide(asks, commit=True)), asks, denied)

    def _spend(self, asks: Sequence[Ask], now: int) -> Reply | None:
        with self.guard:
            return self.ledger.spend(asks, now)

    def answered(self, asked: StoreRequest, note: Any, reply: Reply) -> Reply:  # noqa: ARG002  the note has the asks
        """Drop the leases of counters that were reset. The leases of other processes last until they end."""
        with self.guard:
            self.ledger.forget([ask.key for ask in note])
        return reply

    def settle(self) -> None:
        """End all leases. What is left of them is returned, and what was spent on account is charged."""
        drive(self.beneath, self._settle_all())

    def finish(self) -> None:
        """Settle for the last time. What cannot be charged to the store is dropped and logged."""
        self.settling.stop()
        drive(self.beneath, self._settle_finally())

    async def afinish(self) -> None:
        """The awaitable twin of `finish`."""
        self.settling.stop()
        await adrive(self.beneath, self._settle_finally())

    def close(self) -> None:
        """Settle all leases, and close the store. See `Store.close`."""
        self.finish()
        super().close()

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""
        await self.afinish()
        await super().aclose()

    def _decide(self, asks: Sequence[Ask], commit: bool) -> Steps[Reply]:
        if self._turn_is_due(self._now()):
            yield from self._settle_due()
        # The store must know what was spent here before a look, and before it takes a cost with an overdraft.
        keys = [ask.key for ask in asks if ask.quota.overdraft or not commit]
        if keys:
            with self.guard:
                self.ledger.end(keys, self._now())
            yield from self._pay(keys)
        if commit:
            return (yield from self._claim(asks))
        reply: Reply = yield asks, LOOK
        return reply

    def _claim(self, asks: Sequence[Ask]) -> Steps[Reply]:
        with self.guard:
            now = self._now()
            if not self.ledger.leases:
                self._next_turn = now + round(self._interval * SECOND)
            claims = [self.ledger.claim(ask, now) for ask in asks]
        admitted = False
        try:
            if not self._clock and self.ledger.leases:
                self.settling.start()
            away = [claim for claim in claims if not claim.covered]
            reply = (yield from self._put(away)) if away else Reply(now, ())
            admitted = reply.admits([claim.ask for claim in away])
        finally:
            with self.guard:
                self.ledger.conclude(claims, admitted, self._now())
        outcomes = iter(reply.outcomes)
        found = [claim.outcome(None if claim.covered else next(outcomes), reply.now) for claim in claims]
        return Reply(reply.now, found)

    def _put(self, claims: Sequence[Claim]) -> Steps[Reply]:
        """Ask the store for the cost and a lease. What it denies is asked again for the cost alone."""
        yield from self._pay([claim.ask.key for claim in claims if claim.on_account])
        reply = yield from self._ask(claims)
        denied = [claim for claim, outcome in zip(claims, reply.outcomes, strict=True) if not outcome.allowed]
        # Leases and debts of this process may be the cause. They are settled before the second call.
        keys = [claim.ask.key for claim in denied]
        with self.guard:
            takers = [call for call in self._under_way if not call.leased.isdisjoint(keys)]
        yield from takers
        with self.guard:
            self._under_way.difference_update(takers)  # if one is not over by now, its thread was killed
            self.ledger.end(keys, self._now())
            owed, paying = self.ledger.owed, self._paying()
            again = [c for c in denied if c.extra or c.room_went_back or c.ask.key in owed or c.ask.key in paying]
        if not again:
            return reply
        asks = [claim.ask for claim in claims]
        for claim, ask in zip(claims, asked_again(asks, reply.outcomes), strict=True):
            claim.ask = ask
        if not reply.admits(asks):
            again = list(claims)
        for claim in again:
            claim.extra = 0
        yield from self._pay([claim.ask.key for claim in again])
        second = yield from self._ask(again)
        newer = dict(zip(map(id, again), second.outcomes, strict=True))
        first = zip(claims, reply.outcomes, strict=True)
        return Reply(second.now, [o if has_begun(o) else newer.get(id(c), o) for c, o in first])

    def _ask(self, claims: Sequence[Claim]) -> Steps[Reply]:
        """Ask the store for the claims, and start the leases that it grants."""
        asks = [claim.ask._replace(cost=claim.ask.cost + claim.extra) for claim in claims]
        leased = frozenset(claim.ask.key for claim in claims if claim.extra)
        call = _UnderWay(leased=leased) if leased else None
        with self.guard:
            asked_at = self._now()
            for claim in claims:
                claim.moved = claim.lease.moved if claim.lease else 0
            if call:
                self._under_way.add(call)
        try:
            reply: Reply = yield asks, DECIDE
            if reply.admits(asks):
                with self.guard:
                    for claim, outcome in zip(claims, reply.outcomes, strict=True):
                        if outcome.allowed:
                            self.ledger.learn(claim, outcome, time_of(reply.now, claim.ask.key), asked_at)
        finally:
            if call:
                self._end(call)
        return reply

    def _settle_due(self) -> Steps[None]:
        """Settle all leases after an interval. While the store is unavailable, charges stay owed."""
        self._next_turn = self._now() + round(self._interval * SECOND)
        with self.guard:
            leases = list(self.ledger.leases.values())
        for start in range(0, len(leases), _MAX_PER_GUARD):
            with self.guard:
                self.ledger.turn(leases[start : start + _MAX_PER_GUARD], self._now())
        with contextlib.suppress(StoreUnavailable):
            yield from self._pay(None)

    def _settle_all(self) -> Steps[StoreUnavailable | None]:
        """End and settle all leases. Returns the error if the store is unavailable; charges then stay owed."""
        with self.guard:
            self.ledger.end(list(self.ledger.leases), self._now())
            under_way = self._paying()
        try:
            yield from self._pay(None)
            yield from self._pay(under_way)
        except StoreUnavailable as error:
            return error
        return None

    def _settle_finally(self) -> Steps[None]:
        """As `_settle_all`, for the last time. What cannot be charged is dropped and logged."""
        error = yield from self._settle_all()
        with self.guard:
            lost = [due for due in self.ledger.take_owed(self._now(), None) if due.amount < 0]
        if lost:
            cost, counters = -sum(due.amount for due in lost), len({due.lease.key for due in lost})
            message = "write_back: a cost of %d on %d counters could not be charged at shutdown: %s"
            logger.warning(message, cost, counters, error)

    def _pay(self, keys: Collection[str] | None) -> Steps[None]:
        """Pay the store what is owed for these counters (None for all). Wait for their payments that are under way.

        Raises:
            StoreUnavailable: the store is unavailable. After this or any other exception, the charges are owed again.
        """
        while True:
            with self.guard:
                under_way = next((one for one in self._under_way if not one.paying.isdisjoint(keys or ())), None)
                payment = _UnderWay([] if under_way else self.ledger.take_owed(self._now(), keys, _MAX_PER_CALL))
                if payment.owed:
                    self._under_way.add(payment)
            if under_way:
                yield under_way
                with self.guard:
                    self._under_way.discard(under_way)  # if it is not over by now, its thread was killed
            elif payment.owed:
                yield from self._make(payment)
            else:
                return

    def _make(self, payment: "_UnderWay") -> Steps[None]:
        """Make the calls of a payment: one for each window."""
        try:
            for start in {due.start for due in payment.owed}:
                paid = [due for due in payment.owed if due.start == start]
                yield _summed(paid), Intent(charged_at=start)
                with self.guard:
                    payment.owed = [due for due in payment.owed if due.start != start]
                    self.ledger.paid(paid)
        finally:
            with self.guard:
                self.ledger.unpaid(payment.owed)
            self._end(payment)

    def _paying(self) -> set[str]:
        """The keys of the counters of which payments are under way."""
        return {key for call in self._under_way for key in call.paying}

    def _end(self, call: "_UnderWay") -> None:
        """Wake all that wait for the call."""
        with self.guard:
            self._under_way.discard(call)
        call.set_result(None)

    def _turn_is_due(self, now: int) -> bool:
        """Whether the next decision settles, because there is no thread under a user's clock."""
        return self._clock is not None and now >= self._next_turn and bool(self.ledger.leases or self.ledger.owed)

    def _keep_settling(self) -> float | None:
        """Settle what is due. Returns the seconds until the next time; None if there is nothing left to settle."""
        drive(self.beneath, self._settle_due())
        with self.guard:
            return self._interval if self.ledger.leases or self.ledger.owed else None


class _UnderWay(Future[None]):
    """What was sent to the store, until its reply was taken up.

    Attributes:
        owed: what is being paid.
        paying: the keys of these counters.
        leased: the keys of the counters of which leases are being taken.
    """

    def __init__(self, owed: Sequence[Due] = (), leased: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.owed = owed
        self.paying = frozenset(due.lease.key for due in owed)
        self.leased = leased

    def result(self, timeout: float | None = _LONGEST_WAIT) -> None:
        """Block until it is done."""
        with contextlib.suppress(TimeoutError):
            super().result(timeout)

    async def awaited(self) -> None:
        """The awaitable twin of `result`."""
        await asyncio.wait([asyncio.wrap_future(self)], timeout=_LONGEST_WAIT)


def _summed(dues: Sequence[Due]) -> Sequence[Ask]:
    amounts: Counter[tuple[str, Quota]] = Counter()
    for due in dues:
        amounts[due.lease.key, due.quota] += due.amount
    return [Ask(key, quota, amount) for (key, quota), amount in amounts.items()]


def _local_time() -> int:
    return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000 if _BOOT_CLOCK is not None else time.monotonic_ns() // 1_000


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)
"""A monotonic clock that includes the time in suspend (Linux). A lease must end during a suspend, too."""


def _settle_at_exit(leases: "weakref.ref[Leases]") -> None:
    """Settle all leases when the process ends, because WSGI has no shutdown event."""
    left = leases()
    if left is not None:
        try:
            left.finish()
        except Exception:
            logger.exception("leases could not be settled at the end of the process")
