"""The URL of a shared store: which file has the counters, which users may use it, and how large it may grow."""

import os
import re
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

DEFAULT_SIZE = 256 << 20
"""The size of the map in bytes. A counter takes about 106 bytes, so it holds the default of a million counters."""

FORMAT = 2
"""The version of the format of the file."""

FREE = 512 << 10
"""The bytes of the file that are on the disk from the beginning, and stay free for copies of pages."""

_MIN_SIZE = 1 << 20
_MAX_SIZE = 1 << 40
_GRANULE = 1 << 16  # a multiple of the page size of all systems
_SIZE = re.compile(r"(\d{1,9})([KMG]B?)?", re.IGNORECASE)
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MODES = {"600": 0o600, "660": 0o660}
_MAX_NAME = 150  # bytes; the names of files end with more
_MEMORY = Path("/dev/shm")  # noqa: S108  the files in it are checked before they are used


class Location(NamedTuple):
    """A data file.

    Attributes:
        file: The absolute path, without its end if `named`.
        mode: The permissions: 0o600, or 0o660 to share it with the group.
        size: The largest size in bytes.
        named: Whether the file is in a folder of all users. Its path then ends with the id of its owners and the
            version of the format, so that neither two users nor two versions of the package want the same file.
    """

    file: str
    mode: int = 0o600
    size: int = DEFAULT_SIZE
    named: bool = False

    @classmethod
    def parse(cls, url: str) -> "Location":
        """Read `lmdb://name`, `lmdb:///absolute/path` or `lmdb://`, with the options `?mode=660&size=64MB`.

        Raises:
            ValueError: the URL is malformed.
        """
        parts = urlsplit(url)
        name, path = unquote(parts.netloc), unquote(parts.path)
        if "\0" in name + path or path.endswith("/") or (name and path) or parts.fragment:
            raise ValueError("an lmdb URL has the name or the path of a file: lmdb://name or lmdb:///run/app/limits")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        mode, size = options.get("mode", "600"), _size(options["size"]) if "size" in options else DEFAULT_SIZE
        if not options.keys() <= {"mode", "size"} or mode not in _MODES or size is None:
            raise ValueError(
                "the options of an lmdb URL are mode=600, or mode=660 to share the file with the group, and size=64MB, "
                f"from 1MB to 1024GB, not {parts.query!r}"
            )
        file = Path(path) if path else _folder() / _file_name(name)
        path = str(file.parent.resolve() / file.name)  # a symbolic link may lead to the folder, but not to the file
        return cls(path, _MODES[mode], size, not parts.path)

    @property
    def path(self) -> str:
        """The absolute path for the present user, which a server may change after the URL was parsed."""
        if not self.named:
            return self.file
        owner = f"g{os.getegid()}" if self.mode & 0o060 else f"u{os.geteuid()}"
        return f"{self.file}.{owner}.v{FORMAT}.lmdb"

    @property
    def records(self) -> str:
        """The path of the second file, which has the overrides and the kill switch."""
        return f"{self.path}.overrides"


def _size(text: str) -> int | None:
    """The size in bytes, rounded up to whole pages. None if it is out of range."""
    match = _SIZE.fullmatch(text)
    size = int(match[1]) * _FACTORS[(match[2] or "")[:1].upper()] if match else 0
    return -(-size // _GRANULE) * _GRANULE if _MIN_SIZE <= size <= _MAX_SIZE else None


def _folder() -> Path:
    """A folder in memory, or that of temporary files."""
    return _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def _file_name(name: str) -> str:
    quoted = quote(name, safe="")
    if len(quoted) > _MAX_NAME:
        quoted = blake2b(name.encode(), digest_size=16).hexdigest()
    return f"ratelimit_mw-{quoted}" if quoted else "ratelimit_mw"
