"""State of one process: lazy locks, threads that repeat work, objects reset after a fork, and the server of workers.

This module is internal: its names may change in any release.
"""

import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Generic, Protocol, TypeVar, overload

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801  a descriptor, as `property` is one
    """An attribute that `make` creates on first use. All threads get the same object.

    The child of a fork discards the object, and its next use creates a new one. This is for what belongs to the parent,
    such as its requests in flight, and for locks, because a thread that holds the lock may not exist in the child.

    Under `gunicorn --preload -k gevent`, an app is loaded and forked before `threading` is patched. A lock created at
    that time does not know greenlets: the first greenlet that waited for it would stop the whole worker. For a lock or
    an event, `make` must therefore be one of the functions below, which look up the class when they are called.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "lazy[T]": ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        _lazy.add(instance)
        return vars(instance).setdefault(self._name, self._make())  # atomic, so that all threads get the same object


def lock() -> threading.Lock:
    """Return a lock of this process."""
    return threading.Lock()


def rlock() -> threading.RLock:
    """Return a reentrant lock of this process."""
    return threading.RLock()


def event() -> threading.Event:
    """Return an event of this process."""
    return threading.Event()


class Repeating:
    """A thread that repeats `work` until it has nothing more to do.

    Any thread may start and stop it. An asynchronous exception may end it at any line; the next start starts another.

    Args:
        name: The name of the thread.
        work: Does the work once. Returns the seconds until the next time, or None to end the thread.
        first: The seconds before the first time.
        ended: The thread calls it when it ends.
    """

    _changing = lazy(lock)

    def __init__(
        self, name: str, work: Callable[[], float | None], *, first: float = 0.0, ended: Callable[[], object] = bool
    ) -> None:
        self._name = f"ratelimit_mw {name}"
        self._work = work
        self._first = first
        self._ended = ended
        self._wanted = False  # it was started since the work began
        self._running: tuple[threading.Thread, threading.Event] | None = None

    @property
    def alive(self) -> bool:
        """Whether the thread runs. In the child of a fork, Python has marked the threads of the parent as ended."""
        running = self._running
        return running is not None and running[0].is_alive()

    def start(self) -> bool:
        """Start the thread, unless it runs. Return False if the process can start no more threads."""
        self._wanted = True  # first: a thread that ends now sees it, or it is seen here that no thread runs
        if self.alive:
            return True
        with self._changing:
            if not self.alive:
                stopped = threading.Event()
                thread = threading.Thread(target=self._run, args=(stopped,), name=self._name, daemon=True)
                self._running = thread, stopped  # first, so that an asynchronous exception leaves no unknown thread
                try:
                    thread.start()
                except RuntimeError:
                    return False
        return True

    def stop(self) -> None:
        """Stop the thread. Work that has begun is finished."""
        with self._changing:
            running, self._running = self._running, None
        if running is not None and running[0].is_alive():  # in the child of a fork, the event may be locked for good
            running[1].set()

    def _run(self, stopped: threading.Event) -> None:
        pause: float | None = self._first
        try:
            while pause is not None and not stopped.wait(pause):
                self._wanted = False
                pause = self._work()
        finally:
            self._ended()
        with self._changing:
            if self._running is not None and self._running[1] is stopped:
                self._running = None
        if self._wanted and not stopped.is_set():
            self.start()


class Forked(Protocol):
    """An object that must be reset in the child of a fork.

    If no other thread may use it during the fork, it has two more methods. `before_fork` takes its lock, or goes on
    without it after a short time. `after_fork_in_parent` releases the lock if it was taken.
    """

    def after_fork(self) -> None:
        """Reset the object in the child of a fork. All `lazy` attributes are discarded already."""


def reset_after_fork(each: Forked) -> None:
    """Call the methods of `each` at every fork, as long as `each` exists."""
    _forked[id(each)] = each


def abandon(*inherited: object) -> None:
    """Keep what the child of a fork has inherited, such as a connection: it must neither be used nor closed there."""
    _abandoned.append(inherited)


_forked: weakref.WeakValueDictionary[int, Forked] = weakref.WeakValueDictionary()
_lazy: weakref.WeakSet[Any] = weakref.WeakSet()  # the objects with attributes that `lazy` has created
_abandoned: list[object] = []


def _call_all(method: str) -> None:
    # The references are listed in one step. To iterate over them fails if another thread registers an object.
    for reference in _forked.valuerefs():
        getattr(reference(), method, lambda: None)()


def _reset_all() -> None:
    for each in _lazy:
        for kind in type(each).__mro__:
            for name, value in vars(kind).items():
                if isinstance(value, lazy):
                    vars(each).pop(name, None)
    _lazy.clear()
    _call_all("after_fork")  # an object that is reset may make others, as a store makes its breaker


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(
        before=partial(_call_all, "before_fork"),
        after_in_parent=partial(_call_all, "after_fork_in_parent"),
        after_in_child=_reset_all,
    )


_SERVERS = ("gunicorn", "uvicorn", "hypercorn", "granian", "fastapi")
_WORKERS = re.compile(r"(?:^|\s)(?:-w|--workers)[\s=]*([0-9]{1,4})(?=\s|$)")


def workers_of_server(arguments: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Return how many workers the server of this process was told to start, or 1 if that is unknown.

    The command line of a server takes precedence over gunicorn's configuration file, and that over WEB_CONCURRENCY.

    Args:
        arguments: The command line. None: that of this process. The workers of a server have the same one.
        environ: The environment. None: that of this process.
    """
    arguments = sys.argv if arguments is None else arguments
    environ = os.environ if environ is None else environ
    program = PurePath(arguments[0]) if arguments else PurePath()
    if not {program.stem, program.parent.name} & {*_SERVERS}:  # the parent: `python -m uvicorn`
        return 1
    told = _WORKERS.findall(" ".join(arguments[1:])) or _WORKERS.findall(environ.get("GUNICORN_CMD_ARGS", ""))
    if not told and "gunicorn" in (program.stem, program.parent.name):
        configured = getattr(sys.modules.get("__config__"), "workers", None)  # gunicorn imports its file by this name
        if isinstance(configured, int):
            return max(1, configured)
    if not told:
        found = environ.get("WEB_CONCURRENCY", "")
        told = [found] if found.isascii() and found.isdecimal() and len(found) < 5 else []
    return max(1, int(told[-1])) if told else 1


_FORKED = 0x40
"""The kernel's flag PF_FORKNOEXEC: this process is a fork that still runs the program of its parent."""


def server_of_worker() -> str | None:
    """Return the namespace, the id and the start of the process that started this worker. None if this is no worker.

    A worker is a fork that runs the program of its parent (gunicorn, uWSGI), or a child of Python's multiprocessing
    (uvicorn, hypercorn, granian). A process that a shell, an init system or a supervisor starts is not a worker. It
    must not use stored rules, although its parent may have the same process id each time.
    """
    parent = os.getppid()
    process = sys.modules.get("multiprocessing.process")  # a child of multiprocessing has imported it
    starter = process.parent_process() if process else None
    try:
        started = proc_stat(str(parent))[19]
        # A daemon is a fork, too. Unlike a worker, it has left the session of its parent.
        forked = bool(int(proc_stat("self")[6]) & _FORKED) and os.getsid(0) == os.getsid(parent)
        if not forked and (starter is None or starter.pid != parent):
            return None
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except (OSError, AttributeError):  # no /proc, no sessions
        return None
    return f"{namespace}-{parent}-{started}" if os.getppid() == parent else None


def proc_stat(pid: str) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the third on. The second is a name, which may contain spaces."""
    text = Path("/proc", pid, "stat").read_text("utf-8", "replace")
    return text[text.rindex(")") + 2 :].split()
