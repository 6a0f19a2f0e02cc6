"""Match a path with all templates of a rule set, in time linear in the length of the path.

Templates without parameters are in a dict. The others share a tree with one level for each segment.
"""

from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

from ratelimit_mw.identity.identifier import NO_PARAMETERS, Parameters
from ratelimit_mw.identity.path_forms import cleaned as clean
from ratelimit_mw.identity.path_forms import is_clean, spellings
from ratelimit_mw.identity.request import Request
from ratelimit_mw.rules.path_templates import (
    ANYTHING,
    TYPES,
    Kind,
    Matcher,
    Segment,
    Tail,
    Template,
    TemplateParts,
    Value,
    matcher,
    parts_of,
    with_values,
)
from ratelimit_mw.rules.path_templates import cleaned as cleaned_template


class Hit(NamedTuple):
    """A match of a path with a template of one owner (a rule or an exemption)."""

    owner: int
    """The number under which `PathMatcher` was given the template."""
    route: str
    """The text of the template."""
    parameters: Parameters
    strict: bool
    """True if each form by which the app may route matches with plain values, and so does its cleaned form."""


class PathEntry(NamedTuple):
    """A template that is ready to match. `rank` is its place among all templates."""

    rank: int
    owner: int
    route: str
    parts: TemplateParts
    types: tuple[Kind | None, ...]
    """One for each parameter, or () if no parameter has a type."""


Found = list[tuple[PathEntry, tuple[Value, ...]]]
"""The templates that match, each with the values of its parameters."""


class _Node:
    """The templates that begin with the same segments.

    Attributes:
        literals: What follows a segment without parameters, by its text.
        patterns: What follows a segment with parameters, each with its matcher. None: the segment is one parameter that
            matches any text.
        tails: Templates whose last part matches the rest, each with the matchers of the segments behind that part.
        ends: Templates that end here.
    """

    __slots__ = ("ends", "literals", "patterns", "tails")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.patterns: dict[Segment, tuple[Matcher | None, _Node]] = {}
        self.tails: list[tuple[Tail, tuple[Matcher, ...], PathEntry]] = []
        self.ends: list[PathEntry] = []

    def below(self, segment: Segment) -> "_Node":
        """Return the node behind a segment. It is made if there is none."""
        if not segment.kinds:
            return self.literals.setdefault(segment.texts[0], _Node())
        if segment not in self.patterns:
            self.patterns[segment] = None if segment == ANYTHING else matcher(segment), _Node()
        return self.patterns[segment][1]


class PathMatcher:
    """All templates of a rule set, ready to match.

    `owned` is pairs of an owner (any int) and one of its templates. An owner may have several. The first that matches
    counts.
    """

    def __init__(self, owned: Iterable[tuple[int, Template]]) -> None:
        self._literal: dict[str, list[PathEntry]] = {}
        self._root = _Node()
        self._most_segments = 0
        """The most segments that the tree can tell apart. The others stay one text."""
        rank = 0
        for owner, template in owned:
            # The cleaned form of a path has no slash at its end, and must match the template too.
            for form in dict.fromkeys((template, cleaned_template(template))):
                self._add(form, rank, owner, template)
                rank += 1

    def _add(self, form: Template, rank: int, owner: int, route: str) -> None:
        parts = parts_of(form)
        types = tuple(map(TYPES.get, parts.kinds))
        entry = PathEntry(rank, owner, route, parts, types if any(types) else ())
        if not parts.names and parts.tail is None:
            self._literal.setdefault(form, []).append(entry)
            return
        node, tail = self._root, parts.tail
        for segment in parts.segments:
            node = node.below(segment)
        self._most_segments = max(self._most_segments, len(parts.segments) + 1)
        if tail is not None:
            node.tails.append((tail, tuple(map(matcher, tail.segments)), entry))
        if tail is None or tail.folder:
            node.ends.append(entry)

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
        return [
            hit if hit.strict == (hit.owner in strict) else hit._replace(strict=not hit.strict)
            for hit in chosen.values()
        ]

    def find(self, path: str) -> Found:
        """Return every template that matches one spelling of a path, in their order, and the values of parameters."""
        literal = self._literal.get(path)
        found: Found = [] if literal is None else [(entry, ()) for entry in literal]
        if self._most_segments and path.startswith("/"):
            self._walk(self._root, path.split("/", self._most_segments), 1, (), found)
            if len(found) > 1:
                found.sort()
        return found

    def _walk(self, node: _Node, segments: list[str], depth: int, values: tuple[Value, ...], found: Found) -> None:
        """Add to `found` the templates of `node` and its children that match the segments of a path from `depth` on.

        `values` are the values of the parameters in the segments before.
        """
        last = len(segments) - 1
        while True:
            for tail, matchers, entry in node.tails:
                rest = _match_tail(tail, matchers, segments, depth)
                if rest is not None:
                    found.append((entry, values + rest))
            segment = segments[depth]
            for match, child in node.patterns.values():
                more: tuple[Value, ...] | None = ((segment, segment),) if segment else None
                if match is not None:
                    more = match(segment)
                if more is not None:
                    if depth < last:
                        self._walk(child, segments, depth + 1, values + more, found)
                    else:
                        for entry in child.ends:
                            found.append((entry, values + more))
            following = node.literals.get(segment)
            if following is None:
                return
            if depth == last:
                for entry in following.ends:
                    found.append((entry, values))
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
        if kind is not None and not kind.is_plain(text):
            return False
    return True


_VALUE = itemgetter(0)


def _hit(entry: PathEntry, values: tuple[Value, ...], path: str) -> Hit:
    """Return the hit of an entry whose values stand in `path`."""
    _, owner, route, parts, types = entry
    parameters = NO_PARAMETERS
    if values:
        parameters = Parameters(zip(parts[2], map(_VALUE, values)))  # noqa: B905  `strict` doubles the time
        if types and any(value != text for value, text in values):
            parameters.path = clean(with_values(parts, path, [value for value, _ in values]))
    plain = _is_plain(entry, values, path) if types else "\n" not in path
    return tuple.__new__(Hit, (owner, route, parameters, plain))


def _match_tail(tail: Tail, matchers: tuple[Matcher, ...], segments: list[str], depth: int) -> tuple[Value, ...] | None:
    """Match the rest of a path with a `{name:path}` parameter and the segments behind it. None if they differ."""
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
