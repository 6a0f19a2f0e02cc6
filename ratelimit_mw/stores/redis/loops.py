"""Batches the decisions of the tasks of one event loop. Several batches may be under way at once."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextvars import Context
from functools import partial
from itertools import takewhile
from operator import itemgetter
from time import monotonic
from typing import Any

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.errors import Late, NoAnswer, StoreUnavailable
from ratelimit_mw.model import SECOND
from ratelimit_mw.stores.base import Denied, ReplyFields, StoreRequest, complete
from ratelimit_mw.stores.breaker import silent
from ratelimit_mw.stores.redis.codec import MOST, Conversation, Result, away
from ratelimit_mw.stores.redis.connection import GRACE, NO_ANSWER, NO_CONNECTION, StreamingConnection

_MAX_BATCHES = 2
"""The most batches that a near server has at once. It decides one while this process reads and writes the other."""

_HOLD_BACK = 1 / 50
"""The share of the timeout for which a request waits for one of these batches to return. If none returns, the server
is far away, and more batches are sent."""

_EARLY = 0.001
"""Seconds by which a timer may fire early."""

_allowed = itemgetter(0)  # of an outcome, without code in Python for each

_WORTH_HALVING = 32
"""The number of requests from which a batch is sent in two halves, so that the server always has one to decide."""


class LoopBatcher:
    """Shares one connection among the tasks of one event loop, and a round trip among requests that wait together.

    Requests of one iteration of the loop are sent together at its end, without a timer. If the last batch had a
    single request, the next request is sent at once. The reader of the connection continues the tasks whose replies it
    has read, and then sends what they ask next. No task carries out a batch, so the cancellation of one request does
    not affect others. The batcher holds no reference to the loop while it has no connection.

    Each request has its own deadline. If it passes while other requests are answered in time, this request fails
    alone. If the connection was silent for the whole timeout, all waiting requests fail with `NoAnswer`, and the
    connection is dropped. A reply that comes later is never read. What has arrived is read before this is judged, so
    the time for which the app itself has blocked the loop does not count.

    Args:
        connect: makes a connection. It may take any time, because it runs in the background.
        converse: starts the conversation with the store about some requests.
        timeout: seconds for a request.
        allowance: returns the seconds for which requests wait beyond their timeout for a new connection. It is called
            when connecting begins.
        failed: called for each request that fails, with the failure, the request and its token.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[StreamingConnection]],
        converse: Callable[[Sequence[StoreRequest]], Conversation],
        timeout: float,
        *,
        allowance: Callable[[], float],
        failed: Callable[[StoreUnavailable, StoreRequest, Any], object],
    ) -> None:
        self._connect = connect
        self._converse = converse
        self._timeout = timeout
        self._allowance = allowance
        self._failed = failed
        self._waiting: deque[_Job] = deque()
        self._under_way: deque[_Batch] = deque()
        self._deadline = 0.0  # of the requests of this iteration of the loop, by the loop's clock
        self.answered_at = 0.0
        """When a request was last answered in time, by the monotonic clock."""
        self._judged_at = 0.0  # the latest monotonic time by which a reply must have come, and was looked for
        self._attempted_at = 0.0  # when connecting began or could go on, by the monotonic clock
        self._connected_by = 0.0  # until when requests wait for a connection, whatever their own deadlines
        self._flushing = False
        self._pressing = False
        self._watch_timer: asyncio.TimerHandle | None = None
        self._alone = False  # the last batch was of one, and no other request came before its reply
        self._attempt: asyncio.Task[StreamingConnection] | None = None
        self._connection: StreamingConnection | None = None
        self._guard: AsyncGenerator[None, None] | None = None
        # A separate context, so that the context variables of the first request are not kept by the connection.
        self._context = Context()

    def decide(
        self, request: StoreRequest, loop: asyncio.AbstractEventLoop, token: object, denied: Denied | None = None
    ) -> "asyncio.Future[ReplyFields]":
        """A future of the store's reply to `request`. It fails with StoreUnavailable, after the timeout at the latest.

        `loop` must be the running loop. `token` is passed to `failed`. `denied` is told of a denial.
        """
        future: asyncio.Future[ReplyFields] = loop.create_future()
        if self._flushing:
            self._waiting.append((request, future, self._deadline, token, denied))
            return future
        self._deadline = loop.time() + self._timeout
        self._waiting.append((request, future, self._deadline, token, denied))
        if self._alone and not self._under_way:
            self._context.run(self._flush)
        else:
            self._flushing = True
            loop.call_soon(self._flush, context=self._context)
        return future

    async def connect(self) -> None:
        """Connect before the first request. Waits as long as that request would at most. Never raises."""
        if self._connection is None and self._attempt is None:
            self._context.run(self._begin_connecting)
        if self._attempt:
            left = self._connected_by - asyncio.get_running_loop().time()
            await asyncio.wait([self._attempt], timeout=max(left, self._timeout))

    def reconnect(self, done: Callable[[], object]) -> None:
        """Make a new connection in the background, unless one is in use. `done` is called when this has ended."""
        if not self._under_way and not self._waiting:
            self._fail(StoreUnavailable("the store was away"))
        if self._connection is None and self._attempt is None:
            self._context.run(self._begin_connecting)
        if self._attempt:
            self._attempt.add_done_callback(lambda _: done(), context=self._context)
        else:
            done()

    async def aclose(self) -> None:
        """Close the connection and fail all waiting requests. The next request makes a new connection."""
        attempt, guard = self._attempt, self._guard
        if attempt:
            attempt.cancel()
            await asyncio.gather(attempt, return_exceptions=True)
        self._fail(StoreUnavailable("the store was closed"))
        if guard:
            await guard.aclose()

    def _flush(self) -> None:
        """Send waiting requests, up to the limit of batches under way."""
        self._flushing = False
        connection = self._connection
        if connection is not None and not connection.usable:
            connection.close(StoreUnavailable("the server closed the connection"))
            connection = self._connection = None
        if connection is None and self._attempt is None:
            self._begin_connecting()
        if connection is not None:
            self._send(connection, _MAX_BATCHES)
            if self._waiting and not self._pressing:
                self._pressing = True
                loop = asyncio.get_running_loop()
                loop.call_later(self._timeout * _HOLD_BACK, self._press, context=self._context)
        if self._watch_timer is None:
            self._watch()

    def _press(self) -> None:
        """Send all waiting requests: the server is too far away to wait for the batches under way."""
        self._pressing = False
        if self._connection is not None and self._connection.usable:
            self._send(self._connection, len(self._under_way) + len(self._waiting))

    def _send(self, connection: StreamingConnection, most: int) -> None:
        """Send waiting requests in batches until `most` batches are under way."""
        while self._waiting and len(self._under_way) < most and self._connection is connection:
            jobs = self._next_jobs()
            if jobs:
                batch = monotonic(), jobs
                self._under_way.append(batch)
                conversation = self._converse([job[0] for job in jobs])
                connection.carry(conversation, partial(self._answered, connection, batch))

    def _next_jobs(self) -> "list[_Job]":
        """The requests of the next batch, the oldest first. Cancelled requests are dropped, and so not charged."""
        count = len(self._waiting)
        if count >= _WORTH_HALVING and not self._under_way:
            count = (count + 1) // 2
        jobs: list[_Job] = []
        room = MOST
        popleft = self._waiting.popleft
        for _ in range(count):
            job = popleft()
            if not job[1].done():
                jobs.append(job)
                room -= len(job[0][0])
                if room <= 0:
                    break
        return jobs

    def _answered(
        self,
        connection: StreamingConnection,
        batch: "_Batch",
        results: Sequence[Result] | StoreUnavailable,
    ) -> None:
        self._under_way.remove(batch)
        jobs = batch[1]
        if isinstance(results, StoreUnavailable):
            for job in jobs:
                self._fail_job(job, results)
            if connection is self._connection:
                self._fail(results)  # the waiting requests would fail in the same way
            return
        gone: StoreUnavailable | None = None
        in_time = False
        answered: list[tuple[_Job, ReplyFields]] = []
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, StoreUnavailable):
                self._fail_job(job, result)
                gone = gone or (result if away(result) else None)
            elif job[1].done():
                # Too late for this request, but maybe not for what was sent later.
                in_time = in_time or not silent(self._judged_at, batch[0], self._timeout)
                self._release(job, result)
            else:
                if job[4] and not all(map(_allowed, result[1])):
                    job[4](job[0][0], int(batch[0] * SECOND), complete(result))
                answered.append((job, result))
        self._alone = len(jobs) == 1 and not self._waiting
        if answered or in_time:
            self.answered_at = monotonic()
        if gone:
            self._fail(gone)
        self._resume(answered)

    def _release(self, job: "_Job", fields: ReplyFields) -> None:
        """Give back the places in flight of a request that no longer waits. They would be held until they expire."""
        (asks, intent), _, _, token, _ = job
        reply = complete(fields)
        if not intent.decides or not intent.commit or not reply.admits(asks):
            return
        taken = [ask for ask, outcome in zip(asks, reply.outcomes, strict=True) if outcome.allowed and ask.cost]
        places = [ask for ask in taken if ALGORITHMS[ask.quota.algorithm].in_flight]
        if places:
            loop = asyncio.get_running_loop()
            unread: asyncio.Future[ReplyFields] = loop.create_future()
            unread.add_done_callback(asyncio.Future.exception)  # so that a failure is not logged
            request = places, intent._replace(charged_at=reply.now)
            self._waiting.append((request, unread, loop.time() + self._timeout, token, None))

    def _resume(self, answered: "list[tuple[_Job, ReplyFields]]") -> None:
        """Continue the tasks that wait for these replies, and send together what they ask next.

        The reader of a connection calls this, so no task is running. A plain future would leave its task to the next
        iteration of the loop, which asks the system once more which sockets are ready.
        """
        loop = asyncio.get_running_loop()
        self._deadline, self._flushing = loop.time() + self._timeout, not self._alone
        for job, reply in answered:
            future = job[1]
            if future.done():  # a task before has cancelled it
                self._release(job, reply)
                continue
            # A list of pairs or None, also in Python 3.14. It is copied, because it may be the own list of the future.
            callbacks: Any = list(future._callbacks or ())  # noqa: SLF001  there is no public name
            for callback, _ in callbacks:
                future.remove_done_callback(callback)
            future.set_result(reply)
            for callback, context in callbacks:
                try:
                    context.run(callback, future)
                except BaseException as error:  # noqa: BLE001  the loop handles it, after the other tasks
                    loop.call_soon(_raise, error, context=self._context)
        self._flushing = False
        if self._waiting:
            self._flush()

    def _fail(self, error: StoreUnavailable) -> None:
        """Drop the connection and fail all requests. No later request may receive a late reply."""
        connection, self._connection = self._connection, None
        if connection:
            connection.close(error)  # fails the requests under way
        while self._waiting:
            self._fail_job(self._waiting.popleft(), error)
        self._stop_watching()  # a timer would keep a reference to the loop

    def _fail_job(self, job: "_Job", error: StoreUnavailable) -> None:
        """Fail one request, unless its task was cancelled."""
        request, future, _, token, _ = job
        if not future.done():
            # Before the task of the request runs, but not here: `failed` may start a thread and write a log.
            future.get_loop().call_soon(self._failed, error, request, token, context=self._context)
            future.set_exception(error)

    def _begin_connecting(self) -> None:
        loop = asyncio.get_running_loop()
        self._attempted_at = monotonic()
        self._connected_by = loop.time() + self._allowance()
        self._attempt = loop.create_task(self._make(), context=self._context)
        self._attempt.add_done_callback(self._made)

    async def _make(self) -> StreamingConnection:
        connection = await self._connect()
        if self._guard is None:
            self._guard = self._close_with_the_loop()
            await anext(self._guard)
        return connection

    def _made(self, attempt: "asyncio.Task[StreamingConnection]") -> None:
        self._attempt = None
        error = StoreUnavailable("the store was closed") if attempt.cancelled() else attempt.exception()
        if error is not None:
            self._fail(error if isinstance(error, StoreUnavailable) else StoreUnavailable(repr(error)))
            return
        self._connection = attempt.result()
        deadline = asyncio.get_running_loop().time() + self._timeout
        if self._connected_by > deadline - self._timeout:  # the allowance of a first connection: extend the deadlines
            self._waiting = deque((*job[:2], deadline, *job[3:]) for job in self._waiting)
        self._connected_by = 0.0
        self._stop_watching()  # the timer may be set by deadlines without a connection
        self._flush()

    async def _close_with_the_loop(self) -> AsyncGenerator[None, None]:
        """Close the connection when the loop shuts down its async generators: test clients make and drop many loops."""
        try:
            yield
        finally:
            self._guard = None
            self._fail(StoreUnavailable("the event loop was closed"))

    def _watch(self) -> None:
        """Set a timer for the oldest deadline. One timer is enough, because all requests have the same timeout."""
        oldest = self._oldest()
        if oldest:
            loop = asyncio.get_running_loop()
            at = self._due(oldest) - GRACE
            self._watch_timer = loop.call_at(at, self._look, at, context=self._context)

    def _stop_watching(self) -> None:
        if self._watch_timer is not None:
            self._watch_timer.cancel()
            self._watch_timer = None

    def _look(self, at: float) -> None:
        """Give requests whose deadline comes near the last grace. `at` is when this should have been called."""
        self._watch_timer = None
        loop, oldest = asyncio.get_running_loop(), self._oldest()
        if loop.time() - at > GRACE:  # the loop was blocked, and could not go on connecting
            self._attempted_at = monotonic()
        if oldest and loop.time() >= self._due(oldest) - GRACE:
            # The grace begins now. If the loop was blocked, it handles replies that have arrived first.
            due = monotonic() + GRACE
            self._watch_timer = loop.call_later(GRACE, self._expire, due, context=self._context)
        else:
            self._watch()

    def _expire(self, judged_at: float) -> None:
        """Fail the requests whose deadline has passed; fail all requests if the store was silent for the timeout.

        `judged_at` is not the time of this call: the loop may have been blocked since it last read.
        """
        self._watch_timer = None
        self._judged_at = judged_at
        now = asyncio.get_running_loop().time() + _EARLY
        late = list(takewhile(lambda job: self._due(job) <= now, self._pending()))
        if late and silent(judged_at, max(self._asked_at(judged_at), self.answered_at), self._timeout):
            self._fail(NoAnswer(NO_ANSWER if self._connection else NO_CONNECTION))
        for job in late:
            self._fail_job(job, Late(NO_ANSWER))
        self._watch()

    def _asked_at(self, now: float) -> float:
        """Since when the store owes an answer. `now` if it was sent nothing: the loop was blocked before."""
        if self._connection is None:
            return self._attempted_at
        return self._under_way[0][0] if self._under_way else now

    def _oldest(self) -> "_Job | None":
        """The request that has waited longest; None if none waits."""
        return next(self._pending(), None)

    def _pending(self) -> "Iterator[_Job]":
        """The requests without a result, the oldest first."""
        for batch in self._under_way:
            for job in batch[1]:
                if not job[1].done():
                    yield job
        for job in self._waiting:
            if not job[1].done():
                yield job

    def _due(self, job: "_Job") -> float:
        return job[2] if self._connection else max(job[2], self._connected_by)


def _raise(error: BaseException) -> None:
    raise error


_Job = tuple[StoreRequest, "asyncio.Future[ReplyFields]", float, object, Denied | None]
"""A request, the future that its task awaits, its deadline by the loop's clock, its token, and what learns of denials.
"""


_Batch = tuple[float, list[_Job]]
"""The monotonic time at which some requests were sent, and these requests. Late ones stay until the reply comes."""
