"""What rules are read from: a file, a folder of files, or a mapping given in code."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ratelimit_mw.rules.documents.tree import Place, Problems

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
