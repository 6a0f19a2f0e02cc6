"""Compiled descriptors: a tree of keys and values, along which a list of entries is matched.

The order of matching is that of envoyproxy/ratelimit. For each entry: first the exact value, then the values with a `*`
in the order of the file, then the key without a value. There is no backtracking. A limit applies if the last entry of
the list matches its descriptor.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ratelimit_mw.identity.attributes import Attributes, Reader, canonical_name
from ratelimit_mw.identity.fields import TOO_MANY
from ratelimit_mw.identity.identifier import GLOBAL
from ratelimit_mw.identity.request import Entry, Request
from ratelimit_mw.model import Ask, Charge, Quota, Rule
from ratelimit_mw.rules.preflights import apart

DEFAULT = "fixed_window"
"""The algorithm of limits that name none, as in envoyproxy/ratelimit."""

MOST = 2**32 - 1
"""The largest limit: what envoyproxy/ratelimit can hold."""

UNKNOWN = "?"
"""The value of an unknown address. All requests without an address share their counters."""

Keys = tuple[str, ...]

EntryReaders = tuple[tuple[str, Reader], ...]
"""The keys of a list of entries, each with the function that reads its value from a request."""


@dataclass(frozen=True, slots=True)
class DescriptorLimit:
    """A compiled `rate_limit`.

    `key` is the key of a counter up to its opening brace, inclusive. `quota` is None for `unlimited`. If this limit
    applies, the limits named in `replaces` do not (see `replaced_among`).
    """

    rule: Rule
    name: str
    key: str
    quota: Quota | None
    replaces: frozenset[str]


@dataclass(slots=True)
class DescriptorNode:
    """One descriptor. `spell` writes an entry's value into the counter's key, where each value has its own.

    All `limits` apply to a list of entries that ends here.
    """

    branches: dict[str, "Branch"] = field(default_factory=dict)
    limits: tuple[DescriptorLimit, ...] = ()
    spell: Callable[[str], str] | None = None


@dataclass(slots=True)
class Branch:
    """The descriptors of one key: by value, by pattern in the order of the file, and the one without a value."""

    exact: dict[str, DescriptorNode] = field(default_factory=dict)
    patterns: list[tuple[Callable[[str], bool], DescriptorNode]] = field(default_factory=list)
    bare: DescriptorNode | None = None

    def find(self, value: str) -> Iterable[DescriptorNode]:
        """Return the descriptor that an entry with this value matches. Too many values match all descriptors."""
        if value in TOO_MANY:
            return self.nodes()
        node = self.exact.get(value)
        if node is None:
            node = next((candidate for matches, candidate in self.patterns if matches(value)), self.bare)
        return () if node is None else (node,)

    def nodes(self) -> list[DescriptorNode]:
        """Return all descriptors of this key."""
        # Each pattern is also an exact value, because an entry may have the text of the pattern.
        return [*self.exact.values(), *([self.bare] if self.bare else [])]


class AppliedLimit(NamedTuple):
    """A limit that applies and the identity that it counts. `apart`: in a separate counter for preflights."""

    limit: DescriptorLimit
    identity: str
    apart: bool = False

    @property
    def key(self) -> str:
        """The key of the counter."""
        return f"{self.limit.key}{self.identity}}}"


class Descriptors:
    """The descriptors of one domain.

    Args:
        root: the root of the tree. It matches an empty list.
        lists: the lists of entries that a request has. A list with an absent value is left out.
        limits: all limits in the tree.
    """

    def __init__(self, root: DescriptorNode, lists: Sequence[EntryReaders], limits: Sequence[DescriptorLimit]) -> None:
        self.limits = tuple(limits)
        self.waiting = any(limit.quota is not None and limit.quota.waits for limit in limits)
        """A request may have to wait for its turn."""
        self._root = root
        self._lists = tuple(lists)

    def plan(self, request: Request, cost: int) -> tuple[Charge, ...]:
        """Return the charges of all lists of a request."""
        found: list[AppliedLimit] = []
        for sources in self._lists:
            entries = _entries(sources, request)
            if entries is not None:
                found += self.match(entries)
        return _charges(found, cost) if found else ()

    def plan_preflight(self, request: Request, view: Request, cost: int) -> tuple[Charge, ...]:
        """Return the charges of a CORS preflight. `view` is the request that it announces.

        A list counts the preflight like any request if a descriptor names OPTIONS as the method.
        """
        found: list[AppliedLimit] = []
        for sources in self._lists:
            own, entries = _entries(sources, request), _entries(sources, view)
            if own is None or entries is None:
                continue
            by_method = frozenset(place for place, entry in enumerate(own) if entry != entries[place])
            counted = self.match(own, by_method) if by_method else []
            found += counted or [match._replace(apart=True) for match in self.match(entries)]
        return _charges(found, cost)

    def plan_entries(self, entries: Iterable[Entry], cost: int) -> tuple[Charge, ...]:
        """Return the charges of this one list, or () if no limit applies."""
        found = self.match(entries)
        return _charges(found, cost) if found else ()

    def match(self, entries: Iterable[Entry], exactly: frozenset[int] = frozenset()) -> list[AppliedLimit]:
        """Return the limits at the end of the walk. Entries at places `exactly` must match an exact value."""
        walks: list[tuple[DescriptorNode, tuple[str, ...]]] = [(self._root, ())]
        for place, (key, value) in enumerate(entries):
            walks = [
                (node, values if node.spell is None else (*values, node.spell(value)))
                for before, values in walks
                if (branch := before.branches.get(key)) is not None
                if place not in exactly or value in branch.exact
                for node in branch.find(value)
            ]
        return [AppliedLimit(limit, "+".join(values) or GLOBAL) for node, values in walks for limit in node.limits]


def keys_of(node: DescriptorNode) -> Iterator[str]:
    """Return the keys of all descriptors under a node."""
    for key, branch in node.branches.items():
        yield key
        for child in branch.nodes():
            yield from keys_of(child)


def limits_at(root: DescriptorNode, keys: Keys) -> Iterator[DescriptorLimit]:
    """Return the limits at which a list of entries with these keys can end."""
    nodes = [root]
    for key in keys:
        nodes = [child for node in nodes if key in node.branches for child in node.branches[key].nodes()]
    return (limit for node in nodes for limit in node.limits)


def entry_reader(key: str, attributes: Attributes) -> Reader:
    """Return the function that reads the value of an entry from a request. An unknown address is `UNKNOWN`."""
    read = attributes.reader(key)
    if canonical_name(key) != "ip":
        return read

    def known_or_not(request: Request) -> str:
        value = read(request)
        if value is None:
            attributes.client_address.report_unknown(request.peer)
        return value or UNKNOWN

    return known_or_not


def _entries(sources: EntryReaders, request: Request) -> list[Entry] | None:
    """Return the entries of a request, or None if one of its values is absent."""
    entries: list[Entry] = []
    for key, read in sources:
        value = read(request)
        if value is None:
            return None
        entries.append((key, value))
    return entries


def replaced_among(found: Iterable[AppliedLimit]) -> set[tuple[str, bool]]:
    """Return the names of the limits that are replaced by others among these, and whether they are in shadow.

    A limit in shadow is not enforced, so it replaces none that is.
    """
    limits = [match.limit for match in found if match.limit.replaces]
    return {(name, shadow) for limit in limits for name in limit.replaces for shadow in {True, limit.rule.shadow}}


def asked(charges: Sequence[Charge]) -> tuple[Charge, ...]:
    """Return the charges as the store is asked: in quota mode a limit denies only if it is the only one."""
    several = sum(1 for rule, _ in charges if rule.quota_group) > 1
    if not several:
        return tuple(charges)
    return tuple(
        [
            charge._replace(ask=charge.ask._replace(shadow=True)) if charge.rule.quota_group else charge
            for charge in charges
        ]
    )


def _charges(found: list[AppliedLimit], cost: int) -> tuple[Charge, ...]:
    """Return a charge for each limit that is neither replaced nor unlimited."""
    replaced = replaced_among(found)
    charges: list[Charge] = []
    for match in found:
        limit = match.limit
        if limit.quota is not None and not (replaced and (limit.name, limit.rule.shadow) in replaced):
            charge = Charge(limit.rule, Ask(match.key, limit.quota, cost, limit.rule.shadow))
            charges += apart([charge], cost) if match.apart else [charge]
    return asked(charges)


def pattern(value: str) -> Callable[[str], bool]:
    """Return a function that tests a text. Each `*` of `value` stands for any text, including an empty one.

    Each piece between two `*` is searched once, from left to right, so the time is linear in the length of the text.
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
