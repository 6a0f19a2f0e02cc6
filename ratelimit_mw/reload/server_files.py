"""What the workers of one server leave for each other in files: the last good rules, and that one has started.

The last good rules are for a worker that starts while the file is broken. Linux only: the files are in `/dev/shm`,
which is empty after a boot. Their names identify the server and the configuration.
"""

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from ratelimit_mw.config.load import Config, Document
from ratelimit_mw.errors import PermanentFault, StoreUnavailable
from ratelimit_mw.process_local import proc_stat, server_of_worker
from ratelimit_mw.reload.source import RulesSnapshot

_FOLDER = Path("/dev/shm")  # noqa: S108  files are opened without following links, and their owner is checked

_FIRST_STARTS = 60.0
"""Seconds from the start of a server after which a worker that starts is one that is started again."""


class Kept(NamedTuple):
    """The stored rules. If they are in a database, `frame` is the file that refers to it."""

    frame: RulesSnapshot | None
    rules: RulesSnapshot


class LastGood:
    """The last good text of one configuration, shared by the workers of one server.

    No method raises. If nothing can be stored or read, a worker starts without these rules.
    """

    def __init__(self, config: Config) -> None:
        # A mapping has no name. It is identified by its rules database, if it has one, which is an argument of `store`.
        path = "" if isinstance(config, Mapping) else os.fspath(config)
        self._config = path if not path or "://" in path else os.path.abspath(path)  # noqa: PTH100  keeps symbolic links

    def store(self, kept: Kept, database: str | None) -> None:
        """Store rules that this process can use. `database` is the URL of the rules database, if there is one."""
        path = self._path(database)
        if path is None or len(_texts(kept.rules)) < len(kept.rules.documents):  # mappings have no text
            return
        new = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
        with contextlib.suppress(OSError):
            _remove_ended(path.name)
            with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
                json.dump([each and (each.version, _texts(each)) for each in kept], stream)
            new.replace(path)

    def load(self, database: str | None) -> Kept | None:
        """Return the rules that a worker of the same server has stored. None if there are none."""
        path = self._path(database)
        if path is None:
            return None
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as stream:
                found = os.fstat(stream.fileno())
                if found.st_uid != os.geteuid() or found.st_mode & 0o077 or not stat.S_ISREG(found.st_mode):
                    return None
                return Kept(*[each and _snapshot(*each) for each in json.load(stream)])
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    def _path(self, database: str | None) -> Path | None:
        return _file_for(self._config or database or "")


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
def starting(url: str, *, required: bool) -> Iterator[None]:
    """Ignore that a store is away when a server starts, unless it is required and the server starts for the first time.

    A process that is no worker is the server itself, so each of its starts is the first. A worker starts for the first
    time if its server is less than a minute old and no other worker has started. Where a worker cannot be told from a
    server, or its start cannot be noted, no start fails.

    Args:
        url: The URL of the store.
        required: Whether the store is required.

    Raises:
        StoreUnavailable: The store is away, and the start must fail.
    """
    if not required:
        with contextlib.suppress(StoreUnavailable):
            yield
        return
    mark = _file_for(f"started {url}")
    try:
        yield
    except StoreUnavailable as error:
        if _starts_first(mark):
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
