"""Where rules come from: a file, a folder, a mapping, or a rules database."""

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
    """The documents of one version. Two that are equal in `version` hold the same."""

    version: str
    documents: tuple[Document, ...]


class Source(Protocol):
    """Rules as they are written. `name` is for logs, and holds no password."""

    name: str
    channels: tuple[str, ...]
    """What its listener listens to; () where nobody tells of changes."""

    settling: float
    """Seconds after which documents that can't be used are fetched once more at the start: they may be half written."""

    def fetch(self) -> Snapshot:
        """The documents as they are now.

        Asked again and again: cheap where nothing has changed, and the same object then. Raises
        ConfigurationError where they can't be read.
        """
        ...

    def listener(self) -> Listener | None:
        """What a thread of its own waits with for changes; None where there are none."""
        ...

    def close(self) -> None:
        """Let go of what is held open."""


_FRESH = 2_000_000_000
"""Nanoseconds for which a file is read again though it looks the same: a clock of the file system may tick slowly."""

SETTLING = 0.02
"""Seconds for which a file has to stay as it is: some programs write it in several steps."""

_TRIES = 5

_Look = tuple[object, ...]


class FilesSource:
    """A file, or a folder in which each file is a domain.

    A file that is replaced, whether by an editor's rename or by the symbolic links of a Kubernetes ConfigMap, is
    seen by its inode. One that is written to is seen by its times and its size: a program may set the time of the
    last write back, but not that of the last change (ctime). What looks different is then compared by its content.
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
        """Nothing is held open."""

    def _read(self, look: _Look) -> None:
        """Read all the files, again where one was changed meanwhile: never some old ones and some new."""
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
        """What tells, without reading them, that the files are others."""
        return tuple(_stat(file) for file in files_in(self._path) or [self._path])


def _stat(file: str) -> tuple[object, ...]:
    try:
        found = Path(file).stat()  # of what the links lead to
    except (OSError, ValueError):
        return (file,)
    return file, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size, found.st_dev


def _newest(look: _Look) -> int:
    """When a file was last written to or changed, in nanoseconds since the epoch."""
    return max((moment for each in look if isinstance(each, tuple) for moment in each[1:3]), default=0)


def _digest(documents: list[Document]) -> str:
    state = blake2b(digest_size=6)
    for name, content in documents:
        if isinstance(content, bytes):
            state.update(b"%d:%b%d:%b" % (len(name), name.encode("utf-8", "surrogateescape"), len(content), content))
    return state.hexdigest()


class MappingSource:
    """A mapping of the shape of a rules file."""

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
        """Nothing is held open."""
