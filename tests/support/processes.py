"""Child processes that end with the tests, however the tests end.

`spawn` puts each child into a process group of its own (so a Ctrl-C reaches the tests alone, and a
group can be killed whole) and tells a reaper of it: a process that outlives the tests by just long
enough to kill what they left behind. A parent-death signal would not do; it fires when the *thread*
that started the child ends, and only on Linux.
"""

import contextlib
import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

_REAPER = """
import os, signal, sys
groups = set()
for line in sys.stdin:
    group = int(line)
    groups.add(group) if group > 0 else groups.discard(-group)
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
"""

_HUNG = 60.0
"""The seconds after which the child of a fork is hung."""

_lock = threading.Lock()
_reaper: subprocess.Popen[str] | None = None


def spawn(args: Sequence[str | os.PathLike[str]], **options: Any) -> "subprocess.Popen[bytes]":
    """Start a child in a group of its own, watched by the reaper. `options` are Popen's."""
    process = subprocess.Popen(args, start_new_session=True, **{"stdin": subprocess.DEVNULL, **options})
    _tell(process.pid)
    return process


def interruptible(args: Sequence[str | os.PathLike[str]]) -> list[str | os.PathLike[str]]:
    """Return a command that runs `args` and ends by SIGINT. A child ignores SIGINT if the parent of the tests does."""
    return [sys.executable, "-IS", "-c", _INTERRUPTIBLE, *args]


_INTERRUPTIBLE = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""


def end(process: "subprocess.Popen[bytes]", *, grace: float = 5.0) -> int:
    """Ask a child's group to stop, insist after `grace` seconds, and return the child's exit status."""
    if process.poll() is None:
        _signal(process, signal.SIGTERM)
        _signal(process, signal.SIGCONT)  # a stopped process would not hear of it
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
    _signal(process, signal.SIGKILL)  # whatever the child itself left behind in its group
    status = process.wait()
    _tell(-process.pid)
    return status


def _signal(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # gone; macOS says the latter of zombies
        os.killpg(process.pid, number)


def _tell(group: int) -> None:
    global _reaper
    with _lock:
        if _reaper is None:
            _reaper = subprocess.Popen(
                [sys.executable, "-IS", "-c", _REAPER], stdin=subprocess.PIPE, text=True, start_new_session=True
            )
        assert _reaper.stdin is not None
        _reaper.stdin.write(f"{group}\n")
        _reaper.stdin.flush()


def dismiss() -> None:
    """Let the reaper do its work and go; the tests are over."""
    global _reaper
    with _lock:
        if _reaper is not None:
            _reaper.communicate()
            _reaper = None


class Forked:
    """The child of a fork. It runs `work` and ends: it never returns into the tests, whatever `work` raises."""

    def __init__(self, work: Callable[[], Any]) -> None:
        reading, writing = os.pipe()
        # coverage has a lock that another thread may hold at this moment. The child would wait for it for ever.
        tracer = sys.gettrace()
        sys.settrace(None)
        self._pid = os.fork()
        if self._pid == 0:
            self._run(work, writing)
        sys.settrace(tracer)
        os.close(writing)
        self._reading = reading

    def result(self) -> Any:
        """Wait for the child and return what `work` returned, as JSON has it.

        Raises AssertionError with the child's traceback if `work` raised, and with its stacks if it was hung.
        """
        with os.fdopen(self._reading) as stream:
            text = stream.read()
        os.waitpid(self._pid, 0)
        try:
            return json.loads(text)
        except ValueError:
            raise AssertionError(f"the child of the fork failed:\n{text}") from None

    @staticmethod
    def _run(work: Callable[[], Any], writing: int) -> None:
        try:
            faulthandler.dump_traceback_later(_HUNG, exit=True, file=writing)
            text = json.dumps(work())
        except BaseException:  # noqa: BLE001  the parent raises it
            text = traceback.format_exc()
        os.write(writing, text.encode())
        os._exit(0)


def in_child(work: Callable[[], Any]) -> Any:
    """Return what `work` returns in the child of a fork. See `Forked.result`."""
    return Forked(work).result()
