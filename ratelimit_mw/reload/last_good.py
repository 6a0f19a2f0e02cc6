"""Stores the last good rules of a running server, for a worker that starts while the file is broken. Linux only.

They are in a file in `/dev/shm`, which is empty after a boot. Its name identifies the server and the configuration.
An empty file beside it notes that a worker has started, so that a later one does not fail because of the store.
"""

import contextlib
import json
import os
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from ratelimit_mw.config.documents import Config, Document
from ratelimit_mw.errors import PermanentFault, StoreUnavailable
from ratelimit_mw.reload.source import Snapshot

_FOLDER = Path("/dev/shm")  # noqa: S108  files are opened without following links, and their owner is checked

_FORKED = 0x40
"""The kernel's flag PF_FORKNOEXEC: this process is a fork that still runs the program of its parent."""


class Kept(NamedTuple):
    """The stored rules. If they are in a database, `frame` is the file that refers to it."""

    frame: Snapshot | None
    rules: Snapshot


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
        """Return the path of the file. None if this process is not a worker of a server."""
        server = _server()
        if server is None:
            return None
        # The configuration is hashed, because a URL may contain a password.
        digest = blake2b((self._config or database or "").encode("utf-8", "surrogateescape"), digest_size=16)
        return _FOLDER / f"ratelimit_mw-{os.geteuid()}-{server}-{digest.hexdigest()}"


_FIRST_STARTS = 60.0
"""Seconds from the start of a server after which a worker that starts is one that is started again."""


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
    server = _server()
    try:
        yield
    except StoreUnavailable as error:
        if _starts_first(server, url):
            remedy = f": {error.remedy}" if isinstance(error, PermanentFault) else ""
            raise StoreUnavailable(f"storage.required is true, and the store is away ({error}){remedy}") from error
    if server is not None:
        with contextlib.suppress(OSError):
            os.close(os.open(_mark(server, url), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))


def _starts_first(server: str | None, url: str) -> bool:
    if server is None:
        return Path("/proc/self/stat").exists()
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(server.split("-")[2]) / os.sysconf("SC_CLK_TCK")
    return age < _FIRST_STARTS and os.access(_FOLDER, os.W_OK) and not _mark(server, url).exists()


def _mark(server: str, url: str) -> Path:
    digest = blake2b(url.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
    return _FOLDER / f"ratelimit_mw-{os.geteuid()}-{server}-{digest}.started"


def _server() -> str | None:
    """Return the namespace, the id and the start of the process that started this worker. None if this is no worker.

    A worker is a fork that runs the program of its parent (gunicorn, uWSGI), or a child of Python's multiprocessing
    (uvicorn, hypercorn, granian). A process that a shell, an init system or a supervisor starts is not a worker. It
    must not use stored rules, although its parent may have the same process id each time.
    """
    parent = os.getppid()
    process = sys.modules.get("multiprocessing.process")  # a child of multiprocessing has imported it
    starter = process.parent_process() if process else None
    try:
        started = _proc_stat(str(parent))[19]
        # A daemon is a fork, too. Unlike a worker, it has left the session of its parent.
        forked = bool(int(_proc_stat("self")[6]) & _FORKED) and os.getsid(0) == os.getsid(parent)
        if not forked and (starter is None or starter.pid != parent):
            return None
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except (OSError, AttributeError):  # no /proc, no sessions
        return None
    return f"{namespace}-{parent}-{started}" if os.getppid() == parent else None


def _proc_stat(pid: str) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the third on. The second is a name, which may contain spaces."""
    text = Path("/proc", pid, "stat").read_text("utf-8", "replace")
    return text[text.rindex(")") + 2 :].split()


def _remove_ended(name: str) -> None:
    """Remove the files of this user's servers that have ended, in the namespace of process ids in `name`."""
    own = "-".join(name.split("-")[:3])
    for each in _FOLDER.glob(f"*{own}-*"):
        with contextlib.suppress(OSError, ValueError):  # another user may have made the name
            pid, started = each.name.split("-")[3:5]
            if not Path("/proc", pid).exists() or _proc_stat(pid)[19] != started:
                each.unlink()


def _texts(snapshot: Snapshot) -> list[tuple[str, str]]:
    return [(name, content.decode()) for name, content in snapshot.documents if isinstance(content, bytes)]


def _snapshot(version: str, files: list[tuple[str, str]]) -> Snapshot:
    return Snapshot(version, tuple([Document(name, text.encode()) for name, text in files]))
