"""A configuration as it was written: values with their places, what a scalar means, and the problems found."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Self

from ratelimit_mw.errors import Problem, quoted

_REFERENCE = re.compile(r"\$?\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\})?")
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})\.[0-9]{1,17}")
_WORDS: dict[str, bool | None] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}


def plain(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar."""
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    return text


def expand(text: str, environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """`text` with its references read from `environ`, and what is wrong with those that can't be.

    As in a shell, a default also stands in for a variable that is set and empty. `$${NAME}` is the
    text `${NAME}`. What a variable holds is never read again: not for references, not as YAML.
    """
    if "${" not in text:
        return text, []
    wrong: list[str] = []

    def value(reference: re.Match[str]) -> str:
        if reference[0].startswith("$$"):
            return reference[0][1:]
        name, default = reference["name"], reference["default"]
        if name is None or "${" in (default or ""):
            wrong.append("a reference to the environment is ${NAME} or ${NAME:-default}, and can't hold another")
            return reference[0]
        if default is not None:
            return environ.get(name) or default
        if name not in environ:
            wrong.append(f"the environment variable {name} is not set")
            return reference[0]
        return environ[name]

    return _REFERENCE.sub(value, text), wrong


DEEPEST = 50
"""Levels of nesting that are read. A rules file has eight."""


class Place(NamedTuple):
    """Where something stands. `order` is its rank in the document, `path` its dotted name, as `rules[2].limit`."""

    order: int = 0
    file: str = ""
    line: int = 0
    column: int = 0
    path: str = ""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value: what it was typed as, and the text that it was written as (after `${NAME}`).

    `unusable` where that reference could not be resolved, or it is none of these: a problem already noted.
    """

    text: str
    value: str | int | float | bool | None
    place: Place
    unusable: bool = False


class Items(list["Node"]):
    """A list, and where it begins."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    def put(self, node: "Node") -> None:
        """Add an item."""
        if not (isinstance(node, Scalar) and node.unusable):
            self.append(node)


class Map(dict[str, "Node"]):
    """A mapping, where it begins, and where each of its keys stands.

    `dropped` names the keys whose values could not be used and so are no longer here.
    """

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.keys_at: dict[str, Place] = {}
        self.dropped: set[str] = set()

    def put(self, key: str, place: Place, node: "Node") -> None:
        """Add a value, whose key stands at `place`."""
        self.keys_at[key] = place
        if isinstance(node, Scalar) and node.unusable:
            self.dropped.add(key)
        else:
            self[key] = node


Node = Scalar | Items | Map

Location = tuple[str | int, ...]
"""The keys and indices that lead to a node."""


def node_at(tree: Node, location: Location) -> Node:
    """The node at a location, or the innermost one that is left around it."""
    for step in location:
        if isinstance(tree, Map):
            tree = tree.get(str(step), tree)
        elif isinstance(tree, Items) and isinstance(step, int):
            tree = tree[step]
    return tree


def place_of(node: Node, *steps: str | int) -> Place:
    """Where the value at the end of `steps` stands, or what is left of it."""
    return node_at(node, steps).place


class Problems:
    """Gathers what is wrong, so that everything can be said at once."""

    def __init__(self) -> None:
        self._found: list[tuple[int, Problem]] = []

    def add(self, place: Place, message: str, hint: str = "") -> None:
        """Note a problem at `place`."""
        text = f"{place.path}: {message}" if place.path else message
        self._found.append((place.order, Problem(text, place.file, place.line, place.column, hint)))

    def __bool__(self) -> bool:
        return bool(self._found)

    def add_all(self, faults: "Invalid", place: Place) -> None:
        """Note every fault of a value that stands at `place`."""
        for fault in faults.faults:
            self.add(fault.place or place, fault.message, fault.hint)

    def in_order(self) -> tuple[Problem, ...]:
        """Every problem, in the order of the document."""
        return tuple(problem for _, problem in sorted(self._found, key=lambda found: found[0]))


class Fault(NamedTuple):
    """One thing that is wrong in a value. `place` is None where it is the value as a whole."""

    place: Place | None
    message: str
    hint: str = ""


class Invalid(ValueError):
    """A value that can't be used. `faults` says why, each with its own place."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Fault] = []

    def __str__(self) -> str:
        return "; ".join(f"{fault.message} ({fault.hint})" if fault.hint else fault.message for fault in self.faults)

    @classmethod
    def at(cls, place: Place | None, message: str, hint: str = "") -> Self:
        """A single fault, ready to be raised."""
        invalid = cls()
        invalid.add(place, message, hint)
        return invalid

    def add(self, place: Place | None, message: str, hint: str = "") -> None:
        """Note a fault."""
        self.faults.append(Fault(place, message, hint))

    @contextmanager
    def gathering(self, place: Place | None = None) -> Iterator[None]:
        """Take over the faults of an `Invalid` that is raised inside; `place` is that of faults without one."""
        try:
            yield
        except Invalid as other:
            self.faults.extend(fault._replace(place=fault.place or place) for fault in other.faults)

    def finish(self) -> None:
        """Raise, if there is a fault."""
        if self.faults:
            raise self


def kind(node: Node) -> str:
    """What a node is, in words, for "must be a list, not …"."""
    if isinstance(node, Map):
        return "a mapping"
    if isinstance(node, Items):
        return "a list"
    if node.value is None:
        return "empty" if node.text == "" else quoted(node.text)
    return quoted(node.text) if isinstance(node.value, str) else node.text
