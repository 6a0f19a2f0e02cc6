"""The store for `memory://`: counters in the memory of this process, not shared with other processes."""

import logging
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple

from ratelimit_mw.algorithms import admitting
from ratelimit_mw.algorithms.algorithm import USED_UP, Admit
from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.logs import logger
from ratelimit_mw.model import Ask, Quota, Reply, Row
from ratelimit_mw.process_local import reset_after_fork, workers_of_server
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores.base import Decider, ReplyFields, Store, StoreRequest
from ratelimit_mw.stores.counters import (
    MAX_SAMPLE,
    SAMPLE,
    SHARE,
    Counters,
    Decided,
    Step,
    deciding,
    deciding_uncharged,
    evicted,
    first_unexpired,
    shadowed,
)

_SEGMENT = 2048  # counters in one dict; a larger dict would pause the process when it grows
_BATCH = 8  # a segment looks for expired counters each time that it has grown by this many, among as many
_MOST_LOOKS = 4  # it looks again if a quarter of them has expired


class _CounterDict(dict[str, bytes]):
    """Some of the counters by their keys.

    Attributes:
        due: The number of counters from which on room is made for a new one.
        upcoming: The keys that are checked next to make room.
    """

    __slots__ = ("due", "upcoming")

    def __init__(self, due: int) -> None:
        self.due = due
        self.upcoming: list[str] = []


_KEY = itemgetter(0)

_Place = tuple[str, _CounterDict]
"""The key of a counter, and the segment that has it."""


class _Compiled(NamedTuple):
    """The decisions about requests of one cost by the counters of one quota.

    Attributes:
        admit: Decides on most requests.
        step: Decides on all others.
        uncharged: Decides on a request that another counter denies.
        shadow: Whether the counter is a shadow, which denies nothing.
    """

    admit: Admit
    step: Step
    uncharged: Step
    shadow: bool


class _Several:
    """The counters that a request asks. The one that denied the last such request probably denies the next, too."""

    __slots__ = ("denied_by", "places")

    def __init__(self, places: Sequence[tuple[str, _CounterDict, Admit, _Compiled]]) -> None:
        self.places = places
        """Each with its decisions. What decides most requests is not in `_Compiled` alone, to be read faster."""
        self.denied_by = -1
        """The index of the counter that has denied the last request. -1 if none has."""


class MemoryStore(Counters, Store):
    """At most `max_counters` counters, in dicts that one lock guards.

    As new counters come, as many old ones are checked, and more if many of these have expired. What has expired is
    dropped. A full store takes a sample and drops the counter that has used the smallest share of its limit, whatever
    its window. A flood of new identities therefore cannot evict an exhausted counter. A flood of counters with such low
    limits that one or two requests exhaust them evicts counters of its own kind, which have the same rule and
    attribute.

    The values are plain bytes, which the garbage collector does not visit, and there are many small dicts. Neither
    the collector nor a growing dict therefore pauses the process.

    Args:
        max_counters: the most counters to keep, at least 1.
        clock: the user's clock; None for the system's.

    Raises:
        ValueError: `max_counters` is below 1.
    """

    remote = False
    waits = False

    def __init__(self, *, max_counters: int = 1_000_000, clock: Clock | None = None) -> None:
        if max_counters < 1:
            raise ValueError(f"max_counters is {max_counters}: it must be at least 1")
        self._now = (clock or SystemClock()).now
        self._count = max(1, max_counters // _SEGMENT)
        self._room = max_counters // self._count
        self._segments = [_CounterDict(min(_BATCH, self._room)) for _ in range(self._count)]
        self._lock = threading.Lock()
        self._overridden = type(self).ask is not MemoryStore.ask
        """Whether a subclass decides."""
        reset_after_fork(self)

    def __len__(self) -> int:
        """The number of counters, including expired ones that are not dropped yet."""
        return sum(map(len, self._segments))

    def ask(self, request: StoreRequest) -> Reply:
        """See `Store`."""
        asks, intent = request
        with self._lock:
            now = self._now()
            outcomes = self.answer(asks, intent, now)
        return Reply(now, outcomes)

    async def aask(self, request: StoreRequest) -> Reply:
        """See `Store`. It returns at once, because there is no I/O."""
        return self.ask(request)

    def decider(self, asks: Sequence[Ask]) -> Decider | None:
        """See `Store`."""
        if self._overridden:
            return super().decider(asks)
        segments, count = self._segments, self._count
        compiled = [_compiled(quota, cost, shadow) for _, quota, cost, shadow in asks]
        admits = [each.admit for each in compiled]

        def place(asks: Sequence[Ask]) -> _Place:
            key = asks[0].key
            return key, segments[hash(key) % count]

        def places(asks: Sequence[Ask]) -> _Several:
            keys = [*map(_KEY, asks)]
            return _Several([*zip(keys, [segments[hash(key) % count] for key in keys], admits, compiled, strict=True)])

        return (self._taking(compiled[0]), place) if len(compiled) == 1 else (self._take_all, places)

    def _taking(self, compiled: _Compiled) -> Callable[[_Place], ReplyFields]:
        admit, step, _, _ = compiled
        clock = self._now

        def take(place: _Place) -> ReplyFields:
            key, segment = place
            with self._lock:
                now = clock()
                stored = segment.get(key, b"")
                # A counter that was used up at its last request is probably still used up.
                used_up = stored and stored[SHARE] == USED_UP
                row, value = (None if used_up else admit(stored, now)) or step(stored, now)
                if value is not None:
                    if not stored:
                        self._make_room(segment, now)
                    segment[key] = value
            return now, (row,), None

        return take

    def _take_all(self, asked: _Several) -> ReplyFields:
        """Decide on all counters first, and charge them if none of those that are enforced denies."""
        rows: list[Row] = []
        values: list[tuple[str, _CounterDict, bytes | None]] = []
        with self._lock:
            now = self._now()
            found = self._denied(asked, now) if asked.denied_by >= 0 else []
            if not found:
                for key, segment, admit, compiled in asked.places:
                    stored = segment.get(key, b"")
                    decided: Decided | None = admit(stored, now)
                    if decided is None:
                        decided = compiled.step(stored, now)
                        if not (decided[0][0] or compiled.shadow):
                            asked.denied_by = len(rows)
                            found = self._denied(asked, now)
                            break
                    row, value = decided
                    rows.append(row)
                    values.append((key, segment, value))
            if found:
                rows = [row for row, _ in found]
                values = [(*place[:2], value) for place, (_, value) in zip(asked.places, found, strict=True)]
            for key, segment, value in values:
                if value is not None:
                    if key not in segment:
                        self._make_room(segment, now)
                    segment[key] = value
        return now, rows, None

    @staticmethod
    def _denied(asked: _Several, now: int) -> list[Decided]:
        """The outcomes if the counter that denied the last request denies this one, too. Empty if it does not."""
        key, segment, _, compiled = asked.places[asked.denied_by]
        decided = compiled.step(segment.get(key, b""), now)
        if decided[0][0]:
            asked.denied_by = -1
            return []
        found: list[Decided] = []
        for key, segment, _, compiled in asked.places:
            denies = len(found) == asked.denied_by
            found.append(decided if denies else compiled.uncharged(segment.get(key, b""), now))
        return found

    def keys(self, prefix: str) -> Iterator[str]:
        """See `Store.keys`."""
        for segment in self._segments:
            with self._lock:
                found = [key for key in segment if key.startswith(prefix)]
            yield from found

    def load(self, key: str) -> bytes:
        """See `Counters`."""
        return self._segments[hash(key) % self._count].get(key, b"")

    def save(self, key: str, value: bytes, now: int) -> None:
        """See `Counters`."""
        segment = self._segments[hash(key) % self._count]
        if key not in segment:
            self._make_room(segment, now)
        segment[key] = value

    def drop(self, key: str) -> None:
        """See `Counters`."""
        self._segments[hash(key) % self._count].pop(key, None)

    def _make_room(self, segment: _CounterDict, now: int) -> None:
        """Drop expired counters of a segment if it is due. If it is full, drop one that has not expired."""
        held = len(segment)
        if held < segment.due:
            return
        if held < self._room:
            _drop_expired(segment, now)
            segment.due = min(len(segment) + _BATCH, self._room)
            return
        sample = _unexpired(segment, SAMPLE, now)
        while len(segment) >= self._room:
            if min(sample)[0] == USED_UP and len(sample) < min(MAX_SAMPLE, self._room):
                sample += _unexpired(segment, SAMPLE, now)
                continue
            del segment[evicted(sample)[1]]
        segment.due = len(segment)

    def after_fork(self) -> None:
        """Reset in the child of a fork. The counters stay, but the lock is replaced."""
        self._lock = threading.Lock()  # a thread that had locked it may not exist here


def _compiled(quota: Quota, cost: int, shadow: bool) -> _Compiled:
    admit = admitting(quota, cost)
    step, uncharged = deciding(quota, cost, shadow), deciding_uncharged(quota, cost, shadow)
    return _Compiled(shadowed(admit) if shadow else admit, step, uncharged, shadow)


def open_store(settings: StorageSettings, clock: Clock | None) -> Store:
    """The store for `memory://`. It logs, as an error if the server has several workers, that they share nothing."""
    if clock is None:  # with a clock of its own, this is a test
        _warn(workers_of_server())
    return MemoryStore(max_counters=settings.max_counters, clock=clock)


def _warn(workers: int) -> None:
    several = workers > 1
    loss = f"clients get up to {workers} times their limits" if several else "a restart resets them"
    logger.log(
        logging.ERROR if several else logging.WARNING,
        "storage is memory://: each process has its own counters, and %s; to share them, set storage.url in the rules, "
        "or storage= in code: lmdb:// for the workers of one machine, redis://HOST:6379/0 for several machines",
        loss,
        extra={"ratelimit_topic": "memory"},
    )


def _drop_expired(segment: _CounterDict, now: int) -> None:
    """Drop the next counters of a segment that have expired."""
    earliest = first_unexpired(now)
    for _ in range(_MOST_LOOKS):
        expired = [key for key in _upcoming(segment, _BATCH) if segment.get(key, earliest) < earliest]
        for key in expired:
            del segment[key]
        if len(expired) < _BATCH // 4:
            return


def _unexpired(segment: _CounterDict, count: int, now: int) -> list[tuple[int, str]]:
    """The used share (0 to 255) and the key of the next `count` counters of a segment, without those that have expired.

    These are dropped. The result is also shorter at the end of a round.
    """
    earliest = first_unexpired(now)
    found: list[tuple[int, str]] = []
    looked = False
    while not looked and segment:
        for key in _upcoming(segment, count):
            value = segment.get(key)
            if value is not None:
                looked = True
                if value < earliest:
                    del segment[key]
                else:
                    found.append((value[SHARE], key))
    return found


def _upcoming(segment: _CounterDict, count: int) -> list[str]:
    """The next `count` keys of a segment, in rounds over all: fewer at the end of a round. Some may be gone."""
    upcoming = segment.upcoming
    if not upcoming:
        # Each sample has old and new counters, because counters of the same age are often similar.
        keys = list(segment)
        distance = len(keys) // SAMPLE
        if distance < 2:
            upcoming += keys
        else:
            for start in random.sample(range(distance), distance):
                upcoming += keys[start::distance]
    found = upcoming[-count:]
    del upcoming[-count:]
    return found
