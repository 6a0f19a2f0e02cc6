"""The sources of rules: `Source`, a file or folder, and a mapping. The rules database is in `database`."""

import os
import time
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Protocol

from ratelimit_mw.config.documents import Document, files_in, gather
from ratelimit_mw.config.tree import Problems
from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.stores.records import Listener, Timer


class Snapshot(NamedTuple):
    """The documents of one version of the rules. Snapshots with the same `version` have the same content."""

    version: str
    documents: tuple[Document, ...]


class Source(Protocol):
    """A source of rules. `name` is for logs and contains no password."""

    name: str
    channels: tuple[str, ...]
    """The channels on which changes are published; () if they are not."""

    settling: float
    """Seconds after which unusable documents are fetched again at the start, because they may be half written."""

    def fetch(self) -> Snapshot:
        """The current documents. Raises ConfigurationError if they cannot be read.

        It is called periodically, so it is cheap if nothing has changed, and then returns the same object.
        """
        ...

    def listener(self) -> Listener | None:
        """A listener with which a thread waits for changes; None if the source cannot change."""
        ...

    def close(self) -> None:
        """Close all connections."""


_FRESH = 2_000_000_000
"""Nanoseconds for which a file is read again although it looks unchanged: file times may be coarse."""

SETTLING = 0.02
"""Seconds for which a file must stay unchanged, because some programs write it in several steps."""

_TRIES = 5

_Look = tuple[object, ...]


class FilesSource:
    """A file, or a folder in which each file is a domain.

    A replaced file (by an editor's rename, or by the symbolic links of a Kubernetes ConfigMap) is noticed by its inode.
    A changed file is noticed by its size and times, including ctime, which programs cannot set back. The content is
    then compared.
    """

    channels: tuple[str, ...] = ()
    settling = SETTLING

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self.name = self._path
        self._seen: _Look | None = None
        self._read_at = 0
        self._snapshot: Snapshot | None = None

    def fetch(self) -> Snapshot:
        """See `Source`."""
        look = self._look()
        if self._snapshot is None or look != self._seen or self._read_at - _newest(look) < _FRESH:
            self._read(look)
        if self._snapshot is None:
            raise ConfigurationError([Problem(f"the rules at {self._path} change faster than they can be read")])
        return self._snapshot

    def listener(self) -> Timer:
        """See `Source`."""
        return Timer()

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def _read(self, look: _Look) -> None:
        """Read all files, again if one has changed during the read, so that old and new files are never mixed."""
        for _ in range(_TRIES):
            self._read_at = time.time_ns()
            problems = Problems()
            documents = gather(self._path, problems)
            if self._snapshot is not None or self._read_at - _newest(look) < SETTLING * 1e9:
                time.sleep(SETTLING)
            before, look = look, self._look()
            if look != before:
                continue
            if problems:
                raise ConfigurationError(problems.in_order())
            version = _digest(documents)
            if self._snapshot is None or version != self._snapshot.version:
                self._snapshot = Snapshot(version, tuple(documents))
            self._seen = look
            return

    def _look(self) -> _Look:
        """The inodes, sizes and times of the files, which tell whether they have changed."""
        return tuple(_stat(file) for file in files_in(self._path) or [self._path])


def _stat(file: str) -> tuple[object, ...]:
    try:
        found = Path(file).stat()  # follows symbolic links
    except (OSError, ValueError):
        return (file,)
    return file, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size, found.st_dev


def _newest(look: _Look) -> int:
    """The time at which a file was last written or changed, in nanoseconds since the epoch."""
    return max((moment for each in look if isinstance(each, tuple) for moment in each[1:3]), default=0)


def _digest(documents: list[Document]) -> str:
    state = blake2b(digest_size=6)
    for name, content in documents:
        if isinstance(content, bytes):
            state.update(b"%d:%b%d:%b" % (len(name), name.encode("utf-8", "surrogateescape"), len(content), content))
    return state.hexdigest()


class MappingSource:
    """A mapping of the same structure as a rules file."""

    channels: tuple[str, ...] = ()
    settling = 0.0

    def __init__(self, rules: Mapping[str, object]) -> None:
        self.name = "a mapping"
        self._snapshot = Snapshot("given", (Document("", rules),))

    def fetch(self) -> Snapshot:
        """See `Source`."""
        return self._snapshot

    def listener(self) -> None:
        """See `Source`."""
        return

    def close(self) -> None:
        """Do nothing: there are no connections."""
