"""What can go wrong, as one small tree.

Exception
├── ConfigurationError (ValueError)   the rules can't be used; stops the server at start
├── Conflict                          somebody else has changed meanwhile what was to be changed
└── StoreUnavailable                  the store can't answer now; never leaves the package
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a rules file, and where. Lines and columns count from 1; 0 is unknown."""

    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    hint: str = ""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part)
        text = f"{place}: {self.message}" if place else self.message
        return f"{text} ({self.hint})" if self.hint else text


_SHOWN = 100


class ConfigurationError(ValueError):
    """The rules can't be used: `problems` says everything that was found, in the order of the file.

    The text names the first hundred problems: a log line has to have an end.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems[:_SHOWN]]
        if len(self.problems) > _SHOWN:
            lines.append(f"… and {len(self.problems) - _SHOWN} more problems")
        super().__init__("\n".join(lines))


class Conflict(Exception):
    """Nothing was changed, for somebody else was faster: what was to be changed is of this `version` by now."""

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(f"changed meanwhile: it is of version {version} by now")


class StoreUnavailable(Exception):
    """The store can't answer within the deadline; the error policy of each rule applies."""
