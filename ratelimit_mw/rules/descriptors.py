"""Compiled descriptors: a tree of keys and values, along which a list of entries is matched.

The order of matching is that of envoyproxy/ratelimit. For each entry: first the exact value, then the values with a `*`
in the order of the file, then the key without a value. There is no backtracking. A limit applies if the last entry of
the list matches its descriptor.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ratelimit_mw.identity.attributes import Reader
from ratelimit_mw.identity.identifier import GLOBAL
from ratelimit_mw.identity.request import Entry, Request
from ratelimit_mw.model import Ask, Charge, Quota, Rule
from ratelimit_mw.rules.preflights import as_announced, preflight_key

EntryReaders = tuple[tuple[str, Reader], ...]
"""The keys of a list of entries that requests send, each with what reads its value."""


@dataclass(frozen=True, slots=True)
class DescriptorLimit:
    """A `rate_limit`. `key` goes up to and with a counter's opening brace; `quota` is None where it is unlimited.

    Where it applies, limits named in `replaces` do not.
    """

    rule: Rule
    name: str
    key: str
    quota: Quota | None
    replaces: frozenset[str]


@dataclass(slots=True)
class DescriptorNode:
    """One descriptor. `spell` writes an entry's value into the counter's key, where each value has its own."""

    branches: dict[str, "Branch"] = field(default_factory=dict)
    limit: DescriptorLimit | None = None
    spell: Callable[[str], str] | None = None


@dataclass(slots=True)
class Branch:
    """The descriptors of one key: by value, by pattern in the order of the file, and the one without a value."""

    exact: dict[str, DescriptorNode] = field(default_factory=dict)
    patterns: list[tuple[Callable[[str], bool], DescriptorNode]] = field(default_factory=list)
    bare: DescriptorNode | None = None

    def find(self, value: str) -> DescriptorNode | None:
        """The descriptor that an entry with this value matches."""
        node = self.exact.get(value)
        if node is None:
            for matches, candidate in self.patterns:
                if matches(value):
                    return candidate
            return self.bare
        return node

    def nodes(self) -> list[DescriptorNode]:
        """All of them."""
        # A pattern is among the exact values as well, for an entry may be that text.
        return [*self.exact.values(), *([self.bare] if self.bare else [])]


class _Found(NamedTuple):
    """A limit that applies, and the identity that it counts: `apart`, in a counter for preflights."""

    limit: DescriptorLimit
    identity: str
    apart: bool = False


class Descriptors:
    """The descriptors of one domain. `root` stands for no entry at all; `lists` are what a request sends.

    A list with an entry whose value is absent is not sent.
    """

    def __init__(self, root: DescriptorNode, lists: Sequence[EntryReaders], limits: Sequence[DescriptorLimit]) -> None:
        self.limits = tuple(limits)
        self._root = root
        self._lists = tuple(lists)

    def plan(self, request: Request, cost: int) -> tuple[Charge, ...]:
        """The counters that the lists of a request have to ask."""
        found: list[_Found] = []
        for sources in self._lists:
            entries = _entries(sources, request)
            match = self._match(entries) if entries is not None else None
            if match is not None:
                found.append(match)
        return _charges(found, cost) if found else ()

    def plan_preflight(self, request: Request, method: str, cost: int) -> tuple[Charge, ...]:
        """The counters that a CORS preflight for `method` has to ask.

        A list in which the value OPTIONS is named for the method counts it like any request.
        """
        view = as_announced(request, method)
        found: list[_Found] = []
        for sources in self._lists:
            own, entries = _entries(sources, request), _entries(sources, view)
            if own is None or entries is None:
                continue
            by_method = frozenset(place for place, entry in enumerate(own) if entry != entries[place])
            match = self._match(own, by_method) if by_method else None
            if match is None and (match := self._match(entries)) is not None:
                match = match._replace(apart=True)
            if match is not None:
                found.append(match)
        return _charges(found, cost)

    def plan_entries(self, entries: Iterable[Entry], cost: int) -> tuple[Charge, ...]:
        """The counter that this one list has to ask, if there is one."""
        match = self._match(entries)
        return _charges([match], cost) if match is not None else ()

    def _match(self, entries: Iterable[Entry], exactly: frozenset[int] = frozenset()) -> _Found | None:
        """The limit where the walk ends; the entries at the places in `exactly` have to match by their exact value."""
        node = self._root
        values: list[str] = []
        for place, (key, value) in enumerate(entries):
            branch = node.branches.get(key)
            found = branch.find(value) if branch is not None else None
            if found is None or (place in exactly and branch is not None and value not in branch.exact):
                return None
            node = found
            if node.spell is not None:
                values.append(node.spell(value))
        return None if node.limit is None else _Found(node.limit, "+".join(values) or GLOBAL)


def _entries(sources: EntryReaders, request: Request) -> list[Entry] | None:
    """The list that a request sends; None where one of its values is absent."""
    entries: list[Entry] = []
    for key, read in sources:
        value = read(request)
        if value is None:
            return None
        entries.append((key, value))
    return entries


def _charges(found: list[_Found], cost: int) -> tuple[Charge, ...]:
    """One for each limit that is neither replaced nor unlimited."""
    gone = {name for limit, _, _ in found for name in limit.replaces}
    asked = [
        (limit.rule, f"{preflight_key(limit.key) if apart else limit.key}{identity}}}", limit.quota, apart)
        for limit, identity, apart in found
        if limit.quota is not None and limit.name not in gone
    ]
    # A quota that stands alone denies by itself.
    several = sum(1 for rule, _, _, _ in asked if rule.quota_group) > 1
    return tuple(
        [
            Charge(
                rule,
                Ask(key, quota, min(cost, 1) if apart else cost, rule.shadow or (several and rule.quota_group != "")),
            )
            for rule, key, quota, apart in asked
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
