"""The store over the data file: it tries the lock, waits for its turn, and gives up after the timeout.

A process has one handle for each file. The lock has two parts: a mutex, because the threads of a process share the
descriptor and would all get the lock of the kernel, and `flock` on the data file itself. The kernel frees that lock
when a process ends, however it ends. Neither part is held while a caller waits: a caller tries both, and tries again
after a pause. A process that was stopped while it held the lock therefore costs a request its timeout and no more.
"""

import asyncio
import errno
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from os import SEEK_END, lseek
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

import lmdb

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.errors import CounterError, Late, NameTaken, StoreUnavailable
from ratelimit_mw.logs import LineLimit, logger
from ratelimit_mw.model import Ask, Reply
from ratelimit_mw.process_local import abandon, lazy, lock, reset_after_fork
from ratelimit_mw.stores.base import DECIDE, Decider, ReplyFields, Store, StoreRequest, complete
from ratelimit_mw.stores.breaker import AWAY, Breaker, Period, probe_ask
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.stores.shared.file import DataFile, Location, check, names, open_data, open_environment, set_aside
from ratelimit_mw.stores.shared.table import NO_ROOM, Asked, Questions, Table

T = TypeVar("T")
A = TypeVar("A")


_TRY = LOCK_EX | LOCK_NB
_CHECK = 1.0  # seconds between two looks at the path
_ROUNDS = 8  # transactions in which one request may make room
_FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})  # EIO: LMDB could write a part of a page
_DAMAGED = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.MapFullError,  # not even counters can be dropped
    lmdb.MapResizedError,
    lmdb.PageNotFoundError,
    lmdb.ProblemError,
    lmdb.VersionMismatchError,
)
_FORK = 1.0  # seconds that a fork waits for the lock


class Handle:
    """The data file as this process has it open, with the lock that all processes share.

    Args:
        location: the file.
        max_counters: the most counters in it.
        now: returns the time in microseconds, to tell expired counters if the file is full.
    """

    mutex = lazy(lock)

    def __init__(self, location: Location, max_counters: int, now: Callable[[], int]) -> None:
        self._location = location
        self._most = max_counters
        self._now = now
        self._data: DataFile | None = None
        self._table: Table | None = None
        self._check_at = 0.0
        self._failed = False
        self._forking: int | None = None
        reset_after_fork(self)

    def attempt(self, work: Callable[[Table, A], T], asked: A) -> T | None:
        """Do `work` in a transaction, under the lock. Returns None at once if another process has the lock.

        It may wait for the mutex, which other threads hold for one transaction at most.

        Args:
            work: uses the table. It may be called again. It must not return None.
            asked: its second argument.

        Raises:
            CounterError: the file or its disk has no room for what `work` writes.
            PermanentFault: the file cannot be used until it is changed.
            StoreUnavailable: the file cannot be used now.
        """
        with self.mutex:
            return self.attempt_locked(work, asked)

    def attempt_now(self, work: Callable[[Table, A], T], asked: A) -> T | None:
        """As `attempt`, but return None if another thread has the mutex. For event loops."""
        if not self.mutex.acquire(blocking=False):
            return None
        try:
            return self.attempt_locked(work, asked)
        finally:
            self.mutex.release()

    def progress(self) -> tuple[int, int]:
        """What each change of the file changes: the number of its transactions and its time. No lock is needed.

        The time alone is too coarse for short timeouts. The number is unknown (-1) until this process has had the lock.
        """
        table, data = self._table, self._data
        try:
            # LMDB reads a meta page, which may be missing if the file was truncated.
            number = -1 if table is None or self._failed else int(table.environment.info()["last_txnid"])
            return number, 0 if data is None else os.fstat(data.fd).st_mtime_ns
        except (lmdb.Error, OSError):  # another thread has closed it
            return -1, 0

    def close(self) -> None:
        """Close the file. The next attempt opens it again."""
        table, self._table = self._table, None
        data, self._data = self._data, None
        if table is not None:
            table.environment.close()
        if data is not None:
            data.close()

    def __del__(self) -> None:
        self.close()

    def attempt_locked(self, work: Callable[[Table, A], T], asked: A) -> T | None:
        """As `attempt`. The caller holds the mutex."""
        if time.monotonic() >= self._check_at:
            self._check()
        data = self._data
        if data is None:
            return None
        fd, size, _ = data
        try:
            flock(fd, _TRY)
            if lseek(fd, 0, SEEK_END) < size:  # truncated: LMDB would end the process (SIGBUS)
                self._failed, self._check_at = True, 0.0
                return None
            table = self._table
            if table is None:
                table = self._table = Table(open_environment(data, self._location.path), self._most, size)
            txn = None
            try:
                # Without `with`, which takes longer. A keyword for `write` costs 3 %.
                txn = table.txn = table.environment.begin(None, None, True)
                done = work(table, asked)
                txn.commit()
            except BaseException as error:
                if txn is not None:
                    txn.abort()  # it has no effect after a commit
                if not (isinstance(error, lmdb.Error) and _is_full(error)):  # if it is full, nothing was written
                    raise
                done = self._work_with_room(table, work, asked)
            if table.crowded:
                self._make_room(table, fd)
            return done
        except BlockingIOError:
            return None
        except (lmdb.Error, OSError) as error:
            self._fail(error, fd)
            return None
        finally:
            # No effect without the lock. It is the first call here, so that no asynchronous exception can skip it.
            try:  # noqa: SIM105  `suppress` would be another call
                flock(fd, LOCK_UN)
            except OSError:  # other code has closed the descriptor
                pass

    def _fail(self, error: Exception, fd: int) -> None:
        """Set a damaged file aside. Raises StoreUnavailable for any other error."""
        self._failed, self._check_at = True, 0.0  # LMDB may refuse all further transactions
        if not isinstance(error, _DAMAGED):
            raise StoreUnavailable(f"{self._location.path}: {error}") from None
        set_aside(self._location.path, fd, f"is damaged ({error})")

    def _work_with_room(self, table: Table, work: Callable[[Table, A], T], asked: A) -> T:
        """Drop counters, and do the work again, until there is room for what it writes."""
        for _ in range(_ROUNDS):
            table.crowded = False
            if not self._thin(table):
                break
            try:
                with table.environment.begin(write=True) as table.txn:
                    return work(table, asked)
            except lmdb.Error as error:
                if not _is_full(error):
                    raise
        raise CounterError(NO_ROOM)

    def _make_room(self, table: Table, fd: int) -> None:
        """Let the file grow, or drop counters in small transactions, until the pages in use are within their bound."""
        for _ in range(_ROUNDS):
            if table.grow(fd) or not self._thin(table) or not table.crowded:
                return

    def _thin(self, table: Table) -> bool:
        """Drop counters in a transaction of its own. Returns False if the disk has no room even for that."""
        try:
            with table.environment.begin(write=True) as table.txn:
                table.thin(self._now())
        except lmdb.Error as error:
            if error.code not in _FULL_DISK:
                raise
            return False
        return True

    def _check(self) -> None:
        """Open the file, if it is not open, if it has failed, or if its path names another file by now."""
        path = self._location.path
        if self._data is not None:
            if not self._failed:
                if names(path, self._data.fd):
                    self._check_at = time.monotonic() + _CHECK
                    return
                logger.warning("store %s was deleted or replaced: the counters start from zero", path)
            self.close()
        self._failed = False
        try:
            self._data = open_data(self._location)
        except BlockingIOError:  # another process replaces the file
            return
        self._check_at = time.monotonic() + _CHECK

    def before_fork(self) -> None:
        """Take the mutex, so that no thread is within a transaction during the fork.

        After a second, the fork goes on without it: the thread that forks may itself be within a transaction, if a
        signal handler forks.
        """
        if self.mutex.acquire(timeout=_FORK):
            self._forking = threading.get_ident()

    def after_fork_in_parent(self) -> None:
        """Release the mutex, if this thread has taken it for the fork."""
        if self._forking == threading.get_ident():
            self._forking = None
            self.mutex.release()

    def after_fork(self) -> None:
        """Close what the child has inherited. The next attempt opens the file again.

        The inherited descriptor shares the lock of the parent. It is never unlocked here, because that would unlock
        the parent. It must be closed: if the parent were killed within the lock, the descriptor would keep the lock.
        LMDB is closed too, because it refuses to open a file twice in a process. It holds no lock of its own.
        """
        if self._forking is None and self._table is not None:
            abandon(self._table)  # a thread that does not exist here was within a transaction
            self._table = None
        self._forking, self._check_at = None, 0.0
        self.close()


def _is_full(error: lmdb.Error) -> bool:
    """Whether the file or its disk has no room."""
    return isinstance(error, lmdb.MapFullError) or error.code in _FULL_DISK


class _Handles:
    """The handles of this process, by their files: LMDB must not open a file twice."""

    lock = lazy(lock)

    def __init__(self) -> None:
        self.by_file: WeakValueDictionary[str, Handle] = WeakValueDictionary()


_handles = _Handles()


def handle_of(location: Location, max_counters: int, now: Callable[[], int]) -> Handle:
    """The handle of this process for the file. Stores of the same file share it, with the options of the first."""
    with _handles.lock:
        handle = _handles.by_file.get(location.file)
        if handle is None:
            handle = _handles.by_file[location.file] = Handle(location, max_counters, now)
        return handle


class SharedStore(Store):
    """Counters in a file that the processes of one machine share. Decisions are exact across all of them.

    The file is created by the first decision, so that a server that loads the app as root and changes the user of its
    workers has a file that belongs to the workers. Where another user has taken the name of the file, the store counts
    in the memory of this process.

    Args:
        location: the file.
        max_counters: the most counters to keep.
        timeout: seconds that one decision may wait for the lock.
        clock: the user's clock; None for the system's.
    """

    remote = False

    def __init__(
        self, location: Location, *, max_counters: int = 1_000_000, timeout: float = 0.1, clock: Clock | None = None
    ) -> None:
        self.location = location
        self._most = max_counters
        self._timeout = timeout
        self._now = (clock or SystemClock()).now
        self._handle: Handle | None = None
        self._lines = LineLimit()
        self._alone = MemoryStore(max_counters=max_counters, clock=clock)
        self._breaker = Breaker(location.path)
        self._asked = Questions(self._now).of
        reset_after_fork(self)

    def ask(self, request: StoreRequest) -> Reply:
        """See `Store`."""
        return complete(self._decided(self._asked(request)))

    async def aask(self, request: StoreRequest) -> Reply:
        """See `Store`."""
        asked, breaker = self._asked(request), self._breaker
        if breaker.watching and breaker.open:
            raise StoreUnavailable(AWAY)
        period = breaker.period
        try:
            reply = (self._handle or self._open()).attempt_now(Table.reply, asked)
            return complete(await self._await(Table.reply, asked) if reply is None else reply)
        except StoreUnavailable as error:
            self._failed(error, period)
            return self._alone.ask(request)

    def decider(self, asks: Sequence[Ask]) -> Decider:  # noqa: ARG002  of `Store`
        """See `Store`."""
        return self._decided, lambda asks: self._asked((asks, DECIDE))

    def _decided(self, asked: Asked) -> ReplyFields:
        breaker = self._breaker
        if breaker.watching and breaker.open:
            raise StoreUnavailable(AWAY)
        period = breaker.period
        try:
            handle = self._handle or self._open()
            with handle.mutex:  # as `attempt` does, without another call
                reply = handle.attempt_locked(Table.reply, asked)
            return self._wait(Table.reply, asked) if reply is None else reply
        except StoreUnavailable as error:
            self._failed(error, period)
            return self._alone.ask(asked[0])

    def connect(self, domain: str) -> None:  # noqa: ARG002  a decision would create the file, for another user maybe
        """See `Store`. It checks the file, but makes no decision."""
        try:
            check(self.location)
        except StoreUnavailable as error:
            self._failed(error, self._breaker.period)
            raise

    def keys(self, prefix: str) -> Iterator[str]:
        """See `Store`."""
        if not Path(self.location.path).exists():
            return  # do not create it for a reader, which may be another user than the workers
        start = b"\0"
        while start:
            asked = start, self._now
            try:
                found, start = self._wait(Table.keys, asked)
            except NameTaken:
                yield from self._alone.keys(prefix)
                return
            yield from (key for key in found if key.startswith(prefix))

    def close(self) -> None:
        """Close the file, unless another store of this process uses it. The next request opens it again."""
        self._breaker.stop()
        self._breaker = Breaker(self.location.path)
        self._handle = None

    def after_fork(self) -> None:
        """Reset in the child of a fork, which has no thread that probes."""
        self._breaker = Breaker(self.location.path)

    @property
    def late_requests(self) -> int:
        """See `Store`."""
        return self._breaker.late_requests

    @property
    def away(self) -> bool:
        """Whether the file is unavailable, so that requests fail at once."""
        return self._breaker.open

    def _open(self) -> Handle:
        handle = self._handle = self._handle or handle_of(self.location, self._most, self._now)
        return handle

    def _wait(self, work: Callable[[Table, A], T], asked: A) -> T:
        """Try until the timeout. Raises StoreUnavailable after it."""
        turns = self._turns((0, 0, 0, 20e-6), 200e-6)
        while True:
            time.sleep(next(turns))
            done = self._open().attempt(work, asked)
            if done is not None:
                return done

    async def _await(self, work: Callable[[Table, A], T], asked: A) -> T:
        """The awaitable twin of `_wait`. The event loop has other work to do."""
        turns = self._turns((0, 0, 0, 0.001, 0.001, 0.002), 0.004)
        while True:
            await asyncio.sleep(next(turns))
            done = self._open().attempt_now(work, asked)
            if done is not None:
                return done

    def _turns(self, first: tuple[float, ...], then: float) -> Iterator[float]:
        """The pauses before attempts, until the timeout. A decision holds the lock for about ten microseconds.

        Raises:
            Late: the timeout is over, but others were decided. The breaker stays closed.
            StoreUnavailable: the timeout is over.
        """
        handle, deadline = self._open(), time.monotonic() + self._timeout
        seen = handle.progress()
        for pause in itertools.chain(first, itertools.repeat(then)):
            yield pause
            if time.monotonic() > deadline:
                waited = f"the lock of {self.location.path} was not free within {self._timeout:g} s"
                raise Late(waited) if handle.progress() != seen else StoreUnavailable(waited)

    def _failed(self, error: StoreUnavailable, period: Period) -> None:
        """Return if this process counts for itself. Otherwise open the breaker, if not only this request has failed.

        Raises:
            StoreUnavailable: the error.
        """
        path, taken = self.location.path, isinstance(error, NameTaken)
        if taken or isinstance(error, CounterError):
            if self._lines.omitted(type(error).__name__, 1, time.monotonic_ns() // 1_000) is not None:
                if isinstance(error, NameTaken):
                    logger.error("store %s (%s): this process counts for itself: %s", path, error, error.remedy)
                else:
                    logger.warning("store %s (%s): on_error applies to the request", path, error)
        elif isinstance(error, Late):
            period.breaker.late()
        else:
            period.breaker.trip(error, self._probe, period.closings)
        if not taken:
            raise error

    def _probe(self) -> None:
        """Raise StoreUnavailable while this process cannot count. The key is new, because that needs most room."""
        key = f"probe:{{{os.getpid()}.{time.monotonic_ns()}}}"
        with suppress(NameTaken):  # it counts for itself then
            self._wait(Table.reply, self._asked(([probe_ask(key)], DECIDE)))
