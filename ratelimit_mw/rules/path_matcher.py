"""Match a path with all templates of a rule set, in time linear in the length of the path.

Templates without parameters are in a dict. The others share a tree with one level for each segment.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from operator import itemgetter
from typing import NamedTuple

from ratelimit_mw.identity.identifier import NO_PARAMETERS, Parameters
from ratelimit_mw.identity.path_forms import cleaned as clean
from ratelimit_mw.identity.path_forms import is_clean, spellings
from ratelimit_mw.identity.request import Request
from ratelimit_mw.rules.path_templates import (
    ANYTHING,
    TYPES,
    Matcher,
    Segment,
    Tail,
    Template,
    Value,
    matcher,
    parts_of,
    with_values,
)
from ratelimit_mw.rules.path_templates import cleaned as cleaned_template

Hit = tuple[int, str, Parameters, bool]
"""A match of a path with a template of one owner (a rule or an exemption): the owner, the text of the template, the
parameters, and whether the match is strict: each form by which the app may route matches with plain values, and so does
its cleaned form. It is a plain tuple, because several are made for a request, and a named one takes longer.
"""


class PathEntry(NamedTuple):
    """A template that is ready to match.

    Attributes:
        rank: Its place among all templates.
        owner: The number under which `PathMatcher` was given the template.
        route: The text of the template.
        form: The form of the template that the path matches: the template itself, or the cleaned one.
        names: The names of the parameters.
        types: The kind of each parameter. () if no parameter has a type.
    """

    rank: int
    owner: int
    route: str
    form: Template
    names: tuple[str, ...]
    types: tuple[str, ...]


Found = list[tuple[PathEntry, tuple[Value, ...]]]
"""The templates that match, each with the values of its parameters."""

_Rest = Callable[[list[str], int], tuple[Value, ...] | None]
"""Matches the segments of a path from an index on. Returns the values of their parameters, or None."""

_ROOT = 0


class PathMatcher:
    """All templates of a rule set, ready to match.

    Templates are known by their ranks. `_literal` has those without parameters by their text. The others are in a tree.
    A node of the tree is a number: a rule set has thousands of nodes, and the garbage collector visits every object
    that has references to others, but no numbers, and no dicts and tuples of numbers. By node,

    * `_literals` has what follows a segment without parameters, by its text;
    * `_patterns` has what follows a segment with parameters, by its pattern, whose matcher is in `_matchers` (None if
      it is one parameter that matches any text);
    * `_tails` has the templates whose last part matches the rest of a path, by their `_rests`;
    * `_ends` has the templates that end there.

    `owned` is pairs of an owner (any int) and one of its templates. An owner may have several. The first that matches
    counts.
    """

    def __init__(self, owned: Iterable[tuple[int, Template]]) -> None:
        self._entries: list[PathEntry] = []
        self._literal: dict[str, tuple[int, ...]] = {}
        self._literals: list[dict[str, int]] = []
        self._patterns: list[dict[str, int]] = []
        self._tails: list[tuple[int, ...]] = []
        self._ends: list[tuple[int, ...]] = []
        self._new_node()
        self._matchers: dict[str, Matcher | None] = {}
        self._rests: dict[int, _Rest] = {}
        self._most_segments = 0
        """The most segments that the tree can tell apart. The others stay one text."""
        for owner, template in owned:
            # The cleaned form of a path has no slash at its end, and must match the template too.
            for form in dict.fromkeys((template, cleaned_template(template))):
                self._add(form, owner, template)

    def _add(self, form: Template, owner: int, route: str) -> None:
        rank, parts = len(self._entries), parts_of(form)
        types = parts.kinds if any(kind in TYPES for kind in parts.kinds) else ()
        self._entries.append(PathEntry(rank, owner, route, form, parts.names, types))
        if not parts.names and parts.tail is None:
            self._literal[form] = (*self._literal.get(form, ()), rank)
            return
        node = _ROOT
        for segment in parts.segments:
            node = self._below(node, segment)
        self._most_segments = max(self._most_segments, len(parts.segments) + 1)
        if parts.tail is not None:
            self._rests[rank] = _rest(parts.tail)
            self._tails[node] += (rank,)
        if parts.tail is None or parts.tail.folder:
            self._ends[node] += (rank,)

    def _new_node(self) -> int:
        self._literals.append({})
        self._patterns.append({})
        self._tails.append(())
        self._ends.append(())
        return len(self._ends) - 1

    def _below(self, node: int, segment: Segment) -> int:
        """Return the node behind a segment. It is made if there is none."""
        pattern = segment.pattern
        if segment.kinds and pattern not in self._matchers:
            self._matchers[pattern] = None if segment == ANYTHING else matcher(segment)
        children = (self._patterns if segment.kinds else self._literals)[node]
        if pattern not in children:
            children[pattern] = self._new_node()
        return children[pattern]

    def hits(self, request: Request) -> list[Hit]:
        """Match a request's path in all its forms. Return one hit for each owner with a matching template.

        If the cleaned form matches, the route and the parameters are taken from it. A client can then not get a new
        counter by another spelling of the path.
        """
        path, forms = request.path, request.forms
        if not path:
            return []
        found: dict[str, Found] = {}
        if forms is None and is_clean(path):  # the common case
            found[path] = own = self.find(path)
            if len(own) == 1:
                return [_hit(*own[0], path)]
            if not own or len({entry.owner for entry, _ in own}) == len(own):
                return [_hit(entry, values, path) for entry, values in own]
        every, routed = forms or ((path,), (path,))
        chosen: dict[int, Hit] = {}
        for spelling in dict.fromkeys([each for form in every for each in spellings(form)]):
            if spelling not in found:
                found[spelling] = self.find(spelling)
            for entry, values in found[spelling]:
                if entry.owner not in chosen:
                    chosen[entry.owner] = _hit(entry, values, spelling)
        strict = set(chosen)
        for spelling in {each for form in routed for each in (form, clean(form))} if chosen else ():
            strict &= {entry.owner for entry, values in found[spelling] if _is_plain(entry, values, spelling)}
        return [(owner, route, parameters, owner in strict) for owner, route, parameters, _ in chosen.values()]

    def find(self, path: str) -> Found:
        """Return every template that matches one spelling of a path, in their order, and the values of parameters."""
        found: Found = [(self._entries[rank], ()) for rank in self._literal.get(path, ())]
        if self._most_segments and path.startswith("/"):
            self._walk(_ROOT, path.split("/", self._most_segments), 1, (), found)
            if len(found) > 1:
                found.sort()
        return found

    def _walk(self, node: int, segments: list[str], depth: int, values: tuple[Value, ...], found: Found) -> None:
        """Add to `found` the templates of `node` and its children that match the segments of a path from `depth` on.

        `values` are the values of the parameters in the segments before.
        """
        last = len(segments) - 1
        entries = self._entries
        while True:
            for rank in self._tails[node]:
                rest = self._rests[rank](segments, depth)
                if rest is not None:
                    found.append((entries[rank], values + rest))
            segment = segments[depth]
            for pattern, child in self._patterns[node].items():
                more: tuple[Value, ...] | None = ((segment, segment),) if segment else None
                match = self._matchers[pattern]
                if match is not None:
                    more = match(segment)
                if more is not None:
                    if depth < last:
                        self._walk(child, segments, depth + 1, values + more, found)
                    else:
                        for rank in self._ends[child]:
                            found.append((entries[rank], values + more))
            following = self._literals[node].get(segment)
            if following is None:
                return
            if depth == last:
                for rank in self._ends[following]:
                    found.append((entries[rank], values))
                return
            node = following
            depth += 1


def _is_plain(entry: PathEntry, values: tuple[Value, ...], path: str) -> bool:
    """Return True if all routers agree that the path matches.

    They disagree about line feeds: `.` does not match one, and `$` matches before one.
    """
    if "\n" in path:
        return False
    for kind, (_, text) in zip(entry.types, values, strict=False):
        if kind in TYPES and not TYPES[kind].is_plain(text):
            return False
    return True


_VALUE = itemgetter(0)


def _hit(entry: PathEntry, values: tuple[Value, ...], path: str) -> Hit:
    """Return the hit of an entry whose values stand in `path`."""
    _, owner, route, form, names, types = entry
    parameters = NO_PARAMETERS
    if values:
        parameters = Parameters(zip(names, map(_VALUE, values)))  # noqa: B905  `strict` doubles the time
        if types and any(value != text for value, text in values):
            parameters.path = clean(with_values(parts_of(form), path, [value for value, _ in values]))
    plain = _is_plain(entry, values, path) if types else "\n" not in path
    return owner, route, parameters, plain


@lru_cache(maxsize=256)  # most tails are equal: `/*`
def _rest(tail: Tail) -> _Rest:
    """Return a function that matches the rest of a path with a tail and the segments behind it."""
    return partial(_match_tail, tail, tuple(map(matcher, tail.segments)))


def _match_tail(tail: Tail, matchers: tuple[Matcher, ...], segments: list[str], depth: int) -> tuple[Value, ...] | None:
    if tail.folder:
        return ()
    rest, *behind = "/".join(segments[depth:]).rsplit("/", len(matchers))
    before, after = tail.before, tail.after
    if len(behind) < len(matchers) or len(rest) < len(before) + len(after):
        return None
    if not rest.startswith(before) or not rest.endswith(after):
        return None
    value = rest[len(before) : len(rest) - len(after)]
    values: tuple[Value, ...] = ((value, value),)
    for match, piece in zip(matchers, behind, strict=True):
        more = match(piece)
        if more is None:
            return None
        values += more
    return values
