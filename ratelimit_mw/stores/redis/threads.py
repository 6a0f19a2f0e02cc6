"""Decisions of threads: whoever comes first leads, and takes along the requests of those who came meanwhile."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Reply
from ratelimit_mw.stores.redis.blocking import Blocking
from ratelimit_mw.stores.redis.connecting import GRACE
from ratelimit_mw.stores.redis.inquiry import Inquiry, away
from ratelimit_mw.stores.redis.wire import MOST, Conversation


class ThreadBatcher:
    """Shares one connection among the threads of a process, and round trips among those who come together.

    `connect` makes a connection, ready for use, and `converse` the conversation with the store about some inquiries.
    """

    def __init__(
        self,
        connect: Callable[[], Blocking],
        converse: Callable[[Sequence[Inquiry]], Conversation],
        timeout: float,
    ) -> None:
        self._connect = connect
        self._converse = converse
        self._timeout = timeout
        self._lock = threading.Lock()
        self._waiting: deque[_Job] = deque()
        self._led = False
        self._connection: Blocking | None = None
        self._attempt: Future[Blocking] | None = None

    def decide(self, inquiry: Inquiry, timeout: float | None = None) -> Reply:
        """The store's reply to `inquiry` within the timeout, or StoreUnavailable."""
        job = _Job(inquiry, time.monotonic() + (self._timeout if timeout is None else timeout))
        with self._lock:
            leads, self._led = not self._led, True
            if not leads:
                self._waiting.append(job)
        if leads or self._follow(job):
            self._lead(job)
        if isinstance(job.result, Reply):
            return job.result
        raise job.result

    def close(self) -> None:
        """Close the connection; what is under way on it gets StoreUnavailable. The next inquiry makes a new one."""
        with self._lock:
            connection, self._connection, self._attempt = self._connection, None, None
        if connection:
            connection.close()

    def _follow(self, job: "_Job") -> bool:
        """Wait for the leader's answer; True where the lead came instead."""
        try:
            if not job.turn.acquire(timeout=max(job.deadline - time.monotonic() - GRACE, 0)):
                job.turn.acquire(timeout=GRACE)  # where all threads were held up, the leader gets its chance first
        except BaseException:  # a signal's handler, say, or gevent's timeout: nobody may count on this thread now
            if self._leave(job):
                self._hand_on()
            raise
        return self._leave(job)

    def _leave(self, job: "_Job") -> bool:
        """Wait no longer; True where the lead has come."""
        with self._lock:
            if job in self._waiting:
                self._waiting.remove(job)
            return job.leads

    def _lead(self, own: "_Job") -> None:
        """Ask for oneself and for all who wait, then hand the lead on."""
        batch = [own]
        try:
            with self._lock:
                room = MOST - len(own.inquiry[0])
                while self._waiting and room > 0:
                    batch.append(self._waiting.popleft())
                    room -= len(batch[-1].inquiry[0])
            deadline = max(own.deadline, time.monotonic() + GRACE)  # the lead may come late
            results = self._exchange([job.inquiry for job in batch], deadline)
            for job, result in zip(batch, results, strict=True):
                job.result = result
        except StoreUnavailable as error:
            with self._lock:  # those who still wait would find the same
                batch += self._waiting
                self._waiting.clear()
            for job in batch:
                job.result = StoreUnavailable(str(error))
        finally:
            for job in batch[1:]:
                job.turn.release()
            self._hand_on()

    def _hand_on(self) -> None:
        with self._lock:
            if self._waiting:
                heir = self._waiting.popleft()
                heir.leads = True
                heir.turn.release()
            else:
                self._led = False

    def _exchange(self, inquiries: Sequence[Inquiry], deadline: float) -> Sequence[Reply | StoreUnavailable]:
        connection = self._ready(deadline)
        try:
            results = connection.carry(self._converse(inquiries), deadline)
        except BaseException:  # a reply may still come for what was sent: nobody may read it as his own
            self._drop(connection)
            raise
        if any(map(away, results)):
            self._drop(connection)
        return results

    def _ready(self, deadline: float) -> Blocking:
        """The connection, once there is one. Only the leader asks."""
        connection = self._connection
        if connection and connection.usable:
            return connection
        if connection:
            self._drop(connection)
        attempt = self._attempt or self._begin_connecting()
        try:
            # Half the time is kept for the exchange: begun too late it would fail, and cost the new connection.
            return attempt.result(timeout=max(deadline - self._timeout / 2 - time.monotonic(), 0))
        except TimeoutError:
            raise StoreUnavailable("no connection within the deadline") from None

    def _begin_connecting(self) -> "Future[Blocking]":
        """Connect beside the requests, however long the handshake takes."""
        attempt: Future[Blocking] = Future()
        self._attempt = attempt
        thread = threading.Thread(target=self._make, args=(attempt,), name="ratelimit_mw connect", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is shutting down
            self._attempt = None
            raise StoreUnavailable(str(error)) from error
        return attempt

    def _make(self, attempt: "Future[Blocking]") -> None:
        try:
            connection = self._connect()
        except Exception as error:  # noqa: BLE001  whatever it is, whoever waits has to hear of it
            failure = error if isinstance(error, StoreUnavailable) else StoreUnavailable(repr(error))
            self._end_connecting(attempt, None)
            attempt.set_exception(failure)
        else:
            if self._end_connecting(attempt, connection):
                attempt.set_result(connection)
            else:
                connection.close()
                attempt.set_exception(StoreUnavailable("the store was closed"))

    def _end_connecting(self, attempt: "Future[Blocking]", connection: Blocking | None) -> bool:
        """Take the connection into use; False where nobody wants it any more."""
        with self._lock:
            wanted = self._attempt is attempt
            if wanted:
                self._attempt, self._connection = None, connection
            return wanted

    def _drop(self, connection: Blocking) -> None:
        with self._lock:
            if self._connection is connection:
                self._connection = None
        connection.close()


class _Job:
    """An inquiry on its way, and the gate at which its thread waits."""

    __slots__ = ("deadline", "inquiry", "leads", "result", "turn")

    def __init__(self, inquiry: Inquiry, deadline: float) -> None:
        self.inquiry = inquiry
        self.deadline = deadline
        self.leads = False
        self.turn = threading.Lock()
        self.turn.acquire()
        self.result: Reply | StoreUnavailable = StoreUnavailable("no answer within the deadline")
