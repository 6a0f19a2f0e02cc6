"""Batches the decisions of threads over one connection, or over several if the server is far away.

The first thread becomes the leader. It owns the connection, and sends its request together with those of the threads
that wait (its followers).

An asynchronous exception may be raised in a thread at any line: by a signal handler, by PyThreadState_SetAsyncExc, or
by a gevent.Timeout. The store must go on deciding afterwards. Three rules ensure this:

1. There are no locks and no flags. Each change is one atomic step on a dict or a deque, and the step that takes the
   connection records which job took it. It is therefore known what an interrupted thread owned, and can be released.
2. A leader that is interrupted closes its connection, so that no request reads the reply to another. Its followers
   fail as late: the store is not at fault.
3. A job that owns the connection, or waits, a second past its deadline has lost its thread. The next job takes over.

A request may thus wait for two round trips. If two do not fit into the timeout, because the server is far away, each
request gets a connection that no other request uses at that moment: see `ConnectionPool`.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from ratelimit_mw.errors import Late, NoAnswer, PermanentFault, StoreUnavailable
from ratelimit_mw.model import Reply
from ratelimit_mw.stores.base import DECIDE, StoreRequest, complete
from ratelimit_mw.stores.breaker import silent
from ratelimit_mw.stores.redis.codec import MOST, Conversation, Result, away
from ratelimit_mw.stores.redis.connection import GRACE, NO_ANSWER, NO_CONNECTION, BlockingConnection

_LOST = 1.0
"""Seconds past its deadline after which a request counts as lost: its thread was interrupted before it could clean up.
"""

_INTERRUPTED = "the thread that had sent this request was interrupted"


class ThreadBatcher:
    """Shares one connection among the threads of a process, and a round trip among requests that wait together.

    Args:
        connect: makes a connection that is ready for use.
        converse: starts the conversation with the store about some requests.
        timeout: seconds for one request.
        allowance: returns the seconds for which requests wait beyond their timeout for a new connection.
    """

    def __init__(
        self,
        connect: Callable[[], BlockingConnection],
        converse: Callable[[Sequence[StoreRequest]], Conversation],
        timeout: float,
        allowance: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._connect = connect
        self._allowance = allowance
        self._converse = converse
        self._timeout = timeout
        self._waiting: deque[_Job] = deque()
        self._leader: dict[None, _Job] = {}  # the job that owns the connection, if any
        self._connection: BlockingConnection | None = None
        self._attempt: _Attempt | None = None
        self.round_trip = 0.0
        """The shortest duration of the last three exchanges, in seconds. A busy machine may delay one of them."""
        self._trips = (float("inf"), float("inf"))
        self.answered_at = 0.0
        """When a request was last answered in time, by the monotonic clock."""

    def decide(self, job: "_Job", *, alone: bool = False) -> bool:
        """Answer the job, at its deadline at the latest.

        Returns False, without an answer, if other requests use the connection and the job must be `alone` on it.
        """
        if self._connection is None:
            job.deadline += self._allowance()
        try:
            if not self._waiting and self._become_leader(job):
                self._lead(job)
            elif alone:
                return False
            else:
                self._wait(job)
        except BaseException:
            self._abandon(job)
            raise
        return True

    def connect(self) -> None:
        """Connect before the first request. Waits as long as that request would at most. Never raises."""
        seconds = max(self._allowance(), self._timeout)
        attempt = self.begin_connecting()
        if attempt is not None:
            attempt.wait(seconds)

    def begin_connecting(self) -> "_Attempt | None":
        """Connect in the background if there is no connection. Never raises."""
        if self._connection is not None or self._attempt is not None:
            return self._attempt
        try:
            return self._begin_connecting()
        except StoreUnavailable:  # no thread available
            return None

    def close(self) -> None:
        """Close the connection. Requests under way get StoreUnavailable; the next request makes a new connection."""
        self._attempt = None  # its thread drops the connection that it makes
        connection, self._connection = self._connection, None
        if connection:
            connection.close()

    def close_if_idle(self) -> None:
        """Close the connection, unless a request uses it. The next request makes a new connection."""
        owner = _Job(([], DECIDE), time.monotonic())  # while it owns the connection, no request begins to use it
        if self._become_leader(owner):
            self.close()
            self._release(owner)
            self._wake_next()

    def _become_leader(self, job: "_Job") -> bool:
        """Let the job own the connection, unless another job does. Returns whether it does."""
        leader = self._leader.setdefault(None, job)
        if leader is job:
            return True
        if time.monotonic() <= leader.deadline + _LOST:
            return False
        self._drop(self._connection)  # a reply may still come
        self._release(leader)
        # Two jobs may both get here for the same lost leader: the numbers in the replies tell them apart.
        return self._leader.setdefault(None, job) is job

    def _release(self, job: "_Job") -> None:
        """Release the connection, if the job owns it."""
        if self._leader.get(None) is job:
            self._leader.pop(None, None)

    def _wake_next(self) -> None:
        """Wake the oldest waiting thread if there is no leader."""
        waiting = self._waiting
        if waiting and not self._leader:
            try:
                waiting[0].wake()
            except IndexError:  # it has left
                return

    def _wait(self, job: "_Job") -> None:
        """Wait until a leader has answered the job, or until it is this job's turn to lead."""
        turn = job.turn
        turn.acquire()
        self._waiting.append(job)
        while job.result is None:
            if self._is_next(job) and self._become_leader(job):
                self._leave(job)
                if job.result is None:  # a leader may have answered it just before
                    self._lead(job)
                self._release(job)
                break
            # If the whole process was delayed, the leader gets time to finish first.
            left = max(job.deadline - time.monotonic() - GRACE, 0)
            if not turn.acquire(timeout=left) and not turn.acquire(timeout=GRACE):
                self._leave(job)
                break
        self._wake_next()  # this job may have been woken to lead

    def _is_next(self, job: "_Job") -> bool:
        """Whether no other job has waited longer. Jobs that have lost their threads are removed."""
        try:
            while (first := self._waiting[0]) is not job and time.monotonic() > first.deadline + _LOST:
                self._leave(first)
                self._wake_next()
        except IndexError:  # it is a follower by now
            return False
        return first is job

    def _leave(self, job: "_Job") -> None:
        """Remove the job from the waiting ones."""
        try:
            self._waiting.remove(job)
        except ValueError:  # it is a follower by now, or was not added yet
            return

    def _lead(self, job: "_Job") -> None:
        """Ask for the job and the waiting ones, pass on the results, and release the connection."""
        requests, room = [job.request], MOST - len(job.request[0])
        try:
            while self._waiting and room > 0:
                job.followers.append(follower := self._waiting.popleft())
                requests.append(follower.request)
                room -= len(follower.request[0])
        except IndexError:  # the last one has left
            pass
        try:
            job.result, *results = self._results(requests, job.deadline)
        except StoreUnavailable as error:
            self._fail(job, error)
        else:
            for follower, result in zip(job.followers, results, strict=True):
                follower.end(result)
        self._release(job)
        self._wake_next()

    def _fail(self, job: "_Job", error: StoreUnavailable) -> None:
        """Fail the job and its followers, and all waiting jobs if they would fail in the same way."""
        job.result = _same(error)
        for follower in job.followers:
            follower.end(_same(error))
        if not isinstance(error, Late):
            with contextlib.suppress(IndexError):  # the last one has left
                while self._waiting:
                    self._waiting.popleft().end(_same(error))

    def _results(self, requests: Sequence[StoreRequest], deadline: float) -> Sequence[Result]:
        """The results of one batch."""
        connection = self._usable_connection(max(deadline, time.monotonic() + GRACE))
        conversation = self._converse(requests)
        began = time.monotonic()
        # The job may have become leader late, and the wait for the first connection may exceed the timeout.
        deadline = min(max(deadline, began + GRACE), began + self._timeout)
        try:
            results = connection.carry(conversation, deadline)
        except StoreUnavailable as error:
            self._drop(connection)  # a reply may still come
            if isinstance(error, NoAnswer) and not silent(deadline, began, self._timeout):
                raise Late(NO_ANSWER) from error  # it was sent late, so the store had less time than it may take
            raise
        self.answered_at = time.monotonic()
        before, last = self._trips
        took = self.answered_at - began
        self._trips = last, took
        self.round_trip = min(before, last, took)
        if any(map(away, results)):
            self._drop(connection)
        return results

    def _abandon(self, job: "_Job") -> None:
        """Clean up after a thread that was interrupted."""
        self._leave(job)
        if self._leader.get(None) is job:
            self._drop(self._connection)
            for follower in job.followers:
                follower.end(Late(_INTERRUPTED))
            self._release(job)
        self._wake_next()

    def _usable_connection(self, deadline: float) -> BlockingConnection:
        """Wait for a usable connection and return it. Raises StoreUnavailable if there is none by the deadline."""
        attempt = self._attempt  # read before the connection, which a successful attempt replaces
        connection = self._connection
        if connection and connection.usable:
            return connection
        self._drop(connection)
        if attempt is None or attempt.dead:
            attempt = self._begin_connecting()
        # Half of the time is kept for the exchange: one that begins too late fails and closes the new connection.
        made = attempt.wait(max(deadline - self._timeout / 2 - time.monotonic(), 0))
        if isinstance(made, BlockingConnection):
            return made
        if made is None:
            raise NoAnswer(NO_CONNECTION)
        raise _same(made)

    def _begin_connecting(self) -> "_Attempt":
        """Connect in a background thread. Raises StoreUnavailable if no thread can be started."""
        attempt = _Attempt(self._make)
        try:
            self._attempt = attempt
            attempt.thread.start()
        except BaseException as error:
            self._attempt = None  # if the thread did start, it drops its connection
            if isinstance(error, RuntimeError):  # no thread available, or the interpreter is shutting down
                raise StoreUnavailable(str(error)) from error
            raise
        return attempt

    def _make(self, attempt: "_Attempt") -> None:
        """Run in the connecting thread: make a connection, and use it if it is still wanted."""
        outcome: BlockingConnection | StoreUnavailable
        try:
            outcome = self._connect()
        except Exception as error:  # noqa: BLE001  the waiting requests must get a result
            outcome = error if isinstance(error, StoreUnavailable) else StoreUnavailable(repr(error))
        else:
            if self._attempt is attempt:
                self._connection = outcome
            if self._attempt is not attempt:
                self._drop(outcome)
                outcome = StoreUnavailable("the store was closed")
        if self._attempt is attempt:
            self._attempt = None
        attempt.end(outcome)

    def _drop(self, connection: BlockingConnection | None) -> None:
        """Close a connection and stop using it."""
        if connection is not None:
            if self._connection is connection:
                self._connection = None
            connection.close()


def _same(error: StoreUnavailable) -> StoreUnavailable:
    """A copy of the error, to be raised in another thread."""
    alike = isinstance(error, NoAnswer | Late | PermanentFault)
    return type(error)(*error.args) if alike else StoreUnavailable(str(error))


class _Job:
    """A request that waits or is under way.

    Attributes:
        request: the request.
        deadline: monotonic seconds.
        turn: the lock at which its thread waits; `wake` releases it.
        result: the reply or the failure, once there is one.
        followers: the jobs that a leader sends together with its own.
    """

    __slots__ = ("deadline", "followers", "request", "result", "turn")

    def __init__(self, request: StoreRequest, deadline: float) -> None:
        self.request = request
        self.deadline = deadline
        self.turn = threading.Lock()
        self.result: Result | None = None
        self.followers: list[_Job] = []

    def wake(self) -> None:
        """Wake its thread."""
        try:
            self.turn.release()
        except RuntimeError:  # it is awake already
            return

    def end(self, result: Result) -> None:
        """Set the result, unless there is one, and wake its thread."""
        self.result = self.result or result
        self.wake()


class _Attempt:
    """A connection that is being made in its own thread."""

    def __init__(self, make: "Callable[[_Attempt], None]") -> None:
        self.thread = threading.Thread(target=make, args=(self,), name="ratelimit_mw connect", daemon=True)
        self._outcome: BlockingConnection | StoreUnavailable | None = None
        self._done = threading.Lock()
        self._done.acquire()

    @property
    def dead(self) -> bool:
        """Whether its thread has ended without an outcome."""
        return self._outcome is None and not self.thread.is_alive()

    def wait(self, seconds: float) -> BlockingConnection | StoreUnavailable | None:
        """The outcome; None if there is none within `seconds`. Several threads may wait."""
        if self._outcome is None and self._done.acquire(timeout=seconds):
            self._done.release()  # wakes the next thread that waits
        return self._outcome

    def end(self, outcome: BlockingConnection | StoreUnavailable) -> None:
        """Set the outcome and wake the threads that wait."""
        self._outcome = outcome
        self._done.release()


_FAR = 0.4
"""The round-trip time, as a share of the timeout, beyond which two round trips may not fit into the timeout."""

_MAX_CONNECTIONS = 128
"""The most connections. Beyond that, requests share them."""


class ConnectionPool:
    """Decides on one connection, or on several if the server is far away.

    Args:
        first: the batcher of the first connection.
        make: makes the batcher of another connection.
        timeout: seconds for one request.
    """

    def __init__(self, first: ThreadBatcher, make: Callable[[], ThreadBatcher], timeout: float) -> None:
        self._first = first
        self._make = make
        self._timeout = timeout
        self._far = timeout * _FAR
        self._lanes = [first]

    def decide(self, request: StoreRequest, timeout: float | None = None) -> Reply:
        """The store's reply to `request`. Raises StoreUnavailable, after `timeout` seconds at the latest."""
        job = _Job(request, time.monotonic() + (self._timeout if timeout is None else timeout))
        first = self._first
        if first.round_trip < self._far:  # the usual case
            first.decide(job)
        else:
            self._decide_far_away(job)
        result = job.result
        if isinstance(result, tuple):
            return complete(result)
        raise result or Late(NO_ANSWER)  # what its leader sees says whether the store is silent

    @property
    def answered_at(self) -> float:
        """When a request was last answered in time, by the monotonic clock."""
        return max(lane.answered_at for lane in tuple(self._lanes))

    def close(self) -> None:
        """Close all connections."""
        for lane in tuple(self._lanes):
            lane.close()

    def close_idle(self) -> None:
        """Close the connections that no request uses."""
        for lane in tuple(self._lanes):
            lane.close_if_idle()

    def _decide_far_away(self, job: _Job) -> None:
        """Answer the job on a connection that no other request uses. If all are in use, it shares one."""
        for number in range(_MAX_CONNECTIONS):
            if number + 1 == len(self._lanes) < _MAX_CONNECTIONS:
                # Keep one spare lane, so that the next request finds it connected.
                spare = self._make()
                spare.begin_connecting()
                self._lanes.append(spare)
            if self._lanes[number].decide(job, alone=True):
                return
        self._lanes[hash(job) % _MAX_CONNECTIONS].decide(job)
