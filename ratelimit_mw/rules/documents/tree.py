"""A configuration as it was written: mappings, lists and scalars, each of which knows its place.

A file and a mapping given in code become the same tree, so that everything after it is written once.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.errors import Problem


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

    def in_order(self) -> tuple[Problem, ...]:
        """Every problem, in the order of the document."""
        return tuple(problem for _, problem in sorted(self._found, key=lambda found: found[0]))


_CALLED_HERE = {
    **dict.fromkeys(("rate", "rate_limit", "quota"), "limit"),
    **dict.fromkeys(("key", "identifier", "key_func"), "by"),
    **dict.fromkeys(("address", "client_ip", "ip_address", "remote_addr"), "ip"),
    **dict.fromkeys(("exclude", "skip", "whitelist", "allowlist"), "exempt"),
}
"""What other tools call it; of algorithms, they say so themselves."""


def near(word: str, valid: Iterable[str]) -> str:
    """The hint for a mistyped `word`: the valid one that is near to it or means the same, if there is one."""
    spelled = {choice.lower(): choice for choice in valid}
    elsewhere = word.lower().replace("-", "_")
    meant = _CALLED_HERE.get(elsewhere) or next(
        (name for name, algorithm in ALGORITHMS.items() if elsewhere in algorithm.also_called), ""
    )
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


def kind(node: Node) -> str:
    """What a node is, in words, for "must be a list, not …"."""
    if isinstance(node, Map):
        return "a mapping"
    if isinstance(node, Items):
        return "a list"
    if node.value is None:
        return "empty" if node.text == "" else quoted(node.text)
    return quoted(node.text) if isinstance(node.value, str) else node.text
