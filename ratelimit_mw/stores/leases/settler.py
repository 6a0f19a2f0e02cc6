"""What a process and its store owe each other for shares: settled when it is due, by a thread or by who decides."""

import asyncio
import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial

from ratelimit_mw.clock import Clock
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.late import late, lock
from ratelimit_mw.model import SECOND, Ask, Quota, Reply
from ratelimit_mw.stores.base import Store
from ratelimit_mw.stores.leases.book import Book
from ratelimit_mw.stores.leases.share import Claim, Due
from ratelimit_mw.stores.leases.steps import Call, Steps, T, drive
from ratelimit_mw.stores.redis.cluster.parts import Moment
from ratelimit_mw.stores.redis.cluster.slots import slot_of

logger = logging.getLogger("ratelimit_mw")

_TOGETHER = 100
"""Counters settled in one call at most, so that no call holds the store for long."""

_AT_ONCE = 1_000
"""Shares looked after at once at most, so that no request waits for long meanwhile."""


class Settler:
    """Keeps the `book` of a process's shares and settles it with `store`; whoever opens it holds the `guard`.

    Shares that were not spent go back, and what was spent on account is charged. Its thread, which lives only while
    there are shares, does it every `interval` seconds; under a `clock` handed in, whoever decides takes the steps of
    `due` before. What is returned as steps is for the caller to take.
    """

    guard = late(lock)

    def __init__(self, store: Store, clock: Clock | None, interval: float, most: int) -> None:
        self.book: Book
        self.thread: threading.Thread | None
        self._store = store
        self._clock = clock
        self._interval = interval
        self._most = most
        self.begin()

    def begin(self) -> None:
        """Start with no shares and no thread: at first, and in the child of a fork."""
        vars(self).pop("guard", None)
        self.book = Book(round(self._interval * SECOND), self._most)
        self._flights: dict[str, Future[None]] = {}
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

    def ask(self, asks: Sequence[Ask], *, commit: bool) -> Steps[Reply]:
        """The store's reply."""
        decide, adecide = self._store.decide, self._store.adecide
        reply: Reply = yield Call(partial(decide, asks, commit=commit), partial(adecide, asks, commit=commit))
        return reply

    def begin_asking(self, claims: Sequence[Claim]) -> int:
        """Note what is on its way as the store is asked, and when that is."""
        with self.guard:
            self.book.begin_asking(claims, self._flights)
            return self.now()

    def due(self) -> Steps[None]:
        """Settle what is due. Where the store is away, what it has to be charged waits for its return."""
        more = True
        while more:
            with self.guard:
                now = self.now()
                going_on = self.book.due(now, _AT_ONCE)
                owed, flight = self._take_owed(None)
                more = len(self.book) > 0 and self.book.due_at <= now
            with contextlib.suppress(StoreUnavailable):
                yield from self._pay(owed, flight)
                for shares in _parts(going_on):
                    yield from self._look([Claim(Ask(share.key, share.quota, 0), share) for share in shares])

    def these(self, keys: Sequence[str]) -> Steps[None]:
        """Settle what is owed to these counters, and wait for charges that are on their way."""
        taken = None
        while taken is None:
            with self.guard:
                under_way = next((self._flights[key] for key in keys if key in self._flights), None)
                if under_way is None:
                    taken = self._take_owed(keys)
            if under_way is not None:
                yield Call(under_way.result, partial(asyncio.wrap_future, under_way))
        yield from self._pay(*taken)

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
        reply = yield from self.ask(asks, commit=False)
        with self.guard:
            for claim, outcome in zip(claims, reply.outcomes, strict=True):
                self.book.learn(claim, outcome, moment(reply.now, claim.ask.key), asked_at)

    def _take_owed(self, keys: Sequence[str] | None) -> tuple[list[Due], Future[None]]:
        """What is owed, to be paid at once; until that is done, the charges among it are under way."""
        owed = self.book.take_owed(self.now(), keys, but=self._flights)
        flight: Future[None] = Future()
        flight.set_running_or_notify_cancel()
        self._flights.update({due.key: flight for due in owed if due.amount < 0})
        return owed, flight

    def _pay(self, owed: Sequence[Due], flight: Future[None]) -> Steps[None]:
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
                    yield Call(partial(self._store.refund, asks, start), partial(self._store.arefund, asks, start))
                    for _, dues in bill:
                        for due in dues:
                            unpaid.pop(id(due), None)
        finally:
            # What goes back is not sent a second time, for it may have arrived; to charge twice is the safe side.
            with self.guard:
                self.book.owed += unpaid.values()
                self.book.charged(charged)
                for key in charged:
                    self._flights.pop(key, None)
            flight.set_result(None)

    def _keep_settling(self, stopped: threading.Event) -> None:
        wait = self._interval
        while not stopped.wait(wait):
            drive(self.due())
            with self.guard:
                if not len(self.book) and not self.book.owed:
                    self.thread = None
                    return
                wait = min(max((self.book.due_at - self.now()) / SECOND, self._interval / 20), self._interval)


def moment(now: int, key: str) -> int:
    """When the counter of `key` was decided: each node of a cluster has a clock of its own."""
    return now.of_slot[slot_of(key)] if isinstance(now, Moment) else now


def _parts(things: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(things), _TOGETHER):
        yield things[start : start + _TOGETHER]


def _local_time() -> int:
    return time.clock_gettime_ns(_GOES_ON) // 1_000 if _GOES_ON is not None else time.monotonic_ns() // 1_000


_GOES_ON = getattr(time, "CLOCK_BOOTTIME", None)
"""A monotonic clock that goes on while the machine sleeps, where there is one: a share must not outlive a nap."""
