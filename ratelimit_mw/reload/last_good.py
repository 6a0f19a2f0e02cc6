"""Stores the last good rules of a running server, for a worker that starts while the file is broken.

The rules are in a file of a folder that only this user can access. The name of the file identifies the server process
that starts the workers, and the configuration.
"""

import contextlib
import json
import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, TypeVar

from ratelimit_mw.config.documents import Config, Document
from ratelimit_mw.reload.source import Snapshot

T = TypeVar("T")

logger = logging.getLogger("ratelimit_mw")

_FORKED = 0x40
"""The kernel's flag PF_FORKNOEXEC: this process is a fork that still runs the program of its parent."""

_STALE = 7 * 86_400
"""Seconds after which a file that was not refreshed is removed, whether or not its server still runs."""

_WRITING = 60
"""Seconds after which a temporary file is removed: the process that wrote it has died."""

_REFRESH = 3_600
"""Seconds between two refreshes of a file. Some systems remove old files from the temporary folder."""

_LARGEST = 256 * 1024 * 1024
"""The most bytes of a file that are read."""


class Kept(NamedTuple):
    """The stored rules. If they are in a database, `frame` is the file that refers to it."""

    frame: Snapshot | None
    rules: Snapshot


class LastGood:
    """The last good text of one configuration, shared by the workers of one server.

    No method raises. If nothing can be stored or read, a worker starts without these rules. A folder that another user
    could have prepared is refused, and this is logged once.
    """

    def __init__(self, config: Config) -> None:
        # A mapping has no name. It is identified by its rules database, if it has one, which is an argument of `store`.
        self._config = "" if isinstance(config, Mapping) else _absolute(os.fspath(config))
        self._text: bytes | None = None
        self._refreshed_at = 0.0
        self._warned = False

    def store(self, kept: Kept, database: str | None, *, overwrite: bool) -> None:
        """Store rules for workers that start later.

        Args:
            kept: The rules. This process can use them.
            database: The URL of the rules database that the configuration names. None if it names none.
            overwrite: True replaces the rules that another worker has stored.
        """
        self._text = None
        text = _packed(kept)
        server = _server() if text else None
        if text is None or server is None:
            return
        self._text = text
        self._refreshed_at = time.monotonic()
        name = self._name(server, database)

        def store(folder: int) -> None:
            _remove_stale(folder, server)
            if overwrite or not _exists(folder, name):
                _write(folder, name, text)

        self._in_folder(store)

    def load(self, database: str | None) -> Kept | None:
        """Return the rules that a worker of the same server has stored. None if none can be trusted."""
        server = _server()
        if server is None:
            return None
        name = self._name(server, database)
        text = self._in_folder(lambda folder: _read(folder, name) if _exists(folder, name) else None)
        kept = _unpacked(text) if text else None
        if kept is not None:
            self._text = text
        return kept

    def refresh(self, database: str | None) -> None:
        """Update the time of the file once an hour, so that it is not removed. Write it again if it is gone."""
        text = self._text
        if text is None or time.monotonic() - self._refreshed_at < _REFRESH:
            return
        self._refreshed_at = time.monotonic()
        server = _server()
        if server is None:
            return
        name = self._name(server, database)

        def refresh(folder: int) -> None:
            if _exists(folder, name):
                os.utime(name, dir_fd=folder, follow_symlinks=False)
            else:
                _write(folder, name, text)

        self._in_folder(refresh)

    def _name(self, server: "_Server", database: str | None) -> str:
        """Return the name of the file. The configuration is hashed, because a URL may contain a password."""
        identity = (self._config or database or "").encode("utf-8", "surrogateescape")
        digest = blake2b(identity, digest_size=16).hexdigest()
        return f"{server.prefix}-{server.parent}-{server.started}-{digest}.json"

    def _in_folder(self, work: Callable[[int], T]) -> T | None:
        """Call `work` with a descriptor of the folder, and return its result. None if the folder cannot be used."""
        try:
            folder = _open_folder()
            try:
                return work(folder)
            finally:
                os.close(folder)
        except _Unsafe as error:
            if not self._warned:
                self._warned = True
                logger.warning("the last good rules can't be kept for new workers: %s", error)
        except OSError as error:
            logger.debug("the last good rules can't be kept for new workers: %s", error)
        return None


class _Unsafe(Exception):
    """Raised if the folder, or a file in it, may have been prepared by another user."""


class _Server(NamedTuple):
    """The running server that started this process.

    Attributes:
        prefix: A hash of the boot and of the namespace of process ids, because ids are unique only there.
        parent: The process id of the server.
        started: The start of the server, in clock ticks since boot. A later process may have the same id.
    """

    prefix: str
    parent: int
    started: int


def _server() -> _Server | None:
    """Return the server that started this process as a worker. None if this process is not a worker.

    A worker is a fork that runs the program of its parent (gunicorn, uWSGI), or a child of Python's multiprocessing
    (uvicorn, hypercorn, granian). A process that a shell, an init system or a supervisor starts is not a worker. It
    must not use stored rules, although its parent may have the same process id each time.
    """
    parent = os.getppid()
    try:
        own, started = _proc_stat("self"), int(_proc_stat(str(parent))[19])
        # A daemon is a fork, too. Unlike a worker, it has left the session of its parent.
        forked = bool(int(own[6]) & _FORKED) and os.getsid(0) == os.getsid(parent)
        if not forked and parent != _multiprocessing_parent():
            return None
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    prefix = blake2b(b"%b %d" % (boot.strip(), namespace), digest_size=6).hexdigest()
    return _Server(prefix, parent, started) if os.getppid() == parent else None


def _proc_stat(pid: str) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the third on. The second is a name, which may contain spaces."""
    text = Path("/proc", pid, "stat").read_text("utf-8", "replace")
    return text[text.rindex(")") + 2 :].split()


def _multiprocessing_parent() -> int | None:
    process = sys.modules.get("multiprocessing.process")  # a child of multiprocessing has imported it
    parent = process.parent_process() if process else None
    return parent.pid if parent else None


def _open_folder() -> int:
    """Return a descriptor of the folder. Make the folder if it does not exist. Raises _Unsafe or OSError."""
    path = _folder_path()
    with contextlib.suppress(FileExistsError):
        path.mkdir(0o700)
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        raise _Unsafe(f"{path} is not a folder, or is a symbolic link") from None
    try:
        _check_ownership(os.fstat(folder), str(path))
    except BaseException:
        os.close(folder)
        raise
    return folder


def _folder_path() -> Path:
    """Return a path in the user's runtime folder, if only this user can access it, or in the temporary folder."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if Path(runtime).is_absolute():
        with contextlib.suppress(OSError, _Unsafe):  # it belongs to another user, for example after `sudo -u`
            _check_ownership(os.lstat(runtime), runtime)
            return Path(runtime, "ratelimit_mw")
    import tempfile  # imported late: only workers of a server need it

    return Path(tempfile.gettempdir(), f"ratelimit_mw-{os.geteuid()}")


def _check_ownership(found: os.stat_result, path: str) -> None:
    """Raise _Unsafe if another user owns the file or folder, or can access it."""
    if found.st_uid != os.geteuid():
        raise _Unsafe(f"{path} belongs to another user")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise _Unsafe(f"{path} is open to other users (mode {stat.S_IMODE(found.st_mode):03o})")


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _write(folder: int, name: str, text: bytes) -> None:
    """Replace the file in one step, so that a reader sees the old text or the new one."""
    new = f".{name}.{os.getpid()}.{os.urandom(4).hex()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(new, flags, 0o600, dir_fd=folder), "wb") as stream:
        try:
            stream.write(text)
            stream.flush()
            os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new, dir_fd=folder)
            raise


def _read(folder: int, name: str) -> bytes:
    """Return the content of a file. Raises _Unsafe if another user may have written it."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as stream:
        found = os.fstat(stream.fileno())
        _check_ownership(found, name)
        if not stat.S_ISREG(found.st_mode):
            raise _Unsafe(f"{name} is not a file")
        return stream.read(_LARGEST)


def _remove_stale(folder: int, server: _Server) -> None:
    """Remove the files of servers that have ended, and the files that no process has refreshed for a week."""
    for name in os.listdir(folder):
        with contextlib.suppress(OSError, ValueError, IndexError):
            age = time.time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
            half_written = name.startswith(".") and age > _WRITING
            if age > _STALE or half_written or _has_ended(name, server):
                os.unlink(name, dir_fd=folder)


def _has_ended(name: str, server: _Server) -> bool:
    """Return True if the server in the name of a file has ended. False if this process cannot know."""
    prefix, parent, started, *_ = name.lstrip(".").split("-")
    if prefix != server.prefix:  # another boot, or another namespace, whose processes are not visible here
        return False
    try:
        return int(_proc_stat(str(int(parent)))[19]) != int(started)
    except FileNotFoundError:
        return True


def _packed(kept: Kept) -> bytes | None:
    """Return the text to write. None for a mapping from code, which has no text."""
    rules = _texts(kept.rules)
    if rules is None:
        return None
    written = {"frame": kept.frame and _texts(kept.frame), "rules": rules}
    return json.dumps(written, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _texts(snapshot: Snapshot) -> dict[str, object] | None:
    files = [(name, content.decode()) for name, content in snapshot.documents if isinstance(content, bytes)]
    return {"version": snapshot.version, "files": files} if len(files) == len(snapshot.documents) else None


def _unpacked(text: bytes) -> Kept | None:
    try:
        written = json.loads(text.decode("utf-8", "surrogatepass"))
        frame = written["frame"]
        return Kept(None if frame is None else _snapshot(frame), _snapshot(written["rules"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        logger.debug("the stored rules of a worker can't be read")
        return None


def _snapshot(written: dict[str, object]) -> Snapshot:
    version, files = written["version"], written["files"]
    if not isinstance(version, str) or not isinstance(files, list) or not files:
        raise TypeError
    return Snapshot(version, tuple(Document(name, content.encode()) for name, content in files))


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)  # noqa: PTH100  symbolic links must not be resolved
