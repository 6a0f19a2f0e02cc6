"""The store that decides in this process by leases, and settles them with the store beneath it."""

import atexit
import logging
import weakref
from collections.abc import Sequence
from typing import Any

from ratelimit_mw.clock import Clock
from ratelimit_mw.model import Ask, Reply
from ratelimit_mw.process_local import reset_after_fork
from ratelimit_mw.stores.bans import has_begun, without_counted_denials
from ratelimit_mw.stores.base import DECIDE, LOOK, Call, Steps, Store, StoreRequest, Wrapper, adrive, drive
from ratelimit_mw.stores.lease import Claim
from ratelimit_mw.stores.lease_sync import LeaseSync, time_of_key

logger = logging.getLogger("ratelimit_mw")


class Leases(Wrapper):
    """Decides by the leases of this process, and asks `store` for what they do not cover and for new leases.

    Leases are settled with the store after each interval: what is left of a lease is returned, and what was spent on
    account is charged. A thread does so, which runs only while there are leases. Under a user's clock, the next
    decision does so. The child of a fork starts without leases. `forget` drops the leases of the counters.

    Args:
        store: the store to ask.
        clock: the user's clock; None for the system's.
        interval: the seconds between two settlements.
        most: the most counters that may have a lease. All other counters are strict.
    """

    def __init__(self, store: Store, clock: Clock | None = None, *, interval: float = 1.0, most: int = 65_536) -> None:
        super().__init__(store)
        self._clock = clock
        self._sync = LeaseSync(store, clock, interval, most)
        _all.add(self)
        reset_after_fork(self)

    def asked(self, request: StoreRequest) -> Call | Reply | Steps[Reply]:
        """Decide here if leases cover the request. A request with strict asks only goes to the store unchanged."""
        asks, intent = request
        if intent.forget:
            return request, asks
        if not intent.decides:
            return request, None
        reply = self._here(asks, intent.commit)
        if reply is not None:
            return reply
        if all(ask.quota.consistency == "strict" for ask in asks):
            return request, None
        return self._decide(asks, intent.commit)

    def answered(self, asked: StoreRequest, note: Any, reply: Reply) -> Reply:  # noqa: ARG002  the note has the asks
        """Drop the leases of counters that were reset. The leases of other processes last until they end."""
        with self._sync.guard:
            self._sync.ledger.forget([ask.key for ask in note])
        return reply

    def settle(self) -> None:
        """End all leases. What is left of them is returned, and what was spent on account is charged."""
        drive(self.beneath, self._sync.settle_all())

    async def asettle(self) -> None:
        """The awaitable twin of `settle`."""
        await adrive(self.beneath, self._sync.settle_all())

    def finish(self) -> None:
        """Settle for the last time. What cannot be charged to the store is dropped and logged."""
        self._sync.stop()
        drive(self.beneath, self._sync.settle_finally())

    async def afinish(self) -> None:
        """The awaitable twin of `finish`."""
        self._sync.stop()
        await adrive(self.beneath, self._sync.settle_finally())

    def close(self) -> None:
        """Settle all leases, and close the store. See `Store.close`."""
        self.finish()
        super().close()

    async def aclose(self) -> None:
        """The awaitable twin of `close`."""
        await self.afinish()
        await super().aclose()

    def after_fork(self) -> None:
        """Start without leases in the child of a fork, because the leases belong to the parent."""
        self._sync.begin()

    def _here(self, asks: Sequence[Ask], commit: bool) -> Reply | None:
        """The reply if leases cover all asks, otherwise None."""
        sync = self._sync
        now = sync.now()
        with sync.guard:
            ledger = sync.ledger
            if self._clock and now >= ledger.due_at and (len(ledger) or ledger.owed):
                return None
            return ledger.spend(asks, now) if commit else ledger.peek(asks, now)

    def _decide(self, asks: Sequence[Ask], commit: bool) -> Steps[Reply]:
        if self._clock:
            yield from self._sync.settle_due()
        # The store must know what was spent here before a look, and before it takes a cost with an overdraft.
        keys = [ask.key for ask in asks if ask.quota.overdraft or not commit]
        if keys:
            with self._sync.guard:
                self._sync.ledger.end(keys, self._sync.now())
            yield from self._sync.settle_keys(keys)
        if commit:
            return (yield from self._claim(asks))
        reply: Reply = yield asks, LOOK
        return reply

    def _claim(self, asks: Sequence[Ask]) -> Steps[Reply]:
        now = self._sync.now()
        claims: list[Claim] = []
        admitted = False
        try:
            with self._sync.guard:
                self._sync.ledger.claim(asks, now, claims)
            if not self._clock:
                self._sync.start()
            away = [claim for claim in claims if not claim.covered]
            reply = (yield from self._put(away)) if away else Reply(now, ())
            if reply.only is not None:
                return reply._replace(only=claims.index(away[reply.only]))
            admitted = reply.admits([claim.ask for claim in away])
        finally:
            with self._sync.guard:
                self._sync.ledger.conclude(claims, admitted, self._sync.now())
        outcomes = iter(reply.outcomes)
        found = [claim.outcome(None if claim.covered else next(outcomes), reply.now) for claim in claims]
        return Reply(reply.now, found)

    def _put(self, claims: Sequence[Claim]) -> Steps[Reply]:
        """Ask the store for the cost and a lease. What it denies is asked again for the cost alone."""
        on_account = [claim.ask.key for claim in claims if claim.lease and claim.lease.on_account]
        if on_account:
            yield from self._sync.settle_keys(on_account)
        asked_at = self._sync.now()
        reply = yield from self._ask(claims)
        if reply.only is not None:
            return reply
        denied = [claim for claim, outcome in zip(claims, reply.outcomes, strict=True) if not outcome.allowed]
        with self._sync.guard:
            # Leases and debts of this process may be the cause. They are settled before the second call.
            owing = self._sync.ledger.owing([claim.ask.key for claim in denied], asked_at)
        again = [claim for claim in denied if claim.extra or claim.ask.key in owing]
        if not again:
            return reply
        asks = [claim.ask for claim in claims]
        for claim, ask in zip(claims, without_counted_denials(asks, reply.outcomes), strict=True):
            claim.ask = ask
        if not reply.admits(asks):
            again = list(claims)
        for claim in again:
            claim.extra = 0
        yield from self._sync.settle_keys([claim.ask.key for claim in again])
        second = yield from self._ask(again)
        if second.only is not None:
            return second._replace(only=claims.index(again[second.only]))
        newer = dict(zip(map(id, again), second.outcomes, strict=True))
        first = zip(claims, reply.outcomes, strict=True)
        return Reply(second.now, [o if has_begun(o) else newer.get(id(c), o) for c, o in first])

    def _ask(self, claims: Sequence[Claim]) -> Steps[Reply]:
        """Ask the store for the claims, and start the leases that it grants."""
        asks = [claim.enlarged for claim in claims]
        asked_at = self._sync.begin_asking(claims)
        reply: Reply = yield asks, DECIDE
        if reply.admits(asks):
            with self._sync.guard:
                for claim, outcome in zip(claims, reply.outcomes, strict=True):
                    if outcome.allowed:
                        self._sync.ledger.learn(claim, outcome, time_of_key(reply.now, claim.ask.key), asked_at)
        return reply


_all: weakref.WeakSet[Leases] = weakref.WeakSet()


@atexit.register
def _settle_at_exit() -> None:
    """Settle all leases when the process ends, because WSGI has no shutdown event."""
    for leases in list(_all):
        try:
            leases.finish()
        except Exception:
            logger.exception("leases could not be settled at the end of the process")
