"""Opens logs: files, compressed files and standard input. Their requests are put in order of time.

Lines are read in blocks of whole lines. Servers write a line when a request ends, and several processes write to one
log. Lines are therefore often a little out of order.

Every text in a log may have been written by a client. No line raises an exception: an unreadable one is counted.
"""

import bz2
import gzip
import heapq
import json
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from io import SEEK_END, BufferedReader
from itertools import accumulate, chain, islice
from operator import itemgetter
from pathlib import Path
from statistics import correlation
from typing import IO, Any, cast

from ratelimit_mw.foresight.logs.entry import LogEntry, Unreadable
from ratelimit_mw.foresight.logs.formats import LineFormat, UnusableLog, find_format, proxied, read_sample
from ratelimit_mw.model import SECOND

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

_ZSTANDARD = re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")
"""How files begin that are compressed by Zstandard, or by pzstd. Python has it from 3.14 on."""

_READERS = {".gz": "zcat", ".bz2": "bzcat", ".xz": "xzcat", ".zst": "zstdcat"}
"""The commands that read compressed files."""

STANDARD_INPUT = "-"


class Log:
    """One log: a file, which may be compressed by gzip, bzip2, xz or Zstandard, or standard input.

    Args:
        path: The path of the file, or "-" for standard input.
        unreadable: Counts the lines that cannot be read.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, path: str, unreadable: Unreadable) -> None:
        self.path = path
        raw = sys.stdin.buffer if path == STANDARD_INPUT else Path(path).open("rb")  # noqa: SIM115
        self._raw = cast("BufferedReader", raw)
        self._stream: IO[bytes] = self._raw
        self._damage: type[Exception] = EOFError  # what Zstandard raises, if the file is compressed by it
        self._size = 0  # of a file that is read from its end
        self._unwrap: Callable[[bytes], bytes] | None = None
        self._blocks: Iterator[bytes] = self._read()
        self.unreadable = unreadable
        self.format: LineFormat | None = None
        """The format, after `detect`."""
        self.proxied = ""
        """A sentence, after `detect`, if the log has the address of a proxy where that of the client should be."""

    @property
    def position(self) -> int:
        """The number of bytes of the file that were read. 0 for a pipe."""
        place = self._raw.tell() if self._raw.seekable() else 0
        return self._size - place if self._size else place

    def close(self) -> None:
        """Close the file. Standard input stays open."""
        if self.path != STANDARD_INPUT:
            self._raw.close()

    def detect(self, wanted: str, places: Mapping[str, str], *, lenient: bool = False) -> LineFormat:
        """Find the format of the log. See `find_format` for the arguments.

        Raises:
            UnusableLog: The format is not known.
            OSError: The file cannot be read.
        """
        lines: list[str] = []
        head: list[bytes] = []
        for block in self._blocks:
            head.append(block)
            lines += block.decode("utf-8", "replace").split("\n")
            if len(lines) > _SAMPLE:
                break
        sample = list(islice((line for line in lines if line.strip()), _SAMPLE))
        self._unwrap = _unwrapping(sample)
        if self._unwrap is not None:
            whole = self._unwrap("".join(f"{line}\n" for line in sample).encode("utf-8", "replace"))
            sample = whole.decode("utf-8", "replace").splitlines()
        self.format = find_format(wanted, sample, places, lenient=lenient)
        self.proxied = proxied(self.format, sample)
        self._blocks = chain(head, self._blocks)
        if _is_turned(self.format, sample):
            self._turn(self.format.names_in(head[0]))
        return self.format

    def _turn(self, names: bytes) -> None:
        """Read the log from its end, after the lines at its beginning that name its values.

        Raises:
            UnusableLog: It is a stream, or compressed.
        """
        if self._stream is not self._raw or not self._raw.seekable():
            reader = f"{_READERS.get(Path(self.path).suffix, 'zcat')} {self.path}"
            source = "…" if self.path == STANDARD_INPUT else reader
            raise UnusableLog(
                f"{self.path} begins with its newest line, and a stream cannot be read from its end. "
                f"Turn it with `{source} | tac | ratelimit-mw replay - …`"
            )
        self._blocks = chain([names] if names else [], self._backwards(len(names)))

    def _backwards(self, begin: int) -> Iterator[bytes]:
        """Yield blocks of whole lines from the end of the file to a place in it, the last line first."""
        end, rest = self._raw.seek(0, SEEK_END), b""
        self._size = end
        while end > begin:
            start = max(begin, end - _BLOCK)
            self._raw.seek(start)
            rest, *lines = (self._raw.read(end - start) + rest).split(b"\n")  # the first line may begin before it
            end = start
            if lines:
                yield b"".join(line + b"\n" for line in reversed(lines))
            if len(rest) > _LONGEST:
                self.unreadable.add(rest[:1000].decode("utf-8", "replace"))
                rest = b""
        yield rest + b"\n"

    def entries(self, wanted: Sequence[str]) -> Iterator[list[LogEntry]]:
        """Read the log after `detect`: yield the requests of one block after the other.

        Args:
            wanted: The fields to read, see `PatternFormat.reader`.

        Raises:
            OSError: The file cannot be read, or is damaged.
        """
        if self.format is None:
            raise UnusableLog("the format is not known yet")
        reader = self.format.reader(wanted, self.unreadable)
        unwrap = self._unwrap or bytes
        for block in self._blocks:
            yield reader.read(unwrap(block))

    def _read(self) -> Iterator[bytes]:
        """Yield blocks of whole lines. Raises OSError for a damaged file, too."""
        try:
            yield from self._lines(self._opened())
        except (EOFError, zlib.error, lzma.LZMAError, OSError, self._damage) as error:
            if isinstance(error, OSError) and error.errno is not None:  # not what gzip and bz2 raise
                raise
            raise OSError(f"{self.path} is damaged: {error}") from error

    def _opened(self) -> IO[bytes]:
        start = self._raw.peek(8)
        opener = next((opener for magic, opener in _DECOMPRESSORS if start.startswith(magic)), None)
        if _ZSTANDARD.match(start):
            opener = self._zstandard()
        if opener is None:
            return self._raw
        opened: IO[bytes] = opener(self._raw)
        self._stream = opened
        return opened

    def _zstandard(self) -> Callable[..., IO[bytes]]:
        name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
        try:
            zstandard = import_module(name)
        except ModuleNotFoundError:
            raise UnusableLog(
                f"{self.path} is compressed by Zstandard, which needs the extra foresight: "
                "pip install 'ratelimit_mw[foresight]'"
            ) from None
        self._damage = zstandard.ZstdError
        opener: Callable[..., IO[bytes]] = zstandard.open
        return opener

    def _lines(self, stream: IO[bytes]) -> Iterator[bytes]:
        while block := stream.read(_BLOCK):
            end = b"\n" if block.endswith(b"\n") else stream.readline(_LONGEST)
            if len(end) == _LONGEST:  # the last line is too long
                whole = block.rfind(b"\n") + 1
                self.unreadable.add(block[whole : whole + 1000].decode("utf-8", "replace"))
                block = block[:whole]
                while end and not end.endswith(b"\n"):
                    end = stream.readline(_LONGEST)
            else:
                block += end
            yield block.removesuffix(b"\n") + b"\n"


_WRAPPED = re.compile(
    rb"^(?:"
    rb"[0-9T:.-]{19,35}(?:Z|[+-][0-9:]{5}) (?:std(?:out|err) [FP] )?"  # of docker with times, and of Kubernetes
    rb"|[\w.-]{1,80} +\| "  # of docker compose
    rb"|\[pod/[\w./-]{1,200}\] "  # of kubectl with prefixes
    rb")",
    re.MULTILINE,
)
_DOCKER = re.compile(r'\s*\{"log"\s*:\s*"')


def _unprefixed(block: bytes) -> bytes:
    """Return lines without what a runtime of containers has put before them."""
    return _WRAPPED.sub(b"", _WRAPPED.sub(b"", block))  # compose writes one before another


def _unwrapped(block: bytes) -> bytes:
    """Return the lines in a log of docker, whose lines are JSON. An unreadable line stays as it is."""
    found: list[str] = []
    for line in block.decode("utf-8", "replace").splitlines():
        try:
            text = json.loads(line)["log"]
        except (ValueError, TypeError, KeyError, RecursionError):
            text = line
        found.append(str(text).rstrip("\n"))
    return "".join(f"{line}\n" for line in found).encode("utf-8", "replace")


def _unwrapping(sample: Sequence[str]) -> Callable[[bytes], bytes] | None:
    """Return a function that takes what a runtime of containers has put around lines away. None if it has not."""
    if 2 * sum(_DOCKER.match(line) is not None for line in sample) > len(sample):
        return _unwrapped
    wrapped = sum(_WRAPPED.match(line.encode()) is not None for line in sample)
    return _unprefixed if 2 * wrapped > len(sample) else None


_LEAST_TURNED = 10
"""A log with fewer lines is never taken as one that begins with its newest line."""


def _is_turned(form: LineFormat, sample: Sequence[str]) -> bool:
    """Return True if a log begins with its newest line."""
    turned = [entry.at // SECOND for entry in read_sample(form, sample)][::-1]
    if len(turned) < _LEAST_TURNED or turned[-1] - turned[0] <= _TURNED:
        return False
    places = {time: place for place, time in enumerate(sorted(turned))}
    rising = correlation(range(len(turned)), [places[time] for time in turned])
    late = sum(time < newest - _TURNED for time, newest in zip(turned, accumulate(turned, max), strict=True))
    # A clock that was set back rises less. Of files in the wrong order, most lines are late.
    return rising > 0.8 and late <= 0.1 * len(turned)


_TURNED = 60
"""The seconds by which the first line of such a log is behind the last one of the sample, at least. A line is late if
it is further behind another one than this.
"""

_at = itemgetter(0)
_MERGED = 1024
"""How many requests of several logs are passed on at once."""


class Order:
    """Orders the requests of one log, and counts those that came too late for it.

    The requests of each second are kept together, and a heap has the seconds. A second is passed on when a request
    comes that began more than `disorder` seconds after it.

    Args:
        disorder: The seconds by which a line may be behind the lines before it.
        spread: Distribute the requests of a second evenly over it, if their times are whole seconds. A clock of whole
            seconds makes bursts of requests that were not simultaneous.
    """

    def __init__(self, disorder: int, *, spread: bool = False) -> None:
        self.late = 0
        """The requests that were more than `disorder` seconds behind. They are taken at the last moment."""
        self._disorder = disorder
        self._spread = spread

    def ordered(self, batches: Iterable[list[LogEntry]]) -> Iterator[list[LogEntry]]:
        """Yield the requests in order of time, some at once."""
        seconds: dict[int, list[LogEntry]] = {}
        heap: list[int] = []
        newest, released, last = -1, -1, 0
        for batch in batches:
            for entry in batch:
                second = entry[0] // SECOND
                held = seconds.get(second)
                if held is not None:
                    held.append(entry)
                elif second <= released:
                    self.late += 1
                    yield [entry._replace(at=last)]
                else:
                    seconds[second] = [entry]
                    heapq.heappush(heap, second)
                    newest = max(newest, second)
                    while heap[0] < newest - self._disorder:
                        released = heapq.heappop(heap)
                        ready = self._sorted(seconds.pop(released))
                        last = ready[-1].at
                        yield ready
        while heap:
            yield self._sorted(seconds.pop(heapq.heappop(heap)))

    def _sorted(self, entries: list[LogEntry]) -> list[LogEntry]:
        if len(entries) == 1:
            return entries
        if not self._spread or any(entry.at % SECOND for entry in entries):
            entries.sort(key=_at)
            return entries
        return [entry._replace(at=entry.at + place * SECOND // len(entries)) for place, entry in enumerate(entries)]


def merged(streams: Sequence[Iterator[list[LogEntry]]]) -> Iterator[list[LogEntry]]:
    """Merge the requests of several logs, each of which is in order, by their times."""
    if len(streams) == 1:
        yield from streams[0]
        return
    entries = heapq.merge(*map(chain.from_iterable, streams), key=_at)
    while batch := list(islice(entries, _MERGED)):
        yield batch
