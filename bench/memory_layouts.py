"""A million counters in other layouts than MemoryStore's: what each takes, and what a look and a write cost.

Each holds a key of the usual length and 26 bytes of a sliding window. None is in the package: docs/adr/0011 says why.
"""

import gc
import random
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import blake2b

from bench.footprint import COUNTERS, resident
from bench.measure import Effort, Figure, Remote, Run, alone

VALUE = bytes(range(26))
LOOKS = 200_000
SEGMENT = 2048
SLOTS = 1 << 21  # open addressing, not quite half full: the next smaller power of two would be 95 % full
EMPTY = bytes(16)


def key_of(number: int) -> str:
    return f"shop:everything:sw60:{{ip=203.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}}}"


def digest(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=16).digest()


class Dicts:
    """As in MemoryStore: many small dicts. `name` makes what a dict knows a counter by from its key."""

    def __init__(self, name: Callable[[str], object] = str) -> None:
        self.name = name
        self.segments: list[dict] = [{} for _ in range(COUNTERS // SEGMENT)]

    def get(self, key: str) -> bytes | None:
        name = self.name(key)
        return self.segments[hash(name) % len(self.segments)].get(name)

    def put(self, key: str, value: bytes) -> None:
        name = self.name(key)
        self.segments[hash(name) % len(self.segments)][name] = value


class Sorted:
    """Segments of sorted 64-bit hashes, found by bisection, beside records of equal length in one bytearray."""

    def __init__(self) -> None:
        self.names = [array("q") for _ in range(COUNTERS // 256)]
        self.records = [bytearray() for _ in self.names]

    def get(self, key: str) -> bytes | None:
        name = hash(key)
        number = name % len(self.names)
        names = self.names[number]
        place = bisect_left(names, name)
        if place == len(names) or names[place] != name:
            return None
        start = place * len(VALUE)
        return bytes(self.records[number][start : start + len(VALUE)])

    def put(self, key: str, value: bytes) -> None:
        name = hash(key)
        number = name % len(self.names)
        names, records = self.names[number], self.records[number]
        place = bisect_left(names, name)
        start = place * len(VALUE)
        if place < len(names) and names[place] == name:
            records[start : start + len(VALUE)] = value
        else:
            names.insert(place, name)
            records[start:start] = value


class Open:
    """One bytearray, open addressing with linear probing: 16 bytes of digest and the record in each slot."""

    def __init__(self) -> None:
        self.slot = 16 + len(VALUE)
        self.table = bytearray(SLOTS * self.slot)

    def _find(self, name: bytes) -> tuple[int, bool]:
        table, slot = self.table, self.slot
        place = int.from_bytes(name[:8], "little") % SLOTS * slot
        while (found := table[place : place + 16]) != name:
            if found == EMPTY:
                return place, False
            place = (place + slot) % len(table)
        return place, True

    def get(self, key: str) -> bytes | None:
        place, there = self._find(digest(key))
        return bytes(self.table[place + 16 : place + self.slot]) if there else None

    def put(self, key: str, value: bytes) -> None:
        name = digest(key)
        place, _ = self._find(name)
        self.table[place : place + self.slot] = name + value


LAYOUTS: dict[str, Callable[[], Dicts | Sorted | Open]] = {
    "dicts, text": Dicts,
    "dicts, digest of 16 bytes": lambda: Dicts(digest),
    "dicts, hash of 64 bits": lambda: Dicts(hash),
    "open addressing, digest of 16 bytes": Open,
    "sorted arrays, hash of 64 bits": Sorted,
}


def measured(layout: str) -> tuple[float, float]:
    """Megabytes, and microseconds for a look and a write."""
    gc.collect()
    before = resident()
    table = LAYOUTS[layout]()
    for number in range(COUNTERS):
        table.put(key_of(number), bytes(bytearray(VALUE)))
    size = (resident() - before) / 2**20
    dice = random.Random(1)
    keys = [key_of(dice.randrange(COUNTERS)) for _ in range(LOOKS)]
    start = time.thread_time()
    for key in keys:
        table.put(key, table.get(key) or VALUE)
    return size, (time.thread_time() - start) / LOOKS * 1e6


def figures(effort: Effort) -> Iterator[Figure]:
    """One million counters in other layouts."""
    for layout in LAYOUTS:
        contestant = Remote(made, layout)
        try:
            size, took = contestant()
        finally:
            contestant.close()
        yield alone(layout, [size], "MB", note=f"{took:.1f} µs for one read and one write")


def made(layout: str) -> Run:
    """A contestant, see `bench.measure.Remote`."""
    return partial(measured, layout)
