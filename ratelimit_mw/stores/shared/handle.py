"""The data file as this process has it open, with the lock that all processes share.

There is one handle for each file in a process. The lock has two parts: a mutex, because the threads of a process share
the descriptor and would all get the lock of the kernel, and `flock` on the data file itself. The kernel frees that lock
when a process ends, however it ends. Neither part is held while a caller waits: a caller tries both, and tries again
after a pause. A process that was stopped while it held the lock therefore costs a request its timeout and no more.
"""

import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from typing import TypeVar
from weakref import WeakValueDictionary

import lmdb

from ratelimit_mw.errors import CounterError, StoreUnavailable
from ratelimit_mw.process_local import lazy, lock
from ratelimit_mw.stores.shared.file import DataFile, names, open_data, open_environment, set_aside
from ratelimit_mw.stores.shared.location import Location
from ratelimit_mw.stores.shared.table import Table

T = TypeVar("T")
A = TypeVar("A")

_log = logging.getLogger("ratelimit_mw")

_TRY = LOCK_EX | LOCK_NB
_CHECK = 1.0  # seconds between two looks at the path
_ROUNDS = 8  # transactions that one request may use to make room
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})  # EIO: LMDB could write a part of a page
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
    """The open data file of this process.

    Args:
        location: the file.
        max_counters: the most counters in it.
        now: returns the time in microseconds, to tell expired counters if the file is full.
    """

    _mutex = lazy(lock)

    def __init__(self, location: Location, max_counters: int, now: Callable[[], int]) -> None:
        self._location = location
        self._most = max_counters
        self._now = now
        self._data: DataFile | None = None
        self._table: Table | None = None
        self._check_at = 0.0
        self._replaced = False
        self._forking: int | None = None

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
        with self._mutex:
            return self._attempt(work, asked)

    def attempt_now(self, work: Callable[[Table, A], T], asked: A) -> T | None:
        """As `attempt`, but return None if another thread has the mutex. For event loops."""
        if not self._mutex.acquire(blocking=False):
            return None
        try:
            return self._attempt(work, asked)
        finally:
            self._mutex.release()

    def progress(self) -> tuple[int, int]:
        """What each change of the file changes: the number of its transactions and its time. No lock is needed.

        The time alone is too coarse for short timeouts. The number is unknown (-1) until this process has had the lock.
        """
        table, data = self._table, self._data
        try:
            number = -1 if table is None else int(table.environment.info()["last_txnid"])
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

    def _attempt(self, work: Callable[[Table, A], T], asked: A) -> T | None:
        if time.monotonic() >= self._check_at:
            self._check()
        data = self._data
        if data is None:
            return None
        fd = data.fd
        try:
            flock(fd, _TRY)
            table = self._table
            if table is None:
                environment = open_environment(data, self._location.path)
                table = self._table = Table(environment, self._most, data.most_written)
                table.allow(data.usable())
            try:
                with table.environment.begin(None, None, True) as table.txn:  # to write; a keyword costs 3 %
                    done = work(table, asked)
            except lmdb.Error as error:
                if not _is_full(error):
                    raise
                return self._attempt_in_more_room(table, work, asked)
            if table.crowded:
                self._make_room(data, table)
            return done
        except BlockingIOError:
            return None
        except _DAMAGED as error:
            self._drop_table()
            self._check_at = 0.0
            set_aside(self._location.path, fd, f"is damaged ({error})")
            self._replaced = True
            return None
        except (lmdb.Error, OSError) as error:
            self._drop_table()
            self._check_at = 0.0
            raise StoreUnavailable(f"{self._location.path}: {error}") from None
        finally:
            # This has no effect without the lock. It is the first call here, so that an asynchronous exception, for
            # example of a signal handler, cannot skip it.
            try:  # noqa: SIM105  `suppress` would be another call
                flock(fd, LOCK_UN)
            except OSError:  # other code has closed the descriptor
                pass

    def _attempt_in_more_room(self, table: Table, work: Callable[[Table, A], T], asked: A) -> T:
        """Drop counters and do the work again, until the file has room for what it writes."""
        for _ in range(_ROUNDS):
            try:
                self._thin(table)
                with table.environment.begin(write=True) as table.txn:
                    return work(table, asked)
            except lmdb.Error as error:
                if not _is_full(error):
                    raise
        try:
            self._thin(table)
        except lmdb.Error as error:
            if isinstance(error, lmdb.MapFullError) or not _is_full(error):
                raise
            raise CounterError(f"the disk has no room for the counters: {error}") from None
        raise CounterError("the file has no room for the counters: set a larger ?size=")

    def _make_room(self, data: DataFile, table: Table) -> None:
        """Let the file grow, or drop counters in small transactions, until the pages in use are within their bound."""
        table.allow(data.usable())  # another process may have let it grow
        while table.crowded and data.grow():
            table.allow(data.usable())
        try:
            for _ in range(_ROUNDS):
                if not table.crowded:
                    return
                self._thin(table)
        except lmdb.Error as error:  # the request has been decided, and the next one tries again
            if not _is_full(error):
                raise

    def _thin(self, table: Table) -> None:
        with table.environment.begin(write=True) as table.txn:
            table.thin(self._now())

    def _check(self) -> None:
        """Open the file, if it is not open or if its path names another file by now."""
        path = self._location.path
        if self._data is not None:
            if not self._replaced:
                if names(path, self._data.fd) and self._data.complete():
                    self._check_at = time.monotonic() + _CHECK
                    return
                _log.warning("store %s was deleted or replaced: the counters start from zero", path)
            self.close()
        self._replaced = False
        try:
            self._data = open_data(self._location)
        except BlockingIOError:  # another process replaces the file
            return
        self._check_at = time.monotonic() + _CHECK

    def _drop_table(self) -> None:
        """Close LMDB after an error, because it may refuse all further transactions."""
        table, self._table = self._table, None
        if table is not None:
            table.environment.close()

    def before_fork(self) -> None:
        """Take the mutex, so that no thread is within a transaction during the fork.

        After a second, the fork goes on without it: the thread that forks may itself be within a transaction, if a
        signal handler forks.
        """
        if self._mutex.acquire(timeout=_FORK):
            self._forking = threading.get_ident()

    def after_fork_in_parent(self) -> None:
        """Release the mutex, if this thread has taken it for the fork."""
        if self._forking == threading.get_ident():
            self._forking = None
            self._mutex.release()

    def after_fork_in_child(self) -> None:
        """Close what the child has inherited. The next attempt opens the file again.

        The inherited descriptor shares the lock of the parent. It is never unlocked here, because that would unlock
        the parent. It must be closed: if the parent were killed within the lock, the descriptor would keep the lock.
        LMDB is closed too, because it refuses to open a file twice in a process. It holds no lock of its own.
        """
        vars(self).pop("_mutex", None)
        idle, self._forking = self._forking is not None, None
        table, self._table = self._table, None
        if table is not None:
            if idle:
                table.environment.close()
            else:  # a thread that does not exist here was within a transaction
                _inherited.append(table)
        self._check_at = 0.0
        data, self._data = self._data, None
        if data is not None:
            data.close()


def _is_full(error: lmdb.Error) -> bool:
    """Whether the file or the disk has no room for what a transaction writes. Nothing of it was written then."""
    return isinstance(error, lmdb.MapFullError) or error.code in _NO_ROOM


_handles: WeakValueDictionary[str, Handle] = WeakValueDictionary()
_opening = threading.Lock()
_inherited: list[Table] = []
"""Tables of a parent that cannot be closed. They are kept so that they are not closed as garbage."""


def handle_of(location: Location, max_counters: int, now: Callable[[], int]) -> Handle:
    """The handle of this process for the file. Stores of the same file share it, with the options of the first."""
    with _opening:
        handle = _handles.get(location.file)
        if handle is None:
            handle = _handles[location.file] = Handle(location, max_counters, now)
        return handle


def _before_fork() -> None:
    for handle in list(_handles.values()):
        handle.before_fork()


def _after_fork_in_parent() -> None:
    for handle in list(_handles.values()):
        handle.after_fork_in_parent()


def _after_fork_in_child() -> None:
    global _opening
    _opening = threading.Lock()  # a thread that had locked it may not exist here
    for handle in list(_handles.values()):
        handle.after_fork_in_child()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
