"""Opens logs: files, compressed files and standard input. Their lines are read in blocks of whole lines."""

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, Self

from ratelimit_mw.foresight.logs.entry import Entry, Format, Unreadable
from ratelimit_mw.foresight.logs.formats import UnknownFormat, find_format

_BLOCK = 1 << 18
"""Bytes that are read at once."""

_LONGEST = 1 << 20
"""The most bytes of a line. A longer line is unreadable, and is not kept in memory."""

_SAMPLE = 1000
"""The number of lines that tell the format."""

_DECOMPRESSORS: Sequence[tuple[bytes, Any]] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\x00", lzma.open),
)
"""How files begin that are compressed, and what opens them. The names of files say less: rotated logs have any."""

STANDARD_INPUT = "-"


class Log:
    """One log: a file, which may be compressed by gzip, bzip2 or xz, or standard input.

    Args:
        path: The path of the file, or "-" for standard input.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._raw: IO[bytes] = sys.stdin.buffer if path == STANDARD_INPUT else Path(path).open("rb")  # noqa: SIM115
        self.size = 0 if path == STANDARD_INPUT else Path(path).stat().st_size
        """The bytes of the file. 0 if they are unknown."""
        self._head: list[bytes] = []
        self._blocks = self._read()
        self.unreadable = Unreadable()
        """Counts the lines that could not be read."""
        self.format: Format | None = None
        """The format, after `detect`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def position(self) -> int:
        """The number of bytes of the file that were read."""
        if self._raw.closed:
            return self.size
        return self._raw.tell() if self.size else 0

    def close(self) -> None:
        """Close the file. Standard input stays open."""
        if self.path != STANDARD_INPUT:
            self._raw.close()

    def detect(self, wanted: str, places: Mapping[str, str]) -> Format:
        """Find the format of the log. See `find_format` for the arguments.

        Raises:
            UnknownFormat: The format is not known.
            OSError: The file cannot be read.
        """
        lines: list[str] = []
        for block in self._blocks:
            self._head.append(block)
            lines += block.decode("utf-8", "replace").split("\n")
            if len(lines) > _SAMPLE:
                break
        self.format = find_format(wanted, list(islice((line for line in lines if line.strip()), _SAMPLE)), places)
        return self.format

    def entries(self, wanted: Sequence[str]) -> Iterator[list[Entry]]:
        """Read the log after `detect`: yield the requests of one block after the other.

        Args:
            wanted: The fields to read, see `Format.reader`.

        Raises:
            OSError: The file cannot be read, or is damaged.
        """
        if self.format is None:
            raise UnknownFormat("the format is not known yet")
        reader = self.format.reader(wanted, self.unreadable)
        while self._head:
            yield reader.read(self._head.pop(0))
        for block in self._blocks:
            yield reader.read(block)

    def _read(self) -> Iterator[bytes]:
        """Yield blocks of whole lines. Raises OSError for a damaged file, too."""
        try:
            yield from self._lines(self._opened())
        except (EOFError, zlib.error, lzma.LZMAError) as error:
            raise OSError(f"{self.path} is damaged: {error}") from error

    def _opened(self) -> IO[bytes]:
        if self.path == STANDARD_INPUT:
            peek = getattr(self._raw, "peek", None)
            start = peek(8) if peek is not None else b""
        else:
            start = self._raw.read(8)
            self._raw.seek(0)
        opener = next((opener for magic, opener in _DECOMPRESSORS if start.startswith(magic)), None)
        if opener is None:
            return self._raw
        opened: IO[bytes] = opener(self._raw)
        return opened

    def _lines(self, stream: IO[bytes]) -> Iterator[bytes]:
        rest, skipping = b"", False
        while chunk := stream.read(_BLOCK):
            if skipping:  # the rest of a line that is too long
                _, newline, chunk = chunk.partition(b"\n")
                skipping = not newline
                if skipping:
                    continue
            end = chunk.rfind(b"\n") + 1
            if end:
                yield rest + chunk[:end]
                rest = chunk[end:]
            else:
                rest += chunk
            if len(rest) > _LONGEST:
                self.unreadable.add(rest[:1000].decode("utf-8", "replace"))
                rest, skipping = b"", True
        if rest:
            yield rest + b"\n"
