"""Where rules come from: files and folders, mappings, the rules database (see `reload.database`), and other workers.

The workers of one server leave for each other in files: the last good rules, for a worker that starts while the file is
broken, and that one has started. Linux only: these files are in `/dev/shm`, which is empty after a boot. Their names
identify the server and the configuration.
"""

import contextlib
import json
import math
import os
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from ratelimit_mw.config.load import Config, Document, files_in, gather, load_documents
from ratelimit_mw.config.tree import Problems
from ratelimit_mw.errors import ConfigurationError, PermanentFault, Problem, StoreUnavailable
from ratelimit_mw.logs import Once
from ratelimit_mw.process_local import proc_stat, server_of_worker
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.stores import STORES


class RulesSnapshot(NamedTuple):
    """The documents of one version of the rules. Snapshots with the same `version` have the same content."""

    version: str
    documents: tuple[Document, ...]


LONGEST = 0.8
"""The most seconds between two checks of the rules database, the overrides and the switch. A change applies within a
second."""


class Source(ABC):
    """A source of rules. `name` is for logs and contains no password."""

    name: str
    longest: float
    """The most seconds between two looks, whatever `reload` says. 0 if the source cannot change."""

    @abstractmethod
    def fetch(self) -> RulesSnapshot:
        """Return the current documents. Raises ConfigurationError if they cannot be read.

        It is called periodically. If nothing has changed, it must be cheap and return the same object.
        """

    def close(self) -> None:  # noqa: B027  only a database has connections
        """Close all connections."""


SETTLING = 0.02
"""Seconds for which files must stay unchanged, because some programs write them in several steps."""

_TRIES = 5
"""How many times files are read while they keep changing."""


class FilesSource(Source):
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


class MappingSource(Source):
    """A mapping of the same structure as a rules file."""

    longest = 0.0

    def __init__(self, rules: Mapping[str, object]) -> None:
        self.name = "a mapping"
        self._snapshot = RulesSnapshot("given", (Document("", rules),))

    def fetch(self) -> RulesSnapshot:
        """See `Source`."""
        return self._snapshot


_FOLDER = Path("/dev/shm")  # noqa: S108  files are opened without following links, and their owner is checked

_FIRST_STARTS = 60.0
"""Seconds from the start of a server after which a worker that starts is one that is started again."""


class Kept(NamedTuple):
    """The stored rules. If they are in a database, `frame` is the file that refers to it."""

    frame: RulesSnapshot | None
    rules: RulesSnapshot


def _file_for(text: str) -> Path | None:
    """Return the path of the server's file about this text. None if this process is not a worker of a server."""
    server = server_of_worker()
    if server is None:
        return None
    # The text is hashed, because a URL may contain a password.
    digest = blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16)
    return _FOLDER / f"ratelimit_mw-{os.geteuid()}-{server}-{digest.hexdigest()}"


def _remove_ended(name: str) -> None:
    """Remove the files of this user's servers that have ended, in the namespace of process ids in `name`."""
    own = "-".join(name.split("-")[:3])
    for each in _FOLDER.glob(f"*{own}-*"):
        with contextlib.suppress(OSError, ValueError):  # another user may have made the name
            pid, started = _server_in(each)
            if not Path("/proc", pid).exists() or proc_stat(pid)[19] != started:
                each.unlink()


def _texts(snapshot: RulesSnapshot) -> list[tuple[str, str]]:
    return [(name, content.decode()) for name, content in snapshot.documents if isinstance(content, bytes)]


def _snapshot(version: str, files: list[tuple[str, str]]) -> RulesSnapshot:
    return RulesSnapshot(version, tuple([Document(name, text.encode()) for name, text in files]))


def _server_in(path: Path) -> tuple[str, str]:
    """Return the process id and the start of the server in the name of a file. Raises ValueError if there are none."""
    pid, started = path.name.split("-")[3:5]
    return pid, started


@contextlib.contextmanager
def starting(url: str, away: Callable[[], None], *, required: bool) -> Iterator[None]:
    """Ignore that a store is away when a server starts, unless it is required and the server starts for the first time.

    A process that is no worker is the server itself, so each of its starts is the first. A worker starts for the first
    time if its server is less than a minute old and no other worker has started. Where a worker cannot be told from a
    server, or its start cannot be noted, no start fails.

    Args:
        url: The URL of the store.
        away: Is called if the store is away.
        required: Whether the store is required.

    Raises:
        StoreUnavailable: The store is away, and the start must fail.
    """
    mark = _file_for(f"started {url}") if required else None
    try:
        yield
    except StoreUnavailable as error:
        away()
        if required and _starts_first(mark):
            remedy = f": {error.remedy}" if isinstance(error, PermanentFault) else ""
            raise StoreUnavailable(f"storage.required is true, and the store is away ({error}){remedy}") from error
    if mark is not None:
        with contextlib.suppress(OSError):
            os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))


def _starts_first(mark: Path | None) -> bool:
    """Return True if this is the first start. `mark` is the file that notes the start of a worker."""
    if mark is None:
        return Path("/proc/self/stat").exists()
    started = int(_server_in(mark)[1]) / os.sysconf("SC_CLK_TCK")
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - started
    return age < _FIRST_STARTS and os.access(_FOLDER, os.W_OK) and not mark.exists()


def open_source(config: Config) -> Source:
    """Return the source of a file, a folder, a mapping or a URL. Raises ConfigurationError for a malformed URL."""
    if isinstance(config, Mapping):
        return MappingSource(config)
    path = os.fspath(config)
    scheme, separator, _ = path.partition("://")
    if not separator or scheme not in STORES or STORES[scheme].decides:
        return FilesSource(path)
    from ratelimit_mw.reload.database import RulesDatabase  # imported late: it is a source itself

    try:
        return RulesDatabase(path)
    except ValueError as error:
        raise ConfigurationError([Problem(f"rules: {error}")]) from None


class Loader:
    """Reads the rules of a configuration. It remembers its own documents, but not which rules are in force.

    If the configuration has `rules: {source: …}`, it is the *frame* of the rules that are in the database at that URL.
    The sections of the frame, such as `storage`, apply to these rules.
    """

    def __init__(self, config: Config, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._source = open_source(config)
        self._database: Source | None = None
        self._url: str | None = None
        self._top: RulesSnapshot | None = None
        self._own: Rules | ConfigurationError | None = None
        """The rules of the configuration itself, or why it is unusable."""
        self._is_mapping = isinstance(config, Mapping)
        # A mapping has no name. Its stored rules are identified by its rules database, if it has one.
        path = "" if isinstance(config, Mapping) else os.fspath(config)
        self._config = path if not path or "://" in path else os.path.abspath(path)  # noqa: PTH100  keeps symbolic links
        self._once = Once()

    @property
    def name(self) -> str:
        """The name of the source in logs."""
        return (self._database or self._source).name

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources to watch: the configuration, and the database if the configuration names one."""
        return (self._source, self._database) if self._database else (self._source,)

    @property
    def frame(self) -> Rules | None:
        """The rules of a frame alone. They limit nothing. None if the configuration names no database."""
        return None if self._own is None or isinstance(self._own, ConfigurationError) or not self._url else self._own

    def fetch(self) -> Kept:
        """Return the newest documents. Raises ConfigurationError if they cannot be read."""
        top = _fetched(self._source)
        if top is not self._top:
            own: Rules | ConfigurationError
            try:
                own = self._compiled(top)
                self._use_database(own.source)
            except ConfigurationError as error:
                own = error
            self._top, self._own = top, own
        if self._database is None or isinstance(self._own, ConfigurationError):
            return Kept(None, top)
        return Kept(top, _fetched(self._database))

    def compiled(self, kept: Kept) -> Rules:
        """Return the rules of these documents. Raises ConfigurationError if they are unusable."""
        if kept.rules is self._top and self._own is not None:
            if isinstance(self._own, ConfigurationError):
                raise self._own
            return self._own
        return self._compiled(kept.rules, kept.frame)

    def store(self, kept: Kept) -> None:
        """Store the text of rules that can be used, for workers that the same server starts later. Never raises."""
        path = self._stored_at()
        if path is None or len(_texts(kept.rules)) < len(kept.rules.documents):  # mappings have no text
            return
        own = kept._replace(frame=None) if self._is_mapping else kept
        new = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
        with contextlib.suppress(OSError):
            _remove_ended(path.name)
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
                json.dump([each and (each.version, _texts(each)) for each in own], stream)
            new.replace(path)

    def stored(self) -> Kept | None:
        """Return the rules that a worker of the same server has stored. None if there are none. Never raises."""
        path = self._stored_at()
        if path is None:
            return None
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as stream:
                found = os.fstat(stream.fileno())
                if found.st_uid != os.geteuid() or found.st_mode & 0o077 or not stat.S_ISREG(found.st_mode):
                    return None
                kept = Kept(*[each and _snapshot(*each) for each in json.load(stream)])
        except (OSError, ValueError, TypeError, AttributeError):
            return None
        return kept._replace(frame=self._top) if self._is_mapping else kept

    def _stored_at(self) -> Path | None:
        return _file_for(self._config or self._url or "")

    def close(self) -> None:
        """Close the sources."""
        for source in self.sources:
            source.close()

    def _compiled(self, snapshot: RulesSnapshot, frame: RulesSnapshot | None = None) -> Rules:
        around = frame.documents[0] if frame else None
        return load_documents(snapshot.documents, environ=self._environ, frame=around, once=self._once)

    def _use_database(self, url: str | None) -> None:
        if url != self._url:
            if self._database is not None:
                self._database.close()
            self._database, self._url = None if url is None else open_source(url), url


def _fetched(source: Source) -> RulesSnapshot:
    snapshot = source.fetch()
    if not snapshot.documents:
        message = f"the rules database {source.name} is empty"
        raise ConfigurationError([Problem(message, hint="fill it with: ratelimit-mw rules push")])
    return snapshot
