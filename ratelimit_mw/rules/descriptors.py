"""Descriptors, compiled: a tree that a list of entries is walked down, and the limits where the walk may end.

The order of matching is envoyproxy/ratelimit's: of one entry the exact value first, then the values with a `*` in
the order of the file, then the bare key; what has matched is never taken back. A limit applies where the list ends.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ratelimit_mw.identity.attributes import Reader
from ratelimit_mw.identity.entries import Entry
from ratelimit_mw.identity.identifier import EVERYBODY
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import Ask, Charge, Quota, Rule

Sources = tuple[tuple[str, Reader], ...]
"""The keys of a list of entries that requests send, each with what reads its value."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A `rate_limit`. `key` goes up to and with a counter's opening brace; `quota` is None where it is unlimited.

    Where it applies, limits named in `replaces` do not.
    """

    rule: Rule
    name: str
    key: str
    quota: Quota | None
    replaces: frozenset[str]


@dataclass(slots=True)
class Node:
    """One descriptor. `spell` writes an entry's value into the counter's key, where each value has its own."""

    branches: dict[str, "Branch"] = field(default_factory=dict)
    limit: Limit | None = None
    spell: Callable[[str], str] | None = None


@dataclass(slots=True)
class Branch:
    """The descriptors of one key: by value, by pattern in the order of the file, and the one without a value."""

    exact: dict[str, Node] = field(default_factory=dict)
    patterns: list[tuple[Callable[[str], bool], Node]] = field(default_factory=list)
    bare: Node | None = None

    def find(self, value: str) -> Node | None:
        """The descriptor that an entry with this value matches."""
        node = self.exact.get(value)
        if node is None:
            for matches, candidate in self.patterns:
                if matches(value):
                    return candidate
            return self.bare
        return node

    def nodes(self) -> list[Node]:
        """All of them."""
        # A pattern is among the exact values as well, for an entry may be that text.
        return [*self.exact.values(), *([self.bare] if self.bare else [])]


_Found = tuple[Limit, str]
"""A limit that applies, and the identity that it counts."""


class Descriptors:
    """The descriptors of one domain. `root` stands for no entry at all; `lists` are what a request sends.

    A list with an entry whose value is absent is not sent.
    """

    def __init__(self, root: Node, lists: Sequence[Sources], limits: Sequence[Limit]) -> None:
        self.limits = tuple(limits)
        self._root = root
        self._lists = tuple(lists)

    def plan(self, request: Request, cost: int) -> tuple[Charge, ...]:
        """The counters that the lists of a request have to ask."""
        found: list[_Found] = []
        for sources in self._lists:
            entries: list[Entry] = []
            for key, read in sources:
                value = read(request)
                if value is None:
                    break
                entries.append((key, value))
            else:
                match = self._match(entries)
                if match is not None:
                    found.append(match)
        return _charges(found, cost) if found else ()

    def plan_entries(self, entries: Iterable[Entry], cost: int) -> tuple[Charge, ...]:
        """The counter that this one list has to ask, if there is one."""
        match = self._match(entries)
        return _charges([match], cost) if match is not None else ()

    def _match(self, entries: Iterable[Entry]) -> _Found | None:
        node = self._root
        values: list[str] = []
        for key, value in entries:
            branch = node.branches.get(key)
            found = branch.find(value) if branch is not None else None
            if found is None:
                return None
            node = found
            if node.spell is not None:
                values.append(node.spell(value))
        return None if node.limit is None else (node.limit, "+".join(values) or EVERYBODY)


def _charges(found: list[_Found], cost: int) -> tuple[Charge, ...]:
    """One for each limit that is neither replaced nor unlimited."""
    gone = {name for limit, _ in found for name in limit.replaces}
    asked = [
        (limit.rule, f"{limit.key}{identity}}}", limit.quota)
        for limit, identity in found
        if limit.quota is not None and limit.name not in gone
    ]
    # A quota that stands alone denies by itself.
    several = sum(1 for rule, _, _ in asked if rule.quota) > 1
    return tuple(
        [
            Charge(rule, Ask(key, quota, cost, rule.shadow or (several and rule.quota != "")))
            for rule, key, quota in asked
        ]
    )


def pattern(value: str) -> Callable[[str], bool]:
    """True of the texts that `value` matches, each `*` of which stands for any text, also for none.

    It looks for each piece once, from left to right, so no text makes it slow.
    """
    head, *pieces, tail = value.split("*")
    shortest = len(value) - value.count("*")

    def matches(text: str) -> bool:
        if len(text) < shortest or not text.startswith(head) or not text.endswith(tail):
            return False
        at, end = len(head), len(text) - len(tail)
        for piece in pieces:
            at = text.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True

    return matches
