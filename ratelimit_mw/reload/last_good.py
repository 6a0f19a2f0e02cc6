"""Stores the last good rules of a running server, for a worker that starts while the file is broken. Linux only.

They are in a file in `/dev/shm`, which is empty after a boot. Its name identifies the server and the configuration.
"""

import contextlib
import json
import os
import stat
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from ratelimit_mw.config.load import Config, Document
from ratelimit_mw.process_local import proc_stat, server_of_worker
from ratelimit_mw.reload.source import RulesSnapshot

FOLDER = Path("/dev/shm")  # noqa: S108  files are opened without following links, and their owner is checked


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
        """Return the path of the file. None if this process is not a worker of a server."""
        server = server_of_worker()
        if server is None:
            return None
        # The configuration is hashed, because a URL may contain a password.
        digest = blake2b((self._config or database or "").encode("utf-8", "surrogateescape"), digest_size=16)
        return FOLDER / f"ratelimit_mw-{os.geteuid()}-{server}-{digest.hexdigest()}"


def _remove_ended(name: str) -> None:
    """Remove the files of this user's servers that have ended, in the namespace of process ids in `name`."""
    own = "-".join(name.split("-")[:3])
    for each in FOLDER.glob(f"*{own}-*"):
        with contextlib.suppress(OSError, ValueError):  # another user may have made the name
            pid, started = each.name.split("-")[3:5]
            if not Path("/proc", pid).exists() or proc_stat(pid)[19] != started:
                each.unlink()


def _texts(snapshot: RulesSnapshot) -> list[tuple[str, str]]:
    return [(name, content.decode()) for name, content in snapshot.documents if isinstance(content, bytes)]


def _snapshot(version: str, files: list[tuple[str, str]]) -> RulesSnapshot:
    return RulesSnapshot(version, tuple([Document(name, text.encode()) for name, text in files]))
