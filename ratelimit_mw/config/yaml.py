"""YAML text to a tree that knows where everything stands.

PyYAML's own constructors lose the places, take YAML 1.1's traps for values and recurse as deep as the
text says. So only its parser is used, and the tree is composed from the parser's events here.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from typing import NoReturn

import yaml
from yaml.events import (
    AliasEvent,
    CollectionEndEvent,
    CollectionStartEvent,
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
from ratelimit_mw.process_local import checkpoint

MOST_NODES = 500_000
"""Values in a file, aliases counted as often as they are used."""

_TAB = re.compile(r"found character '\\t'")


def parse(text: str, file: str, environ: Mapping[str, str], problems: Problems) -> Node | None:
    """The tree of `text`, with `${NAME}` read from `environ`; None where it is not YAML or is empty."""
    composer = _Composer(file, environ, problems)
    try:
        return composer.document(_events(text))
    except _Unreadable:
        return None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        message, hint = _in_our_words(error, text.split("\n")[line - 1] if line else "")
        problems.add(Place(composer.order, file, line, column), message, hint)
        return None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        character = text[error.position : error.position + 1]
        problems.add(Place(composer.order, file, line, column), f"the character {character!a} can't stand in YAML")
        return None


class _Unreadable(Exception):
    """The rest of the document is not worth reading; the problem has been noted."""


class _Composer:
    def __init__(self, file: str, environ: Mapping[str, str], problems: Problems) -> None:
        self.order = 0
        self._file = file
        self._environ = environ
        self._problems = problems
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._nodes = 0

    def document(self, events: Iterator[Event]) -> Node | None:
        tree: Node | None = None
        documents = 0
        for event in events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse(event, "", "one file holds one document; another begins here with '---'")
            elif isinstance(event, (ScalarEvent, SequenceStartEvent, MappingStartEvent, AliasEvent)):
                tree = self._node(event, events, "", 1)
        return tree

    def _place(self, event: Event, path: str) -> Place:
        self.order += 1
        mark = event.start_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        return Place(self.order, self._file, line, column, path)

    def _refuse(self, event: Event, path: str, message: str, hint: str = "") -> NoReturn:
        self._problems.add(self._place(event, path), message, hint)
        raise _Unreadable

    def _node(self, event: Event, events: Iterator[Event], path: str, depth: int) -> Node:
        checkpoint()
        before = self._nodes
        self._nodes += 1
        if self._nodes > MOST_NODES:
            self._refuse(event, path, f"more than {MOST_NODES} values, counting aliases as often as they are used")
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
            self._problems.add(node.place, f"the tag {quoted(event.tag or '')} is not read here", "leave it out")
        if event.anchor is not None:
            self._anchors[event.anchor] = node, self._nodes - before
        return node

    def _alias(self, event: AliasEvent, path: str) -> Node:
        node, size = self._anchors.get(event.anchor or "", (None, 0))
        if node is None:
            self._refuse(event, path, f"'*{event.anchor}' stands for nothing above it")
        self._nodes += size
        return node

    def _scalar(self, event: ScalarEvent, path: str) -> Scalar:
        place = self._place(event, path)
        text, wrong = expand(event.value, self._environ)
        for message in wrong:
            self._problems.add(place, message)
        return Scalar(text, text if event.style else plain(text), place, unusable=bool(wrong))

    def _items(self, start: Event, events: Iterator[Event], path: str, depth: int) -> Items:
        items = Items(self._place(start, path))
        count = 0
        while not isinstance(event := next(events), SequenceEndEvent):
            items.put(self._node(event, events, f"{path}[{count}]", depth + 1))
            count += 1
        return items

    def _map(self, start: Event, events: Iterator[Event], path: str, depth: int) -> Map:
        mapping = Map(self._place(start, path))
        while not isinstance(event := next(events), MappingEndEvent):
            key = self._node(event, events, path, depth + 1)
            place = self._place(event, path)
            text = key.text if isinstance(key, Scalar) else None
            value = self._node(next(events), events, f"{path}.{text}" if path else str(text), depth + 1)
            if text is None:
                self._problems.add(place, "a key must be a plain word, not a list or a mapping")
            elif text == "<<":
                self._problems.add(place, "merge keys ('<<') are not read here", "write the keys out")
            elif text in mapping.keys_at:
                first = mapping.keys_at[text]
                self._problems.add(place, f"the key {quoted(text)} is here twice", f"first at line {first.line}")
            else:
                mapping.put(text, place, value)
        return mapping


def _events(text: str) -> Iterator[Event]:
    # libyaml is ten times as fast, but its messages differ; where it finds a fault, PyYAML's own parser explains it.
    fast = getattr(yaml, "CSafeLoader", None)
    if fast is not None:
        try:
            events: deque[Event] = deque()
            depth = 0
            for event in yaml.parse(text, Loader=fast):
                events.append(event)
                depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
                if depth > DEEPEST:  # libyaml takes time by the square of the depth
                    break
                checkpoint()
            while events:  # let go of one by one, which makes no pause in the end
                yield events.popleft()
            return
        except (yaml.YAMLError, RecursionError):
            pass
    yield from yaml.parse(text, Loader=yaml.SafeLoader)


_EXPLAINED = (
    (
        "mapping values are not allowed here",
        "a ':' makes a key here, where none can stand",
        "quote a text that holds ': '; or the line above lacks its ':'",
    ),
    ("expected the node content", "a value is missing here, or a '[' or '{' is not closed", ""),
    ("could not find expected ':'", "a key without its ':'", ""),
    ("found undefined alias", "an alias stands for nothing above it", ""),
    ("found unexpected end of stream", "the text ends inside a quoted value", "close the quote"),
    ("expected ',' or '}'", "a '{' is not closed, or a ',' is missing", "quote a ${NAME} that stands inside { }"),
    ("expected ',' or ']'", "a '[' is not closed, or a ',' is missing", "quote a ${NAME} that stands inside [ ]"),
    ("expected <block end>", "this line is not indented like the ones above it", ""),
    ("found character '%'", "a value can't begin with '%'", "quote it"),
    ("found character '@'", "a value can't begin with '@'", "quote it"),
    ("found character '`'", "a value can't begin with '`'", "quote it"),
)


def _in_our_words(error: yaml.MarkedYAMLError, line: str) -> tuple[str, str]:
    problem = str(error.problem or error.context or "")
    if _TAB.search(problem) or line.startswith("\t"):
        return "a tab can't indent YAML", "use spaces"
    for theirs, ours, hint in _EXPLAINED:
        if problem.startswith(theirs):
            return ours, hint
    return f"this is not YAML: {problem}", ""
