"""Counters on one Redis server: who asks it, and a circuit breaker for the time while it is away."""

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

_log = logging.getLogger("ratelimit_mw")

_PAUSE = 0.25, 0.4
"""Seconds from one probe to the next, drawn each time so that many processes do not probe together."""

_AT_ONCE = 4
"""Probes under way from which on the pauses become longer."""

_LONGEST_PAUSE = 1.0
"""Seconds from one probe to the next where those before have not ended: the store is not left alone for longer."""


class Breaker:
    """Closed, the store is asked; open, it is left alone, until `probe` succeeds.

    `probe` is called from threads of the breaker's own, which live only while it is open, so no request ever
    pays for it; it raises to say that the store is still away. A probe that waits in vain does not hold up the next.
    One line is logged on opening, one on closing. `closings` counts how often the store came back.

    The breaker is open exactly as long as its watching thread lives, and there is no lock. So a thread that is
    interrupted by an exception from elsewhere, at whatever line, can't leave it open.
    """

    _stopped = lazy(event)

    def __init__(self, name: str) -> None:
        self._name = name
        self._watching: dict[None, threading.Thread] = {}  # set and taken away in one step
        self.closings = 0

    @property
    def open(self) -> bool:
        """True while the store is left alone."""
        if not self._watching:  # nearly always
            return False
        watching = self._watching.get(None)
        return watching is not None and watching.is_alive()

    def trip(self, reason: object, probe: Callable[[], object], seen: int) -> None:
        """Open, because of `reason`, until `probe` returns.

        `seen` is what `closings` was when that began which failed: news from before the last return is old.
        """
        if self._watching or self._stopped.is_set() or seen != self.closings:
            return
        watch = threading.Thread(target=self._watch, args=(probe, seen), name="ratelimit_mw probe", daemon=True)
        try:
            if self._watching.setdefault(None, watch) is watch:  # else another thread was first
                _log.warning("store %s is away (%s): each rule's on_error applies until it is back", self._name, reason)
                watch.start()
        except BaseException as error:
            self._end(watch)  # if it did start, it finds that it is not wanted
            if not isinstance(error, RuntimeError):  # no more threads: every request finds out for itself
                raise

    def stop(self) -> None:
        """Probe no more."""
        self._stopped.set()

    def close(self, seen: int | None = None) -> None:
        """Close, if it is open: the store has answered. With `seen`, only if it has not closed since."""
        watch = self._watching.get(None)
        if watch is not None and seen in (None, self.closings):
            self.closings += 1  # before, so that what failed until now does not open it again
            if self._end(watch):
                _log.warning("store %s is back: limits hold again", self._name)

    def _end(self, watch: threading.Thread) -> bool:
        """Be closed; False where another thread has closed it, or it was opened again."""
        return self._watching.get(None) is watch and self._watching.pop(None, None) is watch

    def _watch(self, probe: Callable[[], object], seen: int) -> None:
        """Begin one probe after the other until the store is back."""
        probes: list[threading.Thread] = []
        try:
            while not self._stopped.wait(min(random.uniform(*_PAUSE) * max(len(probes) / _AT_ONCE, 1), _LONGEST_PAUSE)):
                if self.closings != seen or self._watching.get(None) is not threading.current_thread():
                    return
                thread = threading.Thread(target=self._try, args=(probe, seen), name="ratelimit_mw probe", daemon=True)
                with contextlib.suppress(RuntimeError):  # no more threads: the next may have more luck
                    thread.start()
                probes = [each for each in (*probes, thread) if each.is_alive()]
        finally:
            self._end(threading.current_thread())

    def _try(self, probe: Callable[[], object], seen: int) -> None:
        try:
            probe()
        except Exception as error:  # noqa: BLE001  whatever is wrong with it, the store is not back
            _log.debug("store %s is still away: %s", self._name, error)
        else:
            self.close(seen)


_NO_LOOP: tuple[Callable[[], object], LoopBatcher | None] = (lambda: None), None

_AWAY = "the store is away"

_PROBE = replace(NOTHING, limit=1_000_000_000, period=1_000_000)


class Server(Store):
    """Asks the server at `endpoint`, called `name` in the log, within `timeout` seconds for each request.

    Threads share one connection and each running event loop has its own; both carry together what waits
    together. The server's clock counts, unless `clock` is given. Safe after a fork.
    """

    def __init__(self, endpoint: Endpoint, name: str, *, timeout: float = 0.1, clock: Clock | None = None) -> None:
        self._endpoint = endpoint
        self._name = name
        self._timeout = timeout
        self._clock = clock
        self._complained = False
        self._breaker: Breaker
        self._threads: ThreadBatcher
        self._begin()
        reset_after_fork(self)

    def close(self) -> None:
        """Close the threads' connection. Those of event loops close with their loops, or by `aclose`."""
        self._breaker.stop()
        self._breaker = Breaker(self._name)
        self._lanes.close()

    async def aclose(self) -> None:
        """Close the running loop's connection as well."""
        self.close()
        self._latest = _NO_LOOP
        batcher = self._loops.pop(asyncio.get_running_loop(), None)
        if batcher:
            await batcher.aclose()

    def after_fork(self) -> None:
        """Go on in the child of a fork, with nothing that the parent uses."""
        _inherited.append((self._lanes, dict(self._loops)))
        self._begin()

    def _begin(self) -> None:
        """Start with no connection and no lock held: at first, and in the child of a fork."""
        self._breaker = Breaker(self._name)
        self._threads = self._thread_batcher()
        self._lanes = ConnectionPool(self._threads, self._thread_batcher, self._timeout)
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopBatcher] = weakref.WeakKeyDictionary()
        self._scripts: set[bytes] = set()
        self._reached = False
        self._latest = _NO_LOOP  # spares most requests a look-up
        self._adding = threading.Lock()

    def _thread_batcher(self) -> ThreadBatcher:
        return ThreadBatcher(self._connect, self._converse, self._timeout, self._allowance)

    @property
    def away(self) -> bool:
        """True while the server is left alone."""
        return self._breaker.open

    def ask(self, request: StoreRequest, timeout: float | None = None) -> Reply:
        """The server's reply within the timeout, its own or the one given, or StoreUnavailable."""
        breaker = self._breaker
        if breaker.open:
            raise StoreUnavailable(_AWAY)
        seen = breaker.closings  # so that what failed before the store came back is known as old
        try:
            return self._lanes.decide(request, timeout)
        except StoreUnavailable as error:
            self._learn(error, request, breaker, seen)
            raise

    async def aask(self, request: StoreRequest) -> Reply:
        """The awaitable twin of `ask`, within the server's own timeout."""
        breaker = self._breaker
        if breaker.open:
            raise StoreUnavailable(_AWAY)
        seen = breaker.closings
        loop = asyncio.get_running_loop()
        running, batcher = self._latest
        if batcher is None or running() is not loop:
            batcher = self._batcher(loop)
        try:
            return await batcher.decide(request, loop)
        except StoreUnavailable as error:
            self._learn(error, request, breaker, seen)
            raise

    def keys(self, prefix: str) -> Iterator[str]:
        """The keys on the server that begin with `prefix`, asked for on a connection of their own."""
        return scan(self._endpoint.connect(), prefix)

    def _batcher(self, loop: asyncio.AbstractEventLoop) -> LoopBatcher:
        """The batcher of this loop."""
        batcher = self._loops.get(loop)
        if batcher is None:
            with self._adding:
                for closed in [known for known in self._loops if known.is_closed()]:
                    del self._loops[closed]
                batcher = self._loops[loop] = LoopBatcher(
                    self._aconnect, self._converse, self._timeout, allowance=self._allowance, back=self._back
                )
        self._latest = weakref.ref(loop), batcher
        return batcher

    def connect(self) -> None:
        """Connect for threads, before requests come, for a second at most. Never raises."""
        self._threads.connect()

    async def aconnect(self) -> None:
        """Connect the running loop, before requests come, for a second at most. Never raises."""
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
        """Seconds for which requests wait for a connection: none, but for the first of the process."""
        return 0.0 if self._reached else FIRST_CONNECTION

    def _back(self) -> None:
        """The server has answered after all."""
        self._breaker.close()

    def _converse(self, requests: Sequence[StoreRequest]) -> Conversation:
        return converse(requests, self._clock.now() if self._clock else None, self._scripts)

    def _learn(self, error: StoreUnavailable, request: StoreRequest, breaker: Breaker, seen: int) -> None:
        """Draw the conclusions from a failure."""
        if away(error):
            self._scripts.clear()  # it may come back as another
            asks, _ = request
            domain = asks[0].key.partition(":")[0] if asks else ""
            breaker.trip(error, lambda: self._probe(domain), seen)
        elif isinstance(error, CounterError) and not self._complained:
            self._complained = True  # once: whoever can spoil a key can do it often
            _log.warning("store %s refuses a counter (%s): on_error applies to its requests", self._name, error)

    def _probe(self, domain: str) -> None:
        """Raise while the server is away."""
        self._decide_alone(f"{domain}:probe:{{{os.getpid()}}}")

    def _decide_alone(self, key: str, slot: int = 0) -> None:
        """Make one decision on a connection of its own: what answers a PING may still refuse to write."""
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
"""What a fork's child got from its parent and must neither use nor close."""


class RedisStore(Server):
    """Decides in one script call on `url`: redis://, rediss://, unix:// or redis+sentinel://.

    A decision takes `timeout` seconds at most. Raises ValueError for a URL that can't be read.
    """

    def __init__(self, url: str, *, timeout: float = 0.1, clock: Clock | None = None) -> None:
        patience = max(HANDSHAKE_TIMEOUT, timeout)
        endpoint = Sentinels(url, patience) if url.startswith(SCHEME) else Direct(url, patience)
        super().__init__(endpoint, shown(url), timeout=timeout, clock=clock)


def open_store(settings: StorageSettings, clock: Clock | None) -> Store:
    """The store of redis://, rediss://, unix:// and redis+sentinel://."""
    return RedisStore(settings.url, timeout=settings.timeout, clock=clock)
