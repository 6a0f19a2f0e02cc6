"""Match a path with all templates of a rule set, in time linear in the length of the path.

Templates without parameters are in a dict. The others share a tree with one level for each segment.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ratelimit_mw.identity.decoding import EMPTY_SEGMENT, without_empty_segments
from ratelimit_mw.identity.decoding import cleaned as clean
from ratelimit_mw.identity.identifier import PARSED_PATH
from ratelimit_mw.identity.request import Request
from ratelimit_mw.process_local import checkpoint
from ratelimit_mw.rules.path_templates import Matcher, Parser, Segment, Tail, Template, is_narrow, matcher, parser

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
    """A template in the tree.

    `rank` is its place among all templates. `hit` is its match if it has no parameters, otherwise None.
    """

    rank: int
    owner: int
    template: Template
    hit: Hit | None
    parsers: tuple[Parser | None, ...]
    """One for each parameter, or () if no parameter has a type."""


_Tail = tuple[Tail, tuple[Matcher, ...], _Entry]

_NO_NODES: "dict[str, _Node]" = {}
"""The `literals` of a node that has none. It must not be changed."""


class _Node:
    """The templates that begin with the same segments.

    A rule set has thousands of nodes, most of which have one child. Few of them therefore have containers of their own.
    """

    __slots__ = ("ends", "literals", "match", "patterns", "segment", "tails")

    def __init__(self, segment: Segment, match: Matcher) -> None:
        self.segment = segment
        self.match = match
        """Matches the segment. It is not used for a segment without parameters."""
        self.literals = _NO_NODES  # the next nodes whose segments have no parameters, by text
        self.patterns: tuple[_Node, ...] = ()  # the next nodes whose segments have parameters
        self.tails: tuple[_Tail, ...] = ()  # templates whose last part matches the rest
        self.ends: tuple[_Entry, ...] = ()  # templates that end here

    def child(self, segment: Segment, matchers: dict[Segment, Matcher]) -> "_Node":
        """Return the node below `segment`. Make it if it does not exist.

        `matchers` has the matchers that were made so far. Nodes share them.
        """
        if not segment.kinds:
            if self.literals is _NO_NODES:
                self.literals = {}
            text = segment.texts[0]
            if text not in self.literals:
                self.literals[text] = _Node(segment, _never)
            return self.literals[text]
        for node in self.patterns:
            if node.segment == segment:
                return node
        if segment not in matchers:
            matchers[segment] = matcher(segment)
        node = _Node(segment, matchers[segment])
        self.patterns = (*self.patterns, node)
        return node


def _never(_segment: str) -> None:
    """Match nothing."""


_Found = list[tuple[_Entry, tuple[str, ...]]]
"""The entries that match, each with the values of its parameters as the client wrote them."""


class PathMatcher:
    """All templates of a rule set, ready to match.

    `owned` is pairs of an owner (any int) and one of its templates. An owner may have several. The first that matches
    counts.
    """

    def __init__(self, owned: Iterable[tuple[int, Template]]) -> None:
        self._literal: dict[str, _Found] = {}
        self._root = _Node(Segment(("",)), _never)
        self._only_literal = True
        matchers: dict[Segment, Matcher] = {}
        for rank, (owner, template) in enumerate(owned):
            checkpoint()
            parsers = tuple(map(parser, template.kinds))
            hit = None if template.names else Hit(owner, template.text, NO_PARAMETERS, strict=True)
            entry = _Entry(rank, owner, template, hit, parsers if any(parsers) else ())
            self._add(entry, template, matchers)
            # The cleaned form of a path has no slash at its end. A template that has one must match it too.
            cleaned = template.cleaned
            if cleaned != template:
                self._add(entry._replace(template=cleaned), cleaned, matchers)

    def _add(self, entry: _Entry, template: Template, matchers: dict[Segment, Matcher]) -> None:
        if not template.names and template.tail is None:
            path = "/" + "/".join(segment.texts[0] for segment in template.segments)
            self._literal.setdefault(path, []).append((entry, ()))
            return
        self._only_literal = False
        node = self._root
        for segment in template.segments:
            node = node.child(segment, matchers)
        tail = template.tail
        if tail is not None:
            node.tails = (*node.tails, (tail, tuple(map(matcher, tail.segments)), entry))
        if tail is None or tail.folder:
            node.ends = (*node.ends, entry)

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
        found = [*self._literal.get(path, ())]
        if not self._only_literal and path.startswith("/"):
            _walk(self._root, path.split("/"), 1, (), found)
        return found

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
    _, owner, template, hit, parsers = entry
    if hit is not None:
        return hit if strict else hit._replace(strict=False)
    names = template.names
    if not parsers:
        parameters = {names[0]: values[0]} if len(values) == 1 else dict(zip(names, values, strict=True))
        return tuple.__new__(Hit, (owner, template.text, parameters, strict))
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
        parameters[PARSED_PATH] = clean(template.with_values(path, in_path))
    return Hit(owner, template.text, parameters, strict)


def _walk(node: _Node, segments: list[str], depth: int, values: tuple[str, ...], found: _Found) -> None:
    """Add to `found` the templates of `node` and its children that match the segments of a path from `depth` on.

    `values` are the values of the parameters in the segments before.
    """
    for tail, matchers, entry in node.tails:
        rest = _match_tail(tail, matchers, segments, depth)
        if rest is not None:
            found.append((entry, values + rest))
    segment = segments[depth]
    depth += 1
    ended = depth == len(segments)
    child = node.literals.get(segment)
    if child is not None:
        if ended:
            found += [(entry, values) for entry in child.ends]
        else:
            _walk(child, segments, depth, values, found)
    for child in node.patterns:
        more = child.match(segment)
        if more is not None:
            if ended:
                found += [(entry, values + more) for entry in child.ends]
            else:
                _walk(child, segments, depth, values + more, found)


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
