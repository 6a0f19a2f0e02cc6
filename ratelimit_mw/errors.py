"""The exceptions of the package, the problems that they carry, and the hints in their messages."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches


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


_OTHER_NAMES = {
    **dict.fromkeys(("rate", "rate_limit", "quota"), "limit"),
    **dict.fromkeys(("key", "identifier", "key_func"), "by"),
    **dict.fromkeys(("address", "client_ip", "ip_address", "remote_addr"), "ip"),
    **dict.fromkeys(("exclude", "skip", "whitelist", "allowlist"), "exempt"),
}
"""What other limiters call a word of ours."""


def near(word: str, valid: Iterable[str], other_names: Mapping[str, str] = _OTHER_NAMES) -> str:
    """The hint for a mistyped `word`: the valid one that is near to it or means the same; "" where there is none.

    `other_names` maps what other limiters call a thing to our word for it.
    """
    spelled = {choice.lower(): choice for choice in valid}
    meant = other_names.get(word.lower().replace("-", "_"), "")
    found = [choice for choice in spelled if choice == meant or sorted(choice) == sorted(word.lower())]
    found = found or get_close_matches(word.lower(), spelled, n=1, cutoff=0.67)
    return f"did you mean '{spelled[found[0]]}'?" if found else ""


def nearest(word: str, valid: Iterable[str]) -> str:
    """As `near`, but all the valid words where none is near."""
    choices = list(valid)
    return near(word, choices) or f"known: {', '.join(choices)}"


def quoted(text: str, longest: int = 60) -> str:
    """`text` as a message shows it: in quotes, cut short, control characters escaped."""
    return repr(text if len(text) <= longest else text[: longest - 1] + "…")
