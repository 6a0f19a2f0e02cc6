"""The counters in the data file, as one transaction of LMDB sees them.

The key of an entry begins with the CRC-32 of the counter's key. The entries that follow one another are therefore a
random sample of all counters. A key that is too long for LMDB is replaced by its digest, and its text is at the end of
the value.
"""

import random
from binascii import crc32
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING

import lmdb

from ratelimit_mw.algorithms import DECIDE_ALL
from ratelimit_mw.model import Reply
from ratelimit_mw.stores.base import DECIDE, StoreRequest
from ratelimit_mw.stores.counters import (
    MAX_SAMPLE,
    SAMPLE,
    STAMP_SIZE,
    USED_UP,
    Counters,
    evicted,
    first_unexpired,
    stamp,
)

if TYPE_CHECKING:
    Transaction = lmdb.Transaction[bytes]

_PREFIX = 4  # bytes of the checksum
_MAX_TEXT = 300  # bytes; LMDB takes keys of 511 bytes
_DIGEST = b"\xff"  # begins no text in UTF-8
_IS_DIGEST = _DIGEST[0]
_LENGTH = 4  # bytes for the length of a text
_FULL = 0.8  # of the map; a change needs free pages
_BATCH = 4  # expired counters are looked for each time that so many new counters have come
_CHECKED = 2 * _BATCH
_KEYS = 256  # the most entries that one transaction looks at to list keys, so that it is short
_MOST_DROPPED = 4  # counters that give way to a new one, if the file has become too full

Asked = tuple[StoreRequest, Sequence[bytes], Callable[[], int]]
"""A request, the entries of its asks as `encode` returns them, and a function that returns the time."""

_chance = random.Random()  # separate, so that the app's seeded random numbers are not disturbed


class Table(Counters):
    """The counters of one file. `txn` is the current transaction, which runs under the lock of the file.

    Args:
        environment: the open file.
        max_counters: the most counters to keep.
    """

    def __init__(self, environment: lmdb.Environment, max_counters: int) -> None:
        self.environment = environment
        self.txn: Transaction
        self._encoded: dict[str, bytes] = {}
        self._most = max_counters
        self._most_pages = 0
        self._page = int(environment.stat()["psize"])
        self._missing: set[str] = set()
        self._new = 0
        self._position = _chance.randbytes(_PREFIX)
        self.room(int(environment.info()["map_size"]))

    def room(self, size: int) -> None:
        """Set how many bytes of the file may be used. It is less than the map if the disk is full before."""
        self._most_pages = int(min(size, self.environment.info()["map_size"]) * _FULL) // self._page

    def reply(self, asked: Asked) -> Reply:
        """Answer a request."""
        (asks, intent), encoded, clock = asked
        txn, now = self.txn, clock()
        if intent is DECIDE and len(asks) == 1:  # `decide_one`, without its calls
            _, quota, cost, shadow = asks[0]
            entry = encoded[0]
            stored = txn.get(entry)
            if stored is not None and entry[_PREFIX] != _IS_DIGEST:
                outcome, state = DECIDE_ALL[quota.decided_by](stored[STAMP_SIZE:], quota, cost, now)
                if state is not None:
                    txn.put(entry, stamp(quota, cost, shadow, outcome, now) + state)
                return tuple.__new__(Reply, (now, (outcome,), None))
        self._missing.clear()
        self._encoded = {ask.key: entry for ask, entry in zip(asks, encoded, strict=True)}
        return Reply(now, self.answer(asks, intent, now))

    def load(self, key: str) -> bytes:
        """See `Counters`."""
        encoded = self._encoded[key]
        value: bytes | None = self.txn.get(encoded)
        if value is None:
            self._missing.add(key)
            return b""
        return value if encoded[_PREFIX] != _IS_DIGEST else _value(encoded, value)

    def save(self, key: str, value: bytes, now: int) -> None:
        """See `Counters`."""
        if key in self._missing:
            self._missing.discard(key)
            self._make_room(now)
        encoded = self._encoded[key]
        if encoded[_PREFIX] == _IS_DIGEST:
            text = key.encode("utf-8", "surrogatepass")
            value += text + len(text).to_bytes(_LENGTH)
        self.txn.put(encoded, value)

    def drop(self, key: str) -> None:
        """See `Counters`."""
        self.txn.delete(self._encoded[key])

    def shrink(self, count: int, now: int) -> None:
        """Drop `count` counters because the file is full: expired ones first, then the least used."""
        for _ in range(count):
            self._drop_one(now)

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
        """Drop expired counters as new ones come. If the file is full, drop one that has not expired."""
        self._new += 1
        stat = self.txn.stat()
        over = stat["entries"] - self._most + 1
        pages = stat["leaf_pages"] + stat["branch_pages"] + stat["overflow_pages"]
        if over <= 0 and pages <= self._most_pages:
            if self._new % _BATCH == 0:
                for _ in self._unexpired(_CHECKED, now):
                    pass
            return
        for _ in range(min(max(over, 1), _MOST_DROPPED)):
            self._drop_one(now)

    def _drop_one(self, now: int) -> None:
        """Drop the expired counters of a sample; if there is none, the counter nearest to unused."""
        before = self._count()
        sample: dict[str, tuple[int, bytes]] = {}
        while len(sample) < MAX_SAMPLE:
            known = len(sample)
            sample.update(self._unexpired(SAMPLE, now))
            if self._count() < before:
                return
            if len(sample) == known or min(share for share, _ in sample.values()) < USED_UP:
                break
        if sample:
            _, text = evicted([(share, text) for text, (share, _) in sample.items()])
            self.txn.delete(sample[text][1])

    def _count(self) -> int:
        return int(self.txn.stat()["entries"])

    def _unexpired(self, count: int, now: int) -> Iterator[tuple[str, tuple[int, bytes]]]:
        """The next `count` counters, in rounds over the file: the key, the used share and the entry of each.

        Those that have expired are dropped.
        """
        earliest = first_unexpired(now)
        for encoded, value in self._next(count):
            if value < earliest:
                self.txn.delete(encoded)
            else:
                yield _text(encoded, value), (value[STAMP_SIZE - 1], encoded)

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


def _value(encoded: bytes, value: bytes) -> bytes:
    """The stamp and the state of an entry."""
    if encoded[_PREFIX] != _IS_DIGEST:
        return value
    return value[: -_LENGTH - int.from_bytes(value[-_LENGTH:])]


def _text(encoded: bytes, value: bytes) -> str:
    """The key of the counter of an entry."""
    text = encoded[_PREFIX:]
    if encoded[_PREFIX] == _IS_DIGEST:
        text = value[-_LENGTH - int.from_bytes(value[-_LENGTH:]) : -_LENGTH]
    return text.decode("utf-8", "surrogatepass")
