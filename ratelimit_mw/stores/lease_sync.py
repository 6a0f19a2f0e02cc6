"""How leases are taken from the store, and settled with it."""

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
"""Counters settled in one call at most, so that no call holds the store for long."""

_AT_ONCE = 1_000
"""Shares looked after at once at most, so that no request waits for long meanwhile."""


_LOOK_AGAIN = 1.0
"""Seconds after which those who wait for charges look whether the thread that pays them is gone."""


class LeaseSync:
    """Keeps the `book` of a process's shares and settles it with `store`; whoever opens it holds the `guard`.

    Shares that were not spent go back, and what was spent on account is charged. Its thread, which lives only while
    there are shares, does it every `interval` seconds; under a `clock` handed in, whoever decides takes the steps of
    `due` before. What is returned as steps is for the caller to take.
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
        """Start with no shares and no thread: at first, and in the child of a fork."""
        vars(self).pop("guard", None)
        self.book = LeaseLedger(round(self._interval * SECOND), self._most)
        self._flights: dict[str, _Flight] = {}
        self.thread = None
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()

    def now(self) -> int:
        """The time by which shares live, in microseconds."""
        return self._clock.now() if self._clock else _local_time()

    def start(self) -> None:
        """Have a thread that settles, unless there is one."""
        if self.thread and self.thread.is_alive():
            return
        with self.guard:
            if (self.thread and self.thread.is_alive()) or not len(self.book):
                return
            self._stopped = threading.Event()
            self.thread = threading.Thread(
                target=self._keep_settling, args=(self._stopped,), name="ratelimit_mw settle", daemon=True
            )
            with contextlib.suppress(
                RuntimeError
            ):  # no more threads: shares end unsettled, and the next ask tries again
                self.thread.start()

    def begin_asking(self, claims: Sequence[Claim]) -> int:
        """Note what is on its way as the store is asked, and when that is."""
        with self.guard:
            self.book.begin_asking(claims, self._flying())
            return self.now()

    def due(self) -> Steps[None]:
        """Settle what is due. Where the store is away, what it has to be charged waits for its return."""
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
        """Settle what is owed to these counters, and wait for charges that are on their way."""
        while (under_way := (yield from self._pay(keys))) is not None:
            yield under_way

    def all(self) -> Steps[StoreUnavailable | None]:
        """End every share, and settle it. Where the store is away, what it has to be charged is owed still."""
        with self.guard:
            self.book.end_all(self.now())
            keys = [*self._flights, *(due.key for due in self.book.owed)]
        try:
            yield from self.these(keys)
        except StoreUnavailable as error:
            return error
        return None

    def rest(self) -> Steps[None]:
        """As `all`, before the process ends: what could not be charged is dropped, and that is logged."""
        error = yield from self.all()
        with self.guard:
            lost = [due for due in self.book.take_owed(self.now()) if due.amount < 0]
        if lost:
            cost, counters = -sum(due.amount for due in lost), len({due.key for due in lost})
            message = "write_back: a cost of %d, admitted here of %d counters, could not be charged at shutdown: %s"
            logger.warning(message, cost, counters, error)

    def _look(self, claims: Sequence[Claim]) -> Steps[None]:
        """Learn what remains of shares on account."""
        asks = [claim.ask for claim in claims]
        asked_at = self.begin_asking(claims)
        reply: Reply = yield asks, LOOK
        with self.guard:
            for claim, outcome in zip(claims, reply.outcomes, strict=True):
                self.book.learn(claim, outcome, moment(reply.now, claim.ask.key), asked_at)

    def _pay(self, keys: Sequence[str] | None) -> "Steps[_Flight | None]":
        """Tell the store what is owed to these counters (None: to all), unless charges to one of them are under way.

        Returns those that are under way, to be waited for. Raises StoreUnavailable; what was to be charged is owed
        again then, and where an exception comes from elsewhere.
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
            # What goes back is not sent a second time, for it may have arrived; to charge twice is the safe side.
            try:
                self._land(flight)
            except BaseException:
                self._land(flight)  # twice is fine
                raise

    def _bill(self, flight: "_Flight") -> Steps[None]:
        """Tell the store what it has to hear."""
        together: defaultdict[int, defaultdict[tuple[str, Quota], list[Due]]] = defaultdict(lambda: defaultdict(list))
        for due in flight.owed:
            together[due.start][due.key, due.quota].append(due)
        for start, counters in together.items():
            for bill in _parts([*counters.items()]):
                asks = [Ask(key, quota, sum(due.amount for due in dues)) for (key, quota), dues in bill]
                yield asks, Intent(charged_at=start)
                flight.paid.update(id(due) for _, dues in bill for due in dues)

    def _land(self, flight: "_Flight") -> None:
        """Owe again what was not charged, and let go on those who wait."""
        if not flight.owed:
            flight.land()
            return
        charges = [due for due in flight.owed if due.amount < 0]
        keys = {due.key for due in charges}
        with self.guard:
            owed = set(map(id, self.book.owed))  # an exception from elsewhere may have left it there
            self.book.owed += [due for due in charges if id(due) not in flight.paid and id(due) not in owed]
            self.book.charged(keys)
            for key in keys:
                if self._flights.get(key) is flight:
                    del self._flights[key]
        flight.land()

    def _flying(self) -> "dict[str, _Flight]":
        """The charges that are under way, by the keys of their counters."""
        for key in [key for key, flight in self._flights.items() if flight.over]:
            del self._flights[key]  # whoever paid was interrupted in the middle of landing
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
    """Stands for the one who pays: it lives in the frame that does."""

    __slots__ = ("__weakref__",)


class _Flight:
    """What is owed and is being paid: the charges among it are under way until it lands, or its payer is gone.

    No `concurrent.futures.Future`: an exception from elsewhere can leave the lock of its condition held for ever.
    """

    def __init__(self, payer: _Payer) -> None:
        self.owed: list[Due] = []
        self.paid: set[int] = set()
        self._payer = weakref.ref(payer)
        self._landed = False
        self._wake: list[Callable[[], object]] = []

    @property
    def over(self) -> bool:
        """Whether nothing is under way any more."""
        return self._landed or self._payer() is None

    def land(self) -> None:
        """Let go on those who wait."""
        self._landed = True
        while self._wake:
            with contextlib.suppress(RuntimeError):  # its event loop is closed
                self._wake.pop()()

    def result(self) -> None:
        """Wait until it is over."""
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
    """When the counter of `key` was decided: each node of a cluster has a clock of its own."""
    return now.of_slot[slot_of(key)] if isinstance(now, ClusterTime) else now


def _parts(things: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(things), _TOGETHER):
        yield things[start : start + _TOGETHER]


def _local_time() -> int:
    return time.clock_gettime_ns(_GOES_ON) // 1_000 if _GOES_ON is not None else time.monotonic_ns() // 1_000


_GOES_ON = getattr(time, "CLOCK_BOOTTIME", None)
"""A monotonic clock that goes on while the machine sleeps, where there is one: a share must not outlive a nap."""
