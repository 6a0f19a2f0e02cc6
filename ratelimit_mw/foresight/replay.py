"""Runs a log through the rules, by the log's own clock: who would have been limited, when, and by which rule."""

import heapq
import pickle
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, NamedTuple, Self

from ratelimit_mw.foresight.jobs import JobFailed, Progress, in_processes
from ratelimit_mw.foresight.options import Options
from ratelimit_mw.foresight.outcome import Denial, Difference, Outcome, Result
from ratelimit_mw.foresight.run import Run
from ratelimit_mw.foresight.shares import NoShare, Share, shared_attribute
from ratelimit_mw.foresight.what_if.arrivals import Arrivals
from ratelimit_mw.foresight.what_if.replays import Count

__all__ = ["Denial", "Difference", "JobFailed", "Options", "Outcome", "Result", "replay"]

_KEPT = 1000
"""The denials that a process writes at once."""


def replay(options: Options) -> Result:
    """Replay logs.

    Raises:
        ConfigurationError: The rules cannot be used.
        StoreUnavailable: The rules are in a database that does not answer.
        UnknownFormat: The format of a log is not known.
        ValueError: A field that `places` names does not exist, or `match` is not a template.
            Or there are several jobs, and a log can be read only once.
        OSError: A log cannot be read.
        JobFailed: A process was killed, or failed for a reason that is none of these.
    """
    sizes = _sizes_of(options.logs) if options.jobs > 1 else ()
    with ExitStack() as stack:
        run = Run(options, stack)
        attribute = without = ""
        if options.jobs > 1:
            try:
                attribute = shared_attribute(run.simulations, run.readings)
            except NoShare as reason:
                without = f"--jobs has no effect: {reason}"
        result = _in_shares(options, run, attribute, sizes) if attribute else run.play()
        result.without_jobs = without
        run.conclude(result)
    return result


def _sizes_of(logs: Sequence[str]) -> tuple[int, ...]:
    """Return the sizes of the logs at this moment. All processes must read the same, also while servers write.

    Raises ValueError for standard input and pipes, which can be read only once.
    """
    for log in logs:
        if log == "-" or (Path(log).exists() and not Path(log).is_file()):
            name = "standard input" if log == "-" else log
            raise ValueError(f"--jobs: {name} can't be read by several processes; save it to a file first")
    return tuple(Path(log).stat().st_size for log in logs)


class _Task(NamedTuple):
    """What one process replays.

    Attributes:
        options: What to replay.
        share: The requests that it decides on.
        sizes: The bytes of each log.
        rules: The names of the rules.
        denials: The file for the denials. "" if they are not wanted.
    """

    options: Options
    share: Share
    sizes: tuple[int, ...]
    rules: list[str]
    denials: str


class _Played(NamedTuple):
    """What one process has replayed: the result, the fields that were seen, and what it collected for the curves."""

    result: Result
    seen: set[str]
    arrivals: Arrivals | None
    counts: list[Count]


def _in_shares(options: Options, run: Run, attribute: str, sizes: tuple[int, ...]) -> Result:
    """Replay logs in several processes, by a run that is not played itself. Return the sum of their results."""
    wanted, progress = options.on_denial, options.on_progress
    plain = replace(options, on_denial=None, on_progress=None)  # what can be sent to a process
    names = _names_of(run)
    with TemporaryDirectory(prefix="replay-") as folder:
        tasks = [
            _Task(
                plain,
                Share(attribute, number, options.jobs),
                sizes,
                names,
                str(Path(folder) / str(number)) if wanted is not None else "",
            )
            for number in range(options.jobs)
        ]
        played = in_processes(_play, tasks, progress)
        if wanted is not None:
            with ExitStack() as stack:
                kept = [_denials_in(stack.enter_context(Path(task.denials).open("rb"))) for task in tasks]
                for _, denial in heapq.merge(*kept, key=itemgetter(0)):
                    wanted(Denial._make(denial))
    result = played[0].result
    for each in played:
        if each is not played[0]:
            result.merge(each.result)
        run.seen.update(each.seen)
        if run.collection is not None and each.arrivals is not None:
            run.collection.merge(each.arrivals, each.counts)
    return result


def _play(task: _Task, progress: Progress) -> _Played:
    """Replay one share, in a process of its own."""
    options = replace(task.options, on_progress=progress)
    with ExitStack() as stack:
        run = Run(options, stack, task.sizes)
        if _names_of(run) != task.rules:
            raise JobFailed("the rules have changed while the replay began")
        denials = stack.enter_context(_DenialFile(task.denials)) if task.denials else None
        result = run.play(task.share, denials)
        collected = run.collection
        if collected is None:
            return _Played(result, run.seen, None, [])
        return _Played(result, run.seen, collected.arrivals, collected.counts)


def _names_of(run: Run) -> list[str]:
    return [rule.name for each in run.simulations for part in each.rules.parts for rule in part.rules]


class _DenialFile:
    """Writes the denials of one process to a file, each with the place of its request in the log."""

    def __init__(self, path: str) -> None:
        self.place = 0
        self._file = Path(path).open("wb")  # noqa: SIM115  closed by __exit__
        self._kept: list[tuple[int, tuple[Any, ...]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pickle.dump(self._kept, self._file)
        self._file.close()

    def write(self, denial: Denial) -> None:
        """Keep a denial of the request at `place`."""
        self._kept.append((self.place, tuple(denial)))
        if len(self._kept) >= _KEPT:
            pickle.dump(self._kept, self._file)
            self._kept.clear()


def _denials_in(file: IO[bytes]) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield the denials in a file with their places."""
    while True:
        try:
            yield from pickle.load(file)  # noqa: S301  our own file
        except EOFError:
            return
