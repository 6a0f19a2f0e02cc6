"""Decisions of tasks: what waits in one event loop travels together, and several batches may be under way."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextvars import Context
from functools import partial
from time import monotonic

from ratelimit_mw.errors import Late, StoreUnavailable
from ratelimit_mw.model import Reply
from ratelimit_mw.stores.base import StoreRequest
from ratelimit_mw.stores.redis.codec import MOST, Conversation, away
from ratelimit_mw.stores.redis.connection import GRACE
from ratelimit_mw.stores.redis.streaming import Streaming

_UNDER_WAY = 2
"""Batches that a near server has at once: it decides one while this process reads and writes the other."""

_HELD_BACK = 1 / 50
"""The share of the timeout for which a request waits for one of them to come back. A far server gets more batches."""

_WHOLE = 0.9
"""The share of the timeout that counts as all of it: a batch may leave a little later than it was asked for."""

_EARLY = 0.001
"""Seconds by which a timer may go off before its time."""

_WORTH_HALVING = 32
"""Inquiries from which on a batch leaves in two halves, so that there is another for the server."""


class LoopBatcher:
    """Shares one connection among the tasks of one event loop, and round trips among those who wait together.

    What the tasks of one turn of the loop ask leaves at its end, at once and without a timer; what a task asks that
    was alone of late leaves in the middle. There is no task between a request and its reply: the connection's reader
    resolves the futures that requests wait for, so that no request's cancellation touches it. The batcher holds no
    reference to the loop while it has no connection.

    Each request has its own deadline. One that passes fails that request alone as long as others are answered in
    time. Where the connection was silent for the whole timeout, everything that waits fails, and the store counts as
    away. The silent connection stays: if it speaks again, `back` is called, and the store is back at once. If requests
    come before that, another connection is made beside it, and they travel on the one that answers first.

    Args:
        connect: makes a connection. However long that takes, it goes on beside the requests.
        converse: the conversation with the store about some requests.
        timeout: seconds for a request.
        allowance: called as connecting begins; the seconds for which requests wait beyond their timeout for it.
        back: called when the store answers after this batcher has said that it is away.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Streaming]],
        converse: Callable[[Sequence[StoreRequest]], Conversation],
        timeout: float,
        *,
        allowance: Callable[[], float],
        back: Callable[[], object],
    ) -> None:
        self._connect = connect
        self._converse = converse
        self._timeout = timeout
        self._allowance = allowance
        self._back = back
        self._waiting: deque[_Job] = deque()
        self._under_way: deque[_Batch] = deque()
        self._deadline = 0.0  # of what is asked in this turn
        self._answered_at = 0.0  # when a request was last answered in time, by the monotonic clock
        self._attempted_at = 0.0  # when connecting began, by the same
        self._connected_by = 0.0  # until when requests wait for a connection, whatever their own deadlines
        self._silent = False  # it was told that the store is away, for want of an answer or of a connection
        self._flushing = False
        self._pressing = False
        self._watch_timer: asyncio.TimerHandle | None = None
        self._alone = False  # the last batch was of one, and no other request came before its reply
        self._attempt: asyncio.Task[Streaming] | None = None
        self._connection: Streaming | None = None
        self._guard: AsyncGenerator[None, None] | None = None
        # A context of its own: what belongs to the first request is not to live on in the connection.
        self._context = Context()

    def decide(self, request: StoreRequest, loop: asyncio.AbstractEventLoop) -> "asyncio.Future[Reply]":
        """The store's reply to `request` within the timeout, or StoreUnavailable. `loop` is the one that runs."""
        future: asyncio.Future[Reply] = loop.create_future()
        if self._flushing:
            self._waiting.append((request, future, self._deadline))
            return future
        self._deadline = loop.time() + self._timeout
        self._waiting.append((request, future, self._deadline))
        if self._alone and not self._under_way:
            self._context.run(self._flush)
        else:
            self._flush_soon(loop)
        return future

    async def connect(self) -> None:
        """Connect before the first request comes, for at most as long as that one would wait. Never raises."""
        if self._connection is None and self._attempt is None:
            self._context.run(self._begin_connecting)
        if self._attempt:
            left = self._connected_by - asyncio.get_running_loop().time()
            await asyncio.wait([self._attempt], timeout=max(left, self._timeout))

    async def aclose(self) -> None:
        """Close the connection; what still waits gets StoreUnavailable. The next request makes a new one."""
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
        connection = self._connection
        if connection is not None and not connection.usable:
            connection.close(StoreUnavailable("the server closed the connection"))
            connection = self._connection = None
        if (connection is None or self._silent) and self._attempt is None:
            self._begin_connecting()
        if connection is not None and not self._silent:
            self._send(connection, _UNDER_WAY)
            if self._waiting and not self._pressing:
                self._pressing = True
                loop = asyncio.get_running_loop()
                loop.call_later(self._timeout * _HELD_BACK, self._press, context=self._context)
        self._watch()

    def _press(self) -> None:
        """Send all that waits: the server is too far away to wait until it has answered what it has."""
        self._pressing = False
        if self._connection is not None and self._connection.usable and not self._silent:
            self._send(self._connection, len(self._under_way) + len(self._waiting))

    def _send(self, connection: Streaming, most: int) -> None:
        """Send batches of what waits, so that at most so many are under way."""
        while self._waiting and len(self._under_way) < most and self._connection is connection:
            jobs = self._next_jobs()
            if jobs:
                batch = monotonic(), jobs
                self._under_way.append(batch)
                conversation = self._converse([request for request, _, _ in jobs])
                connection.carry(conversation, partial(self._answered, connection, batch))

    def _next_jobs(self) -> "list[_Job]":
        """Those who waited longest; what was cancelled in the meantime is not asked, and so not charged."""
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

    def _answered(
        self, connection: Streaming, batch: "_Batch", results: Sequence[Reply | StoreUnavailable] | StoreUnavailable
    ) -> None:
        self._under_way.remove(batch)
        if isinstance(results, StoreUnavailable):
            for job in batch[1]:
                _fail(job, results)
            if connection is self._connection:
                if self._silent and self._attempt:  # those who wait, wait for another
                    self._connection = None
                    connection.close(results)
                else:
                    self._fail(results)  # those who still wait would find the same
            return
        jobs = batch[1]
        gone: StoreUnavailable | None = None
        in_time = False
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, StoreUnavailable):
                _fail(job, result)
                gone = gone or (result if away(result) else None)
            elif not job[1].done():
                job[1].set_result(result)
                in_time = True
        self._alone = len(jobs) == 1 and not self._waiting
        if in_time:
            self._answered_at = monotonic()
        if gone:
            self._fail(gone)
            return
        if self._silent:
            self._heard_again()
        if self._waiting and not self._flushing:
            self._flush_soon(asyncio.get_running_loop())

    def _heard_again(self) -> None:
        """The store does answer."""
        self._silent = False
        self._back()

    def _fail(self, error: StoreUnavailable) -> None:
        """Drop the connection, and all that waits: a late reply must go to no later request."""
        connection, self._connection = self._connection, None
        self._silent = False
        if connection:
            connection.close(error)  # which ends what is under way
        while self._waiting:
            _fail(self._waiting.popleft(), error)
        self._stop_watching()  # a timer holds its loop

    def _begin_connecting(self) -> None:
        loop = asyncio.get_running_loop()
        self._attempted_at = monotonic()
        self._connected_by = loop.time() + self._allowance()
        self._attempt = loop.create_task(self._make(), context=self._context)
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
        if error is not None:
            self._fail(StoreUnavailable(str(error) or repr(error)))
            return
        new, old = attempt.result(), self._connection
        if old is not None and old.usable and not self._silent:
            new.close(StoreUnavailable("the connection before it has come back"))
            return
        self._connection = new
        if old is not None:
            old.close(Late("the server did not answer on this connection"))
        deadline = asyncio.get_running_loop().time() + self._timeout
        if self._connected_by > deadline - self._timeout:  # the first of the process: what waits has its time yet
            self._waiting = deque((request, future, deadline) for request, future, _ in self._waiting)
        self._connected_by = 0.0
        self._stop_watching()  # the timer may be set for when there was no connection
        if self._silent:
            self._heard_again()
        self._flush()

    async def _close_with_the_loop(self) -> AsyncGenerator[None, None]:
        """Close the connection when the loop shuts its generators down: test clients make and drop many loops."""
        try:
            yield
        finally:
            self._guard = None
            self._fail(StoreUnavailable("the event loop ends"))

    def _watch(self) -> None:
        """Look again when the oldest deadline is near. One timer serves all, for they wait equally long."""
        if self._watch_timer is not None:
            return
        oldest = self._oldest()
        if oldest:
            loop = asyncio.get_running_loop()
            self._watch_timer = loop.call_at(self._due(oldest) - GRACE, self._look, context=self._context)

    def _stop_watching(self) -> None:
        if self._watch_timer is not None:
            self._watch_timer.cancel()
            self._watch_timer = None

    def _look(self) -> None:
        self._watch_timer = None
        loop, oldest = asyncio.get_running_loop(), self._oldest()
        if oldest and loop.time() >= self._due(oldest) - GRACE:
            # Only from now on: where the loop was held up, what has arrived in the meantime gets its turn first.
            self._watch_timer = loop.call_later(GRACE, self._expire, context=self._context)
        else:
            self._watch()

    def _expire(self) -> None:
        """Fail those whose deadline has passed; and everything, where no request was answered for that long."""
        self._watch_timer = None
        now = asyncio.get_running_loop().time() + _EARLY
        for job in self._pending():
            if self._due(job) > now:
                break
            if self._hears_nothing():
                self._tell_all()
                break
            _fail(job, Late("no answer within the deadline"))
        self._watch()

    def _hears_nothing(self) -> bool:
        """Whether the store had the whole timeout for an answer, and gave none that came in time.

        A request may be late where the loop itself was held up before it was sent. That says nothing of the store.
        """
        if self._connection is None or self._attempt:
            asked_at = self._attempted_at
        elif self._under_way:
            asked_at = self._under_way[0][0]
        else:
            return False
        return monotonic() - max(asked_at, self._answered_at) > self._timeout * _WHOLE

    def _tell_all(self) -> None:
        """Fail all requests. The connection stays: what is under way may be answered yet, and shows that it is well."""
        self._silent = True
        what = "no answer" if self._connection else "no connection"
        error = StoreUnavailable(f"{what} within the deadline")
        for job in self._pending():
            _fail(job, error)
        self._waiting.clear()

    def _oldest(self) -> "_Job | None":
        """The request that has waited longest, and still does."""
        return next(self._pending(), None)

    def _pending(self) -> "Iterator[_Job]":
        """The requests that wait for an answer, the oldest first."""
        for batch in self._under_way:
            for job in batch[1]:
                if not job[1].done():
                    yield job
        for job in self._waiting:
            if not job[1].done():
                yield job

    def _due(self, job: "_Job") -> float:
        return job[2] if self._connection else max(job[2], self._connected_by)


_Job = tuple[StoreRequest, "asyncio.Future[Reply]", float]
"""An request on its way, the future at which its task waits, and its deadline."""


_Batch = tuple[float, list[_Job]]
"""When some requests were sent, and these. Those that are late stay in it until its reply."""


def _fail(job: _Job, error: StoreUnavailable) -> None:
    """Tell its task, unless it was cancelled."""
    if not job[1].done():
        job[1].set_exception(error)
