"""Decisions of tasks: what waits in one event loop travels together, while the one before is under way."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextvars import Context
from functools import partial

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Reply
from ratelimit_mw.stores.redis.connecting import GRACE
from ratelimit_mw.stores.redis.inquiry import Inquiry, away
from ratelimit_mw.stores.redis.streaming import Streaming
from ratelimit_mw.stores.redis.wire import MOST, Conversation

_UNDER_WAY = 2
"""Batches that the server may have at once: it decides one while this process reads and writes the other."""

_WORTH_HALVING = 32
"""Inquiries from which on a batch leaves in two halves, so that there is another for the server."""


class LoopBatcher:
    """Shares one connection among the tasks of one event loop, and round trips among those who wait together.

    What the tasks of one turn of the loop ask leaves at its end, at once and without a timer; what a task asks that
    was alone of late leaves in the middle. There is no task between a request and its reply: the connection's reader
    resolves the futures that requests wait for, so that no request's cancellation touches it. The batcher holds no
    reference to the loop while it has no connection.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Streaming]],
        converse: Callable[[Sequence[Inquiry]], Conversation],
        timeout: float,
    ) -> None:
        self._connect = connect
        self._converse = converse
        self._timeout = timeout
        self._waiting: deque[_Job] = deque()
        self._under_way: deque[list[_Job]] = deque()
        self._deadline = 0.0  # of what is asked in this turn
        self._flushing = False
        self._watched = False
        self._alone = False  # the last batch was of one, and nobody came before its reply
        self._attempt: asyncio.Task[Streaming] | None = None
        self._connection: Streaming | None = None
        self._guard: AsyncGenerator[None, None] | None = None
        # A context of its own: what belongs to the first request is not to live on in the connection.
        self._context = Context()

    def decide(self, inquiry: Inquiry, loop: asyncio.AbstractEventLoop) -> "asyncio.Future[Reply]":
        """The store's reply to `inquiry` within the timeout, or StoreUnavailable. `loop` is the one that runs."""
        future: asyncio.Future[Reply] = loop.create_future()
        if self._flushing:
            self._waiting.append((inquiry, future, self._deadline))
            return future
        self._deadline = loop.time() + self._timeout
        self._waiting.append((inquiry, future, self._deadline))
        if self._alone and not self._under_way:
            self._context.run(self._flush)
        else:
            self._flush_soon(loop)
        return future

    async def aclose(self) -> None:
        """Close the connection; what still waits gets StoreUnavailable. The next inquiry makes a new one."""
        attempt, guard = self._attempt, self._guard
        if attempt:
            attempt.cancel()
            await asyncio.gather(attempt, return_exceptions=True)
        self._fail(StoreUnavailable("the store was closed"))
        if guard:
            await guard.aclose()

    def _flush_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        self._flushing = True
        loop.call_soon(self._flush, context=self._context)

    def _flush(self) -> None:
        """Send what waits, as far as the server may have it now."""
        self._flushing = False
        if self._connection is None or not self._connection.usable:
            if self._connection:
                self._connection.close()
            if self._attempt is None:
                self._begin_connecting()
        else:
            while self._waiting and len(self._under_way) < _UNDER_WAY:
                batch = self._next_batch()
                if batch:
                    self._under_way.append(batch)
                    conversation = self._converse([inquiry for inquiry, _, _ in batch])
                    self._connection.carry(conversation, partial(self._answered, batch))
        self._watch()

    def _next_batch(self) -> "list[_Job]":
        """Those who waited longest; what was cancelled meanwhile is not asked, and so not charged."""
        count = len(self._waiting)
        if count >= _WORTH_HALVING and not self._under_way:
            count = (count + 1) // 2
        jobs: list[_Job] = []
        room = MOST
        while count and room > 0:
            job = self._waiting.popleft()
            (asks, _), future, _ = job
            count -= 1
            if not future.done():
                jobs.append(job)
                room -= len(asks)
        return jobs

    def _answered(self, batch: "list[_Job]", results: Sequence[Reply | StoreUnavailable] | StoreUnavailable) -> None:
        self._under_way.remove(batch)
        if isinstance(results, StoreUnavailable):
            for job in batch:
                _fail(job, results)
            self._fail(results)  # those who still wait would find the same
            return
        gone = None
        for job, result in zip(batch, results, strict=True):
            if isinstance(result, StoreUnavailable):
                _fail(job, result)
                gone = gone or (result if away(result) else None)
            elif not job[1].done():
                job[1].set_result(result)
        self._alone = len(batch) == 1 and not self._waiting
        if gone:
            self._fail(gone)
        elif self._waiting and not self._flushing:
            self._flush_soon(asyncio.get_running_loop())

    def _fail(self, error: StoreUnavailable) -> None:
        """Drop the connection, for a reply may still come that nobody may read as his own; and all that waits."""
        connection, self._connection = self._connection, None
        if connection:
            connection.close()  # which ends what is under way
        while self._waiting:
            _fail(self._waiting.popleft(), error)

    def _begin_connecting(self) -> None:
        self._connection = None
        self._attempt = asyncio.get_running_loop().create_task(self._make(), context=self._context)
        self._attempt.add_done_callback(self._made)

    async def _make(self) -> Streaming:
        connection = await self._connect()
        if self._guard is None:
            self._guard = self._close_with_the_loop()
            await anext(self._guard)
        return connection

    def _made(self, attempt: "asyncio.Task[Streaming]") -> None:
        self._attempt = None
        error = asyncio.CancelledError("the store was closed") if attempt.cancelled() else attempt.exception()
        if error is None:
            self._connection = attempt.result()
            self._flush()
        else:
            self._fail(StoreUnavailable(str(error) or repr(error)))

    async def _close_with_the_loop(self) -> AsyncGenerator[None, None]:
        """Close the connection when the loop shuts its generators down: test clients make and drop many loops."""
        try:
            yield
        finally:
            self._guard = None
            self._fail(StoreUnavailable("the event loop ends"))

    def _watch(self) -> None:
        """Look again when the oldest deadline is near. One timer serves all, for they wait equally long."""
        if self._watched:
            return
        oldest = self._oldest()
        if oldest:
            self._watched = True
            asyncio.get_running_loop().call_at(self._due(oldest) - GRACE, self._look, context=self._context)

    def _look(self) -> None:
        self._watched = False
        loop, oldest = asyncio.get_running_loop(), self._oldest()
        if oldest and loop.time() >= self._due(oldest) - GRACE:
            # Only from now on: where the loop was held up, what has arrived meanwhile gets its turn first.
            self._watched = True
            loop.call_later(GRACE, self._expire, oldest, context=self._context)
        else:
            self._watch()

    def _expire(self, job: "_Job") -> None:
        self._watched = False
        if job[1].done():
            self._watch()
        elif self._connection:
            self._fail(StoreUnavailable("no answer within the deadline"))
        else:
            self._fail(StoreUnavailable("no connection within the deadline"))

    def _oldest(self) -> "_Job | None":
        """Whoever has waited longest, and still does."""
        for jobs in (*self._under_way, self._waiting):
            for job in jobs:
                if not job[1].done():
                    return job
        return None

    def _due(self, job: "_Job") -> float:
        # Half the time is kept for the exchange: begun too late it would fail, and cost the new connection.
        return job[2] if self._connection else job[2] - self._timeout / 2


_Job = tuple[Inquiry, "asyncio.Future[Reply]", float]
"""An inquiry on its way, the future at which its task waits, and its deadline."""


def _fail(job: _Job, error: StoreUnavailable) -> None:
    """Tell its task, unless it was cancelled."""
    if not job[1].done():
        job[1].set_exception(error)
