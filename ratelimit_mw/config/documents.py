"""Reads the sources of rules: a file, a folder of files, or a mapping from code. Each becomes a tree."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ratelimit_mw.config.tree import DEEPEST, Items, Map, Node, Place, Problems, Scalar, expand, plain

LARGEST = 4 * 1024 * 1024
"""The largest size of a file, in bytes. A thousand rules take a quarter of a megabyte."""

SUFFIXES = (".yaml", ".yml")
"""The suffixes of the files that are read in a folder. Hidden files are skipped."""

A_PATH = "a path to a YAML file"
"""The hint of a file that cannot be read."""

Config = str | os.PathLike[str] | Mapping[str, object]


class Document(NamedTuple):
    """The content of one rules file, and the file's name in messages. The name of a mapping is ""."""

    name: str
    content: bytes | Mapping[str, object]


def gather(config: Config, problems: Problems) -> list[Document]:
    """Return the documents of `config`. A file that cannot be read is added to `problems`."""
    if isinstance(config, Mapping):
        return [Document("", config)]
    path = os.fspath(config)
    if "://" in path:
        # Only the scheme is shown, because the rest may contain a password.
        scheme = path.partition("://")[0]
        problems.add(Place(), f"rules are not read from a {scheme}:// address", "a file, a folder or redis://")
        return []
    files = files_in(path)
    if files == []:
        problems.add(Place(file=path), "no rules files in this folder", f"their names end in {' or '.join(SUFFIXES)}")
    found = [path] if files is None else files
    return [document for file in found if (document := _read(file, problems)) is not None]


def files_in(path: str) -> list[str] | None:
    """Return the rules files of a folder, sorted by name. None if `path` is not a folder."""
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
        problems.add(Place(file=file), message, A_PATH)
    except ValueError as error:
        problems.add(Place(), f"not a path: {error}")
    return None


def parse(document: Document, environ: Mapping[str, str], problems: Problems) -> Node | None:
    """Return the tree of a document. None if it has none; the reason is then added to `problems`."""
    file, content = document
    if isinstance(content, Mapping):
        return convert(content, environ, problems)
    text = _decoded(file, content, problems)
    if text is None:
        return None
    from ratelimit_mw.config import yaml  # imported here because PyYAML is not needed for a mapping

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
    """Return the tree of a mapping. Its places have a dotted name, but no line.

    `${NAME}` in a text is replaced as in a file, and the result is typed as in a file.
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

    def _map(self, source: Mapping[object, object], place: Place, depth: int) -> Map:
        mapping = Map(place)
        for key, value in source.items():
            if not isinstance(key, str):
                self._problems.add(place, f"a key must be text, not {key!r}")
                continue
            path = f"{place.path}.{key}" if place.path else key
            mapping.put(key, place, self.node(value, path, depth + 1))
        return mapping

    def _scalar(self, value: object, place: Place) -> Scalar:
        if isinstance(value, str):
            text, errors = expand(value, self._environ)
            for message in errors:
                self._problems.add(place, message)
            return Scalar(text, text if text == value else plain(text), place, unusable=bool(errors))
        if value is None:
            return Scalar("", None, place)
        if isinstance(value, bool):
            return Scalar(str(value).lower(), value, place)
        if isinstance(value, int):
            return Scalar(f"{value:#x}" if abs(value) > 10**30 else str(value), value, place)
        if isinstance(value, float):
            # NaN and infinity become text, so that every reader of numbers rejects them.
            return Scalar(str(value), value if math.isfinite(value) else str(value), place)
        self._problems.add(place, f"must be text, a number, a list or a mapping, not a {type(value).__name__}")
        return Scalar("", None, place, unusable=True)
