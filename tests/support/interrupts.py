"""Exceptions from elsewhere: one at every line, as a signal's handler, PyThreadState_SetAsyncExc or gevent raise them.

    at_every_line(work, check)     # `work` is called again and again, and the next line raises Interrupted each time;
                                   # `check(place)` says what must hold after it

The lines are those of `ratelimit_mw`, in the order in which they run, as often as they run. Unless it is to be
`strict`, two kinds of events are left out: a `try:` that does nothing, and the line of a `with` as its block is left.
There the interpreter does not look for pending exceptions: no real one ever comes there, and a lock that is taken by
`with` is always given back. `interrupt` raises real ones.
"""

import ctypes
import dis
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import ratelimit_mw

PACKAGE = str(Path(ratelimit_mw.__file__).parent)
_LOAD_CONST, _NOP, _SWAP = (dis.opmap[name] for name in ("LOAD_CONST", "NOP", "SWAP"))


class Interrupted(BaseException):
    """What the injector raises."""


class _Tracer:
    """Counts the lines that one thread runs, and raises at one of them."""

    def __init__(self, at: int | None, kind: type[BaseException], *, strict: bool) -> None:
        self.count = 0
        self.place = ""
        self._at = at
        self._kind = kind
        self._strict = strict
        self._ours: dict[CodeType, bool] = {}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        ours = self._ours.get(code)
        if ours is None:
            ours = self._ours[code] = code.co_filename.startswith(PACKAGE)
        if not ours:
            return None
        if event == "line" and (self._strict or not _never_interrupted(frame)):
            self.count += 1
            if self.count == self._at:
                self.place = f"{code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno}"
                raise self._kind(self.place)
        return self


def _never_interrupted(frame: FrameType) -> bool:
    """True of a `try:`, and where a block of `with` ends: three times None is loaded, for `__exit__`."""
    code, at = frame.f_code.co_code, frame.f_lasti
    if code[at] == _NOP:
        return True
    while code[at] == _SWAP:  # with the value that is returned from within
        at += 2
    loads = [code[place : place + 2] for place in (at, at + 2, at + 4)]
    return loads[0] == loads[1] == loads[2] and loads[0][:1] == bytes((_LOAD_CONST,))


def interrupted(
    work: Callable[[], object], at: int | None, kind: type[BaseException] = Interrupted, *, strict: bool = False
) -> tuple[int, str]:
    """Call `work` in this thread, and raise at its line number `at`. How many lines ran, and where it was raised."""
    tracer, before = _Tracer(at, kind, strict=strict), sys.gettrace()
    sys.settrace(tracer)
    try:
        work()
    except kind:
        if not tracer.place:
            raise
    finally:
        sys.settrace(before)
    return tracer.count, tracer.place


def at_every_line(
    work: Callable[[], object],
    check: Callable[[str], object],
    *,
    before: Callable[[], object] = lambda: None,
    step: int = 1,
    strict: bool = False,
) -> int:
    """Interrupt `work` at each line in turn, until it runs to its end; `check` what must hold after each.

    `before` prepares each run. With `step`, at every so many lines alone. Returns how many lines there were.
    """
    at = 1 - step
    while True:
        at += step
        before()
        _, place = interrupted(work, at, strict=strict)
        check(place)
        if not place:
            return at - 1


def interrupt(thread: threading.Thread) -> None:
    """Raise a real Interrupted in another thread, at whatever moment it comes there."""
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupted))
