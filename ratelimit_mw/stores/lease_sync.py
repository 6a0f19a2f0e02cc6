"""Settles leases with the store: returns what was not used, and charges what was spent on account.

The logic is written once for threads and tasks, as generators (`Steps`) that yield the calls to make; `drive` and
`adrive` make them.
"""

import asyncio
import contextlib
import logging
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from ratelimit_mw.clock import Clock
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import SECOND, Ask, Quota, Reply
from ratelimit_mw.process_local import lazy, lock
from ratelimit_mw.stores.base import LOOK, Intent, Steps, Store, drive
from ratelimit_mw.stores.lease import Claim, Due, LeaseLedger
from ratelimit_mw.stores.redis.cluster import ClusterTime
from ratelimit_mw.stores.redis.topology import slot_of

T = TypeVar("T")


logger = logging.getLogger("ratelimit_mw")

_TOGETHER = 100
"""The most counters in one call, so that no call occupies the store for long."""

_AT_ONCE = 1_000
"""The most leases handled while the guard is held, so that no request waits for long."""


_LOOK_AGAIN = 1.0
"""Seconds after which waiting threads and tasks check whether the thread that settles has died."""


class LeaseSync:
    """Keeps the ledger of a process's leases and settles it with `store`. Access to `ledger` requires the `guard`.

    What is left of leases is returned, and what was spent on account is charged. A thread does so every `interval`
    seconds; it runs only while there are leases. Under a user's clock, the caller runs the steps of `due` before
    each decision. Methods that return `Steps` do nothing until the caller runs them.

    Args:
        store: the store.
        clock: the user's clock, or None for the system's.
        interval: seconds between two settlements.
        most: the most counters that may have a lease.
    """

    guard = lazy(lock)

    def __init__(self, store: Store, clock: Clock | None, interval: float, most: int) -> None:
        self.book: LeaseLedger
        self.thread: threading.Thread | None
        self._store = store
        self._clock = clock
        self._interval = interval
        self._most = most
        self.begin()

    def begin(self) -> None:
        """Start without leases and without a thread: at first, and in the child of a fork."""
        vars(self).pop("guard", None)
        self.book = LeaseLedger(round(self._interval * SECOND), self._most)
        self._flights: dict[str, _Flight] = {}
        self.thread = None
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopped.set()

    def now(self) -> int:
        """The local time by which leases are timed, in microseconds."""
        return self._clock.now() if self._clock else _local_time()

    def start(self) -> None:
        """Start the thread that settles, unless it runs or there are no leases."""
        if self.thread and self.thread.is_alive():
            return
        with self.guard:
            if (self.thread and self.thread.is_alive()) or not len(self.book):
                return
            self._stopped = threading.Event()
            self.thread = threading.Thread(
                target=self._keep_settling, args=(self._stopped,), name="ratelimit_mw settle", daemon=True
            )
            with contextlib.suppress(RuntimeError):  # no thread available: the next request tries again
                self.thread.start()

    def begin_asking(self, claims: Sequence[Claim]) -> int:
        """Record which charges are under way before the store is asked. Returns the local time."""
        with self.guard:
            self.book.begin_asking(claims, self._flying())
            return self.now()

    def due(self) -> Steps[None]:
        """Settle the leases that are due. While the store is unavailable, charges stay owed."""
        more = True
        while more:
            with self.guard:
                now = self.now()
                going_on = self.book.due(now, _AT_ONCE)
                more = self.book.is_due(now)
            with contextlib.suppress(StoreUnavailable):
                yield from self._pay(None)
                for shares in _parts(going_on):
                    yield from self._look([Claim(Ask(share.key, share.quota, 0), share) for share in shares])

    def these(self, keys: Sequence[str]) -> Steps[None]:
        """Settle what is owed for these counters, and wait for their charges that are under way."""
        while (under_way := (yield from self._pay(keys))) is not None:
            yield under_way

    def all(self) -> Steps[StoreUnavailable | None]:
        """End and settle all leases. Returns the error if the store is unavailable; charges then stay owed."""
        with self.guard:
            self.book.end_all(self.now())
            keys = [*self._flights, *(due.key for due in self.book.owed)]
        try:
            yield from self.these(keys)
        except StoreUnavailable as error:
            return error
        return None

    def rest(self) -> Steps[None]:
        """As `all`, before the process ends: what could not be charged is dropped and logged."""
        error = yield from self.all()
        with self.guard:
            lost = [due for due in self.book.take_owed(self.now()) if due.amount < 0]
        if lost:
            cost, counters = -sum(due.amount for due in lost), len({due.key for due in lost})
            message = "write_back: a cost of %d, admitted here of %d counters, could not be charged at shutdown: %s"
            logger.warning(message, cost, counters, error)

    def _look(self, claims: Sequence[Claim]) -> Steps[None]:
        """Read from the store what remains for leases on account."""
        asks = [claim.ask for claim in claims]
        asked_at = self.begin_asking(claims)
        reply: Reply = yield asks, LOOK
        with self.guard:
            for claim, outcome in zip(claims, reply.outcomes, strict=True):
                self.book.learn(claim, outcome, moment(reply.now, claim.ask.key), asked_at)

    def _pay(self, keys: Sequence[str] | None) -> "Steps[_Flight | None]":
        """Pay the store what is owed for these counters (None for all), unless charges to one of them are under way.

        Returns the flight of these charges, for which the caller must wait; None if the debt was paid.
        Raises StoreUnavailable. After any exception, the charges are owed again.
        """
        payer = _Payer()
        flight = _Flight(payer)
        try:
            with self.guard:
                flying = self._flying()
                under_way = next((flying[key] for key in keys or () if key in flying), None)
                if under_way is None:
                    self.book.take_owed(self.now(), keys, but=flying, into=flight.owed)
                    flying.update({due.key: flight for due in flight.owed if due.amount < 0})
            if under_way is None:
                yield from self._bill(flight)
            return under_way
        finally:
            # A refund is not repeated, because it may have arrived; a charge is, because that does not over-admit.
            try:
                self._land(flight)
            except BaseException:
                self._land(flight)  # it may run twice
                raise

    def _bill(self, flight: "_Flight") -> Steps[None]:
        """Make the calls that pay what is in `flight`."""
        together: defaultdict[int, defaultdict[tuple[str, Quota], list[Due]]] = defaultdict(lambda: defaultdict(list))
        for due in flight.owed:
            together[due.start][due.key, due.quota].append(due)
        for start, counters in together.items():
            for bill in _parts([*counters.items()]):
                asks = [Ask(key, quota, sum(due.amount for due in dues)) for (key, quota), dues in bill]
                yield asks, Intent(charged_at=start)
                flight.paid.update(id(due) for _, dues in bill for due in dues)

    def _land(self, flight: "_Flight") -> None:
        """Record what was not charged as owed again, and wake those who wait for the flight."""
        if not flight.owed:
            flight.land()
            return
        charges = [due for due in flight.owed if due.amount < 0]
        keys = {due.key for due in charges}
        with self.guard:
            owed = set(map(id, self.book.owed))  # an asynchronous exception may have left it there
            self.book.owed += [due for due in charges if id(due) not in flight.paid and id(due) not in owed]
            self.book.charged(keys)
            for key in keys:
                if self._flights.get(key) is flight:
                    del self._flights[key]
        flight.land()

    def _flying(self) -> "dict[str, _Flight]":
        """The flights that are under way, by the keys of their counters."""
        for key in [key for key, flight in self._flights.items() if flight.over]:
            del self._flights[key]  # the payer was interrupted while landing
        return self._flights

    def _keep_settling(self, stopped: threading.Event) -> None:
        wait = self._interval
        while not stopped.wait(wait):
            drive(self._store, self.due())
            with self.guard:
                if not len(self.book) and not self.book.owed:
                    self.thread = None
                    return
                wait = min(max((self.book.due_at - self.now()) / SECOND, self._interval / 20), self._interval)


class _Payer:
    """Represents the thread or task that pays. It is referenced only by the paying frame, and dies with it."""

    __slots__ = ("__weakref__",)


class _Flight:
    """What is being paid. Its charges are under way until it lands, or until its payer is gone.

    `concurrent.futures.Future` is not used, because an asynchronous exception can leave the lock of its condition
    held.
    """

    def __init__(self, payer: _Payer) -> None:
        self.owed: list[Due] = []
        self.paid: set[int] = set()
        self._payer = weakref.ref(payer)
        self._landed = False
        self._wake: list[Callable[[], object]] = []

    @property
    def over(self) -> bool:
        """Whether the flight has landed or its payer is gone."""
        return self._landed or self._payer() is None

    def land(self) -> None:
        """Wake all that wait."""
        self._landed = True
        while self._wake:
            with contextlib.suppress(RuntimeError):  # the event loop of the waiting task is closed
                self._wake.pop()()

    def result(self) -> None:
        """Block until the flight is over."""
        gate = threading.Lock()
        gate.acquire()
        self._wake.append(gate.release)
        while not self.over and not gate.acquire(timeout=_LOOK_AGAIN):
            continue

    async def awaited(self) -> None:
        """The awaitable twin of `result`."""
        landed = asyncio.Event()
        self._wake.append(partial(asyncio.get_running_loop().call_soon_threadsafe, landed.set))
        while not self.over:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(landed.wait(), _LOOK_AGAIN)


def moment(now: int, key: str) -> int:
    """The time at which the counter of `key` was decided: each node of a cluster has its own clock."""
    return now.of_slot[slot_of(key)] if isinstance(now, ClusterTime) else now


def _parts(things: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(things), _TOGETHER):
        yield things[start : start + _TOGETHER]


def _local_time() -> int:
    return time.clock_gettime_ns(_GOES_ON) // 1_000 if _GOES_ON is not None else time.monotonic_ns() // 1_000


_GOES_ON = getattr(time, "CLOCK_BOOTTIME", None)
"""A monotonic clock that includes the time in suspend (Linux), because a lease must not outlive it."""
