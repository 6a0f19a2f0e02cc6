"""The sources of rules: the protocol `Source`, files and folders, and mappings.

The rules database in Redis is another source. It is in `reload.database`.
"""

import math
import os
import time
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Protocol

from ratelimit_mw.config.load import Document, files_in, gather
from ratelimit_mw.config.tree import Problems
from ratelimit_mw.errors import ConfigurationError, Problem


class RulesSnapshot(NamedTuple):
    """The documents of one version of the rules. Snapshots with the same `version` have the same content."""

    version: str
    documents: tuple[Document, ...]


LONGEST = 0.8
"""The most seconds between two checks of the rules database, the overrides and the switch. A change applies within a
second."""


class Source(Protocol):
    """A source of rules. `name` is for logs and contains no password."""

    name: str
    longest: float
    """The most seconds between two looks, whatever `reload` says. 0 if the source cannot change."""

    def fetch(self) -> RulesSnapshot:
        """Return the current documents. Raises ConfigurationError if they cannot be read.

        It is called periodically. If nothing has changed, it must be cheap and return the same object.
        """
        ...

    def close(self) -> None:
        """Close all connections."""


SETTLING = 0.02
"""Seconds for which files must stay unchanged, because some programs write them in several steps."""

_TRIES = 5
"""How many times files are read while they keep changing."""


class FilesSource:
    """A file, or a folder in which each file is a domain.

    The files are read each time, so that a change is noticed however it is made.
    """

    longest = math.inf

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self.name = self._path
        self._snapshot: RulesSnapshot | None = None

    def fetch(self) -> RulesSnapshot:
        """See `Source`."""
        found, problems = self._read()
        if problems or self._snapshot is None or found != self._snapshot.documents:
            found = self._settled(found, problems)
            self._snapshot = RulesSnapshot(_digest(found), found)
        return self._snapshot

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def _read(self) -> tuple[tuple[Document, ...], tuple[Problem, ...]]:
        problems = Problems()
        return tuple(gather(self._path, problems)), problems.in_order()

    def _settled(self, found: tuple[Document, ...], problems: tuple[Problem, ...]) -> tuple[Document, ...]:
        """Return the documents as soon as they are read twice alike, so that old and new files are never mixed."""
        for _ in range(_TRIES):
            if self._snapshot is not None or time.time() - self._written() < SETTLING:
                time.sleep(SETTLING)
            before, (found, problems) = (found, problems), self._read()
            if before == (found, problems):
                if problems:
                    raise ConfigurationError(problems)
                return found
        raise ConfigurationError([Problem(f"the rules at {self._path} change faster than they can be read")])

    def _written(self) -> float:
        """Return the time of the newest change of a file, in epoch seconds. 0 if it is not known."""
        try:
            return max(Path(file).stat().st_ctime for file in files_in(self._path) or [self._path])
        except (OSError, ValueError):
            return 0.0


def _digest(documents: tuple[Document, ...]) -> str:
    state = blake2b(digest_size=6)
    for name, content in documents:
        if isinstance(content, bytes):
            state.update(b"%d:%b%d:%b" % (len(name), name.encode("utf-8", "surrogateescape"), len(content), content))
    return state.hexdigest()


class MappingSource:
    """A mapping of the same structure as a rules file."""

    longest = 0.0

    def __init__(self, rules: Mapping[str, object]) -> None:
        self.name = "a mapping"
        self._snapshot = RulesSnapshot("given", (Document("", rules),))

    def fetch(self) -> RulesSnapshot:
        """See `Source`."""
        return self._snapshot

    def close(self) -> None:
        """Do nothing: there are no connections."""
