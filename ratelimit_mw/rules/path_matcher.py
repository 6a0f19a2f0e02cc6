"""Match a path with all templates of a rule set, in time linear in the length of the path.

Templates without parameters are in a dict. The others share a tree with one level for each segment.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ratelimit_mw.identity.identifier import PARSED_PATH
from ratelimit_mw.identity.path_forms import EMPTY_SEGMENT, without_empty_segments
from ratelimit_mw.identity.path_forms import cleaned as clean
from ratelimit_mw.identity.request import Request
from ratelimit_mw.process_local import checkpoint
from ratelimit_mw.rules.path_templates import (
    Matcher,
    Parser,
    Parts,
    Segment,
    Tail,
    Template,
    is_narrow,
    matcher,
    parser,
    parts_of,
    pieces_of,
    segment_of,
    text_of,
    with_values,
)
from ratelimit_mw.rules.path_templates import cleaned as cleaned_template

NO_PARAMETERS: Mapping[str, str] = {}
"""The parameters of a path that matched a template without any. It must not be changed."""


class Hit(NamedTuple):
    """A match of a path with a template of one owner (a rule or an exemption)."""

    owner: int
    """The number under which `PathMatcher` was given the template."""
    route: str
    """The text of the template."""
    parameters: Mapping[str, str]
    """The values of the path parameters, parsed. May contain `PARSED_PATH`."""
    strict: bool
    """True if, in every reading of the path, both the raw and the cleaned form match with values in narrow form."""


class _Entry(NamedTuple):
    """A template that is ready to match.

    `rank` is its place among all templates. `hit` is its match if it has no parameters, otherwise None.
    """

    rank: int
    owner: int
    route: str
    """The text of the template as in the file."""
    template: Parts
    hit: Hit | None
    parsers: tuple[Parser | None, ...]
    """One for each parameter, or () if no parameter has a type."""


_Tail = tuple[Tail, tuple[Matcher, ...], _Entry]

_Group = tuple[int, ...]
"""The numbers of templates (see `_Entries`) that begin with the same segments, until a request needs their node."""

_FEW = 8
"""The most templates of a group that is left for a request to split. That takes about a tenth of a millisecond."""

_NO_NODES: "dict[str, _Node | _Group]" = {}
"""The `literals` of a node that has none. It must not be changed."""


class _Node:
    """The templates that begin with the same segments.

    Attributes:
        literals: What follows a segment without parameters, by its text.
        patterns: What follows a segment with parameters, each with its matcher.
        tails: Templates whose last part matches the rest.
        ends: Templates that end here.
    """

    __slots__ = ("ends", "literals", "patterns", "tails")

    def __init__(self) -> None:
        self.literals = _NO_NODES
        self.patterns: tuple[tuple[Matcher, _Node], ...] = ()
        self.tails: tuple[_Tail, ...] = ()
        self.ends: tuple[_Entry, ...] = ()


_Found = list[tuple[_Entry, tuple[str, ...]]]
"""The entries that match, each with the values of its parameters as the client wrote them."""


class _Entries(dict[int, _Entry]):
    """The entries of numbered templates. Each is made when a request first needs it.

    A template has two numbers if its cleaned form differs: the cleaned form of a path has no slash at its end, and
    must match the template too.
    """

    def __init__(self, owned: Iterable[tuple[int, Template]]) -> None:
        super().__init__()
        owners: list[int] = []
        forms: list[Template] = []
        routes: list[str] = []
        for owner, template in owned:
            for form in dict.fromkeys((template, cleaned_template(template))):
                owners.append(owner)
                forms.append(form)
                routes.append(text_of(template))
        # Tuples of numbers and texts: the garbage collector does not visit them.
        self._owners, self.forms, self._routes = tuple(owners), tuple(forms), tuple(routes)

    def __missing__(self, number: int) -> _Entry:
        owner, route, parts = self._owners[number], self._routes[number], parts_of(self.forms[number])
        parsers = tuple(map(parser, parts.kinds))
        hit = None if parts.names else Hit(owner, route, NO_PARAMETERS, strict=True)
        made = self[number] = _Entry(number, owner, route, parts, hit, parsers if any(parsers) else ())
        return made


class PathMatcher:
    """All templates of a rule set, ready to match.

    `owned` is pairs of an owner (any int) and one of its templates. An owner may have several. The first that matches
    counts.

    Large groups of templates are split by their segments at once, and small groups when a request first needs them. A
    reload would otherwise make many thousands of objects, most of which no request uses before the next reload.
    """

    def __init__(self, owned: Iterable[tuple[int, Template]]) -> None:
        self._entries = _Entries(owned)
        self._matchers: dict[Segment, Matcher] = {}
        """The matchers that were made so far. Nodes share them."""
        literal: dict[str, list[int]] = {}
        others: list[int] = []
        for number, form in enumerate(self._entries.forms):
            if "{" in form or form.endswith("/*"):
                others.append(number)
            else:
                literal.setdefault(form, []).append(number)
        self._literal: dict[str, _Group] = {path: tuple(numbers) for path, numbers in literal.items()}
        self._root = self._node(others, 0)
        self._only_literal = not others

    def _node(self, group: Sequence[int], depth: int) -> _Node:
        """Return the node of the templates in `group`, which have the same first `depth` segments."""
        node = _Node()
        literals: dict[str, list[int]] = {}
        patterns: dict[Segment, list[int]] = {}
        for number in group:
            checkpoint()
            pieces = pieces_of(self._entries.forms[number])
            piece = pieces[depth] if depth < len(pieces) else None
            if piece is None:
                node.ends = (*node.ends, self._entries[number])
            elif piece == "*" or ":path}" in piece:
                self._add_tail(node, self._entries[number])
            elif "{" in piece:
                patterns.setdefault(segment_of(piece), []).append(number)
            else:
                literals.setdefault(piece, []).append(number)
        depth += 1
        if literals:
            node.literals = {
                text: tuple(numbers) if len(numbers) <= _FEW else self._node(numbers, depth)
                for text, numbers in literals.items()
            }
        node.patterns = tuple([(self._matcher(each), self._node(some, depth)) for each, some in patterns.items()])
        return node

    def _add_tail(self, node: _Node, entry: _Entry) -> None:
        tail = entry.template.tail
        if tail is not None:
            node.tails = (*node.tails, (tail, tuple(map(self._matcher, tail.segments)), entry))
            if tail.folder:
                node.ends = (*node.ends, entry)

    def _matcher(self, segment: Segment) -> Matcher:
        found = self._matchers.get(segment)
        if found is None:
            found = self._matchers[segment] = matcher(segment)
        return found

    def hits(self, request: Request) -> list[Hit]:
        """Match a request's path in all its readings. Return one hit for each owner with a matching template."""
        path = request.path
        if not path:
            return []
        if not request.readings:
            cleaned = clean(path)
            return self._in_one_form(path) if cleaned == path else self.locate(path, cleaned)
        each = [{hit.owner: hit for hit in self.locate(reading, clean(reading))} for reading in request.readings]
        found = each[0].copy()
        for hits in each[1:]:
            found = hits | found
        # The readings with an empty segment are additions for Falcon. They do not decide whether a hit is strict.
        read = [hits for hits, reading in zip(each, request.readings, strict=True) if EMPTY_SEGMENT not in reading]
        return [
            hit._replace(strict=all(owner in hits and hits[owner].strict for hits in read))
            for owner, hit in found.items()
        ]

    def find(self, path: str) -> _Found:
        """Return every template that matches this form of a path with values in narrow form, and these values."""
        return [match for match in self._find(path) if _is_narrow(*match)]

    def _find(self, path: str) -> _Found:
        """Return every template that matches this form of a path, and the values of its parameters."""
        found: _Found = []
        group = self._literal.get(path)
        if group is not None:
            for number in group:
                found.append((self._entries[number], ()))
        if not self._only_literal and path.startswith("/"):
            self._walk(self._root, path.split("/"), 1, (), found)
        return found

    def _walk(self, node: _Node, segments: list[str], depth: int, values: tuple[str, ...], found: _Found) -> None:
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
            for match, child in node.patterns:
                more = match(segment)
                if more is not None:
                    if depth < last:
                        self._walk(child, segments, depth + 1, values + more, found)
                    else:
                        for entry in child.ends:
                            found.append((entry, values + more))
            following = node.literals.get(segment)
            if isinstance(following, tuple):  # threads that do this at the same time make equal nodes
                following = node.literals[segment] = self._node(following, depth)
            if following is None:
                return
            if depth == last:
                for entry in following.ends:
                    found.append((entry, values))
                return
            node = following
            depth += 1

    def locate(self, path: str, cleaned: str) -> list[Hit]:
        """Match one reading of a path in its raw and its cleaned form. Return one hit for each owner that matches.

        If the cleaned form matches, the route and the parameters are taken from it. A client can then not get a new
        counter by another spelling of the path.
        """
        if cleaned == path:
            return self._in_one_form(path)
        found = self._find(cleaned)
        # Routers disagree about line feeds (`.` does not match one, `$` matches before one), so the hit is not strict.
        plain = "\n" not in path
        raw = self._find(path)
        in_both = _narrow_owners(found) & _narrow_owners(raw) if plain else frozenset[int]()
        chosen: dict[int, Hit] = {}
        forms = [(cleaned, found), (path, raw)]
        # Some routers drop repeated slashes or add one at the start, but do not resolve dot segments.
        if "/." in path or not plain or not path.startswith("/"):
            # A line feed at the end is part of a value for some routers and is ignored by others.
            further = {
                without_empty_segments(path): None,
                without_empty_segments(path.removesuffix("\n")): None,
            }
            forms += [(form, self._find(form)) for form in further if form not in (path, cleaned)]
        for form, matches in forms:
            for entry, values in _first_of_each(matches):
                if entry.owner not in chosen:
                    hit = _hit(entry, values, form, strict=True)
                    chosen[entry.owner] = hit._replace(strict=entry.owner in in_both)
        return list(chosen.values())

    def _in_one_form(self, path: str) -> list[Hit]:
        """Do the same as `locate` for a path whose raw and cleaned forms are equal."""
        found = self._find(path)
        if not found:
            return []
        plain = "\n" not in path
        if len(found) == 1:
            entry, values = found[0]
            return [_hit(entry, values, path, strict=plain)]
        first = _first_of_each(found)
        if len(first) == len(found):
            return [_hit(entry, values, path, strict=plain) for entry, values in found]
        narrow = _narrow_owners(found) if plain else ()
        return [
            _hit(entry, values, path, strict=True)._replace(strict=entry.owner in narrow) for entry, values in first
        ]


def _is_narrow(entry: _Entry, values: tuple[str, ...]) -> bool:
    """Return True if Starlette's own converters accept all values."""
    return not entry.parsers or all(map(is_narrow, entry.template.kinds, values))


def _narrow_owners(found: _Found) -> frozenset[int]:
    return frozenset([entry.owner for entry, values in found if _is_narrow(entry, values)])


def _first_of_each(found: _Found) -> _Found:
    """Keep, for each owner, the match of its first template."""
    if len(found) < 2:
        return found
    first: dict[int, tuple[_Entry, tuple[str, ...]]] = {}
    for entry, values in sorted(found, key=_rank):
        first.setdefault(entry.owner, (entry, values))
    return list(first.values())


def _rank(match: tuple[_Entry, tuple[str, ...]]) -> int:
    return match[0].rank


def _hit(entry: _Entry, values: tuple[str, ...], path: str, *, strict: bool) -> Hit:
    """Return the hit of an entry: parse the values. A value that is not in narrow form makes it not strict."""
    _, owner, route, template, hit, parsers = entry
    if hit is not None:
        return hit if strict else hit._replace(strict=False)
    names = template.names
    if not parsers:
        parameters = {names[0]: values[0]} if len(values) == 1 else dict(zip(names, values, strict=True))
        return tuple.__new__(Hit, (owner, route, parameters, strict))
    parameters = {}
    in_path: list[str] = []
    for name, parse, value in zip(names, parsers, values, strict=True):
        if parse is None:
            parameters[name] = value
            in_path.append(value)
        else:
            parameters[name], parsed, narrow = parse(value)
            in_path.append(parsed)
            strict = strict and narrow
    if in_path != [*values]:
        parameters[PARSED_PATH] = clean(with_values(template, path, in_path))
    return Hit(owner, route, parameters, strict)


def _match_tail(tail: Tail, matchers: tuple[Matcher, ...], segments: list[str], depth: int) -> tuple[str, ...] | None:
    """Match the rest of a path with a `{name:path}` parameter and the segments behind it. None if they differ."""
    if tail.folder:
        return ()
    end = len(segments) - len(matchers)
    if end <= depth:
        return None
    rest, before, after = "/".join(segments[depth:end]), tail.before, tail.after
    if len(rest) < len(before) + len(after):
        return None
    if not rest.startswith(before) or not rest.endswith(after):
        return None
    values: tuple[str, ...] = (rest[len(before) : len(rest) - len(after)],)
    for match, piece in zip(matchers, segments[end:], strict=True):
        more = match(piece)
        if more is None:
            return None
        values += more
    return values
