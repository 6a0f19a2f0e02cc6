"""Parses YAML text to a tree of values with their places.

Only PyYAML's parser is used; the tree is composed from its events. PyYAML's own constructors lose the places, type
scalars by the rules of YAML 1.1 (`010`, `1:30`, `on`), and recurse without a limit.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NoReturn

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from ratelimit_mw.config.tree import DEEPEST, Items, Map, Node, Place, Problems, Scalar, expand, plain
from ratelimit_mw.errors import quoted

MOST_NODES = 500_000
"""The most values in a file. An alias counts as often as it is used, so that no file can expand without a limit."""

MOST_CHARACTERS = 16 * 1024 * 1024
"""The most characters of all texts in a file, which itself has at most a quarter of them. An alias counts as often as
it is used."""

_TAB = re.compile(r"found character '\\t'")
_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
"""What ends a line for PyYAML."""


def parse(text: str, file: str, environ: Mapping[str, str], problems: Problems) -> Node | None:
    """Return the tree of `text`, with `${NAME}` read from `environ`. None if it is empty or not YAML.

    Errors are added to `problems`, with the place in `file`.
    """
    # libyaml is ten times as fast, but its messages differ: if it finds an error, PyYAML's own parser explains it.
    fast = getattr(yaml, "CSafeLoader", None)
    if fast is not None:
        found = Problems()
        with suppress(yaml.YAMLError, RecursionError):
            tree = _Composer(file, environ, found).document(yaml.parse(text, Loader=fast))
            problems.add_problems(found)
            return tree
    composer = _Composer(file, environ, problems)
    try:
        return composer.document(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        line, column, message, hint = _explained(error, _BREAK.split(text))
        problems.add(Place(composer.order, file, line, column), message, hint)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        character = text[error.position : error.position + 1]
        problems.add(Place(composer.order, file, line, column), f"the character {character!a} is not allowed in YAML")
    return None


class _Unreadable(Exception):
    """Raised if the rest of the document cannot be read. The problem has been reported."""


class _Composer:
    """Composes the tree of one document. `order` is the number of places so far, by which problems are sorted."""

    def __init__(self, file: str, environ: Mapping[str, str], problems: Problems) -> None:
        self.order = 0
        self._file = file
        self._environ = environ
        self._problems = problems
        self._anchors: dict[str, tuple[Node, int, int]] = {}
        self._nodes = 0
        self._characters = 0

    def document(self, events: Iterator[Event]) -> Node | None:
        """Return the tree. None if there is none, or if the rest of the document cannot be read."""
        tree: Node | None = None
        with suppress(_Unreadable):
            for event in events:
                if isinstance(event, (ScalarEvent, SequenceStartEvent, MappingStartEvent, AliasEvent)):
                    tree = self._node(event, events, "", 1)
                elif isinstance(event, DocumentStartEvent) and self._nodes:
                    self._refuse(event, "", "a file must contain one document; a second one begins here with '---'")
            return tree
        return None

    def _place(self, event: Event, path: str) -> Place:
        self.order += 1
        mark = event.start_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        return Place(self.order, self._file, line, column, path)

    def _refuse(self, event: Event, path: str, message: str, hint: str = "") -> NoReturn:
        self._problems.add(self._place(event, path), message, hint)
        raise _Unreadable

    def _node(self, event: Event, events: Iterator[Event], path: str, depth: int) -> Node:
        before = self._nodes, self._characters
        self._count(event, path, 1, len(event.value) if isinstance(event, ScalarEvent) else 0)
        if depth > DEEPEST:
            self._refuse(event, "", f"nested more than {DEEPEST} levels deep")
        if isinstance(event, AliasEvent):
            return self._alias(event, path)
        node: Node
        if isinstance(event, SequenceStartEvent):
            node = self._items(event, events, path, depth)
        elif isinstance(event, MappingStartEvent):
            node = self._map(event, events, path, depth)
        elif isinstance(event, ScalarEvent):
            node = self._scalar(event, path)
        else:
            raise _Unreadable
        if event.tag not in (None, "!"):
            self._problems.add(node.place, f"the tag {quoted(event.tag or '')} is not supported", "remove the tag")
        if event.anchor is not None:
            self._anchors[event.anchor] = node, self._nodes - before[0], self._characters - before[1]
        return node

    def _count(self, event: Event, path: str, nodes: int, characters: int) -> None:
        self._nodes += nodes
        self._characters += characters
        for number, most, what in (
            (self._nodes, MOST_NODES, "values"),
            (self._characters, MOST_CHARACTERS, "characters"),
        ):
            if number > most:
                self._refuse(event, path, f"more than {most} {what} (an alias counts each time it is used)")

    def _alias(self, event: AliasEvent, path: str) -> Node:
        if event.anchor not in self._anchors:
            self._refuse(event, path, f"the alias '*{event.anchor}' has no anchor above it")
        node, nodes, characters = self._anchors[event.anchor]
        self._count(event, path, nodes, characters)
        return node

    def _scalar(self, event: ScalarEvent, path: str) -> Scalar:
        place = self._place(event, path)
        text, usable = expand(event.value, self._environ, place, self._problems)
        return Scalar(text, text if event.style else plain(text), place, unusable=not usable)

    def _items(self, start: Event, events: Iterator[Event], path: str, depth: int) -> Items:
        items = Items(self._place(start, path))
        count = 0
        while not isinstance(event := next(events), SequenceEndEvent):
            items.put(self._node(event, events, f"{path}[{count}]", depth + 1))
            count += 1
        return items

    def _map(self, start: Event, events: Iterator[Event], path: str, depth: int) -> Map:
        mapping = Map(self._place(start, path))
        merged: list[Map] = []
        while not isinstance(event := next(events), MappingEndEvent):
            key = self._node(event, events, path, depth + 1)
            place = self._place(event, path)
            text = key.text if isinstance(key, Scalar) else None
            value = self._node(next(events), events, f"{path}.{text}" if path else str(text), depth + 1)
            if text is None:
                self._problems.add(place, "a key must be text, not a list or a mapping")
            elif text == "<<":
                merged += self._merged(value, place)
            elif text in mapping.keys_at:
                first = mapping.keys_at[text]
                self._problems.add(place, f"duplicate key {quoted(text)}", f"the first is at line {first.line}")
            else:
                mapping.put(text, place, value)
        for each in merged:
            for name in [name for name in each.keys_at if name not in mapping.keys_at]:
                mapping.take(name, each)
        return mapping

    def _merged(self, value: Node, place: Place) -> list[Map]:
        """Return the mappings that a merge key names. Keys beside it, and of earlier mappings, take precedence."""
        found = value if isinstance(value, Items) else [value]
        maps = [each for each in found if isinstance(each, Map)]
        if len(maps) != len(found):
            self._problems.add(place, "'<<' merges mappings", "write an alias, as in <<: *name")
        return maps


_EXPLANATIONS = (
    (
        "mapping values are not allowed here",
        "unexpected ':', which begins a value",
        "put a text that contains ': ' in quotes, or add the missing ':' in the line above",
    ),
    ("expected the node content", "a value is missing here, or a '[' or '{' is not closed", ""),
    ("could not find expected ':'", "the ':' after a key is missing", ""),
    ("found unexpected end of stream", "the text ends inside a quoted value", "close the quote"),
    ("expected ',' or '}'", "a '{' is not closed, or a ',' is missing", ""),
    ("expected ',' or ']'", "a '[' is not closed, or a ',' is missing", ""),
    ("expected <block end>", "this line is not indented like the lines above it", ""),
    ("found character '%'", "a value can't begin with '%'", "put the value in quotes"),
    ("found character '@'", "a value can't begin with '@'", "put the value in quotes"),
    ("found character '`'", "a value can't begin with '`'", "put the value in quotes"),
    ("expected alphabetic or numeric character", "a value can't begin with '*' or '&'", "put the value in quotes"),
)


# /items/{id}, up to the '{' and from it on
_PATH_BEGINS = re.compile(r"/[^\s,\[\]{}\"']*\Z")
_PATH_ENDS = re.compile(r"(?:\{[A-Za-z_][\w:]*\}[^\s,\[\]{}\"']*)+")
# limit:10 per minute, or burst=20. The sources (`header:N`) are values, so they need no space.
_NO_SPACE = re.compile(
    r"\s*(?:-\s+)*(?!(?:header|cookie|query|scope|environ|python):)([A-Za-z_]+)(:(?!//)|\s*=\s*)([^\s:=][^#]*)"
)


def _explained(error: yaml.MarkedYAMLError, lines: list[str]) -> tuple[int, int, str, str]:
    """Return the line, the column, the message and the hint for an error of PyYAML's parser. The line is 0 if unknown.

    The parser stops where it can read no further. The mistake may be in a line above, which is then returned.
    """
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
    problem = str(error.problem or error.context or "")
    content = lines[line - 1] if line else ""
    if _TAB.search(problem) or content.startswith("\t"):
        return line, column, "a tab can't indent YAML", "use spaces"
    if problem.startswith(("could not find expected ':'", "mapping values are not allowed here")):
        number, found = _without_space(error, lines, line)
        if found is not None:  # the value is not repeated: it may be a secret
            if "=" in found[2]:
                return (
                    number,
                    found.start(2) + 1,
                    f"a '=' after '{found[1]}', where a ':' belongs",
                    f"write {found[1]}: …",
                )
            return number, found.start(1) + 1, f"a space is missing after '{found[1]}:'", ""
    if problem.startswith(("expected ',' or '}'", "expected ',' or ']'")):
        message, hint = _explained_flow(error, content, column)
        if message:
            return line, column, message, hint
    for beginning, message, hint in _EXPLANATIONS:
        if problem.startswith(beginning):
            return line, column, message, hint
    return line, column, f"invalid YAML: {problem}", ""


def _without_space(error: yaml.MarkedYAMLError, lines: list[str], line: int) -> tuple[int, re.Match[str] | None]:
    """Return the line whose ':' has no space, and its key, if this has caused the error. Otherwise None as the key."""
    # YAML joins such a line with the next ones to one text, until a ':' with a space follows.
    key = error.context_mark if str(error.problem).startswith("could not") else None
    number = key.line + 1 if key is not None else line - 1
    while number > 1 and not lines[number - 1].strip():
        number -= 1
    found = _NO_SPACE.fullmatch(lines[number - 1]) if number > 0 else None
    return number, found if found is not None and not re.search(r":\s", found[3]) else None


def _explained_flow(error: yaml.MarkedYAMLError, content: str, column: int) -> tuple[str, str]:
    """Return the message and the hint for a '{' or '[' that has no end where one is expected. "" for no special one."""
    bracket = "{" if "}" in str(error.problem) else "["
    before, after = content[: column - 1], content[column - 1 :]
    begins, ends = _PATH_BEGINS.search(before), _PATH_ENDS.match(after)
    if begins is not None and ends is not None:
        return "a path with '{' must be in quotes here", f'write "{begins[0]}{ends[0]}"'
    message = f"a '{bracket}' is not closed, or a ',' is missing"
    if before.endswith("$"):
        return message, f"put a ${{NAME}} inside {bracket} {'}' if bracket == '{' else ']'} in quotes"
    opened = error.context_mark
    return message, f"the '{bracket}' is at line {opened.line + 1}" if opened is not None else ""
