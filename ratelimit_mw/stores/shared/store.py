"""The store over the data file: it tries the lock, waits for its turn, and gives up after the timeout."""

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.errors import CounterError, Late, NameTaken, StoreUnavailable
from ratelimit_mw.model import Reply
from ratelimit_mw.process_local import reset_after_fork
from ratelimit_mw.stores.base import DECIDE, Store, StoreRequest
from ratelimit_mw.stores.breaker import AWAY, Breaker, Period, probe_ask
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.stores.shared.file import check
from ratelimit_mw.stores.shared.handle import Handle, handle_of
from ratelimit_mw.stores.shared.location import Location
from ratelimit_mw.stores.shared.table import Asked, Table, encode

T = TypeVar("T")
A = TypeVar("A")

_log = logging.getLogger("ratelimit_mw")


_MINUTE = 60.0


class SharedStore(Store):
    """Counters in a file that the processes of one machine share. Decisions are exact across all of them.

    The file is created by the first decision, so that a server that loads the app as root and changes the user of its
    workers has a file that belongs to the workers. Where another user has taken the name of the file, the store counts
    in the memory of this process.

    Args:
        location: the file.
        max_counters: the most counters to keep.
        timeout: seconds that one decision may wait for the lock.
        clock: the user's clock; None for the system's.
    """

    remote = False

    def __init__(
        self, location: Location, *, max_counters: int = 1_000_000, timeout: float = 0.1, clock: Clock | None = None
    ) -> None:
        self.location = location
        self._most = max_counters
        self._timeout = timeout
        self._now = (clock or SystemClock()).now
        self._handle: Handle | None = None
        self._logged: dict[type[StoreUnavailable], float] = {}
        self._alone = MemoryStore(max_counters=max_counters, clock=clock)
        self._breaker = Breaker(location.path)
        reset_after_fork(self)

    def ask(self, request: StoreRequest) -> Reply:
        """See `Store`."""
        period, asked = self._begin(request)
        try:
            reply = (self._handle or self._open()).attempt(Table.reply, asked)
            return self._wait(Table.reply, asked) if reply is None else reply
        except StoreUnavailable as error:
            self._failed(error, period)
            return self._alone.ask(request)

    async def aask(self, request: StoreRequest) -> Reply:
        """See `Store`."""
        period, asked = self._begin(request)
        try:
            reply = (self._handle or self._open()).attempt_now(Table.reply, asked)
            return await self._await(Table.reply, asked) if reply is None else reply
        except StoreUnavailable as error:
            self._failed(error, period)
            return self._alone.ask(request)

    def connect(self, domain: str) -> None:  # noqa: ARG002  a decision would create the file, for another user maybe
        """See `Store`. It checks the file, but makes no decision."""
        try:
            check(self.location)
        except StoreUnavailable as error:
            self._failed(error, self._breaker.period)
            raise

    def keys(self, prefix: str) -> Iterator[str]:
        """See `Store`."""
        if not Path(self.location.path).exists():
            return  # do not create it for a reader, which may be another user than the workers
        start = b"\0"
        while start:
            asked = start, self._now
            try:
                found, start = self._wait(Table.keys, asked)
            except NameTaken:
                yield from self._alone.keys(prefix)
                return
            yield from (key for key in found if key.startswith(prefix))

    def close(self) -> None:
        """Close the file, unless another store of this process uses it. The next request opens it again."""
        self._breaker.stop()
        self._breaker = Breaker(self.location.path)
        self._handle = None

    def after_fork(self) -> None:
        """Reset in the child of a fork, which has no thread that probes."""
        self._breaker = Breaker(self.location.path)

    @property
    def late_requests(self) -> int:
        """See `Store`."""
        return self._breaker.late_requests

    @property
    def away(self) -> bool:
        """Whether the file is unavailable, so that requests fail at once."""
        return self._breaker.open

    def _begin(self, request: StoreRequest) -> tuple[Period, Asked]:
        """The period in which a request is asked, and what the table is asked. The lock is not needed.

        Raises:
            StoreUnavailable: the breaker is open.
        """
        breaker = self._breaker
        if breaker.watching and breaker.open:
            raise StoreUnavailable(AWAY)
        asks = request[0]
        encoded = (encode(asks[0].key),) if len(asks) == 1 else [encode(ask.key) for ask in asks]
        return breaker.period, (request, encoded, self._now)

    def _open(self) -> Handle:
        handle = self._handle = self._handle or handle_of(self.location, self._most, self._now)
        return handle

    def _wait(self, work: Callable[[Table, A], T], asked: A) -> T:
        """Try until the timeout. Raises StoreUnavailable after it."""
        turns = self._turns((0, 0, 0, 20e-6), 200e-6)
        while True:
            time.sleep(next(turns))
            done = self._open().attempt(work, asked)
            if done is not None:
                return done

    async def _await(self, work: Callable[[Table, A], T], asked: A) -> T:
        """The awaitable twin of `_wait`. The event loop has other work to do."""
        turns = self._turns((0, 0, 0, 0.001, 0.001, 0.002), 0.004)
        while True:
            await asyncio.sleep(next(turns))
            done = self._open().attempt_now(work, asked)
            if done is not None:
                return done

    def _turns(self, first: tuple[float, ...], then: float) -> Iterator[float]:
        """The pauses before attempts, until the timeout. A decision holds the lock for about ten microseconds.

        Raises:
            Late: the timeout is over, but others were decided. The breaker stays closed.
            StoreUnavailable: the timeout is over.
        """
        handle, deadline = self._open(), time.monotonic() + self._timeout
        seen = handle.progress()
        for pause in itertools.chain(first, itertools.repeat(then)):
            yield pause
            if time.monotonic() > deadline:
                waited = f"the lock of {self.location.path} was not free within {self._timeout:g} s"
                raise Late(waited) if handle.progress() != seen else StoreUnavailable(waited)

    def _failed(self, error: StoreUnavailable, period: Period) -> None:
        """Return if this process counts for itself. Otherwise open the breaker, if not only this request has failed.

        Raises:
            StoreUnavailable: the error.
        """
        path, taken = self.location.path, isinstance(error, NameTaken)
        if taken or isinstance(error, CounterError):
            now = time.monotonic()
            if now >= self._logged.get(type(error), now):
                self._logged[type(error)] = now + _MINUTE
                if isinstance(error, NameTaken):
                    _log.error("store %s (%s): this process counts for itself: %s", path, error, error.remedy)
                else:
                    _log.warning("store %s (%s): on_error applies to the request", path, error)
        elif isinstance(error, Late):
            period.breaker.late()
        else:
            period.breaker.trip(error, self._probe, period.closings)
        if not taken:
            raise error

    def _probe(self) -> None:
        """Raise StoreUnavailable while this process cannot count. The key is new, because that needs most room."""
        key = f"probe:{{{os.getpid()}.{time.monotonic_ns()}}}"
        with suppress(NameTaken):  # it counts for itself then
            self._wait(Table.reply, (([probe_ask(key)], DECIDE), [encode(key)], self._now))
