"""Reading and compiling in slices: a thread that compiles rules must not hold up the threads that serve requests.

Python switches threads every 5 ms, unless the running thread sleeps first. A thread inside `in_slices` therefore sleeps
for a moment after each half millisecond of work, at the next call of `checkpoint`.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_SLICE = 0.0005
_PAUSE = 0.0003

_threads = threading.local()


def checkpoint() -> None:
    """Let other threads run, if this thread works in slices. Cheap enough to be called for each value of a file."""
    due = getattr(_threads, "due", None)
    if due is not None and time.perf_counter() >= due:
        time.sleep(_PAUSE)
        _threads.due = time.perf_counter() + _SLICE


@contextmanager
def in_slices() -> Iterator[None]:
    """Make `checkpoint` let other threads run, in this thread."""
    try:
        _threads.due = time.perf_counter() + _SLICE
        yield
    finally:
        _threads.due = None
