"""The counters in the data file, as one transaction of LMDB sees them.

The key of an entry begins with the CRC-32 of the counter's key. The entries that follow one another are therefore a
random sample of all counters. A key that is too long for LMDB is replaced by its digest, and its text is at the end of
the value.
"""

import os
import random
from binascii import crc32
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import lmdb

from ratelimit_mw.algorithms import admitting
from ratelimit_mw.algorithms.algorithm import USED_UP, Admit
from ratelimit_mw.errors import CounterError
from ratelimit_mw.model import Quota
from ratelimit_mw.stores.base import DECIDE, ReplyFields, StoreRequest
from ratelimit_mw.stores.counters import (
    SAMPLE,
    SHARE,
    Counters,
    Step,
    deciding,
    evicted,
    first_unexpired,
    shadowed,
)
from ratelimit_mw.stores.shared.file import FREE

if TYPE_CHECKING:
    Transaction = lmdb.Transaction[bytes]

_PREFIX = 4  # bytes of the checksum
_MAX_TEXT = 300  # bytes; LMDB takes keys of 511 bytes
_DIGEST = b"\xff"  # begins no text in UTF-8
_IS_DIGEST = _DIGEST[0]
_LENGTH = 4  # bytes for the length of a text
_BATCH = 4  # expired counters are looked for each time that so many new counters have come
_CHECKED = 2 * _BATCH
_KEYS = 256  # the most entries that one transaction looks at to list keys, so that it is short
_SAMPLES = 4  # that give way at once: about the counters of a page
_KEPT = 2  # counters of a sample of neighbours that is thinned
_FREE_SHARE = 0.2  # of the file that stays free for copies of pages, if that is more than `FREE`
_STEP = 16  # pages by which the file grows
_fallocate = getattr(os, "posix_fallocate", None)  # not on macOS: there, a full disk concerns known counters, too

_MOST_COMPILED = 1024  # overrides and elastic limits make new quotas, and apps have many costs

NO_ROOM = "the file or its disk has no room for the counters: set a larger ?size=, or free some of the disk"

Compiled = tuple[Admit, Step, Quota]
"""How to decide on most requests of one counter, and on all others. It holds the quota, whose id it is known by."""

Asked = tuple[StoreRequest, Sequence[bytes], Callable[[], int], Compiled | None]
"""A request, the entries of its asks as `encode` returns them, a function that returns the time, and how to decide.

The last is None for requests of another intent, of several counters, or whose key is too long.
"""

_chance = random.Random()  # separate, so that the app's seeded random numbers are not disturbed


class Questions:
    """Makes what the table is asked of requests, without the lock, and keeps how to decide on those of one counter.

    Args:
        clock: returns the time in microseconds.
    """

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._compiled: dict[Hashable, Compiled] = {}
        """By the id of the quota, because hashing a quota takes long. Each entry also holds its quota."""

    def of(self, request: StoreRequest) -> Asked:
        """What the table is asked."""
        asks, intent = request
        encoded = [encode(ask.key) for ask in asks]
        if intent is not DECIDE or len(asks) != 1 or _is_digest(encoded[0]):
            return request, encoded, self._clock, None
        _, quota, cost, shadow = asks[0]
        known = self._compiled.get((id(quota), cost, shadow))
        return request, encoded, self._clock, known or self._compile(quota, cost, shadow)

    def _compile(self, quota: Quota, cost: int, shadow: bool) -> Compiled:
        if len(self._compiled) >= _MOST_COMPILED:
            self._compiled.clear()
        admit, step = admitting(quota, cost), deciding(quota, cost, shadow)
        made = self._compiled[id(quota), cost, shadow] = shadowed(admit) if shadow else admit, step, quota
        return made


class Table(Counters):
    """The counters of one file. `txn` is the current transaction, which runs under the lock of the file.

    LMDB never changes a page. It writes a changed copy to a free page, and the old one is free two transactions later.
    A file without free pages could not even drop counters. Therefore the pages in use have a bound: past it, the table
    is `crowded`, and `thin` is due. One request may write a quarter of the free pages in large values, because three
    transactions need free pages at a time.

    Args:
        environment: the open file.
        max_counters: the most counters to keep.
        size: the largest size of the file in bytes.
    """

    def __init__(self, environment: lmdb.Environment, max_counters: int, size: int) -> None:
        self.environment = environment
        self.txn: Transaction
        self._encoded: dict[str, bytes] = {}
        self._most = max_counters
        stat, free = environment.stat(), max(FREE, int(size * _FREE_SHARE))
        self._page = int(stat["psize"])
        self._large = self._page // 2
        self._written = 0
        self._most_written = free // 4
        self._limit = (size - free) // self._page
        self._most_pages = min(_pages(stat), self._limit)
        self.crowded = False
        self._missing: set[str] = set()
        self._new = 0
        self._position = _chance.randbytes(_PREFIX)

    def reply(self, asked: Asked) -> ReplyFields:
        """Answer a request."""
        request, encoded, clock, compiled = asked
        txn, now = self.txn, clock()
        if compiled is not None:  # most requests: `answer`, compiled
            entry = encoded[0]
            stored = txn.get(entry)
            if stored is not None:
                admit, step, _ = compiled
                # A counter that was used up at its last request is probably still used up.
                row, value = (None if stored[SHARE] == USED_UP else admit(stored, now)) or step(stored, now)
                if value is None:
                    return now, (row,), None
                if len(value) <= self._large:
                    txn.put(entry, value)
                    return now, (row,), None
        asks, intent = request
        self._missing.clear()
        self._written = 0
        self._encoded = {ask.key: entry for ask, entry in zip(asks, encoded, strict=True)}
        return now, self.answer(asks, intent, now), None

    def load(self, key: str) -> bytes:
        """See `Counters`."""
        encoded = self._encoded[key]
        value: bytes | None = self.txn.get(encoded)
        if value is None:
            self._missing.add(key)
            return b""
        return _value(encoded, value)

    def save(self, key: str, value: bytes, now: int) -> None:
        """See `Counters`."""
        encoded = self._encoded[key]
        if _is_digest(encoded):
            text = key.encode("utf-8", "surrogatepass")
            value += text + len(text).to_bytes(_LENGTH)
        new, large = key in self._missing, len(value) > self._large
        if large:
            self._written += len(value)
            if self._written > self._most_written:
                raise CounterError(NO_ROOM)
        if new:
            self._missing.discard(key)
            self._make_room(now)
        self.txn.put(encoded, value)
        if new or large:
            self.crowded = self._is_crowded()

    def drop(self, key: str) -> None:
        """See `Counters`."""
        self.txn.delete(self._encoded[key])

    def grow(self, fd: int) -> bool:
        """Let more pages be in use, and reserve the disk for them. Returns whether that was enough.

        The disk is reserved as far behind these pages as copies may need. A full disk is then like a full file: it
        stops the growth, and there is room to drop counters. What other processes have reserved costs nothing.
        """
        used = _pages(self.environment.stat())
        more = min(max(used, self._most_pages) + _STEP, self._limit)
        try:
            if _fallocate is not None and more > self._most_pages:
                start = self._most_pages * self._page + FREE
                _fallocate(fd, start, more * self._page + FREE - start)
        except OSError:
            return False
        self._most_pages = more
        self.crowded = used > more
        return not self.crowded

    def thin(self, now: int) -> None:
        """Drop most counters of about one page, or fewer if the table was crowded and is not any more.

        They are neighbours, because LMDB joins two pages only if both are three quarters empty.
        """
        crowded = self.crowded
        self._evict(now, min(_KEPT, self._count() // SAMPLE), lambda: crowded and not self._is_crowded())
        self.crowded = self._is_crowded()

    def keys(self, asked: tuple[bytes, Callable[[], int]]) -> tuple[list[str], bytes]:
        """The keys of some counters from an entry on, and the entry to continue at, which is empty at the end.

        Args:
            asked: The entry to start at, and a function that returns the time. Expired counters are left out.
        """
        start, clock = asked
        cursor, earliest, found, count = self.txn.cursor(), first_unexpired(clock()), [], _KEYS
        more = cursor.set_range(start)
        while more and count:
            encoded, value = cursor.item()
            if value >= earliest:
                found.append(_text(encoded, value))
            more, count = cursor.next(), count - 1
        return found, cursor.key() if more else b""

    def _make_room(self, now: int) -> None:
        """Drop expired counters as new ones come. If there are too many, drop some that have not expired."""
        self._new += 1
        if self._count() >= self._most:
            self._evict(now, 0, lambda: self._count() < self._most)
        elif self._new % _BATCH == 0:
            self._sample(_CHECKED, now)

    def _evict(self, now: int, kept: int, enough: Callable[[], bool]) -> None:
        """Drop the expired counters of the next samples, and those nearest to unused.

        Used up counters go only if there are no others, and those of the last request stay.

        Args:
            now: the time in microseconds.
            kept: the counters of a sample that stay.
            enough: whether enough are dropped.
        """
        before = self._count()
        for last in (USED_UP - 1, USED_UP):
            for _ in range(_SAMPLES):
                sample = self._sample(SAMPLE, now)
                while not (done := enough()) and len(sample) > kept and (least := evicted(list(sample)))[0] <= last:
                    self.txn.delete(sample.pop(least))
                if done:
                    return
            if self._count() < before:
                return

    def _is_crowded(self) -> bool:
        return _pages(self.txn.stat()) > self._most_pages

    def _count(self) -> int:
        return int(self.txn.stat()["entries"])

    def _sample(self, count: int, now: int) -> dict[tuple[int, str], bytes]:
        """The entries of the next `count` counters, in rounds over the file, by their used share and their key.

        Those that have expired are dropped, and those of the last request are left out.
        """
        own = self._encoded.values()
        earliest, sample = first_unexpired(now), {}
        for encoded, value in self._next(count):
            if value < earliest:
                self.txn.delete(encoded)
            elif encoded not in own:
                sample[value[SHARE], _text(encoded, value)] = encoded
        return sample

    def _next(self, count: int) -> list[tuple[bytes, bytes]]:
        cursor = self.txn.cursor()
        found: list[tuple[bytes, bytes]] = []
        more = cursor.set_range(self._position) or cursor.first()
        while more and len(found) < count:
            found.append(cursor.item())
            more = cursor.next()
        self._position = cursor.key() if more else b"\0"
        return found


@lru_cache(maxsize=4096)
def encode(key: str) -> bytes:
    """The key of an entry. It depends on nothing but the counter's key, so it is made before the lock is taken."""
    text = key.encode("utf-8", "surrogatepass")
    if not 0 < len(text) <= _MAX_TEXT:
        text = _DIGEST + blake2b(text, digest_size=32).digest()
    return crc32(text).to_bytes(_PREFIX) + text


def _is_digest(entry: bytes) -> bool:
    """Whether the key of an entry is a digest of the counter's key, whose text is at the end of the value."""
    return entry[_PREFIX] == _IS_DIGEST


def _pages(stat: Mapping[str, Any]) -> int:
    """The pages that counters are in."""
    return int(stat["leaf_pages"] + stat["branch_pages"] + stat["overflow_pages"])


def _value(encoded: bytes, value: bytes) -> bytes:
    """The stamp and the state of an entry."""
    if not _is_digest(encoded):
        return value
    return value[: -_LENGTH - int.from_bytes(value[-_LENGTH:])]


def _text(encoded: bytes, value: bytes) -> str:
    """The key of the counter of an entry."""
    text = encoded[_PREFIX:]
    if _is_digest(encoded):
        text = value[-_LENGTH - int.from_bytes(value[-_LENGTH:]) : -_LENGTH]
    return text.decode("utf-8", "surrogatepass")
