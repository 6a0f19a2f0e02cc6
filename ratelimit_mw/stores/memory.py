"""The store for `memory://`: counters in the memory of this process, not shared with other processes."""

import random
import threading
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from struct import Struct

from ratelimit_mw.algorithms import DECIDE_ALL, REFUND, ban, widened
from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.model import Ask, Outcome, Quota, Reply
from ratelimit_mw.process_local import reset_after_fork
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores.base import DECIDE, Store, StoreRequest

# Each value is a stamp, followed by the state of the algorithm. The stamp is the time in microseconds at which the
# counter is as if unused, and the share of its limit that is used (0 to 255).
_STAMP = Struct(">QB")  # big-endian, so that values sort by their time
_STAMP_SIZE = _STAMP.size
_SEGMENT = 2048  # counters in one dict; a larger dict would pause the process when it grows
_SAMPLE = 8  # counters that a full segment compares to drop one of them
_MAX_SAMPLE = 32  # the sample grows to this size if all counters in it are used up
_USED_UP = 255
_BARELY_USED = 32  # an eighth of the limit
_BATCH = 4  # a segment drops expired counters each time that it has grown by this many
_CHECKED = 2 * _BATCH  # old counters that are then checked for expiry

_Found = tuple[Outcome, bytes | None]
_used = itemgetter(0)


class _Segment(dict[str, bytes]):
    """Some of the counters by their keys. `upcoming` has the keys that are checked next to make room."""

    __slots__ = ("upcoming",)

    def __init__(self) -> None:
        self.upcoming: list[str] = []


class MemoryStore(Store):
    """At most `max_counters` counters, in dicts that one lock guards.

    For each new counter, a few old ones are checked and dropped if they have expired. A full store takes a sample and
    drops the counter that has used the smallest share of its limit, whatever its window. A flood of new identities
    therefore cannot evict an exhausted counter. A flood of counters with such low limits that one or two requests
    exhaust them evicts counters of its own kind, which have the same rule and attribute.

    The values are plain bytes, which the garbage collector does not visit, and there are many small dicts. Neither
    the collector nor a growing dict therefore pauses the process.

    Args:
        max_counters: the most counters to keep, at least 1.
        clock: the user's clock; None for the system's.

    Raises:
        ValueError: `max_counters` is below 1.
    """

    remote = False

    def __init__(self, *, max_counters: int = 1_000_000, clock: Clock | None = None) -> None:
        if max_counters < 1:
            raise ValueError(f"max_counters is {max_counters}: a store needs room for one counter at least")
        self._now = (clock or SystemClock()).now
        self._count = max(1, max_counters // _SEGMENT)
        self._room = max_counters // self._count
        self._segments = [_Segment() for _ in range(self._count)]
        self._lock = threading.Lock()
        reset_after_fork(self)

    def __len__(self) -> int:
        """The number of counters, including expired ones that are not dropped yet."""
        return sum(map(len, self._segments))

    def ask(self, request: StoreRequest) -> Reply:
        """See `Store`."""
        asks, intent = request
        if intent is DECIDE and len(asks) == 1:  # the common case: no other counter can deny
            key, quota, cost, shadow = asks[0]
            with self._lock:
                now = self._now()
                segment = self._segments[hash(key) % self._count]
                stored = segment.get(key)
                outcome, state = DECIDE_ALL[quota.decided_by](stored[_STAMP_SIZE:] if stored else b"", quota, cost, now)
                if state is not None:
                    if stored is None:
                        self._make_room(segment, now)
                    segment[key] = _stamp(quota, cost, shadow, outcome, now) + state
            return tuple.__new__(Reply, (now, (outcome,), None))
        outcomes: Sequence[Outcome] = ()
        with self._lock:
            now = self._now()
            if intent.decides:
                outcomes = self._decide(asks, intent.commit, now)
            elif intent.forget:
                for ask in asks:
                    self._segment(ask.key).pop(ask.key, None)
            else:
                if intent.charged_at is not None:
                    self._give_back(asks, intent.charged_at, now)
                if intent.insist:
                    self._charge(asks, now)
        return Reply(now, outcomes)

    async def aask(self, request: StoreRequest) -> Reply:
        """See `Store`. It returns at once, because there is no I/O."""
        return self.ask(request)

    def keys(self, prefix: str) -> Iterator[str]:
        """See `Store.keys`."""
        for segment in self._segments:
            with self._lock:
                found = [key for key in segment if key.startswith(prefix)]
            yield from found

    def _decide(self, asks: Sequence[Ask], commit: bool, now: int) -> Sequence[Outcome]:
        found = [self._ask(ask, ask.cost, now) for ask in asks]
        denied = not all(outcome.allowed for outcome, _ in found)
        if denied:
            self._withhold(asks, found, now)
        charged = commit and (
            not denied or all(outcome.allowed or ask.shadow for ask, (outcome, _) in zip(asks, found, strict=True))
        )
        if not charged:
            for place, ask in enumerate(asks):
                if found[place][0].allowed:
                    found[place] = self._unasked(ask, found[place][0].delay, now)
        if commit:
            for ask, (outcome, state) in zip(asks, found, strict=True):
                if state is not None:
                    self._save(self._segment(ask.key), ask, outcome, state, now)
            if denied:
                self._count_denials(asks, found, now)
        return [outcome for outcome, _ in found]

    def _charge(self, asks: Sequence[Ask], now: int) -> None:
        for ask in asks:
            wide = ask._replace(quota=widened(ask.quota))
            room = self._ask(wide, 0, now)[0].remaining
            _, state = self._ask(wide, min(ask.cost, room), now)
            if state is not None:
                outcome, _ = DECIDE_ALL[ask.quota.decided_by](state, ask.quota, 0, now)
                self._save(self._segment(ask.key), ask, outcome, state, now)

    def _ask(self, ask: Ask, cost: int, now: int) -> _Found:
        key, quota, _, _ = ask
        stored = self._segment(key).get(key)
        return DECIDE_ALL[quota.decided_by](stored[_STAMP_SIZE:] if stored else b"", quota, cost, now)

    def _unasked(self, ask: Ask, delay: int, now: int) -> _Found:
        """The outcome and the state if nothing is charged. `delay` is what the request would have had to wait."""
        outcome, state = self._ask(ask, 0, now)
        return (outcome._replace(delay=delay) if delay else outcome), state

    def _withhold(self, asks: Sequence[Ask], found: list[_Found], now: int) -> None:
        """Leave uncharged the asks that the ban of a shadow rule would have denied.

        The ask for a ban stands before the asks that it watches, and its cost is their number.
        """
        for place, (_, quota, watched, shadow) in enumerate(asks):
            if quota.algorithm == "ban" and shadow and not found[place][0].allowed:
                for behind in range(place + 1, place + 1 + watched):
                    found[behind] = self._ask(asks[behind], 0, now)

    def _count_denials(self, asks: Sequence[Ask], found: list[_Found], now: int) -> None:
        """Count the denial for each ban that is not in force, if a counter that it watches has denied."""
        for place, ask in enumerate(asks):
            key, quota, watched, _ = ask
            behind = found[place + 1 : place + 1 + watched]
            counts = quota.algorithm == "ban" and quota.limit and found[place][0].allowed
            if counts and not all(outcome.allowed for outcome, _ in behind):
                segment = self._segment(key)
                outcome, state = ban.deny(segment.get(key, b"")[_STAMP_SIZE:], quota, now)
                self._save(segment, ask, outcome, state, now)
                found[place] = outcome, state

    def _give_back(self, asks: Sequence[Ask], charged_at: int, now: int) -> None:
        for key, quota, cost, _ in asks:
            segment = self._segment(key)
            stored = segment.get(key, b"")
            state = REFUND[quota.algorithm](stored[_STAMP_SIZE:], quota, cost, charged_at, now)
            if state is not None:
                expires, used = _STAMP.unpack_from(stored)
                size = quota.burst or quota.limit or 1
                segment[key] = _STAMP.pack(expires, min(max(used - _USED_UP * cost // size, 0), _USED_UP)) + state

    def _segment(self, key: str) -> _Segment:
        """The segment that the key belongs to."""
        return self._segments[hash(key) % self._count]

    def _save(self, segment: _Segment, ask: Ask, outcome: Outcome, state: bytes, now: int) -> None:
        key, quota, cost, shadow = ask
        if key not in segment:
            self._make_room(segment, now)
        segment[key] = _stamp(quota, cost, shadow, outcome, now) + state

    def _make_room(self, segment: _Segment, now: int) -> None:
        """Drop expired counters of a segment. If it is full, drop one that has not expired."""
        held = len(segment)
        if held < self._room:
            if held % _BATCH == 0:
                _drop_expired(segment, _next(segment, _CHECKED), now)
            return
        sample = _unexpired(segment, _SAMPLE, now)
        while len(segment) >= self._room:
            least = min(sample, key=_used)
            if least[0] == _USED_UP and len(sample) < min(_MAX_SAMPLE, self._room):
                sample += _unexpired(segment, _SAMPLE, now)
                continue
            if least[0] >= _BARELY_USED:
                least = _evicted(sample, least)
            del segment[least[1]]

    def after_fork(self) -> None:
        """Reset in the child of a fork. The counters stay, but the lock is replaced."""
        self._lock = threading.Lock()  # a thread that had locked it may not exist here


def _stamp(quota: Quota, cost: int, shadow: bool, outcome: Outcome, now: int) -> bytes:
    """The stamp of a counter after a decision with this outcome at `now`."""
    _, remaining, reset_after, _, _ = outcome
    if remaining < cost:  # the next such request is denied
        used = _USED_UP
    else:
        size = quota.burst or quota.limit or 1
        used = _USED_UP * (size - remaining) // size if remaining < size else 0
    if shadow:
        used //= 2  # a shadow counter protects nothing, so enforced ones stay longer
    return _STAMP.pack(now + reset_after, used)


def open_store(settings: StorageSettings, clock: Clock | None) -> Store:
    """The store for `memory://`."""
    return MemoryStore(max_counters=settings.max_counters, clock=clock)


def _drop_expired(segment: _Segment, keys: Iterable[str], now: int) -> None:
    first_unexpired = (now + 1).to_bytes(8)
    for key in keys:
        if segment[key] < first_unexpired:
            del segment[key]


def _unexpired(segment: _Segment, count: int, now: int) -> list[tuple[int, str]]:
    """The used share (0 to 255) and the key of the next `count` counters of a segment. Expired ones are dropped."""
    keys = _next(segment, count)
    _drop_expired(segment, keys, now)
    return [(segment[key][_STAMP_SIZE - 1], key) for key in keys if key in segment]


def _evicted(sample: list[tuple[int, str]], least: tuple[int, str]) -> tuple[int, str]:
    """The counter to drop from a sample without barely used counters: `least`, or one of the most frequent kind.

    Counters of one kind have the same rule and attribute. If most counters of a store are used up, one kind probably
    floods it: a client invents values of an attribute, and a few requests exhaust each counter. If the least used
    counter were dropped then, the counters of other rules would be lost as soon as they are used a little.
    """
    kinds = [key.partition("=")[0] for _, key in sample]
    frequent = max(set(kinds), key=kinds.count)
    if least[0] < _USED_UP and 4 * kinds.count(frequent) < 3 * len(kinds):
        return least
    return min((one for one, kind in zip(sample, kinds, strict=True) if kind == frequent), key=_used)


def _next(segment: _Segment, count: int) -> list[str]:
    """The next `count` keys of a segment, in rounds over all keys.

    They are fewer if some have been dropped, or at the end of a round. The result is empty only if the segment is.
    """
    upcoming = segment.upcoming
    found: list[str] = []
    while not found and segment:
        if not upcoming:
            # Each sample has old and new counters, because counters of the same age are often similar.
            keys = list(segment)
            distance = len(keys) // _SAMPLE
            if distance < 2:
                upcoming += keys
            else:
                for start in random.sample(range(distance), distance):
                    upcoming += keys[start::distance]
        found = [key for key in upcoming[-count:] if key in segment]
        del upcoming[-count:]
    return found
