"""One Redis server: its connections, what travels on them together, and the breaker that leaves it alone."""

import asyncio
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ratelimit_mw.algorithms import NOTHING
from ratelimit_mw.clock import Clock
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.forks import begins_anew
from ratelimit_mw.model import Ask, Reply
from ratelimit_mw.stores.redis.blocking import Blocking
from ratelimit_mw.stores.redis.breaker import Breaker
from ratelimit_mw.stores.redis.connecting import FIRST_CONNECTION
from ratelimit_mw.stores.redis.endpoint import Endpoint
from ratelimit_mw.stores.redis.inquiry import Inquiry, Intent, Spoilt, away
from ratelimit_mw.stores.redis.lanes import Lanes
from ratelimit_mw.stores.redis.loops import LoopBatcher
from ratelimit_mw.stores.redis.scan import scan
from ratelimit_mw.stores.redis.streaming import Streaming
from ratelimit_mw.stores.redis.threads import ThreadBatcher
from ratelimit_mw.stores.redis.wire import Conversation, converse

_log = logging.getLogger("ratelimit_mw")

_NO_LOOP: tuple[Callable[[], object], LoopBatcher | None] = (lambda: None), None

_AWAY = "the store is away"

_PROBE = replace(NOTHING, limit=1_000_000_000, period=1_000_000)


class Server:
    """Asks the server at `endpoint`, called `name` in the log, within `timeout` seconds for each inquiry.

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
        begins_anew(self)

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
        self._lanes = Lanes(self._threads, self._thread_batcher, self._timeout)
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

    def inquire(self, inquiry: Inquiry, timeout: float | None = None) -> Reply:
        """The server's reply within the timeout, its own or the one given, or StoreUnavailable."""
        breaker = self._breaker
        if breaker.open:
            raise StoreUnavailable(_AWAY)
        seen = breaker.closings  # so that what failed before the store came back is known as old
        try:
            return self._lanes.decide(inquiry, timeout)
        except StoreUnavailable as error:
            self._learn(error, inquiry, breaker, seen)
            raise

    async def ainquire(self, inquiry: Inquiry) -> Reply:
        """The awaitable twin of `inquire`, within the server's own timeout."""
        breaker = self._breaker
        if breaker.open:
            raise StoreUnavailable(_AWAY)
        seen = breaker.closings
        loop = asyncio.get_running_loop()
        running, batcher = self._latest
        if batcher is None or running() is not loop:
            batcher = self._batcher(loop)
        try:
            return await batcher.decide(inquiry, loop)
        except StoreUnavailable as error:
            self._learn(error, inquiry, breaker, seen)
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

    def _converse(self, inquiries: Sequence[Inquiry]) -> Conversation:
        return converse(inquiries, self._clock.now() if self._clock else None, self._scripts)

    def _learn(self, error: StoreUnavailable, inquiry: Inquiry, breaker: Breaker, seen: int) -> None:
        """Draw the conclusions from a failure."""
        if away(error):
            self._scripts.clear()  # it may come back as another
            asks, _ = inquiry
            domain = asks[0].key.partition(":")[0] if asks else ""
            breaker.trip(error, lambda: self._probe(domain), seen)
        elif isinstance(error, Spoilt) and not self._complained:
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
            inquiry: Inquiry = [Ask(key, _PROBE)], Intent(slot=slot)
            reply = connection.carry(self._converse([inquiry]), deadline)[0]
        finally:
            connection.close()
        if isinstance(reply, StoreUnavailable):
            raise reply


_inherited: list[object] = []
"""What a fork's child got from its parent and must neither use nor close."""
