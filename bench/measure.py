"""How figures are measured: contestants take turns, round after round, each in a process of its own.

Machines are noisy, and the noise drifts. Contestants that take turns meet the same noise, so the ratio of two of them
within one round means more than either number. A row shows the median over the rounds, and the lowest and the highest
round beside it. Processes of their own keep the garbage and the background threads of one contestant away from the
others.
"""

import gc
import logging
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, NamedTuple, Self, TypeVar

Name = TypeVar("Name")
Run = Callable[[], Any]
"""One round of a contestant. Returns what it measured: a number, or some."""

OURS = "ratelimit_mw"


class Effort(NamedTuple):
    """How much is measured: `quick` is for development, and its numbers are rough."""

    quick: bool = False

    def rounds(self, full: int) -> int:
        return max(3, full // 5) if self.quick else full

    def part(self, full: int) -> int:
        """A number of requests, or of other things that are repeated within a round."""
        return max(1, full // 4) if self.quick else full


class Spread(NamedTuple):
    """The median of some rounds, and the lowest and the highest round."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        found = sorted(values)
        return cls(statistics.median(found), found[0], found[-1])


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of ours, alone or beside a peer's, and the bar that it is held to."""

    what: str
    ours: Spread
    unit: str
    """`us`, `ms`, `MB`, `B`, `/s`, or empty for a count."""
    peer: str = ""
    theirs: Spread | None = None
    ratio: Spread | None = None
    """Ours divided by theirs, round by round. If it is given, the bar holds for it, otherwise for `ours`."""
    at_most: float | None = None
    at_least: float | None = None
    worst: bool = False
    """The bar holds for the worst round, not for the median."""
    note: str = ""
    detail: bool = False
    """Left out of docs/benchmarks.md. The JSON file and the terminal have it."""

    @property
    def met(self) -> bool | None:
        """Whether the bar is reached, or None if there is none."""
        median, low, high = self.ratio or self.ours
        if self.at_most is not None:
            return (high if self.worst else median) <= self.at_most
        return None if self.at_least is None else (low if self.worst else median) >= self.at_least

    def as_dict(self) -> dict[str, Any]:
        """The fields for JSON, without empty ones."""
        empty = {each.name: each.default for each in fields(self)}
        return {name: value for name, value in asdict(self).items() if value != empty[name]} | {"met": self.met}

    @classmethod
    def from_dict(cls, read: Mapping[str, Any]) -> Self:
        known = {name: value for name, value in read.items() if name != "met"}
        for name in {"ours", "theirs", "ratio"} & known.keys():
            known[name] = Spread(*known[name])
        return cls(**known)


def alone(what: str, values: Sequence[float], unit: str, **others: Any) -> Figure:
    """A number of ours that has no peer. The other arguments are fields of the figure."""
    return Figure(what, Spread.of(values), unit, **others)


def beside(what: str, ours: Sequence[float], peer: str, theirs: Sequence[float], unit: str, **others: Any) -> Figure:
    """A number of ours beside a peer's, both round by round. The other arguments are fields of the figure."""
    ratio = Spread.of(mine / other for mine, other in zip(ours, theirs, strict=True))
    return Figure(what, Spread.of(ours), unit, peer, Spread.of(theirs), ratio, **others)


def more(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """By how much the first is more than the other, round by round."""
    return [value - other for value, other in zip(values, others, strict=True)]


class Remote:
    """A contestant in a process of its own.

    Args:
        make: A function of a module, called in that process. It returns the function that runs one round.
        arguments: What `make` is called with.
    """

    def __init__(self, make: Callable[..., Run], *arguments: object) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def __call__(self) -> Any:
        """Run one round there.

        Raises:
            RuntimeError: The contestant failed. The error has its traceback.
        """
        self._pipe.send(True)
        try:
            value = self._pipe.recv()
        except EOFError:
            value = "its process ended"
        if isinstance(value, str):
            raise RuntimeError(value)
        return value

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(5)
        self._process.kill()


class Collections:
    """The longest garbage collection within a `with`, in seconds of the thread that it ran in, and the full ones."""

    def __init__(self) -> None:
        self.longest, self.full, self._start = 0.0, 0, 0.0

    def __enter__(self) -> Self:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *exc_info: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._start = time.thread_time()
        else:
            self.longest = max(self.longest, time.thread_time() - self._start)
            self.full += info["generation"] == 2


def _serve(pipe: Connection, make: Callable[..., Run], arguments: tuple[object, ...]) -> None:
    logging.disable(logging.CRITICAL)
    try:
        run = make(*arguments)
        while pipe.recv():
            gc.collect()
            pipe.send(run())
    except EOFError:
        pass
    except BaseException:
        pipe.send(traceback.format_exc())
        raise


def in_turn(contestants: Mapping[Name, tuple[Any, ...]], rounds: int) -> dict[Name, list[float]]:
    """What each contestant returned in each round, after one round that warms up.

    Args:
        contestants: By name, what `Remote` is called with.
        rounds: How many rounds are kept.
    """
    taken: dict[Name, list[float]] = {name: [] for name in contestants}
    remotes = {name: Remote(*contestant) for name, contestant in contestants.items()}
    try:
        for number in range(rounds + 1):
            for name, run in remotes.items():
                value = run()
                if number:
                    taken[name].append(value)
    finally:
        for remote in remotes.values():
            remote.close()
    return taken
