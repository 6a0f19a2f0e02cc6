"""The store that decides in this process by leases, and settles them with the store beneath it.

The logic is written once for threads and tasks, as generators (`Steps`) that yield the calls to make.
"""

import atexit
import contextlib
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import Awaitable, Sequence
from typing import Any

from ratelimit_mw.clock import Clock
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.logs import logger
from ratelimit_mw.model import SECOND, Ask, Reply
from ratelimit_mw.process_local import Repeating, lazy, lock, reset_after_fork
from ratelimit_mw.stores.base import (
    DECIDE,
    LOOK,
    Call,
    Denied,
    Intent,
    ReplyFields,
    Steps,
    Store,
    StoreRequest,
    Wrapper,
    adrive,
    drive,
    tell_denials,
    time_of,
)
from ratelimit_mw.stores.lease import Claim, Lease, LeaseLedger, UnderWay, unit

_MAX_PER_CALL = 100
"""The most counters in one call, so that no call occupies the store for long."""


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
        self._microseconds = round(interval * SECOND)
        self._most = most
        self.ledger: LeaseLedger
        self.settling = Repeating("settle", self._keep_settling, first=interval)
        """The thread that settles. Without one, the next request tries to start it again."""
        self.after_fork()
        atexit.register(_settle_at_exit, weakref.ref(self))
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Start without leases in the child of a fork, because the leases belong to the parent."""
        self.ledger = LeaseLedger(self._microseconds, self._most)
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

    def reply_to(self, request: StoreRequest, denied: Denied | None = None) -> Awaitable[ReplyFields]:
        """See `Store`. Of most apps, most counters are not hot: their requests are passed on with few steps."""
        if self._clock or denied is None:
            return super().reply_to(request, denied)
        asks, _ = request
        now = self._now()
        if self.ledger.none_is_hot(asks, now):
            return self.beneath.reply_to(request, denied)
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
            for ask in note:
                self.ledger.leases.pop(ask.key, None)
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
        yield from self._settle([self.ledger.leases[key] for key in keys if key in self.ledger.leases])
        if not commit:
            looked: Reply = yield asks, LOOK
            return looked
        claims = yield from self._claim(asks)
        away = [claim.ask for claim in claims if not claim.covered]
        admitted = False
        try:
            reply: Reply = (yield away, DECIDE) if away else Reply(self._now(), ())
            admitted = reply.admits(away)
        finally:
            with self.guard:
                self.ledger.conclude(claims, admitted)
        if len(away) == len(asks):
            return reply
        outcomes = iter(reply.outcomes)
        found = [lease.outcome(reply.now) if covered and lease else next(outcomes) for _, lease, covered, _ in claims]
        return Reply(reply.now, found)

    def _claim(self, asks: Sequence[Ask]) -> Steps[Sequence[Claim]]:
        """Spend from the leases, after those that lack something were filled. The store decides on the rest."""
        filled: set[Lease] = set()
        while True:
            with self.guard:
                now = self._now()
                if not self.ledger.leases:
                    self._next_turn = now + self._microseconds
                claims, lacking = self.ledger.claim(asks, now, filled)
                busy = next((lease.busy for lease in lacking if lease.busy), None)
                owing = [lease for lease in lacking if lease.owes]
                filling = UnderWay(lacking) if lacking and not (busy or owing) else None
                pairs = lacking.items() if filling else ()
                away = [ask._replace(cost=lease.ask_for(ask, now), shadow=len(pairs) > 1) for lease, ask in pairs]
            if not lacking:
                return claims
            if not self._clock:
                self.settling.start()
            if busy:
                yield from self._wait_for(busy)
            elif owing:
                yield from self._settle(owing)
            elif filling:
                filled.update(filling.leases)
                yield from self._fill(filling, away)

    def _fill(self, filling: UnderWay, asks: Sequence[Ask]) -> Steps[None]:
        """Ask the store for what leases lack. Each is filled by itself."""
        try:
            reply: Reply = yield asks, DECIDE
            with self.guard:
                for lease, ask, outcome in zip(filling.leases, asks, reply.outcomes, strict=True):
                    now = time_of(reply.now, lease.key)
                    if lease.busy is filling:
                        lease.fill(outcome, now, self._now() - lease.since, 2 * self._microseconds)
                    elif outcome.allowed:  # another request did not wait any longer
                        lease.owe(unit(lease.quota, now)[0], ask.cost)
        finally:
            with self.guard:
                filling.end()

    def _settle(self, leases: Sequence[Lease]) -> Steps[None]:
        """End leases, and pay the store what they owe, after their calls that are under way.

        Raises:
            StoreUnavailable: the store is unavailable. After this or any other exception, the charges are owed again.
        """
        for first in range(0, len(leases), _MAX_PER_CALL):
            some = leases[first : first + _MAX_PER_CALL]
            owed: defaultdict[int, dict[Lease, int]] = defaultdict(dict)
            paying = yield from self._occupied(some)
            try:
                with self.guard:
                    for lease in some:
                        lease.end()
                        for start, amount in lease.take_owed(self._now(), self._microseconds):
                            owed[start][lease] = amount
                for start in sorted(owed):
                    asks = [Ask(lease.key, lease.quota, amount) for lease, amount in owed[start].items()]
                    yield asks, Intent(charged_at=start)
                    del owed[start]
            finally:
                with self.guard:
                    for start, amounts in owed.items():  # a refund may have arrived, and is not sent twice
                        for lease, amount in amounts.items():
                            lease.owe(start, min(amount, 0))
                    paying.end()

    def _occupied(self, leases: Sequence[Lease]) -> Steps[UnderWay]:
        """Wait for the calls of these leases that are under way, and make them busy."""
        while True:
            with self.guard:
                busy = next((lease.busy for lease in leases if lease.busy), None)
                if not busy:
                    return UnderWay(leases)
            yield from self._wait_for(busy)

    def _wait_for(self, call: UnderWay) -> Steps[None]:
        yield call
        with self.guard:
            call.end()  # if it is not over by now, no request waits for it any longer

    def _settle_due(self) -> Steps[None]:
        """Settle all leases after an interval. While the store is unavailable, charges stay owed."""
        self._next_turn = self._now() + self._microseconds
        leases = list(self.ledger.leases.values())
        for lease in leases:
            with self.guard:
                self.ledger.turn(lease)
        with contextlib.suppress(StoreUnavailable):
            yield from self._settle([lease for lease in leases if lease.owes])

    def _settle_all(self) -> Steps[StoreUnavailable | None]:
        """Settle all leases. Returns the error if the store is unavailable; charges then stay owed."""
        try:
            yield from self._settle(list(self.ledger.leases.values()))
        except StoreUnavailable as error:
            return error
        return None

    def _settle_finally(self) -> Steps[None]:
        """As `_settle_all`, for the last time. What cannot be charged is dropped and logged."""
        error = yield from self._settle_all()
        lost: Counter[str] = Counter()
        with self.guard:
            for lease in self.ledger.leases.values():
                lease.end()
                for _, amount in lease.take_owed(self._now(), self._microseconds):
                    lost[lease.key] -= min(amount, 0)
        if cost := lost.total():
            message = "write_back: a cost of %d on %d counters could not be charged at shutdown: %s"
            logger.warning(message, cost, len(+lost), error)

    def _turn_is_due(self, now: int) -> bool:
        """Whether the next decision settles, because there is no thread under a user's clock."""
        return self._clock is not None and now >= self._next_turn and bool(self.ledger.leases)

    def _keep_settling(self) -> float | None:
        """Settle what is due. Returns the seconds until the next time; None if there is nothing left to settle."""
        drive(self.beneath, self._settle_due())
        with self.guard:
            return self._interval if self.ledger.leases else None


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
