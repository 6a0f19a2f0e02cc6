"""Records in a small file beside the data file: the overrides and the kill switch.

The file is JSON. A writer locks it, and replaces it by a complete new file. A reader needs no lock. The file stays when
the data file is deleted, and it is kept over a reboot if its folder is.
"""

import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.stores.records import Texts, read_from, write_to
from ratelimit_mw.stores.shared.file import create, names, open_permitted
from ratelimit_mw.stores.shared.location import Location

_PATIENCE = 1.0  # seconds for one call
_PAUSE = 0.001  # seconds between two attempts to lock the file


class FileRecords:
    """See `Records`.

    Args:
        url: an lmdb:// URL.

    Raises:
        ValueError: the URL is malformed.
    """

    def __init__(self, url: str) -> None:
        self._location = Location.parse(url)

    @property
    def name(self) -> str:
        """See `Records`."""
        return self._location.records

    def version(self, key: str) -> int:
        """See `Records`."""
        return self.read(key)[0]

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

    def close(self) -> None:
        """Do nothing: the file is open only during a call."""

    def _create(self, content: bytes, *, replace: bool = False) -> None:
        create(self.name, self._location.mode, lambda path, _: Path(path).write_bytes(content), replace=replace)


def _parsed(raw: bytes) -> Texts:
    try:
        return {
            str(key): (int(version), {str(name): str(text) for name, text in texts.items()})
            for key, (version, texts) in json.loads(raw).items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise StoreUnavailable("the file of the overrides can't be read") from None
