"""Exceptions from elsewhere: one at every line, as a signal's handler, PyThreadState_SetAsyncExc or gevent raise them.

    for at in lines(work):
        interrupted(work, at)      # `work` is called, and the line event number `at` raises Interrupted
        ...                        # what must hold after it

The lines are those of `ratelimit_mw`, in the order in which they run, as often as they run. Left out is one event: the
one for the line of a `with` as its block is left. There the interpreter calls `__exit__` without looking for pending
exceptions, so no real one ever comes there. `ThreadStorm` raises real ones.
"""

import ctypes
import dis
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import ratelimit_mw

PACKAGE = str(Path(ratelimit_mw.__file__).parent)
_LOAD_CONST = dis.opmap["LOAD_CONST"]


class Interrupted(BaseException):
    """What the injector raises."""


class _Tracer:
    """Counts the lines that one thread runs, and raises at one of them."""

    def __init__(self, at: int | None, kind: type[BaseException]) -> None:
        self.count = 0
        self.place = ""
        self._at = at
        self._kind = kind
        self._ours: dict[CodeType, bool] = {}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        ours = self._ours.get(code)
        if ours is None:
            ours = self._ours[code] = code.co_filename.startswith(PACKAGE)
        if not ours:
            return None
        if event == "line" and not _leaves_with(frame):
            self.count += 1
            if self.count == self._at:
                self.place = f"{code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno}"
                raise self._kind(self.place)
        return self


def _leaves_with(frame: FrameType) -> bool:
    """True where a block of `with` ends without an exception: three times None is loaded, for `__exit__`."""
    code, at = frame.f_code.co_code, frame.f_lasti
    loads = [code[place : place + 2] for place in (at, at + 2, at + 4)]
    return loads[0] == loads[1] == loads[2] and loads[0][:1] == bytes((_LOAD_CONST,))


def interrupted(work: Callable[[], object], at: int | None, kind: type[BaseException] = Interrupted) -> tuple[int, str]:
    """Call `work` in this thread, and raise at its line number `at`. How many lines ran, and where it was raised."""
    tracer, before = _Tracer(at, kind), sys.gettrace()
    sys.settrace(tracer)
    try:
        work()
    except kind:
        if not tracer.place:
            raise
    finally:
        sys.settrace(before)
    return tracer.count, tracer.place


def lines(work: Callable[[], object]) -> Iterator[int]:
    """The numbers of the lines that `work` runs; it is called once to count them."""
    return iter(range(1, interrupted(work, None)[0] + 1))


def at_every_line(work: Callable[[], object], check: Callable[[str], object], *, before: Callable[[], object]) -> int:
    """Interrupt `work` at each line in turn, until it runs to its end; `check` what must hold after each.

    `before` prepares each run. Returns how many lines there were.
    """
    at = 0
    while True:
        at += 1
        before()
        _, place = interrupted(work, at)
        check(place)
        if not place:
            return at - 1


class ThreadStorm:
    """Raises real exceptions in the thread that runs it, at moments that nothing determines.

    with ThreadStorm(every=0.001): each exception is an Interrupted, so the block has to catch it, again and again.
    """

    def __init__(self, every: float) -> None:
        self._every = every
        self._thread = threading.get_ident()
        self._stopped = threading.Event()
        self._raising = threading.Thread(target=self._run)
        self.raised = 0

    def begin(self) -> None:
        self._raising.start()

    def end(self) -> None:
        """Raise no more; one may still be under way until this returns."""
        while self._raising.is_alive():
            try:
                self._stopped.set()
                self._raising.join()
            except Interrupted:
                continue
        try:
            for _ in range(1000):
                pass
        except Interrupted:
            return

    def _run(self) -> None:
        raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
        while not self._stopped.wait(self._every):
            self.raised += raise_in(ctypes.c_ulong(self._thread), ctypes.py_object(Interrupted))
