"""Decisions made in the process, for the rules that want them so: `consistency: lease` and `write_back`."""

import asyncio
import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ratelimit_mw.clock import Clock
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.late import late, lock
from ratelimit_mw.model import SECOND, Ask, Outcome, Quota, Reply
from ratelimit_mw.stores.bans import untold
from ratelimit_mw.stores.base import Store
from ratelimit_mw.stores.shares import Book, Claim, Due
from ratelimit_mw.stores.slots import slot_of
from ratelimit_mw.stores.spanning import Moment

_log = logging.getLogger("ratelimit_mw")

_T = TypeVar("_T")

_TOGETHER = 100
"""Counters settled in one call at most, so that no call holds the store for long."""

_AT_ONCE = 1_000
"""Shares looked after at once at most, so that no request waits for long meanwhile."""


class _Call(NamedTuple):
    """One thing to do and wait for, in both ways."""

    blocking: Callable[[], Any]
    awaiting: Callable[[], Awaitable[Any]]


_Steps = Generator[_Call, Any, _T]
"""Yields what to do, is sent what came of it."""


class Leases:
    """Decides here what shares allow, and asks `store` for the rest, and for new shares.

    Every `interval` seconds what is due is settled with the store: shares that were not spent go back, and what was
    spent on account is charged. A thread does it, which lives only while there are shares; under a `clock` handed
    in, the next decision does it. A child of a fork has no shares, and `forget` drops them. At most `most` counters
    have shares; those beyond are asked strictly, as strict asks are.
    """

    _lock = late(lock)

    def __init__(self, store: Store, clock: Clock | None = None, *, interval: float = 1.0, most: int = 65_536) -> None:
        self._store = store
        self._clock = clock
        self._interval = interval
        self._most = most
        self._book: Book
        self._begin()
        _all.add(self)

    def decide(self, asks: Sequence[Ask], *, commit: bool = True) -> Reply:
        """See `Store.decide`."""
        reply = self._here(asks, commit)
        return _drive(self._decide(asks, commit)) if reply is None else reply

    async def adecide(self, asks: Sequence[Ask], *, commit: bool = True) -> Reply:
        """See `Store.decide`."""
        reply = self._here(asks, commit)
        return await _adrive(self._decide(asks, commit)) if reply is None else reply

    def settle(self) -> None:
        """End every share: what is left of leases goes back, what was admitted on account is charged."""
        _drive(self._settle_all())

    async def asettle(self) -> None:
        """The awaitable twin of `settle`."""
        await _adrive(self._settle_all())

    def forget(self, keys: Sequence[str]) -> None:
        """See `Store.forget`. The shares that other processes have live on until they end."""
        self._store.forget(keys)
        with self._lock:
            self._book.forget(keys)

    async def aforget(self, keys: Sequence[str]) -> None:
        """See `forget`."""
        await self._store.aforget(keys)
        with self._lock:
            self._book.forget(keys)

    def refund(self, asks: Sequence[Ask], charged_at: int) -> None:
        """See `Store.refund`."""
        self._store.refund(asks, charged_at)

    async def arefund(self, asks: Sequence[Ask], charged_at: int) -> None:
        """See `Store.refund`."""
        await self._store.arefund(asks, charged_at)

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
        """See `Store.close`; every share is settled before."""
        self._stopped.set()
        self.settle()
        self._store.close()

    async def aclose(self) -> None:
        """See `close`."""
        self._stopped.set()
        await self.asettle()
        await self._store.aclose()

    def after_fork(self) -> None:
        """Go on in the child of a fork: the shares are the parent's."""
        self._begin()

    def _begin(self) -> None:
        vars(self).pop("_lock", None)
        self._book = Book(round(self._interval * SECOND), self._most)
        self._flights: dict[str, Future[None]] = {}
        self._settler: threading.Thread | None = None
        self._stopped = threading.Event()

    def _now(self) -> int:
        return self._clock.now() if self._clock else _local_time()

    def _here(self, asks: Sequence[Ask], commit: bool) -> Reply | None:
        """The reply where it takes no store."""
        now = self._now()
        with self._lock:
            if self._clock and now >= self._book.due_at and (len(self._book) or self._book.owed):
                return None
            return self._book.spend(asks, now) if commit else self._book.look(asks, now)

    def _decide(self, asks: Sequence[Ask], commit: bool) -> _Steps[Reply]:
        if all(ask.quota.consistency == "strict" for ask in asks):
            return (yield from self._question(asks, commit))
        if self._clock:
            yield from self._settle()
        if commit:
            return (yield from self._claim(asks))
        keys = [ask.key for ask in asks]
        with self._lock:
            self._book.end(keys, self._now())
        yield from self._settle_these(keys)
        return (yield from self._question(asks, commit=False))

    def _claim(self, asks: Sequence[Ask]) -> _Steps[Reply]:
        now = self._now()
        with self._lock:
            claims = [self._book.claim(ask, now) for ask in asks]
        if not self._clock:
            self._start_settling()
        away = [claim for claim in claims if not claim.here]
        admitted = False
        try:
            reply = (yield from self._put(away)) if away else Reply(now, ())
            if reply.only is not None:
                return reply._replace(only=claims.index(away[reply.only]))
            admitted = reply.admits([claim.ask for claim in away])
        finally:
            with self._lock:
                self._book.conclude(claims, admitted, self._now())
        said = iter(reply.outcomes)
        return Reply(
            reply.now, [_outcome(claim, next(said) if not claim.here else None, reply.now) for claim in claims]
        )

    def _put(self, claims: Sequence[Claim]) -> _Steps[Reply]:
        """Ask the store: for a share besides, and where that is denied, for the bare cost."""
        on_account = [claim.ask.key for claim in claims if claim.share and claim.share.on_account]
        if on_account:
            yield from self._settle_these(on_account)
        asked_at = self._now()
        reply = yield from self._ask(claims)
        if reply.only is not None:
            return reply
        denied = [claim for claim, outcome in zip(claims, reply.outcomes, strict=True) if not outcome.allowed]
        with self._lock:
            # What this process holds or owes of a counter was not to be had from the store.
            owing = self._book.owing([claim.ask.key for claim in denied], asked_at)
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
        yield from self._settle_these([claim.ask.key for claim in again])
        second = yield from self._ask(again)
        if second.only is not None:
            return second._replace(only=claims.index(again[second.only]))
        said = dict(zip(map(id, again), second.outcomes, strict=True))
        return Reply(second.now, [said.get(id(c), o) for c, o in zip(claims, reply.outcomes, strict=True)])

    def _ask(self, claims: Sequence[Claim]) -> _Steps[Reply]:
        """Put the claims to the store, and learn from what it charged."""
        asks = [claim.enlarged for claim in claims]
        asked_at = self._begin_asking(claims)
        reply = yield from self._question(asks, commit=True)
        if reply.admits(asks):
            with self._lock:
                for claim, outcome in zip(claims, reply.outcomes, strict=True):
                    if outcome.allowed:
                        self._book.learn(claim, outcome, _moment(reply.now, claim.ask.key), asked_at)
        return reply

    def _settle(self) -> _Steps[None]:
        """Settle what is due. Where the store is away, what it has to be charged waits for its return."""
        more = True
        while more:
            with self._lock:
                now = self._now()
                going_on = self._book.due(now, _AT_ONCE)
                owed, flight = self._take_owed(None)
                more = len(self._book) > 0 and self._book.due_at <= now
            with contextlib.suppress(StoreUnavailable):
                yield from self._pay(owed, flight)
                for shares in _parts(going_on):
                    yield from self._look([Claim(Ask(share.key, share.quota, 0), share) for share in shares])

    def _look(self, claims: Sequence[Claim]) -> _Steps[None]:
        """Learn what remains of shares on account."""
        asks = [claim.ask for claim in claims]
        asked_at = self._begin_asking(claims)
        reply = yield from self._question(asks, commit=False)
        with self._lock:
            for claim, outcome in zip(claims, reply.outcomes, strict=True):
                self._book.learn(claim, outcome, _moment(reply.now, claim.ask.key), asked_at)

    def _begin_asking(self, claims: Sequence[Claim]) -> int:
        with self._lock:
            self._book.begin_asking(claims, self._flights)
            return self._now()

    def _settle_these(self, keys: Sequence[str]) -> _Steps[None]:
        """Settle what is owed to these counters, and wait for charges that are on their way."""
        taken = None
        while taken is None:
            with self._lock:
                under_way = next((self._flights[key] for key in keys if key in self._flights), None)
                if under_way is None:
                    taken = self._take_owed(keys)
            if under_way is not None:
                yield _Call(under_way.result, partial(asyncio.wrap_future, under_way))
        yield from self._pay(*taken)

    def _settle_all(self) -> _Steps[None]:
        with self._lock:
            self._book.end_all(self._now())
            keys = [*self._flights, *(due.key for due in self._book.owed)]
        with contextlib.suppress(StoreUnavailable):
            yield from self._settle_these(keys)

    def _take_owed(self, keys: Sequence[str] | None) -> tuple[list[Due], Future[None]]:
        """What is owed, to be paid at once; until that is done, the charges among it are under way."""
        owed = self._book.take_owed(self._now(), keys, but=self._flights)
        flight: Future[None] = Future()
        flight.set_running_or_notify_cancel()
        self._flights.update({due.key: flight for due in owed if due.amount < 0})
        return owed, flight

    def _pay(self, owed: Sequence[Due], flight: Future[None]) -> _Steps[None]:
        """Tell the store what it has to hear. Raises StoreUnavailable; what was to be charged is owed again then."""
        together: defaultdict[int, defaultdict[tuple[str, Quota], list[Due]]] = defaultdict(lambda: defaultdict(list))
        for due in owed:
            together[due.start][due.key, due.quota].append(due)
        unpaid = {id(due): due for due in owed if due.amount < 0}
        charged = {due.key for due in unpaid.values()}
        try:
            for start, counters in together.items():
                for bill in _parts([*counters.items()]):
                    asks = [Ask(key, quota, sum(due.amount for due in dues)) for (key, quota), dues in bill]
                    yield _Call(partial(self._store.refund, asks, start), partial(self._store.arefund, asks, start))
                    for _, dues in bill:
                        for due in dues:
                            unpaid.pop(id(due), None)
        finally:
            # What goes back is not sent a second time, for it may have arrived; to charge twice is the safe side.
            with self._lock:
                self._book.owed += unpaid.values()
                self._book.charged(charged)
                for key in charged:
                    self._flights.pop(key, None)
            flight.set_result(None)

    def _question(self, asks: Sequence[Ask], commit: bool) -> _Steps[Reply]:
        decide, adecide = self._store.decide, self._store.adecide
        reply: Reply = yield _Call(partial(decide, asks, commit=commit), partial(adecide, asks, commit=commit))
        return reply

    def _start_settling(self) -> None:
        """Have a thread that settles, unless there is one."""
        if self._settler and self._settler.is_alive():
            return
        with self._lock:
            if (self._settler and self._settler.is_alive()) or not len(self._book):
                return
            self._stopped = threading.Event()
            self._settler = threading.Thread(
                target=self._keep_settling, args=(self._stopped,), name="ratelimit_mw settle", daemon=True
            )
            with contextlib.suppress(
                RuntimeError
            ):  # no more threads: shares end unsettled, and the next ask tries again
                self._settler.start()

    def _keep_settling(self, stopped: threading.Event) -> None:
        wait = self._interval
        while not stopped.wait(wait):
            _drive(self._settle())
            with self._lock:
                if not len(self._book) and not self._book.owed:
                    self._settler = None
                    return
                wait = min(max((self._book.due_at - self._now()) / SECOND, self._interval / 20), self._interval)


def _moment(now: int, key: str) -> int:
    """When the counter of `key` was decided: each node of a cluster has a clock of its own."""
    return now.of_slot[slot_of(key)] if isinstance(now, Moment) else now


def _outcome(claim: Claim, said: Outcome | None, now: int) -> Outcome:
    """What is said of a counter: by the store, or by the share; and what is held here remains too."""
    share = claim.share
    if share is None:
        return said or Outcome(True, 0, 0)
    if said is None:
        return share.outcome(now)
    return said if share.on_account else said._replace(remaining=said.remaining + share.room)


def _parts(things: Sequence[_T]) -> Iterator[Sequence[_T]]:
    for start in range(0, len(things), _TOGETHER):
        yield things[start : start + _TOGETHER]


def _drive(steps: _Steps[_T]) -> _T:
    """Do what `steps` say, blocking."""
    try:
        call = next(steps)
        while True:
            try:
                result = call.blocking()
            except BaseException as error:  # noqa: BLE001  all are the steps' to deal with
                call = steps.throw(error)
            else:
                call = steps.send(result)
    except StopIteration as end:
        value: _T = end.value
        return value


async def _adrive(steps: _Steps[_T]) -> _T:
    """Do what `steps` say, awaiting."""
    try:
        call = next(steps)
        while True:
            try:
                result = await call.awaiting()
            except BaseException as error:  # noqa: BLE001  all are the steps' to deal with
                call = steps.throw(error)
            else:
                call = steps.send(result)
    except StopIteration as end:
        value: _T = end.value
        return value


def _local_time() -> int:
    return time.clock_gettime_ns(_GOES_ON) // 1_000 if _GOES_ON is not None else time.monotonic_ns() // 1_000


_GOES_ON = getattr(time, "CLOCK_BOOTTIME", None)
"""A monotonic clock that goes on while the machine sleeps, where there is one: a share must not outlive a nap."""

_all: weakref.WeakSet[Leases] = weakref.WeakSet()


def _begin_anew() -> None:
    for leases in _all:
        leases.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_begin_anew)


@atexit.register
def _settle_at_exit() -> None:
    """WSGI has no shutdown: what was admitted on account is charged all the same."""
    for leases in list(_all):
        leases.settle()
