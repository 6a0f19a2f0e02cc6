"""The store on one Redis server."""

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from ratelimit_mw.clock import Clock
from ratelimit_mw.errors import CounterError, Late, NoAnswer, PermanentFault, StoreUnavailable
from ratelimit_mw.logs import Once, logger
from ratelimit_mw.model import Reply
from ratelimit_mw.process_local import abandon, reset_after_fork
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores.base import DECIDE, Denied, ReplyFields, Store, StoreRequest, complete
from ratelimit_mw.stores.breaker import AWAY, Breaker, Period, probe_ask, silent
from ratelimit_mw.stores.redis.codec import Conversation, away, converse
from ratelimit_mw.stores.redis.connection import (
    FIRST_CONNECTION,
    GRACE,
    HANDSHAKE_TIMEOUT,
    NO_ANSWER,
    BlockingConnection,
    StreamingConnection,
)
from ratelimit_mw.stores.redis.endpoint import SCHEME, Direct, Endpoint, Sentinels, shown
from ratelimit_mw.stores.redis.loops import LoopBatcher
from ratelimit_mw.stores.redis.records import scan
from ratelimit_mw.stores.redis.threads import ConnectionPool, ThreadBatcher

_NO_LOOP: tuple[Callable[[], object], LoopBatcher | None] = (lambda: None), None


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
        self._once = Once()
        self._breaker: Breaker
        self._threads: ThreadBatcher
        self._begin()
        reset_after_fork(self)

    @property
    def late_requests(self) -> int:
        """See `Store`."""
        return self._breaker.late_requests

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
        """Reset in the child of a fork."""
        abandon(self._lanes, dict(self._loops))
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
        if breaker.watching and breaker.open:
            raise StoreUnavailable(AWAY)
        period = breaker.period
        try:
            return self._lanes.decide(request, timeout)
        except StoreUnavailable as error:
            self._handle_failure(error, request, period)
            raise

    async def aask(self, request: StoreRequest) -> Reply:
        """The awaitable twin of `ask`, within the server's own timeout."""
        return complete(await self.reply_to(request))

    def reply_to(self, request: StoreRequest, denied: Denied | None = None) -> "asyncio.Future[ReplyFields]":
        """See `Store`. Raises StoreUnavailable at once while the store is away."""
        breaker = self._breaker
        if breaker.watching and breaker.open:
            raise StoreUnavailable(AWAY)
        loop = asyncio.get_running_loop()
        running, batcher = self._latest
        if batcher is None or running() is not loop:
            batcher = self._batcher(loop)
        return batcher.decide(request, loop, breaker.period, denied)

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
                    failed=self._handle_failure,
                )
        self._latest = weakref.ref(loop), batcher
        return batcher

    def connect(self, domain: str) -> None:
        """See `Store`."""
        self._threads.begin_connecting()
        self._check(domain)
        self._threads.connect()

    async def aconnect(self, domain: str) -> None:
        """See `Store`."""
        batcher = self._batcher(asyncio.get_running_loop())
        _, failure = await asyncio.gather(
            batcher.connect(), asyncio.to_thread(self._check, domain), return_exceptions=True
        )
        if failure is not None:
            raise failure

    def _check(self, domain: str) -> None:
        """Make a decision as a probe does. If it fails, open the breaker, and raise StoreUnavailable.

        The loops are not connected again, because a loop of this thread could not do so while this waits.
        """
        period = self._breaker.period
        try:
            self._decide_and_explain(domain)
        except StoreUnavailable as error:
            period.breaker.trip(error, partial(self._probe, domain), period.closings)
            raise

    def _connect(self) -> BlockingConnection:
        try:
            return self._endpoint.connect()
        finally:
            self._reached = True

    async def _aconnect(self) -> StreamingConnection:
        try:
            return await self._endpoint.aconnect()
        finally:
            self._reached = True

    def _allowance(self) -> float:
        """The seconds for which requests wait for a connection: 0, except for the first of the process."""
        return 0.0 if self._reached else FIRST_CONNECTION

    def _converse(self, requests: Sequence[StoreRequest]) -> Conversation:
        return converse(requests, self._clock.now() if self._clock else None, self._scripts)

    def _handle_failure(self, error: StoreUnavailable, request: StoreRequest, period: Period) -> None:
        """Open the breaker if the server is unavailable; count a late request; log a failing counter once.

        `period` is that of the breaker when the request began.
        """
        if isinstance(error, Late) or (isinstance(error, NoAnswer) and not self._is_silent()):
            period.breaker.late()
        elif away(error):
            asks, _ = request
            domain = asks[0].key.partition(":")[0] if asks else ""
            period.breaker.trip(error, partial(self._probe, domain), period.closings)
        elif isinstance(error, CounterError):  # every request for this counter fails
            message = "store %s refuses a counter (%s): on_error applies to its requests"
            self._once(logger.warning, message, self._name, error)

    def _is_silent(self) -> bool:
        """Whether the server has decided nothing for a whole timeout, on any connection."""
        batchers = list(self._loops.values())
        answered_at = max([self._lanes.answered_at, *[each.answered_at for each in batchers]])
        return silent(time.monotonic(), answered_at, self._timeout)

    def _probe(self, domain: str) -> None:
        """Raise StoreUnavailable while the server is unavailable. Otherwise make the connections that requests use.

        An answer that is read late, because this process was held up, may have come late: the server may be too slow.
        """
        self._scripts.clear()  # the server may be replaced by one without the scripts
        if self._decide_and_explain(domain) > self._timeout + GRACE:
            raise NoAnswer(NO_ANSWER)
        if self.away:  # otherwise another probe came first, and its connections are in use
            self._reconnect()

    def _decide_and_explain(self, domain: str) -> float:
        """See `_decide_apart`. StoreUnavailable says if the URL is for the wrong kind of port."""
        try:
            return self._decide_apart(domain)
        except PermanentFault:
            raise
        except StoreUnavailable as error:
            raise self._endpoint.explained(error) from error

    def _decide_apart(self, domain: str) -> float:
        """Make the decision that shows that the server is available. Return the seconds that it took."""
        return self._decide_alone(([probe_ask(f"{domain}:probe:{{{os.getpid()}}}")], DECIDE))

    def _reconnect(self) -> None:
        """Connect threads and loops again, so that the first requests after the return need not wait for that.

        Older connections are closed, because they may lead to a server that has stepped down. One that a request uses
        is kept: several probes may succeed at once, and the first lets requests begin. Waits until all are connected,
        but not longer than connecting takes at most.
        """
        self._lanes.close_idle()
        until = time.monotonic() + max(HANDSHAKE_TIMEOUT, self._timeout)
        waits = []
        for loop, batcher in list(self._loops.items()):
            done = threading.Event()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(batcher.reconnect, done.set)
                waits.append(done)
        if self._threads.answered_at:  # threads have used the store
            self._threads.connect()
        for done in waits:
            done.wait(max(until - time.monotonic(), 0))

    def _decide_alone(self, request: StoreRequest) -> float:
        """Decide on a separate connection, and return the seconds from the last question to its answer.

        A PING is not enough, because the server may refuse to write. The first decision may send the text of the
        script. The second calls it by its digest, as requests do, because the server may refuse that alone.
        """
        took = 0.0
        with contextlib.closing(self._endpoint.connect()) as connection:
            for _ in range(2):
                began = time.monotonic()
                reply = connection.carry(self._converse([request]), began + self._timeout)[0]
                took = time.monotonic() - began
                if isinstance(reply, StoreUnavailable):
                    raise reply
        return took


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
