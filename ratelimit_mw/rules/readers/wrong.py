"""How a reader of one value reports all that is wrong in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Self

from ratelimit_mw.rules.documents.tree import Place


class Fault(NamedTuple):
    """One thing that is wrong. `place` is None where it is the value as a whole."""

    place: Place | None
    message: str
    hint: str = ""


class Wrong(ValueError):
    """A value that can't be used. `faults` says why, each thing at its own place."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Fault] = []

    @classmethod
    def at(cls, place: Place | None, message: str, hint: str = "") -> Self:
        """Just one fault, ready to be raised."""
        wrong = cls()
        wrong.add(place, message, hint)
        return wrong

    def add(self, place: Place | None, message: str, hint: str = "") -> None:
        """Note a fault."""
        self.faults.append(Fault(place, message, hint))

    @contextmanager
    def gathering(self) -> Iterator[None]:
        """Take over the faults of what is raised within."""
        try:
            yield
        except Wrong as other:
            self.faults.extend(other.faults)

    def finish(self) -> None:
        """Raise, if anything was found."""
        if self.faults:
            raise self
