"""Settles leases with the store: returns what was not used, and charges what was spent on account.

The logic is written once for threads and tasks, as generators (`Steps`) that yield the calls to make. `drive` and
`adrive` make these calls.
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

_MAX_PER_CALL = 100
"""The most counters in one call, so that no call occupies the store for long."""

_MAX_PER_GUARD = 1_000
"""The most leases that are handled while the guard is locked, so that no request waits for long."""

_CHECK_AGAIN = 1.0
"""Seconds after which waiting threads and tasks check whether the payer has died."""


class LeaseSync:
    """Keeps the ledger of a process's leases and settles it with `store`. Access to `ledger` requires the `guard`.

    What is left of leases is returned, and what was spent on account is charged. A thread does so every `interval`
    seconds; it runs only while there are leases. Under a user's clock, the caller runs the steps of `settle_due` before
    each decision. Methods that return `Steps` do nothing until the caller runs them.

    Args:
        store: the store.
        clock: the user's clock, or None for the system's.
        interval: seconds between two settlements.
        most: the most counters that may have a lease.
    """

    guard = lazy(lock)

    def __init__(self, store: Store, clock: Clock | None, interval: float, most: int) -> None:
        self.ledger: LeaseLedger
        self.thread: threading.Thread | None
        self._store = store
        self._clock = clock
        self._interval = interval
        self._most = most
        self.begin()

    def begin(self) -> None:
        """Reset to no leases and no thread. Called by the constructor and in the child of a fork."""
        self.ledger = LeaseLedger(round(self._interval * SECOND), self._most)
        self._payments: dict[str, _Payment] = {}
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
            if (self.thread and self.thread.is_alive()) or not len(self.ledger):
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
            self.ledger.begin_asking(claims, self._open_payments())
            return self.now()

    def settle_due(self) -> Steps[None]:
        """Settle the leases that are due. While the store is unavailable, charges stay owed."""
        more = True
        while more:
            with self.guard:
                now = self.now()
                continuing = self.ledger.due(now, _MAX_PER_GUARD)
                more = self.ledger.is_due(now)
            with contextlib.suppress(StoreUnavailable):
                yield from self._pay(None)
                for leases in _chunks(continuing):
                    yield from self._look([Claim(Ask(lease.key, lease.quota, 0), lease) for lease in leases])

    def settle_keys(self, keys: Sequence[str]) -> Steps[None]:
        """Settle what is owed for these counters. Wait for their charges that are under way."""
        while (under_way := (yield from self._pay(keys))) is not None:
            yield under_way

    def settle_all(self) -> Steps[StoreUnavailable | None]:
        """End and settle all leases. Returns the error if the store is unavailable; charges then stay owed."""
        with self.guard:
            self.ledger.end_all(self.now())
            keys = [*self._payments, *(due.key for due in self.ledger.owed)]
        try:
            yield from self.settle_keys(keys)
        except StoreUnavailable as error:
            return error
        return None

    def settle_finally(self) -> Steps[None]:
        """As `settle_all`, for the last time. What cannot be charged is dropped and logged."""
        error = yield from self.settle_all()
        with self.guard:
            lost = [due for due in self.ledger.take_owed(self.now()) if due.amount < 0]
        if lost:
            cost, counters = -sum(due.amount for due in lost), len({due.key for due in lost})
            message = "write_back: a cost of %d on %d counters could not be charged at shutdown: %s"
            logger.warning(message, cost, counters, error)

    def _look(self, claims: Sequence[Claim]) -> Steps[None]:
        """Read from the store what remains for leases on account."""
        asks = [claim.ask for claim in claims]
        asked_at = self.begin_asking(claims)
        reply: Reply = yield asks, LOOK
        with self.guard:
            for claim, outcome in zip(claims, reply.outcomes, strict=True):
                self.ledger.learn(claim, outcome, time_of_key(reply.now, claim.ask.key), asked_at)

    def _pay(self, keys: Sequence[str] | None) -> "Steps[_Payment | None]":
        """Pay the store what is owed for these counters (None for all), unless charges to one of them are under way.

        Returns:
            The payment that is under way, for which the caller must wait; None if the debt was paid.

        Raises:
            StoreUnavailable: the store is unavailable. After this or any other exception, the charges are owed again.
        """
        payer = _Payer()
        payment = _Payment(payer)
        try:
            with self.guard:
                open_payments = self._open_payments()
                under_way = next((open_payments[key] for key in keys or () if key in open_payments), None)
                if under_way is None:
                    self.ledger.take_owed(self.now(), keys, but=open_payments, into=payment.owed)
                    open_payments.update({due.key: payment for due in payment.owed if due.amount < 0})
            if under_way is None:
                yield from self._make_calls(payment)
            return under_way
        finally:
            # A charge is repeated, because that does not over-admit. A refund is not, because it may have arrived.
            try:
                self._close(payment)
            except BaseException:
                self._close(payment)  # an interrupted call may be repeated
                raise

    def _make_calls(self, payment: "_Payment") -> Steps[None]:
        """Make the calls of a payment."""
        together: defaultdict[int, defaultdict[tuple[str, Quota], list[Due]]] = defaultdict(lambda: defaultdict(list))
        for due in payment.owed:
            together[due.start][due.key, due.quota].append(due)
        for start, counters in together.items():
            for chunk in _chunks([*counters.items()]):
                asks = [Ask(key, quota, sum(due.amount for due in dues)) for (key, quota), dues in chunk]
                yield asks, Intent(charged_at=start)
                payment.paid.update(id(due) for _, dues in chunk for due in dues)

    def _close(self, payment: "_Payment") -> None:
        """Record as owed again what was not charged, and wake all that wait for the payment."""
        if not payment.owed:
            payment.finish()
            return
        charges = [due for due in payment.owed if due.amount < 0]
        keys = {due.key for due in charges}
        with self.guard:
            owed = set(map(id, self.ledger.owed))  # after an asynchronous exception, some may already be there
            self.ledger.owed += [due for due in charges if id(due) not in payment.paid and id(due) not in owed]
            self.ledger.charged(keys)
            for key in keys:
                if self._payments.get(key) is payment:
                    del self._payments[key]
        payment.finish()

    def _open_payments(self) -> "dict[str, _Payment]":
        """The payments that are under way, by the keys of their counters."""
        for key in [key for key, payment in self._payments.items() if payment.over]:
            del self._payments[key]  # the payer was interrupted before it could remove the payment
        return self._payments

    def _keep_settling(self, stopped: threading.Event) -> None:
        wait = self._interval
        while not stopped.wait(wait):
            drive(self._store, self.settle_due())
            with self.guard:
                if not len(self.ledger) and not self.ledger.owed:
                    self.thread = None
                    return
                wait = min(max((self.ledger.due_at - self.now()) / SECOND, self._interval / 20), self._interval)


class _Payer:
    """Represents the thread or task that pays. Only the frame of `_pay` refers to it, so it ends with that frame."""

    __slots__ = ("__weakref__",)


class _Payment:
    """What is being paid to the store. It is under way until it has finished or its payer is gone.

    `concurrent.futures.Future` is not used, because an asynchronous exception can leave its lock locked.
    """

    def __init__(self, payer: _Payer) -> None:
        self.owed: list[Due] = []
        self.paid: set[int] = set()
        self._payer = weakref.ref(payer)
        self._finished = False
        self._wake: list[Callable[[], object]] = []

    @property
    def over(self) -> bool:
        """Whether the payment has finished or its payer is gone."""
        return self._finished or self._payer() is None

    def finish(self) -> None:
        """Finish the payment, and wake all that wait for it."""
        self._finished = True
        while self._wake:
            with contextlib.suppress(RuntimeError):  # the event loop of the waiting task is closed
                self._wake.pop()()

    def result(self) -> None:
        """Block until the payment is over."""
        gate = threading.Lock()
        gate.acquire()
        self._wake.append(gate.release)
        while not self.over and not gate.acquire(timeout=_CHECK_AGAIN):
            continue

    async def awaited(self) -> None:
        """The awaitable twin of `result`."""
        finished = asyncio.Event()
        self._wake.append(partial(asyncio.get_running_loop().call_soon_threadsafe, finished.set))
        while not self.over:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(finished.wait(), _CHECK_AGAIN)


def time_of_key(now: int, key: str) -> int:
    """The time at which the counter of `key` was decided. In a cluster, each node has its own clock."""
    return now.of_slot[slot_of(key)] if isinstance(now, ClusterTime) else now


def _chunks(things: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(things), _MAX_PER_CALL):
        yield things[start : start + _MAX_PER_CALL]


def _local_time() -> int:
    return time.clock_gettime_ns(_BOOT_CLOCK) // 1_000 if _BOOT_CLOCK is not None else time.monotonic_ns() // 1_000


_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)
"""A monotonic clock that includes the time in suspend (Linux). A lease must end during a suspend, too."""
