"""Keeps the last good rules of a running server, for a worker that starts while the file is broken."""

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
"""The kernel's PF_FORKNOEXEC: this process is a fork that still runs its parent's program."""

_STALE = 7 * 86_400
"""Seconds after which a file that was not refreshed is removed, whether or not its server still runs."""

_WRITING = 60
"""The longest time that a write takes, in seconds. An older temporary file was left by a process that died."""

_REFRESH = 3_600
"""Seconds between two refreshes. Some systems remove files from the temporary folder after some days."""

_LARGEST = 256 * 1024 * 1024
"""The most bytes that are read."""


class Kept(NamedTuple):
    """The stored rules, and the file that refers to them if they are in a database."""

    frame: Snapshot | None
    rules: Snapshot


class LastGood:
    """The last good text of one configuration, shared by the workers of one server.

    No method raises. If nothing can be stored or read, a worker starts without these rules. A folder that another user
    could have prepared is refused, and this is logged once.
    """

    def __init__(self, config: Config) -> None:
        # A mapping has no name. The rules database that it may point to is told by `leave` and `take`.
        self._config = "" if isinstance(config, Mapping) else _absolute(os.fspath(config))
        self._text: bytes | None = None
        self._refreshed_at = 0.0
        self._warned = False

    def leave(self, kept: Kept, database: str | None, *, over: bool) -> None:
        """Leave `kept` for later workers. With `over`, it replaces what another worker has left.

        Args:
            kept: What this process loaded, and can use.
            database: The URL of the rules database that the configuration names, if any.
            over: Whether a text that is there already is replaced.
        """
        self._text = None
        text = _packed(kept)
        server = _server() if text else None
        if text is None or server is None:
            return
        self._text = text
        self._refreshed_at = time.monotonic()
        name = self._name(server, database)

        def leave(folder: int) -> None:
            _remove_stale(folder, server)
            if over or not _exists(folder, name):
                _write(folder, name, text)

        self._in_folder(leave)

    def take(self, database: str | None) -> Kept | None:
        """The rules that a worker of the same server has stored; None if none can be trusted and read."""
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
        """Update the file's time, at most once an hour, so that it is not removed. Write it again if it is gone."""
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
        """The file's name. The configuration is hashed, because a URL may hold a password."""
        identity = (self._config or database or "").encode("utf-8", "surrogateescape")
        digest = blake2b(identity, digest_size=16).hexdigest()
        return f"{server.prefix}-{server.parent}-{server.started}-{digest}.json"

    def _in_folder(self, work: Callable[[int], T]) -> T | None:
        """What `work` returns for a descriptor of the folder; None if it fails."""
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
    """The folder, or a file in it, may have been prepared by another user."""


class _Server(NamedTuple):
    """The running server that started this process: its pid, and its start in clock ticks since boot.

    `prefix` names this boot and this namespace of pids: only there do the two numbers name one process.
    """

    prefix: str
    parent: int
    started: int


def _server() -> _Server | None:
    """The server that started this process as a worker; None if there is none, or if it is unknown.

    A worker is a fork that runs its parent's program (gunicorn, uWSGI), or a child of Python's multiprocessing
    (uvicorn, hypercorn, granian). What a shell, an init system or a supervisor starts is neither: that is a fresh
    start, though the parent's pid may be the same each time.
    """
    parent = os.getppid()
    try:
        own, started = _proc_stat("self"), int(_proc_stat(str(parent))[19])
        # A daemon is a fork, too, but has left its parent's session.
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
    """The fields of /proc/<pid>/stat from the third on; the second, the program's name, may hold anything."""
    text = Path("/proc", pid, "stat").read_text("utf-8", "replace")
    return text[text.rindex(")") + 2 :].split()


def _multiprocessing_parent() -> int | None:
    process = sys.modules.get("multiprocessing.process")  # a child of multiprocessing has imported it
    parent = process.parent_process() if process else None
    return parent.pid if parent else None


def _open_folder() -> int:
    """A descriptor of the folder, which is made where it is not there. Raises _Unsafe, OSError."""
    path = _place()
    with contextlib.suppress(FileExistsError):
        path.mkdir(0o700)
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        raise _Unsafe(f"{path} is not a folder, or a symbolic link to one") from None
    try:
        _insist_on_ours(os.fstat(folder), str(path))
    except BaseException:
        os.close(folder)
        raise
    return folder


def _place() -> Path:
    """The user's runtime folder, where there is one that is really theirs; else the temporary folder."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if Path(runtime).is_absolute():
        with contextlib.suppress(OSError, _Unsafe):  # of another user, for instance after `sudo -u`
            _insist_on_ours(os.lstat(runtime), runtime)
            return Path(runtime, "ratelimit_mw")
    import tempfile  # imported late: only a server's workers want it

    return Path(tempfile.gettempdir(), f"ratelimit_mw-{os.geteuid()}")


def _insist_on_ours(found: os.stat_result, path: str) -> None:
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
    """Write it whole or not at all: a reader sees the old text or the new one."""
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
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as stream:
        found = os.fstat(stream.fileno())
        _insist_on_ours(found, name)
        if not stat.S_ISREG(found.st_mode):
            raise _Unsafe(f"{name} is not a file")
        return stream.read(_LARGEST)


def _remove_stale(folder: int, server: _Server) -> None:
    """Remove what was left for parents that are gone, and what no process has refreshed for a week."""
    for name in os.listdir(folder):
        with contextlib.suppress(OSError, ValueError, IndexError):
            age = time.time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime
            half_written = name.startswith(".") and age > _WRITING
            if age > _STALE or half_written or _is_gone(name, server):
                os.unlink(name, dir_fd=folder)


def _is_gone(name: str, server: _Server) -> bool:
    """Whether the parent that a name speaks of has ended, as far as this process can see."""
    prefix, parent, started, *_ = name.lstrip(".").split("-")
    if prefix != server.prefix:  # another boot, or a namespace whose processes are not seen from here
        return False
    try:
        return int(_proc_stat(str(int(parent)))[19]) != int(started)
    except FileNotFoundError:
        return True


def _packed(kept: Kept) -> bytes | None:
    """What is written; None where rules were given in code, which are no text."""
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
        logger.debug("what a worker has left can't be read")
        return None


def _snapshot(written: dict[str, object]) -> Snapshot:
    version, files = written["version"], written["files"]
    if not isinstance(version, str) or not isinstance(files, list) or not files:
        raise TypeError
    return Snapshot(version, tuple(Document(name, content.encode()) for name, content in files))


def _absolute(path: str) -> str:
    return path if "://" in path else os.path.abspath(path)  # noqa: PTH100  a symbolic link is part of the name
