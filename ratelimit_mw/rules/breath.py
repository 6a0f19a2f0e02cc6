"""Work that lets others have their turn: a thread that compiles rules must not hold up the one that serves.

Python hands the interpreter on every 5 ms, unless whoever has it sleeps. So a thread within `breathing` sleeps for
a moment each time it has worked for half a millisecond, at the calls of `breathe` along its way.

The garbage collector would hold everybody up as well: thousands of new objects set it off, and then it looks
through all that the process has. So it rests meanwhile, and what is new becomes old without being looked through.
"""

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_STINT = 0.0005
_REST = 0.0003

_threads = threading.local()


def breathe() -> None:
    """Let others have their turn, if this thread is to. Cheap enough to be called for each value of a file."""
    due = getattr(_threads, "due", None)
    if due is not None and time.perf_counter() >= due:
        time.sleep(_REST)
        _threads.due = time.perf_counter() + _STINT


@contextmanager
def breathing() -> Iterator[None]:
    """Make `breathe` let others have their turn, in this thread."""
    collecting = gc.isenabled()
    gc.disable()
    _threads.due = time.perf_counter() + _STINT
    try:
        yield
    finally:
        _threads.due = None
        if collecting:
            if not gc.get_freeze_count():  # else the app has frozen what it shares with its forks: leave that alone
                gc.freeze()
                gc.unfreeze()
            gc.enable()
