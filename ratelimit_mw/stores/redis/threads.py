"""Decisions of threads over one connection: whoever comes first leads, and takes along those who came in the meantime.

An exception may come to a serving thread at any line: a signal handler raises, another thread uses
PyThreadState_SetAsyncExc, a gevent.Timeout expires. The store must go on deciding after it, for the other requests of
that batch too. Four rules ensure that:

1. There is no lock and no flag. Each change is one atomic step of a dict or a deque, and the step that takes the
   connection writes down which job did. So what an interrupted thread held is known, and can be given back.
2. A job that leads has all that leading needs: the followers and the exchange. Each step of leading can be
   repeated. What an interrupted thread has begun, a thread of the batcher's own does again from the beginning, and
   passes over the steps that are done: nothing is sent twice, and every reply is read.
3. Where that is not certain, the connection is closed: no call may read a reply to another.
4. A job that holds the connection a second past its deadline has lost its thread. The next one takes it over.
"""

import _thread
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from ratelimit_mw.errors import NoAnswer, StoreUnavailable
from ratelimit_mw.model import Reply
from ratelimit_mw.stores.base import StoreRequest
from ratelimit_mw.stores.redis.codec import MOST, Batch, Conversation, away
from ratelimit_mw.stores.redis.connection import GRACE, Blocking, Exchange

_LOST = 1.0
"""Seconds past its deadline after which a job that holds the connection counts as lost."""

_NO_ANSWER = "no answer within the deadline"


class ThreadBatcher:
    """Shares one connection among the threads of a process, and round trips among those who come together.

    `connect` makes a connection, ready for use, and `converse` the conversation with the store about some requests.
    """

    def __init__(
        self,
        connect: Callable[[], Blocking],
        converse: Callable[[Sequence[StoreRequest]], Conversation],
        timeout: float,
        allowance: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._connect = connect
        self._allowance = allowance
        self._converse = converse
        self._timeout = timeout
        self._waiting: deque[_Job] = deque()
        self._leader: dict[None, _Job] = {}  # the job that holds the connection, if any
        self._connection: Blocking | None = None
        self._attempt: _Attempt | None = None
        self.round_trip = 0.0
        """Seconds of the shortest of the last three exchanges: the machine itself may make one longer."""
        self._trips = (float("inf"), float("inf"))
        self._served_at = float("-inf")

    def decide(self, request: StoreRequest, timeout: float | None = None) -> Reply:
        """The store's reply to `request` within the timeout, or StoreUnavailable."""
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        if self._connection is None:
            deadline += self._allowance()
        job = _Job(request, deadline)
        try:
            if not self._waiting and self._takes_lead(job):
                self._lead(job)
            else:
                self._wait(job)
        except BaseException:
            self._abandon(job)
            raise
        result = job.result
        if isinstance(result, Reply):
            return result
        raise result or NoAnswer(_NO_ANSWER)

    @property
    def busy(self) -> bool:
        """Whether its connection is in use."""
        return bool(self._leader)

    def served_since(self, moment: float) -> bool:
        """Whether some request was answered in time since that moment of the monotonic clock."""
        return self._served_at > moment

    def connect(self) -> None:
        """Connect before the first request comes, for at most as long as that one would wait. Never raises."""
        seconds = max(self._allowance(), self._timeout)
        attempt = self.begin_connecting()
        if attempt is not None:
            attempt.wait(seconds)

    def begin_connecting(self) -> "_Attempt | None":
        """Connect beside the requests, where there is no connection yet. Never raises."""
        if self._connection is not None or self._attempt is not None:
            return self._attempt
        try:
            return self._begin_connecting()
        except StoreUnavailable:  # no more threads
            return None

    def close(self) -> None:
        """Close the connection; what is under way on it gets StoreUnavailable. The next request makes a new one."""
        attempt, self._attempt = self._attempt, None
        if attempt:
            attempt.wanted = False
        connection, self._connection = self._connection, None
        if connection:
            connection.close()

    def _takes_lead(self, job: "_Job") -> bool:
        """Have the job hold the connection, unless another does."""
        leader = self._leader.setdefault(None, job)
        if leader is job:
            return True
        if time.monotonic() <= leader.deadline + _LOST:
            return False
        self._drop(self._connection)  # a reply may still come
        self._give_back(leader)
        # Two that find the same leader lost may both get here: the numbers of the replies keep them apart.
        return self._leader.setdefault(None, job) is job

    def _give_back(self, job: "_Job") -> None:
        """Let another lead."""
        if self._leader.get(None) is job:
            self._leader.pop(None, None)

    def _wake_next(self) -> None:
        """Have whoever has waited longest try to lead, if nobody does."""
        waiting = self._waiting
        if waiting and not self._leader:
            try:
                waiting[0].wake()
            except IndexError:  # it has gone
                return

    def _wait(self, job: "_Job") -> None:
        """Be taken along, or lead once there is no leader and it is this one's turn."""
        turn = job.turn
        turn.acquire()
        self._waiting.append(job)
        while job.result is None:
            if self._is_next(job) and self._takes_lead(job):
                self._leave(job)
                if not job.done:  # in the meantime
                    self._lead(job)
                self._give_back(job)
                break
            # Where all threads were held up, the leader gets its chance first.
            left = max(job.deadline - time.monotonic() - GRACE, 0)
            if not turn.acquire(timeout=left) and not turn.acquire(timeout=GRACE):
                self._leave(job)
                break
        self._wake_next()  # it may have been this one's turn

    def _is_next(self, job: "_Job") -> bool:
        """Whether no other has waited longer. So each one that is woken finds the lead free."""
        try:
            return self._waiting[0] is job
        except IndexError:  # it was taken along
            return False

    def _leave(self, job: "_Job") -> None:
        """Wait no longer."""
        try:
            self._waiting.remove(job)
        except ValueError:  # it was taken along, or has not come so far
            return

    def _lead(self, job: "_Job") -> None:
        """Ask for oneself and for those who wait, tell them, and let another lead."""
        try:
            results = self._results(job)
        except StoreUnavailable as error:
            self._fail(job, error)
        else:
            job.result = results[0]
            for place, follower in enumerate(job.followers, 1):
                follower.result = results[place]
                follower.wake()
        self._give_back(job)
        self._wake_next()

    def _fail(self, job: "_Job", error: Exception) -> None:
        """Tell all whom the job led, and those who still wait: they would find the same."""
        job.result = job.result or _same(error)
        for follower in job.followers:
            follower.fail(error)
        with contextlib.suppress(IndexError):  # the last one has left
            while self._waiting:
                self._waiting.popleft().fail(error)

    def _results(self, job: "_Job") -> Sequence[Reply | StoreUnavailable]:
        """The replies to the batch of a job that leads."""
        exchange = job.exchange
        if exchange is None:
            exchange = job.exchange = self._begun(job)
        deadline = max(job.deadline, time.monotonic() + GRACE)  # the lead may come late
        connection = exchange.connection
        if connection is None:
            connection = exchange.connection = self._ready(deadline)
        began = time.monotonic()
        deadline = min(deadline, began + self._timeout)  # where the first connection took longer than a request may
        try:
            results = connection.carry_on(exchange, deadline)
        except StoreUnavailable:  # a reply may still come for what was sent
            self._drop(connection)
            raise
        self._served_at = time.monotonic()
        before, last = self._trips
        took = self._served_at - began
        self._trips = last, took
        self.round_trip = min(before, last, took)
        for result in results:
            if away(result):
                self._drop(connection)
                break
        return results

    def _begun(self, job: "_Job") -> Exchange:
        """An exchange for the job and for those who wait, as many as one call to the server may carry."""
        requests = [job.request]
        if self._waiting:
            followers: list[_Job] = []
            job.followers = followers
            room = MOST - len(job.request[0])
            waiting = self._waiting
            while room > 0:
                try:
                    follower = waiting[0]
                    followers.append(follower)  # before it goes from the other, so that it is always in one of them
                    waiting.remove(follower)
                except IndexError:
                    break
                except ValueError:  # it has left
                    followers.pop()
                else:
                    room -= len(follower.request[0])
            requests += [follower.request for follower in followers]
        batch = Batch(requests)
        return Exchange(lambda: self._converse(batch))

    def _abandon(self, job: "_Job") -> None:
        """Leave nothing behind of a thread that was interrupted: others may depend on what it has begun."""
        self._leave(job)
        if self._leader.get(None) is job:
            if job.exchange is None:  # nothing was asked yet
                self._waiting.extendleft([each for each in reversed(job.followers) if each not in self._waiting])
                self._give_back(job)
            elif job.result is not None and not job.followers:
                self._give_back(job)
            else:
                try:
                    # Not by a Thread, whose `start` waits for it: a second exception can keep it from coming up.
                    _thread.start_new_thread(self._finish, (job,))
                except RuntimeError:  # no more threads
                    self._drop(self._connection)
                    self._give_back(job)
        self._wake_next()

    def _finish(self, job: "_Job") -> None:
        """Lead to the end, in the place of a thread that was interrupted."""
        try:
            self._lead(job)
        except Exception as error:  # noqa: BLE001  those who wait have to hear of it
            self._drop(self._connection)
            self._fail(job, error)
        finally:
            self._give_back(job)
            self._wake_next()

    def _ready(self, deadline: float) -> Blocking:
        """The connection, once there is one."""
        attempt = self._attempt  # before the connection, for one that succeeds becomes the connection
        connection = self._connection
        if connection and connection.usable:
            return connection
        self._drop(connection)
        if attempt is None or attempt.dead:
            attempt = self._begin_connecting()
        # Half the time is kept for the exchange: begun too late it would fail, and cost the new connection.
        made = attempt.wait(max(deadline - self._timeout / 2 - time.monotonic(), 0))
        if isinstance(made, Blocking):
            return made
        if made is None:
            raise NoAnswer("no connection within the deadline")
        raise StoreUnavailable(str(made))

    def _begin_connecting(self) -> "_Attempt":
        """Connect beside the requests, however long the handshake takes."""
        attempt = _Attempt(self._make)
        try:
            self._attempt = attempt
            attempt.thread.start()
        except BaseException as error:
            self._attempt = None  # a thread that did start finds that it is not wanted
            if isinstance(error, RuntimeError):  # no more threads, or the interpreter is shutting down
                raise StoreUnavailable(str(error)) from error
            raise
        return attempt

    def _make(self, attempt: "_Attempt") -> None:
        """The connecting thread: make a connection, and take it into use if it is still wanted."""
        outcome: Blocking | StoreUnavailable
        try:
            outcome = self._connect()
        except Exception as error:  # noqa: BLE001  whatever it is, those who wait have to hear of it
            outcome = error if isinstance(error, StoreUnavailable) else StoreUnavailable(repr(error))
        else:
            if self._attempt is attempt:
                self._connection = outcome
            if not attempt.wanted or self._attempt is not attempt:
                self._drop(outcome)
                outcome = StoreUnavailable("the store was closed")
        if self._attempt is attempt:
            self._attempt = None
        attempt.end(outcome)

    def _drop(self, connection: Blocking | None) -> None:
        """Close a connection, and use it no more."""
        if connection is not None:
            if self._connection is connection:
                self._connection = None
            connection.close()


def _same(error: Exception) -> StoreUnavailable:
    """The error as another thread raises it."""
    return type(error)(*error.args) if isinstance(error, NoAnswer) else StoreUnavailable(str(error))


class _Job:
    """An request on its way, the gate at which its thread waits, and what leading takes if it leads."""

    __slots__ = ("deadline", "exchange", "followers", "request", "result", "turn")

    def __init__(self, request: StoreRequest, deadline: float) -> None:
        self.request = request
        self.deadline = deadline
        self.turn = threading.Lock()
        self.result: Reply | StoreUnavailable | None = None
        self.followers: Sequence[_Job] = ()
        self.exchange: Exchange | None = None

    @property
    def done(self) -> bool:
        """Whether it has its result."""
        return self.result is not None

    def wake(self) -> None:
        """Let its thread look what has become of it."""
        try:
            self.turn.release()
        except RuntimeError:  # it was woken already
            return

    def fail(self, error: Exception) -> None:
        """Tell its thread that there is no reply, unless there is."""
        self.result = self.result or _same(error)
        self.wake()


class _Attempt:
    """A connection in the making, in a thread of its own. `wanted` until the store is closed."""

    def __init__(self, make: "Callable[[_Attempt], None]") -> None:
        self.wanted = True
        self.thread = threading.Thread(target=make, args=(self,), name="ratelimit_mw connect", daemon=True)
        self._outcome: Blocking | StoreUnavailable | None = None
        self._done = threading.Lock()
        self._done.acquire()

    @property
    def dead(self) -> bool:
        """True where nothing will come of it any more."""
        return self._outcome is None and not self.thread.is_alive()

    def wait(self, seconds: float) -> Blocking | StoreUnavailable | None:
        """What came of it, None where nothing has within so many seconds. Several threads may wait."""
        if self._outcome is None and self._done.acquire(timeout=seconds):
            self._done.release()  # wakes the next thread that waits
        return self._outcome

    def end(self, outcome: Blocking | StoreUnavailable) -> None:
        """Wake the threads that wait."""
        self._outcome = outcome
        self._done.release()
