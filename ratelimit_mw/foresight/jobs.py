"""Runs a function in several processes, passes on their progress, and returns their results."""

import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")

Progress = Callable[[int, int], None]
"""Is called with the numbers of lines and of bytes that were read so far."""

_PROGRESS, _RESULT, _ERROR = range(3)
"""The kinds of messages that a process sends, each with a value."""


class JobFailed(RuntimeError):
    """A process has ended without a result. The text says why."""


def in_processes(work: Callable[[T, Progress], R], tasks: Sequence[T], progress: Progress | None) -> list[R]:
    """Carry out tasks, each in a new process. The processes are spawned: a fork would copy locked locks of threads.

    All processes have ended when this function returns or raises, also after Ctrl-C.

    Args:
        work: The function, on the top level of a module. It is called with a task and a function to report progress.
        tasks: The tasks. They and the results must be possible to pickle.
        progress: Is called with the sum of the lines and the mean of the bytes, because all processes read all bytes.

    Raises:
        JobFailed: A process was killed, or raised an error that cannot be sent.
        Exception: Any error that `work` raised. The first one ends all processes.
    """
    context = get_context("spawn")
    processes: list[SpawnProcess] = []
    receivers: list[Connection[Any, Any]] = []
    try:
        with _without_interrupts():
            for task in tasks:
                receiver, sender = context.Pipe(duplex=False)
                receivers.append(receiver)
                processes.append(context.Process(target=_carry_out, args=(sender, work, task), daemon=True))
                processes[-1].start()
                sender.close()
        return _results(processes, receivers, progress)
    finally:
        for process in processes:
            process.terminate()
        for process, receiver in zip(processes, receivers, strict=False):
            process.join()
            process.close()
            receiver.close()


def _results(
    processes: Sequence[SpawnProcess], receivers: "Sequence[Connection[Any, Any]]", progress: Progress | None
) -> list[Any]:
    """Return the results of the processes, in their order."""
    results: dict[int, Any] = {}
    states = [(0, 0)] * len(receivers)
    pending = {receiver: place for place, receiver in enumerate(receivers)}
    while pending:
        ready = wait(list(pending))
        for receiver, place in list(pending.items()):
            if receiver not in ready:
                continue
            try:
                kind, value = receiver.recv()
            except EOFError:
                processes[place].join()
                code = processes[place].exitcode
                raise JobFailed(f"a process of the replay has ended without a result (exit code {code})") from None
            if kind == _ERROR:
                raise value
            if kind == _RESULT:
                results[place] = value
                del pending[receiver]
                continue
            states[place] = value
            if progress is not None:
                lines, read = zip(*states, strict=True)
                progress(sum(lines), sum(read) // len(states))
    return [results[place] for place in range(len(receivers))]


def _carry_out(sender: "Connection[Any, Any]", work: Callable[[T, Progress], object], task: T) -> None:
    """Carry out one task in a process of its own, and send the result or the error."""

    def send(kind: int, value: object) -> None:
        try:
            sender.send((kind, value))
        except OSError:  # the other end is gone
            raise SystemExit(1) from None

    try:
        result = work(task, lambda lines, read: send(_PROGRESS, (lines, read)))
    except Exception as error:  # noqa: BLE001  raised where the result is wanted
        send(_ERROR, _sendable(error))
    else:
        send(_RESULT, result)


def _sendable(error: Exception) -> Exception:
    """Return an error that the other process can read, with the same text."""
    with suppress(Exception):  # any error of pickling
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301  our own
        if type(copy) is type(error) and str(copy) == str(error):
            return error
    return JobFailed(f"{type(error).__name__}: {error}")


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C in the processes that are started in the block. The terminal sends it to all processes of a job.

    A new process inherits what is ignored. The process that starts them gets Ctrl-C, and ends them.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set signals
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
