"""Child processes that end with the tests, however the tests end.

`spawn` puts each child into a process group of its own (so a Ctrl-C reaches the tests alone, and a
group can be killed whole) and tells a reaper of it: a process that outlives the tests by just long
enough to kill what they left behind. A parent-death signal would not do; it fires when the *thread*
that started the child ends, and only on Linux.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
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

_lock = threading.Lock()
_reaper: subprocess.Popen[str] | None = None


def spawn(args: Sequence[str | os.PathLike[str]], **options: Any) -> "subprocess.Popen[bytes]":
    """Start a child in a group of its own, watched by the reaper. `options` are Popen's."""
    process = subprocess.Popen(args, start_new_session=True, **{"stdin": subprocess.DEVNULL, **options})
    _tell(process.pid)
    return process


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
