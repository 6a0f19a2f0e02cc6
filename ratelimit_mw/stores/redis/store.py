"""The store on one Redis server, with a circuit breaker for the time when the server is unavailable."""

import asyncio
import contextlib
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ratelimit_mw.algorithms import NOTHING
from ratelimit_mw.clock import Clock
from ratelimit_mw.errors import CounterError, StoreUnavailable
from ratelimit_mw.model import Ask, Reply
from ratelimit_mw.process_local import event, lazy, reset_after_fork
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores.base import Intent, Store, StoreRequest
from ratelimit_mw.stores.redis.codec import (
    Conversation,
    away,
    converse,
)
from ratelimit_mw.stores.redis.connection import FIRST_CONNECTION, HANDSHAKE_TIMEOUT, Blocking
from ratelimit_mw.stores.redis.endpoint import SCHEME, Direct, Endpoint, Sentinels, shown
from ratelimit_mw.stores.redis.loops import LoopBatcher
from ratelimit_mw.stores.redis.pool import ConnectionPool
from ratelimit_mw.stores.redis.records import scan
from ratelimit_mw.stores.redis.streaming import Streaming
from ratelimit_mw.stores.redis.threads import ThreadBatcher

_chance = random.Random()  # separate, so that the app's seeded random numbers are not disturbed

_log = logging.getLogger("ratelimit_mw")

_PAUSE = 0.25, 0.4
"""The range of seconds between two probes. Each pause is random, so that processes do not probe at the same time."""

_MANY_PROBES = 4
"""The number of unfinished probes from which the pauses become longer."""

_MAX_PAUSE = 1.0
"""The longest pause between two probes, in seconds."""


class Breaker:
    """A circuit breaker: while it is closed, the store is asked; while it is open, requests fail at once.

    It closes when a probe succeeds. Probes run in the breaker's own threads, which exist only while it is open, so
    no request waits for them. A probe that hangs does not delay the next. One line is logged on opening and one on
    closing. `period` tells a failure from one before the store came back.

    The breaker is open exactly as long as its watching thread lives, and it has no lock. An asynchronous exception
    in any thread can therefore not leave it open.
    """

    _stopped = lazy(event)

    def __init__(self, name: str) -> None:
        self._name = name
        self._watching: dict[None, threading.Thread] = {}  # changed only in atomic steps
        self.period = Period(self, 0)

    @property
    def closings(self) -> int:
        """How often the store came back."""
        return self.period.closings

    @property
    def open(self) -> bool:
        """Whether requests fail at once."""
        if not self._watching:  # the usual case
            return False
        watching = self._watching.get(None)
        return watching is not None and watching.is_alive()

    def trip(self, reason: object, probe: Callable[[], object], seen: int) -> None:
        """Open until a probe succeeds.

        Args:
            reason: the failure, for the log.
            probe: tries the store; raises if it is still unavailable.
            seen: the value of `closings` when the failed request began. If the store has come back since, the failure
                is outdated and ignored.
        """
        if self._watching or self._stopped.is_set() or seen != self.closings:
            return
        watch = threading.Thread(target=self._watch, args=(probe, seen), name="ratelimit_mw probe", daemon=True)
        try:
            if self._watching.setdefault(None, watch) is watch:  # otherwise another thread was first
                _log.warning("store %s is away (%s): each rule's on_error applies until it is back", self._name, reason)
                watch.start()
        except BaseException as error:
            self._end(watch)  # if the thread did start, it ends by itself
            if not isinstance(error, RuntimeError):  # no thread available: stay closed
                raise

    def stop(self) -> None:
        """Stop probing, and do not open again."""
        self._stopped.set()

    def close(self, seen: int | None = None) -> None:
        """Close, because the store has answered. With `seen`, only if `closings` is still that number."""
        watch = self._watching.get(None)
        if watch is not None and seen in (None, self.closings):
            self.period = Period(self, self.closings + 1)  # first, so that failures until now do not open it again
            if self._end(watch):
                _log.warning("store %s is back: limits hold again", self._name)

    def _end(self, watch: threading.Thread) -> bool:
        """Close; False if another thread has closed it or opened it again."""
        return self._watching.get(None) is watch and self._watching.pop(None, None) is watch

    def _watch(self, probe: Callable[[], object], seen: int) -> None:
        """Start probes until the store is back."""
        probes: list[threading.Thread] = []
        try:
            while not self._stopped.wait(
                min(_chance.uniform(*_PAUSE) * max(len(probes) / _MANY_PROBES, 1), _MAX_PAUSE)
            ):
                if self.closings != seen or self._watching.get(None) is not threading.current_thread():
                    return
                thread = threading.Thread(target=self._try, args=(probe, seen), name="ratelimit_mw probe", daemon=True)
                with contextlib.suppress(RuntimeError):  # no thread available: try again after the pause
                    thread.start()
                probes = [each for each in (*probes, thread) if each.is_alive()]
        finally:
            self._end(threading.current_thread())

    def _try(self, probe: Callable[[], object], seen: int) -> None:
        try:
            probe()
        except Exception as error:  # noqa: BLE001  any failure means that the store is not back
            _log.debug("store %s is still away: %s", self._name, error)
        else:
            self.close(seen)


class Period(NamedTuple):
    """The time between two closings of a breaker. A request keeps the period in which it began."""

    breaker: Breaker
    closings: int


_NO_LOOP: tuple[Callable[[], object], LoopBatcher | None] = (lambda: None), None

_AWAY = "the store is away"

_PROBE = replace(NOTHING, limit=1_000_000_000, period=1_000_000)


class Server(Store):
    """Asks the server at `endpoint`, called `name` in the log, within `timeout` seconds for each request.

    Threads share one connection, and each event loop has its own. Requests that wait at the same time are sent
    together. The store may be used after a fork.

    Args:
        endpoint: makes connections to the server.
        name: the name of the store in the log.
        timeout: seconds for one request.
        clock: the user's clock, or None for the clock of the server.
    """

    def __init__(self, endpoint: Endpoint, name: str, *, timeout: float = 0.1, clock: Clock | None = None) -> None:
        self._endpoint = endpoint
        self._name = name
        self._timeout = timeout
        self._clock = clock
        self._counter_error_logged = False
        self._breaker: Breaker
        self._threads: ThreadBatcher
        self._begin()
        reset_after_fork(self)

    def close(self) -> None:
        """Close the connection of threads. Those of event loops close with their loops, or by `aclose`."""
        self._breaker.stop()
        self._breaker = Breaker(self._name)
        self._lanes.close()

    async def aclose(self) -> None:
        """Close the connection of threads and that of the running loop."""
        self.close()
        self._latest = _NO_LOOP
        batcher = self._loops.pop(asyncio.get_running_loop(), None)
        if batcher:
            await batcher.aclose()

    def after_fork(self) -> None:
        """Reset in the child of a fork. The parent's connections are neither used nor closed."""
        _inherited.append((self._lanes, dict(self._loops)))
        self._begin()

    def _begin(self) -> None:
        """Reset to no connections and unlocked locks. Called by the constructor and in the child of a fork."""
        self._breaker = Breaker(self._name)
        self._threads = self._thread_batcher()
        self._lanes = ConnectionPool(self._threads, self._thread_batcher, self._timeout)
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopBatcher] = weakref.WeakKeyDictionary()
        self._scripts: set[bytes] = set()
        self._reached = False
        self._latest = _NO_LOOP  # the last loop and its batcher, which saves a look-up
        self._adding = threading.Lock()

    def _thread_batcher(self) -> ThreadBatcher:
        return ThreadBatcher(self._connect, self._converse, self._timeout, self._allowance)

    @property
    def away(self) -> bool:
        """Whether the server is unavailable, so that requests fail at once."""
        return self._breaker.open

    def ask(self, request: StoreRequest, timeout: float | None = None) -> Reply:
        """See `Store`. `timeout` replaces the store's own timeout, in seconds."""
        breaker = self._breaker
        if breaker.open:
            raise StoreUnavailable(_AWAY)
        period = breaker.period
        try:
            return self._lanes.decide(request, timeout)
        except StoreUnavailable as error:
            self._handle_failure(error, request, period)
            raise

    async def aask(self, request: StoreRequest) -> Reply:
        """The awaitable twin of `ask`, within the server's own timeout."""
        return await self.reply_to(request)

    def reply_to(self, request: StoreRequest) -> "asyncio.Future[Reply]":
        """See `Store`. Raises StoreUnavailable at once while the store is away."""
        breaker = self._breaker
        if breaker.open:
            raise StoreUnavailable(_AWAY)
        loop = asyncio.get_running_loop()
        running, batcher = self._latest
        if batcher is None or running() is not loop:
            batcher = self._batcher(loop)
        return batcher.decide(request, loop, breaker.period)

    def keys(self, prefix: str) -> Iterator[str]:
        """Iterate over the keys that begin with `prefix`, on a separate connection. Raises StoreUnavailable."""
        return scan(self._endpoint.connect(), prefix)

    def _batcher(self, loop: asyncio.AbstractEventLoop) -> LoopBatcher:
        """The batcher of this loop."""
        batcher = self._loops.get(loop)
        if batcher is None:
            with self._adding:
                for closed in [known for known in self._loops if known.is_closed()]:
                    del self._loops[closed]
                batcher = self._loops[loop] = LoopBatcher(
                    self._aconnect,
                    self._converse,
                    self._timeout,
                    allowance=self._allowance,
                    back=self._back,
                    failed=self._handle_failure,
                )
        self._latest = weakref.ref(loop), batcher
        return batcher

    def connect(self) -> None:
        """Connect for threads before the first request. Takes a second at most. Never raises."""
        self._threads.connect()

    async def aconnect(self) -> None:
        """Connect the running loop before the first request. Takes a second at most. Never raises."""
        await self._batcher(asyncio.get_running_loop()).connect()

    def _connect(self) -> Blocking:
        try:
            return self._endpoint.connect()
        finally:
            self._reached = True

    async def _aconnect(self) -> Streaming:
        try:
            return await self._endpoint.aconnect()
        finally:
            self._reached = True

    def _allowance(self) -> float:
        """The seconds for which requests wait for a connection: 0, except for the first of the process."""
        return 0.0 if self._reached else FIRST_CONNECTION

    def _back(self) -> None:
        """Close the breaker, because the server has answered."""
        self._breaker.close()

    def _converse(self, requests: Sequence[StoreRequest]) -> Conversation:
        return converse(requests, self._clock.now() if self._clock else None, self._scripts)

    def _handle_failure(self, error: StoreUnavailable, request: StoreRequest, period: "Period") -> None:
        """Open the breaker if the server is unavailable; log a failing counter once.

        `period` is that of the breaker when the request began.
        """
        if away(error):
            self._scripts.clear()  # the server may be replaced by one without the scripts
            asks, _ = request
            domain = asks[0].key.partition(":")[0] if asks else ""
            period.breaker.trip(error, lambda: self._probe(domain), period.closings)
        elif isinstance(error, CounterError) and not self._counter_error_logged:
            self._counter_error_logged = True  # once, because every request for this counter fails
            _log.warning("store %s refuses a counter (%s): on_error applies to its requests", self._name, error)

    def _probe(self, domain: str) -> None:
        """Raise StoreUnavailable while the server is unavailable."""
        self._decide_alone(f"{domain}:probe:{{{os.getpid()}}}")

    def _decide_alone(self, key: str, slot: int = 0) -> None:
        """Make one decision on a separate connection. A PING is not enough, because the server may refuse to write."""
        connection = self._endpoint.connect()
        try:
            deadline = time.monotonic() + self._timeout
            request: StoreRequest = [Ask(key, _PROBE)], Intent(slot=slot)
            reply = connection.carry(self._converse([request]), deadline)[0]
        finally:
            connection.close()
        if isinstance(reply, StoreUnavailable):
            raise reply


_inherited: list[object] = []
"""The connections that the child of a fork inherited. They are kept so that they are not closed."""


class RedisStore(Server):
    """Decides each request in one script call on a Redis server.

    Args:
        url: redis://, rediss://, unix:// or redis+sentinel://.
        timeout: seconds for one decision.
        clock: the user's clock, or None for the clock of the server.

    Raises:
        ValueError: the URL is malformed.
    """

    def __init__(self, url: str, *, timeout: float = 0.1, clock: Clock | None = None) -> None:
        patience = max(HANDSHAKE_TIMEOUT, timeout)
        endpoint = Sentinels(url, patience) if url.startswith(SCHEME) else Direct(url, patience)
        super().__init__(endpoint, shown(url), timeout=timeout, clock=clock)


def open_store(settings: StorageSettings, clock: Clock | None) -> Store:
    """The store for redis://, rediss://, unix:// and redis+sentinel://."""
    return RedisStore(settings.url, timeout=settings.timeout, clock=clock)
