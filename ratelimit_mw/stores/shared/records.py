"""Small files beside the data file: the overrides and the kill switch, and what processes report to the live page.

`FileRecords` is one file of JSON. A writer locks it, and replaces it by a complete new file. A reader needs no lock.
The file stays when the data file is deleted, and it is kept over a reboot if its folder is.

`FileBoard` is a file for each process, which it replaces once a second. No process reads and writes the reports of all.
"""

import json
import os
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from glob import escape
from pathlib import Path

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.stores.base import Records, Texts, read_from, write_to
from ratelimit_mw.stores.shared.file import Location, create, names, open_permitted

_PATIENCE = 1.0  # seconds for one call
_PAUSE = 0.001  # seconds between two attempts to lock the file
_LASTS = 8.0  # seconds after which a report that is not written again is that of a process that has ended


class FileRecords(Records):
    """See `Records`.

    Args:
        url: an lmdb:// URL.

    Raises:
        ValueError: the URL is malformed.
    """

    def __init__(self, url: str) -> None:
        self._location = Location.parse(url)

    @property
    def name(self) -> str:  # type: ignore[override]  # its end is the present user, which a server may change
        """See `Records`."""
        return self._location.records

    def read(self, key: str, names: Sequence[str] | None = None) -> tuple[int, dict[str, str]]:
        """See `Records`."""
        try:
            fd = open_permitted(self.name, self._location)
        except FileNotFoundError:
            return 0, {}
        with os.fdopen(fd, "rb") as file:
            return read_from(_parsed(file.read()), key, names)

    def write(
        self, key: str, put: Mapping[str, str], drop: Collection[str] = (), *, expected: int | None = None
    ) -> int:
        """See `Records`."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                fd = open_permitted(self.name, self._location)
            except FileNotFoundError:
                self._create(b"{}")
                continue
            with os.fdopen(fd, "rb") as file:
                try:
                    flock(fd, LOCK_EX | LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise StoreUnavailable(f"another process has locked {self.name}") from None
                    time.sleep(_PAUSE)
                    continue
                if not names(self.name, fd):  # another writer has replaced it
                    continue
                content = _parsed(file.read())
                version = write_to(content, key, put, drop, expected)
                text = json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogatepass")
                self._create(text, replace=True)
                return version

    def _create(self, content: bytes, *, replace: bool = False) -> None:
        create(self.name, self._location.mode, lambda path, _: Path(path).write_bytes(content), replace=replace)


class FileBoard:
    """The reports of the processes that use a data file, each in a file of its own. See `operations.sharing.Board`.

    Args:
        url: an lmdb:// URL.

    Raises:
        ValueError: the URL is malformed.
    """

    def __init__(self, url: str) -> None:
        self._location = Location.parse(url)
        self._own = secrets.token_hex(8)

    def put(self, text: str) -> None:
        """Write the text of this process."""
        content = text.encode()
        create(
            self._path(self._own), self._location.mode, lambda path, _: Path(path).write_bytes(content), replace=True
        )

    def read(self) -> list[bytes]:
        """Return the texts of the other processes, and remove the files of those that have ended.

        Files that this user may not read are left out.
        """
        found: list[bytes] = []
        pattern = Path(self._path(""))
        for path in pattern.parent.glob(f"{escape(pattern.name)}{'[0-9a-f]' * len(self._own)}"):
            if path.name.endswith(self._own):
                continue
            with suppress(OSError, StoreUnavailable):
                with os.fdopen(open_permitted(str(path), self._location), "rb") as file:
                    lasts = time.time() - os.fstat(file.fileno()).st_mtime < _LASTS
                    found += [file.read()] if lasts else []
                if not lasts:
                    path.unlink()
        return found

    def withdraw(self) -> None:
        """Remove the text of this process."""
        Path(self._path(self._own)).unlink(missing_ok=True)

    def close(self) -> None:
        """Do nothing: files are open only during a call."""

    def _path(self, name: str) -> str:
        return f"{self._location.path}.live-{name}"


def _parsed(raw: bytes) -> Texts:
    try:
        return {
            str(key): (int(version), {str(name): str(text) for name, text in texts.items()})
            for key, (version, texts) in json.loads(raw).items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise StoreUnavailable("the file of the overrides can't be read") from None
