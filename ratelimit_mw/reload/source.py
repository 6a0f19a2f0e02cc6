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


_FRESH = 2_000_000_000
"""A file that changed within this time (nanoseconds) is always read again: file times may be coarse."""

SETTLING = 0.02
"""Seconds for which a file must stay unchanged, because some programs write it in several steps."""

_TRIES = 5
"""How many times files are read while they keep changing."""

_FileStates = tuple[object, ...]
"""What tells whether files have changed: the inode, the size and the times of each."""


class FilesSource:
    """A file, or a folder in which each file is a domain.

    A replaced file (by an editor's rename, or by the symbolic links of a Kubernetes ConfigMap) is noticed by its inode.
    A changed file is noticed by its size and times, including ctime, which programs cannot set back. The content is
    then compared.
    """

    longest = math.inf

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self.name = self._path
        self._read_states: _FileStates | None = None
        self._read_at = 0
        self._snapshot: RulesSnapshot | None = None

    def fetch(self) -> RulesSnapshot:
        """See `Source`."""
        states = self._states()
        if self._snapshot is None or states != self._read_states or self._read_at - _newest(states) < _FRESH:
            self._read(states)
        if self._snapshot is None:
            raise ConfigurationError([Problem(f"the rules at {self._path} change faster than they can be read")])
        return self._snapshot

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def _read(self, states: _FileStates) -> None:
        """Read all files. Read them again if one has changed, so that old and new files are never mixed."""
        for _ in range(_TRIES):
            self._read_at = time.time_ns()
            problems = Problems()
            documents = gather(self._path, problems)
            if self._snapshot is not None or self._read_at - _newest(states) < SETTLING * 1e9:
                time.sleep(SETTLING)
            before, states = states, self._states()
            if states != before:
                continue
            if problems:
                raise ConfigurationError(problems.in_order())
            version = _digest(documents)
            if self._snapshot is None or version != self._snapshot.version:
                self._snapshot = RulesSnapshot(version, tuple(documents))
            self._read_states = states
            return

    def _states(self) -> _FileStates:
        """Return the present states of the files."""
        return tuple(_stat(file) for file in files_in(self._path) or [self._path])


def _stat(file: str) -> tuple[object, ...]:
    try:
        found = Path(file).stat()  # follows symbolic links
    except (OSError, ValueError):
        return (file,)
    return file, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size, found.st_dev


def _newest(states: _FileStates) -> int:
    """Return the time of the newest change of a file, in nanoseconds since the epoch."""
    return max((time_ns for each in states if isinstance(each, tuple) for time_ns in each[1:3]), default=0)


def _digest(documents: list[Document]) -> str:
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
