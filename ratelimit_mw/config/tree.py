"""The tree of a configuration: the values of a file, each with its place (line, column and dotted name).

This module also decides the type of a scalar, replaces `${NAME}`, and collects problems.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, cast

from ratelimit_mw.errors import ConfigurationError, Invalid, Problem, quoted

T = TypeVar("T")
U = TypeVar("U")

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


class Packed(Sequence[T]):
    """A long list. Its items are kept packed (see `pack`): most accesses make a copy.

    `items` is pairs of an item and the node that it was read from.
    """

    __slots__ = ("_kept",)

    def __init__(self, items: "Iterable[tuple[T, Node]]" = ()) -> None:
        self._kept: list[Any] = [pack(item, node) for item, node in items]

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: Any) -> Any:
        """Return one item, or a copy of it."""
        return unpack(self._kept[index])


class Items(Packed["Node"]):
    """A list, and the place where it begins.

    There may be hundreds of thousands of scalars. They are kept as plain tuples of texts and numbers, which are faster
    to make, and which the garbage collector forgets after its first pass.
    """

    __slots__ = ("place",)

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place

    def put(self, node: "Node") -> None:
        """Add an item, unless it is unusable."""
        if isinstance(node, Scalar):
            if not node.unusable:
                self._kept.append((node.text, node.value, *node.place))
        else:
            self._kept.append(pack(node, node))

    def __getitem__(self, index: Any) -> Any:
        """Return one item, or a copy of it."""
        kept = self._kept[index]
        return Scalar(kept[0], kept[1], Place(*kept[2:])) if isinstance(kept, tuple) else unpack(kept)

    @property
    def is_long(self) -> bool:
        """Whether this list, or one in it, is too long to be packed."""
        return len(self) > _LONG or any(isinstance(kept, Items | Map) for kept in self._kept)


class Map(dict[str, "Node"]):
    """A mapping, the place where it begins, and the places of its keys, also of those whose values are unusable."""

    __slots__ = ("keys_at", "place")

    def __init__(self, place: Place) -> None:
        super().__init__()
        self.place = place
        self.keys_at: dict[str, Place] = {}

    def put(self, key: str, place: Place, node: "Node") -> None:
        """Add a value, unless it is unusable. `place` is the place of its key."""
        self.keys_at[key] = place
        if not isinstance(node, Scalar) or not node.unusable:
            self[key] = node

    @property
    def is_long(self) -> bool:
        """Whether this mapping, or a list in it, is too long to be packed."""
        return len(self) > _LONG or any(isinstance(each, Items | Map) and each.is_long for each in self.values())

    def take(self, key: str, other: "Map") -> None:
        """Add the value that another mapping has for a key, with the place that it has there."""
        self.keys_at[key] = other.keys_at[key]
        if key in other:
            self[key] = other[key]


Node = Scalar | Items | Map


_LONG = 1000
"""A node with a longer list is not packed."""


def pack(value: T, node: Node | None = None) -> bytes | T:
    """Return a copy of values as a single object, or the values themselves if they hold a long list. See `unpack`.

    The rules of a file are many thousands of small objects. If all of them existed at once, the garbage collector would
    visit all objects of the process in each reload, which stops every thread. It does not visit bytes. But packing is
    one call, and that of a long list would stop every thread, too.

    `node` is what the values were read from, if it may be long.
    """
    if isinstance(node, Items | Map) and node.is_long:
        return value
    import pickle  # late, because importing the package does not need it

    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def unpack(packed: Any) -> Any:
    """Return a copy of what was packed. What is not packed is returned itself."""
    import pickle

    return pickle.loads(packed) if isinstance(packed, bytes) else packed  # noqa: S301  `pack` of this process made them


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


class Fault(NamedTuple):
    """One error.

    `unknown_key` is the key, if a section does not know it. See `Problems.with_key_hints`.
    """

    place: Place
    message: str
    hint: str = ""
    unknown_key: str = ""


class Faults(Invalid):
    """Raised for a value with one or several faults. `usable` is what can be used of it: the other words of a section.

    `usable` is None if nothing can be used.
    """

    def __init__(self, faults: Sequence[Fault], usable: object = None) -> None:
        super().__init__("; ".join(fault.message for fault in faults))
        self.faults = faults
        self.usable = usable


UNUSABLE = object()
"""What `Problems.read` returns for an invalid value in place of one."""


class Problems:
    """Collects the faults of a value, or of a whole file, so that all of them are reported at once."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, place: Place, message: str, hint: str = "", *, unknown_key: str = "") -> None:
        """Add a fault at `place`."""
        self._faults.append(Fault(place, message, hint, unknown_key))

    def __bool__(self) -> bool:
        return bool(self._faults)

    def add_problems(self, other: "Problems") -> None:
        """Add every fault of `other`."""
        self._faults += other._faults  # noqa: SLF001  one of our own

    def read(self, read: Callable[[Node], T], node: Node, otherwise: U) -> T | U:
        """Return the value of a node. If it is invalid, add its faults, and return what can be used of it.

        That is `otherwise` if nothing can be used.
        """
        try:
            return read(node)
        except Faults as found:
            self._faults += found.faults
            return otherwise if found.usable is None else cast("T", found.usable)
        except Invalid as invalid:
            self.add(node.place, str(invalid), invalid.hint)
            return otherwise

    def read_each(self, read: Callable[[Node], T], nodes: Iterable[Node]) -> list[T]:
        """Return the values of the nodes that are valid. Add the faults of the others."""
        found = [self.read(read, node, UNUSABLE) for node in nodes]
        return [cast("T", value) for value in found if value is not UNUSABLE]

    def checked(self, value: T) -> T:
        """Return the value. If there is a fault, raise `Faults` with every fault and the usable value."""
        if self._faults:
            raise Faults(self._faults, value)
        return value

    def refuse(self) -> None:
        """Raise `Faults` with every fault, if there is one. Nothing of the value can be used."""
        if self._faults:
            raise Faults(self._faults)

    def refuse_as(self, what: str) -> None:
        """Raise ConfigurationError with every fault, if there is one. Each message begins with `what`."""
        if self._faults:
            raise ConfigurationError([replace(fault, message=f"{what}: {fault.message}") for fault in self.in_order()])

    def with_key_hints(self, hint: Callable[[str, str], str]) -> None:
        """Replace the hints of unknown keys by `hint(key, dotted name of the section)`, where it knows better."""
        self._faults = [
            fault._replace(hint=hint(fault.unknown_key, fault.place.path) or fault.hint) if fault.unknown_key else fault
            for fault in self._faults
        ]

    def in_order(self) -> tuple[Problem, ...]:
        """Return the problems in the order of the document. Each message begins with the dotted name of its place."""
        return tuple(
            Problem(f"{place.path}: {message}" if place.path else message, place.file, place.line, place.column, hint)
            for place, message, hint, _ in sorted(self._faults, key=lambda fault: fault.place.order)
        )


def kind(node: Node) -> str:
    """Describe a node for messages, such as "must be a list, not …"."""
    if isinstance(node, Map):
        return "a mapping"
    if isinstance(node, Items):
        return "a list"
    if node.value is None:
        return "an empty value" if node.text == "" else quoted(node.text)
    return quoted(node.text) if isinstance(node.value, str) else node.text


def unlike(node: Node, form: str, hint: str = "") -> Invalid:
    """Return the error of a node that is not of this form, such as "a list"."""
    return Invalid(f"must be {form}, not {kind(node)}", hint)


def is_empty(node: Node) -> bool:
    """Return True if a key has no value."""
    return isinstance(node, Scalar) and node.value is None and not node.text


def expand(text: str, environ: Mapping[str, str], place: Place, problems: Problems) -> tuple[str, bool]:
    """Replace the references `${NAME}` and `${NAME:-default}` in `text`.

    As in a shell, the default is also used if the variable is set and empty. `$${NAME}` is the text `${NAME}`.
    The value of a variable is not scanned for references.

    Returns:
        The text, and True if each reference could be replaced. The problems of others are added.
    """
    missing: list[str] = []

    def value(reference: re.Match[str]) -> str:
        if reference[0].startswith("$$"):
            return reference[0][1:]
        name, default = reference["name"], reference["default"]
        if name is None or "${" in (default or ""):
            missing.append("a reference to the environment must be ${NAME} or ${NAME:-default}; they can't be nested")
        elif default is not None:
            return environ.get(name) or default
        elif name in environ:
            return environ[name]
        else:
            missing.append(f"the environment variable {name} is not set")
        return reference[0]

    found = _REFERENCE.sub(value, text) if "${" in text else text
    for message in missing:
        problems.add(place, message)
    return found, not missing


def convert(config: Mapping[str, object], environ: Mapping[str, str], problems: Problems) -> "Map":
    """Return the tree of a mapping. Its places have a dotted name, but no line.

    `${NAME}` in a text is replaced as in a file, and the result is typed as in a file.
    """
    return _Converter(environ, problems).mapping(config, Place(), 1)


class _Converter:
    def __init__(self, environ: Mapping[str, str], problems: Problems) -> None:
        self._environ = environ
        self._problems = problems
        self._order = 0

    def node(self, value: object, path: str, depth: int) -> Node:
        self._order += 1
        place = Place(order=self._order, path=path)
        if depth > DEEPEST:
            self._problems.add(place._replace(path=""), f"nested more than {DEEPEST} levels deep")
            return Scalar("", None, place, unusable=True)
        if isinstance(value, Mapping):
            return self.mapping(value, place, depth)
        if isinstance(value, (list, tuple)):
            items = Items(place)
            for index, item in enumerate(value):
                items.put(self.node(item, f"{path}[{index}]", depth + 1))
            return items
        return self._scalar(value, place)

    def mapping(self, source: Mapping[Any, object], place: Place, depth: int) -> Map:
        mapping = Map(place)
        for key, value in source.items():
            if not isinstance(key, str):
                self._problems.add(place, f"a key must be text, not {key!r}")
                continue
            path = f"{place.path}.{key}" if place.path else key
            mapping.put(key, place, self.node(value, path, depth + 1))
        return mapping

    def _scalar(self, value: object, place: Place) -> Scalar:
        if isinstance(value, str):
            text, usable = expand(value, self._environ, place, self._problems)
            return Scalar(text, text if text == value else plain(text), place, unusable=not usable)
        if value is None:
            return Scalar("", None, place)
        if isinstance(value, bool):
            return Scalar(str(value).lower(), value, place)
        if isinstance(value, int):
            return Scalar(f"{value:#x}" if abs(value) > 10**30 else str(value), value, place)
        if isinstance(value, float):
            # NaN and infinity become text, so that every reader of numbers rejects them.
            return Scalar(str(value), value if math.isfinite(value) else str(value), place)
        self._problems.add(place, f"must be text, a number, a list or a mapping, not a {type(value).__name__}")
        return Scalar("", None, place, unusable=True)
