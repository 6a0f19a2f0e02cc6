"""The tree of a configuration: the values of a file, each with its place (line, column and dotted name).

This module also decides the type of a scalar, replaces `${NAME}`, and collects problems.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self, overload

from ratelimit_mw.errors import Problem, quoted

# `${NAME}`, `${NAME:-default}`, the same with an escaping `$` before it, or a malformed `${`, which is an error.
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
    """Return the value of an unquoted scalar. YAML 1.1's `yes`, `010`, `1:30` and `1e3` stay text."""
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    return text


def expand(text: str, environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """Replace the references `${NAME}` and `${NAME:-default}` in `text`.

    As in a shell, the default is also used if the variable is set and empty. `$${NAME}` is the text `${NAME}`.
    The value of a variable is not scanned for references.

    Returns:
        The text, and a message for each reference that cannot be replaced.
    """
    if "${" not in text:
        return text, []
    errors: list[str] = []

    def value(reference: re.Match[str]) -> str:
        if reference[0].startswith("$$"):
            return reference[0][1:]
        name, default = reference["name"], reference["default"]
        if name is None or "${" in (default or ""):
            errors.append("a reference to the environment must be ${NAME} or ${NAME:-default}; they can't be nested")
            return reference[0]
        if default is not None:
            return environ.get(name) or default
        if name not in environ:
            errors.append(f"the environment variable {name} is not set")
            return reference[0]
        return environ[name]

    return _REFERENCE.sub(value, text), errors


DEEPEST = 50
"""The most levels of nesting. A rules file needs eight."""


class Place(NamedTuple):
    """The place of a value or a key.

    `order` is its rank in the document, and `path` its dotted name, such as `rules[2].limit`. Lines and columns count
    from 1; 0 is unknown.
    """

    order: int = 0
    file: str = ""
    line: int = 0
    column: int = 0
    path: str = ""


class Scalar(NamedTuple):
    """A single value: its `text` as it was written, with references replaced, and the typed `value`.

    A scalar is `unusable` if a reference could not be replaced, or if its type is not supported. The problem has then
    been reported.
    """

    text: str
    value: str | int | float | bool | None
    place: Place
    unusable: bool = False


class Items(Sequence["Node"]):
    """A list, and the place where it begins. Each item is kept as one text or one bytes object: access makes a copy.

    A list may have hundreds of thousands of items. The garbage collector does not visit texts and bytes (see `pack`).
    """

    __slots__ = ("_count", "_kept", "place")

    def __init__(self, place: Place) -> None:
        self.place = place
        self._kept: list[Items | bytes | str] = []
        self._count = 0

    def put(self, node: "Node") -> None:
        """Add an item, unless it is unusable."""
        if isinstance(node, Items):
            self._kept.append(node)
        elif isinstance(node, Map) or not node.unusable:
            self._kept.append(self._written(node) or pack(node))
        self._count += 1

    def __len__(self) -> int:
        return len(self._kept)

    @overload
    def __getitem__(self, index: int) -> "Node": ...
    @overload
    def __getitem__(self, index: slice) -> "Sequence[Node]": ...
    def __getitem__(self, index: int | slice) -> "Node | Sequence[Node]":
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        kept = self._kept[index]
        if isinstance(kept, str):
            return self._read(kept)
        node: Node = unpack(kept) if isinstance(kept, bytes) else kept
        return node

    def __reduce__(self) -> tuple[Any, ...]:
        # One text is copied at once. Copying hundreds of thousands of texts would hold up the other threads.
        texts = [each for each in self._kept if isinstance(each, str) and "\n" not in each]
        kept = "\n".join(texts) if texts and len(texts) == len(self._kept) else self._kept
        return _items, (self.place, kept, self._count)

    def _written(self, node: "Node") -> str | None:
        """Return a scalar as one text. None for another node, or a scalar that the text would not tell all of."""
        if not isinstance(node, Scalar):
            return None
        text, value, (order, file, line, column, path), _ = node
        quoted = value == text and isinstance(value, str)
        if (file, path) != (self.place.file, self._path(self._count)) or not (quoted or value is plain(text)):
            return None
        return f"{order} {line} {column} {self._count} {'q' if quoted else 'p'} {text}"

    def _read(self, written: str) -> Scalar:
        order, line, column, number, style, text = written.split(" ", 5)
        place = Place(int(order), self.place.file, int(line), int(column), self._path(number))
        return Scalar(text, text if style == "q" else plain(text), place)

    def _path(self, number: int | str) -> str:
        return f"{self.place.path}[{number}]"


def _items(place: Place, kept: "str | list[Items | bytes | str]", count: int) -> Items:
    """Return a list that was packed."""
    items = Items(place)
    items._kept = [*kept.split("\n")] if isinstance(kept, str) else kept  # noqa: SLF001  one of our own
    items._count = count  # noqa: SLF001
    return items


class Map(dict[str, "Node"]):
    """A mapping, the place where it begins, and the places of its keys.

    `dropped` has the keys whose values are unusable. They are not in the mapping.
    """

    __slots__ = ("dropped", "keys_at", "place")

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.keys_at: dict[str, Place] = {}
        self.dropped: frozenset[str] = frozenset()

    def put(self, key: str, place: Place, node: "Node") -> None:
        """Add a value, unless it is unusable. `place` is the place of its key."""
        self.keys_at[key] = place
        if isinstance(node, Scalar) and node.unusable:
            self.dropped |= {key}
        else:
            self[key] = node


Node = Scalar | Items | Map


def pack(value: object) -> bytes:
    """Return a copy of a node, or of values that were read from one, as a single bytes object. See `unpack`.

    The rules of a file are many thousands of small objects. If all of them existed at once, the garbage collector would
    have to visit all objects of the process during a reload, which pauses every thread. It does not visit bytes.
    """
    import pickle  # late, because importing the package does not need it

    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def unpack(packed: bytes) -> Any:
    """Return a copy of what was packed."""
    import pickle

    return pickle.loads(packed)  # noqa: S301  `pack` of this process made these bytes


Location = tuple[str | int, ...]
"""The keys and indices that lead from the root to a node."""


def node_at(tree: Node, location: Location) -> Node:
    """Return the node at a location, or the innermost existing node around it."""
    for step in location:
        if isinstance(tree, Map):
            tree = tree.get(str(step), tree)
        elif isinstance(tree, Items) and isinstance(step, int):
            tree = tree[step]
    return tree


class Problems:
    """Collects problems, so that all of them are reported at once."""

    def __init__(self) -> None:
        self._found: list[tuple[int, Problem]] = []

    def add(self, place: Place, message: str, hint: str = "") -> None:
        """Add a problem at `place`. The message begins with the dotted name of the place."""
        text = f"{place.path}: {message}" if place.path else message
        self._found.append((place.order, Problem(text, place.file, place.line, place.column, hint)))

    def __bool__(self) -> bool:
        return bool(self._found)

    def add_problems(self, other: "Problems") -> None:
        """Add every problem of `other`."""
        self._found += other._found  # noqa: SLF001  one of our own

    def add_all(self, faults: "Invalid", place: Place) -> None:
        """Add every fault of a value. `place` is used for faults without a place of their own."""
        for fault in faults.faults:
            self.add(fault.place or place, fault.message, fault.hint)

    def in_order(self) -> tuple[Problem, ...]:
        """Return the problems in the order of the document."""
        return tuple(problem for _, problem in sorted(self._found, key=lambda found: found[0]))


class Fault(NamedTuple):
    """One error in a value. `place` is None if the error concerns the value as a whole."""

    place: Place | None
    message: str
    hint: str = ""


class Invalid(ValueError):
    """Raised for a value that cannot be used. `faults` has every error in the value, each with its place."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Fault] = []

    def __str__(self) -> str:
        return "; ".join(f"{fault.message} ({fault.hint})" if fault.hint else fault.message for fault in self.faults)

    @classmethod
    def at(cls, place: Place | None, message: str, hint: str = "") -> Self:
        """Return an exception with a single fault."""
        invalid = cls()
        invalid.add(place, message, hint)
        return invalid

    def add(self, place: Place | None, message: str, hint: str = "") -> None:
        """Add a fault."""
        self.faults.append(Fault(place, message, hint))

    @contextmanager
    def gathering(self, place: Place | None = None) -> Iterator[None]:
        """Catch an `Invalid` that the block raises, and add its faults. The next values can then be read as well.

        `place` is used for faults without a place of their own.
        """
        try:
            yield
        except Invalid as other:
            self.faults.extend(fault._replace(place=fault.place or place) for fault in other.faults)

    def finish(self) -> None:
        """Raise this exception if it has a fault."""
        if self.faults:
            raise self


def kind(node: Node) -> str:
    """Describe a node for messages, such as "must be a list, not …"."""
    if isinstance(node, Map):
        return "a mapping"
    if isinstance(node, Items):
        return "a list"
    if node.value is None:
        return "an empty value" if node.text == "" else quoted(node.text)
    return quoted(node.text) if isinstance(node.value, str) else node.text
