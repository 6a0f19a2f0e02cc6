"""What rules are read from: a file, a folder of files, or a mapping given in code; each becomes a tree."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ratelimit_mw.config.tree import DEEPEST, Items, Map, Node, Place, Problems, Scalar, expand, plain

LARGEST = 4 * 1024 * 1024
"""Bytes in a file. A thousand rules take a quarter of one megabyte."""

SUFFIXES = (".yaml", ".yml")
"""The files of a folder that are read. Hidden ones are not."""

Config = str | os.PathLike[str] | Mapping[str, object]


class Document(NamedTuple):
    """What stands in one file of rules, and the name that messages give it; a mapping has none."""

    name: str
    content: bytes | Mapping[str, object]


def gather(config: Config, problems: Problems) -> list[Document]:
    """The documents of `config`. What can't be read is added to `problems`."""
    if isinstance(config, Mapping):
        return [Document("", config)]
    path = os.fspath(config)
    if "://" in path:
        # Only its scheme is shown: the rest may hold a password.
        scheme = path.partition("://")[0]
        problems.add(Place(), f"rules are not read from a {scheme}:// address", "a file, a folder or redis://")
        return []
    files = files_in(path)
    if files == []:
        problems.add(Place(file=path), "no rules files in this folder", f"their names end in {' or '.join(SUFFIXES)}")
    found = [path] if files is None else files
    return [document for file in found if (document := _read(file, problems)) is not None]


def files_in(path: str) -> list[str] | None:
    """The files of rules in a folder, in order; None where it is no folder."""
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in entries]
    except (OSError, ValueError):
        return None
    return [str(Path(path, name)) for name in sorted(names) if name.endswith(SUFFIXES) and not name.startswith(".")]


def _read(file: str, problems: Problems) -> Document | None:
    try:
        with Path(file).open("rb") as stream:
            return Document(file, stream.read(LARGEST + 1))
    except OSError as error:
        message = f"can't read the rules file: {error.strerror or error}"
        problems.add(Place(file=file), message, "a path to a YAML file")
    except ValueError as error:
        problems.add(Place(), f"not a path: {error}")
    return None


def parse(document: Document, environ: Mapping[str, str], problems: Problems) -> Node | None:
    """The tree of a document, or None where there is none to be had; then a problem says why."""
    file, content = document
    if isinstance(content, Mapping):
        return convert(content, environ, problems)
    text = _decoded(file, content, problems)
    if text is None:
        return None
    from ratelimit_mw.config import yaml  # imported late: PyYAML is needed at start only

    tree = yaml.parse(text, file, environ, problems)
    if tree is None and not problems:
        problems.add(Place(file=file, line=1, column=1), "the file is empty", "it needs at least domain and rules")
    return tree


def _decoded(file: str, content: bytes, problems: Problems) -> str | None:
    place = Place(file=file)
    if len(content) > LARGEST:
        problems.add(place, f"larger than {LARGEST // 2**20} MB")
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        message = f"not UTF-8: the byte 0x{content[error.start]:02x} can't be read"
        problems.add(place._replace(line=line, column=column), message, "save the file as UTF-8")
        return None


def convert(config: Mapping[str, object], environ: Mapping[str, str], problems: Problems) -> Node:
    """The tree of `config`. A place has no line here, only its dotted name.

    A text that holds `${NAME}` is read as it would be in a file, and typed after that.
    """
    return _Converter(environ, problems).node(config, "", 1)


class _Converter:
    def __init__(self, environ: Mapping[str, str], problems: Problems) -> None:
        self._environ = environ
        self._problems = problems
        self._order = 0

    def node(self, value: object, path: str, depth: int) -> Node:
        self._order += 1
        place = Place(order=self._order, path=path)
        if depth > DEEPEST:
            self._problems.add(place._replace(path=""), f"nested more than {DEEPEST} levels deep")
            return Scalar("", None, place, unusable=True)
        if isinstance(value, Mapping):
            return self._map(value, place, depth)
        if isinstance(value, (list, tuple)):
            items = Items(place)
            for index, item in enumerate(value):
                items.put(self.node(item, f"{path}[{index}]", depth + 1))
            return items
        return self._scalar(value, place)

    def _map(self, given: Mapping[object, object], place: Place, depth: int) -> Map:
        mapping = Map(place)
        for key, value in given.items():
            if not isinstance(key, str):
                self._problems.add(place, f"a key must be text, not {key!r}")
                continue
            path = f"{place.path}.{key}" if place.path else key
            mapping.put(key, place, self.node(value, path, depth + 1))
        return mapping

    def _scalar(self, value: object, place: Place) -> Scalar:
        if isinstance(value, str):
            text, wrong = expand(value, self._environ)
            for message in wrong:
                self._problems.add(place, message)
            return Scalar(text, text if text == value else plain(text), place, unusable=bool(wrong))
        if value is None:
            return Scalar("", None, place)
        if isinstance(value, bool):
            return Scalar(str(value).lower(), value, place)
        if isinstance(value, int):
            return Scalar(f"{value:#x}" if abs(value) > 10**30 else str(value), value, place)
        if isinstance(value, float):
            # A text, so that whatever wants a number refuses what is none.
            return Scalar(str(value), value if math.isfinite(value) else str(value), place)
        self._problems.add(place, f"must be text, a number, a list or a mapping, not a {type(value).__name__}")
        return Scalar("", None, place, unusable=True)
