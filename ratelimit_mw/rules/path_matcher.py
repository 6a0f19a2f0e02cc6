"""Which templates match a path, in time linear in the path."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ratelimit_mw.identity.decoding import EMPTY, merged
from ratelimit_mw.identity.decoding import cleaned as clean
from ratelimit_mw.identity.identifier import SPELLED
from ratelimit_mw.identity.request import Request
from ratelimit_mw.process_local import checkpoint
from ratelimit_mw.rules.path_templates import Matcher, Parser, Segment, Tail, Template, is_narrow, matcher, parser

NO_PARAMETERS: Mapping[str, str] = {}


class Hit(NamedTuple):
    """A path that an owner's template matched.

    `strict`: in each of its readings, its form as it came and its cleaned form both did, with values in narrow form.
    """

    owner: int
    route: str
    parameters: Mapping[str, str]
    strict: bool


class _Entry(NamedTuple):
    rank: int
    owner: int
    template: Template
    hit: Hit
    parsers: tuple[Parser | None, ...]
    """One for each parameter; () where no parameter has a type."""


class _Node:
    __slots__ = ("ends", "literals", "patterns", "segments", "tails")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.patterns: list[tuple[Matcher, _Node]] = []
        self.segments: dict[Segment, _Node] = {}
        self.tails: list[tuple[Tail, tuple[Matcher, ...], _Entry]] = []
        self.ends: list[_Entry] = []

    def child(self, segment: Segment) -> "_Node":
        """The node below `segment`, made if it is not there yet."""
        if not segment.kinds:
            return self.literals.setdefault(segment.texts[0], _Node())
        if segment not in self.segments:
            node = self.segments[segment] = _Node()
            self.patterns.append((matcher(segment), node))
        return self.segments[segment]


_Found = list[tuple[_Entry, tuple[str, ...]]]


class PathMatcher:
    """All templates of a rule set. `owned` is pairs of an owner (any int) and one of its templates."""

    def __init__(self, owned: Iterable[tuple[int, Template]]) -> None:
        self._literal: dict[str, list[_Entry]] = {}
        self._root = _Node()
        self._only_literal = True
        for rank, (owner, template) in enumerate(owned):
            checkpoint()
            parsers = tuple(map(parser, template.kinds))
            hit = Hit(owner, template.text, NO_PARAMETERS, strict=True)
            entry = _Entry(rank, owner, template, hit, parsers if any(parsers) else ())
            self._add(entry, template)
            # A path is also matched cleaned, so a template with a slash at its end has to be as well.
            cleaned = template.cleaned
            if cleaned != template:
                self._add(entry._replace(template=cleaned), cleaned)

    def _add(self, entry: _Entry, template: Template) -> None:
        if not template.names and template.tail is None:
            self._literal.setdefault("/" + "/".join(segment.texts[0] for segment in template.segments), []).append(
                entry
            )
            return
        self._only_literal = False
        node = self._root
        for segment in template.segments:
            node = node.child(segment)
        tail = template.tail
        if tail is None:
            node.ends.append(entry)
            return
        node.tails.append((tail, tuple(map(matcher, tail.segments)), entry))
        if tail.folder:
            node.ends.append(entry)

    def hits(self, request: Request) -> list[Hit]:
        """What each owner's first matching template made of a request's path, in all its readings."""
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
        read = [hits for hits, reading in zip(each, request.readings, strict=True) if EMPTY not in reading]
        return [
            hit._replace(strict=all(owner in hits and hits[owner].strict for hits in read))
            for owner, hit in found.items()
        ]

    def find(self, path: str) -> _Found:
        """Every template that matches this one form of a path in narrow form, with the values of its parameters."""
        return [match for match in self._find(path) if _is_narrow(*match)]

    def _find(self, path: str) -> _Found:
        found: _Found = [(entry, ()) for entry in self._literal.get(path, ())]
        if not self._only_literal and path.startswith("/"):
            _walk(self._root, path, 1, (), found)
        return found

    def locate(self, path: str, cleaned: str) -> list[Hit]:
        """What each owner's first matching template made of one reading of a path, given in both its forms.

        Route and parameters are the cleaned form's where that matched, so that no spelling makes new ones.
        """
        if cleaned == path:
            return self._in_one_form(path)
        found = self._find(cleaned)
        # A line feed is where routers disagree most (`.` does not match it, `$` stands before it): never strict.
        plain = "\n" not in path
        raw = self._find(path)
        in_both = _narrow_owners(found) & _narrow_owners(raw) if plain else frozenset[int]()
        chosen: dict[int, Hit] = {}
        forms = [(cleaned, found), (path, raw)]
        # Some routers drop slashes, or put one before the path, but do not resolve dots.
        if "/." in path or not plain or not path.startswith("/"):
            # A line feed at the end may be a value, or what `$` stands before.
            further = {merged(path): None, merged(path.removesuffix("\n")): None}
            forms += [(form, self._find(form)) for form in further if form not in (path, cleaned)]
        for form, matches in forms:
            for entry, values in _first_of_each(matches):
                if entry.owner not in chosen:
                    hit = _hit(entry, values, form, strict=True)
                    chosen[entry.owner] = hit._replace(strict=entry.owner in in_both)
        return list(chosen.values())

    def _in_one_form(self, path: str) -> list[Hit]:
        """See `locate`, for a path that is its own cleaned form."""
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
    return not entry.parsers or all(map(is_narrow, entry.template.kinds, values))


def _narrow_owners(found: _Found) -> frozenset[int]:
    return frozenset([entry.owner for entry, values in found if _is_narrow(entry, values)])


def _first_of_each(found: _Found) -> _Found:
    """Of each owner the match of its first template, for a list of templates may match with several."""
    if len(found) < 2:
        return found
    first: dict[int, tuple[_Entry, tuple[str, ...]]] = {}
    for entry, values in sorted(found, key=_rank):
        first.setdefault(entry.owner, (entry, values))
    return list(first.values())


def _rank(match: tuple[_Entry, tuple[str, ...]]) -> int:
    return match[0].rank


def _hit(entry: _Entry, values: tuple[str, ...], path: str, *, strict: bool) -> Hit:
    """What an entry made of a path. It is not strict where a value is not narrow, whatever `strict` says."""
    if not values:
        return entry.hit if strict else entry.hit._replace(strict=False)
    template = entry.template
    names = template.names
    if not entry.parsers:
        return Hit(entry.owner, template.text, dict(zip(names, values, strict=True)), strict)
    parameters: dict[str, str] = {}
    written: list[str] = []
    for name, parse, value in zip(names, entry.parsers, values, strict=True):
        if parse is None:
            parameters[name] = value
            written.append(value)
        else:
            parameters[name], in_path, narrow = parse(value)
            written.append(in_path)
            strict = strict and narrow
    if written != [*values]:
        parameters[SPELLED] = clean(template.spelled(path, written))
    return Hit(entry.owner, template.text, parameters, strict)


def _walk(node: _Node, path: str, start: int, values: tuple[str, ...], found: _Found) -> None:
    """Add what `node` and the nodes below it find in `path` from `start`, which follows a slash."""
    for tail, matchers, entry in node.tails:
        rest = _match_tail(tail, matchers, path, start)
        if rest is not None:
            found.append((entry, values + rest))
    if not node.literals and not node.patterns:
        return
    end = path.find("/", start)
    segment = path[start:] if end < 0 else path[start:end]
    child = node.literals.get(segment)
    if child is not None:
        _step(child, path, end, values, found)
    for match, child in node.patterns:
        more = match(segment)
        if more is not None:
            _step(child, path, end, values + more, found)


def _step(node: _Node, path: str, end: int, values: tuple[str, ...], found: _Found) -> None:
    if end >= 0:
        _walk(node, path, end + 1, values, found)
    else:
        found.extend([(entry, values) for entry in node.ends])


def _match_tail(tail: Tail, matchers: tuple[Matcher, ...], path: str, start: int) -> tuple[str, ...] | None:
    if tail.folder:
        return ()
    pieces = path[start:].rsplit("/", len(matchers))
    rest, before, after = pieces[0], tail.before, tail.after
    if len(pieces) <= len(matchers) or len(rest) < len(before) + len(after):
        return None
    if not rest.startswith(before) or not rest.endswith(after):
        return None
    values: tuple[str, ...] = (rest[len(before) : len(rest) - len(after)],)
    for match, piece in zip(matchers, pieces[1:], strict=True):
        more = match(piece)
        if more is None:
            return None
        values += more
    return values
