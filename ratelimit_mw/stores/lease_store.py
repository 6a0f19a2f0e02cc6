"""The store that decides in the process, within leases, and settles with the store beneath it."""

import atexit
import logging
import weakref
from collections.abc import Sequence
from typing import Any

from ratelimit_mw.clock import Clock
from ratelimit_mw.model import Ask, Reply
from ratelimit_mw.process_local import reset_after_fork
from ratelimit_mw.stores.bans import has_begun, untold
from ratelimit_mw.stores.base import DECIDE, LOOK, Call, Steps, Store, StoreRequest, Wrapper, adrive, drive
from ratelimit_mw.stores.lease import Claim
from ratelimit_mw.stores.lease_sync import LeaseSync, moment

logger = logging.getLogger("ratelimit_mw")


class Leases(Wrapper):
    """Decides here what shares allow, and asks `store` for the rest, and for new shares.

    Every `interval` seconds what is due is settled with the store: shares that were not spent go back, and what was
    spent on account is charged. A thread does it, which lives only while there are shares; under a `clock` handed
    in, the next decision does it. A child of a fork has no shares, and `forget` drops them. At most `most` counters
    have shares; those beyond are asked strictly, as strict asks are.
    """

    def __init__(self, store: Store, clock: Clock | None = None, *, interval: float = 1.0, most: int = 65_536) -> None:
        super().__init__(store)
        self._clock = clock
        self._settler = LeaseSync(store, clock, interval, most)
        _all.add(self)
        reset_after_fork(self)

    def asked(self, request: StoreRequest) -> Call | Reply | Steps[Reply]:
        """Decide here if the shares allow it. Strict asks go to the store as they are."""
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
        """Drop the shares of counters that were reset. Those of other processes remain until they end."""
        with self._settler.guard:
            self._settler.book.forget([ask.key for ask in note])
        return reply

    def settle(self) -> None:
        """End every share: what is left of leases goes back, what was admitted on account is charged."""
        drive(self.beneath, self._settler.all())

    async def asettle(self) -> None:
        """The awaitable twin of `settle`."""
        await adrive(self.beneath, self._settler.all())

    def finish(self) -> None:
        """As `settle`, for the last time: what the store can't be charged is dropped, and that is logged."""
        self._settler.stop()
        drive(self.beneath, self._settler.rest())

    async def afinish(self) -> None:
        """The awaitable twin of `finish`."""
        self._settler.stop()
        await adrive(self.beneath, self._settler.rest())

    def close(self) -> None:
        """See `Store.close`; every share is settled before."""
        self.finish()
        super().close()

    async def aclose(self) -> None:
        """See `close`."""
        await self.afinish()
        await super().aclose()

    def after_fork(self) -> None:
        """Go on in the child of a fork: the shares are the parent's."""
        self._settler.begin()

    def _here(self, asks: Sequence[Ask], commit: bool) -> Reply | None:
        """The reply where it takes no store."""
        settler = self._settler
        now = settler.now()
        with settler.guard:
            book = settler.book
            if self._clock and now >= book.due_at and (len(book) or book.owed):
                return None
            return book.spend(asks, now) if commit else book.look(asks, now)

    def _decide(self, asks: Sequence[Ask], commit: bool) -> Steps[Reply]:
        if self._clock:
            yield from self._settler.due()
        if commit:
            return (yield from self._claim(asks))
        keys = [ask.key for ask in asks]
        with self._settler.guard:
            self._settler.book.end(keys, self._settler.now())
        yield from self._settler.these(keys)
        reply: Reply = yield asks, LOOK
        return reply

    def _claim(self, asks: Sequence[Ask]) -> Steps[Reply]:
        now = self._settler.now()
        claims: list[Claim] = []
        admitted = False
        try:
            with self._settler.guard:
                self._settler.book.claim(asks, now, claims)
            if not self._clock:
                self._settler.start()
            away = [claim for claim in claims if not claim.here]
            reply = (yield from self._put(away)) if away else Reply(now, ())
            if reply.only is not None:
                return reply._replace(only=claims.index(away[reply.only]))
            admitted = reply.admits([claim.ask for claim in away])
        finally:
            with self._settler.guard:
                self._settler.book.conclude(claims, admitted, self._settler.now())
        said = iter(reply.outcomes)
        return Reply(reply.now, [claim.outcome(next(said) if not claim.here else None, reply.now) for claim in claims])

    def _put(self, claims: Sequence[Claim]) -> Steps[Reply]:
        """Ask the store for the cost and a share; where that is denied, for the cost alone."""
        on_account = [claim.ask.key for claim in claims if claim.share and claim.share.on_account]
        if on_account:
            yield from self._settler.these(on_account)
        asked_at = self._settler.now()
        reply = yield from self._ask(claims)
        if reply.only is not None:
            return reply
        denied = [claim for claim, outcome in zip(claims, reply.outcomes, strict=True) if not outcome.allowed]
        with self._settler.guard:
            # What this process holds or owes of a counter was not to be had from the store.
            owing = self._settler.book.owing([claim.ask.key for claim in denied], asked_at)
        again = [claim for claim in denied if claim.extra or claim.ask.key in owing]
        if not again:
            return reply
        asks = [claim.ask for claim in claims]
        for claim, ask in zip(claims, untold(asks, reply.outcomes), strict=True):
            claim.ask = ask
        if not reply.admits(asks):
            again = list(claims)
        for claim in again:
            claim.extra = 0
        yield from self._settler.these([claim.ask.key for claim in again])
        second = yield from self._ask(again)
        if second.only is not None:
            return second._replace(only=claims.index(again[second.only]))
        said = dict(zip(map(id, again), second.outcomes, strict=True))
        first = zip(claims, reply.outcomes, strict=True)
        return Reply(second.now, [o if has_begun(o) else said.get(id(c), o) for c, o in first])

    def _ask(self, claims: Sequence[Claim]) -> Steps[Reply]:
        """Put the claims to the store, and learn from what it charged."""
        asks = [claim.enlarged for claim in claims]
        asked_at = self._settler.begin_asking(claims)
        reply: Reply = yield asks, DECIDE
        if reply.admits(asks):
            with self._settler.guard:
                for claim, outcome in zip(claims, reply.outcomes, strict=True):
                    if outcome.allowed:
                        self._settler.book.learn(claim, outcome, moment(reply.now, claim.ask.key), asked_at)
        return reply


_all: weakref.WeakSet[Leases] = weakref.WeakSet()


@atexit.register
def _settle_at_exit() -> None:
    """WSGI has no shutdown: what was admitted on account is charged all the same."""
    for leases in list(_all):
        try:
            leases.finish()
        except Exception:
            logger.exception("what was admitted here could not be settled at the end of the process")
