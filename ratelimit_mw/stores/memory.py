"""Counters in this process's memory: no server, and no sharing with other processes."""

import random
import threading
from collections.abc import Iterator, Sequence
from operator import itemgetter
from struct import Struct

from ratelimit_mw.algorithms import ANSWER, REFUND, ban, widened
from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.model import Ask, Outcome, Reply
from ratelimit_mw.process_local import reset_after_fork
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores.base import DECIDE, Store, StoreRequest

_STAMP = Struct("<QB")  # when the counter is as if unused, and how much of it is used (0 to 255)
_STAMP_SIZE = _STAMP.size
_SEGMENT = 2048  # counters to a dict: a bigger one makes a pause when it grows
_SAMPLE = 8
_MOST_LOOKED_AT = 32  # counters of a full segment, where all of a sample are used up
_USED_UP = 255
_BARELY_USED = 32  # an eighth of the limit
_CHECKED = 2  # old counters looked at for each new one

_Found = tuple[Outcome, bytes | None]
_share = itemgetter(0)


class _Segment(dict[str, bytes]):
    """Some of the counters; `hand` has the keys that are looked at next to make room."""

    __slots__ = ("hand",)

    def __init__(self) -> None:
        self.hand: list[str] = []


class MemoryStore(Store):
    """At most `max_counters` counters, in dicts guarded by one lock.

    Expired counters go as new ones come. A full store drops, of a sample, the counter of whose limit the smallest
    share is used, whatever its window, so that a flood of new identities can't free an exhausted one. A flood of
    counters that a request or two use up takes the place of its own kind: those of the same rule and attribute.
    Values are plain bytes, which the garbage collector does not visit, and the dicts are many and small, so that
    neither makes a pause.
    """

    remote = shared = False

    def __init__(self, *, max_counters: int = 1_000_000, clock: Clock | None = None) -> None:
        if max_counters < 1:
            raise ValueError(f"max_counters is {max_counters}: a store needs room for one counter at least")
        self._clock = clock or SystemClock()
        self._count = max(1, max_counters // _SEGMENT)
        self._room = max_counters // self._count
        self._segments = [_Segment() for _ in range(self._count)]
        self._lock = threading.Lock()
        reset_after_fork(self)

    def __len__(self) -> int:
        """The number of counters held, expired ones among them."""
        return sum(map(len, self._segments))

    def ask(self, request: StoreRequest) -> Reply:
        """See `Store`."""
        asks, intent = request
        if len(asks) == 1 and intent is DECIDE:  # the common case: no other counter has to agree
            key, quota, cost, _ = asks[0]
            with self._lock:
                now = self._clock.now()
                segment = self._segments[hash(key) % self._count]
                stored = segment.get(key)
                outcome, state = ANSWER[quota.algorithm](stored[_STAMP_SIZE:] if stored else b"", quota, cost, now)
                if state is not None:
                    self._save(segment, asks[0], outcome, state, now)
            return tuple.__new__(Reply, (now, (outcome,), None))
        outcomes: Sequence[Outcome] = ()
        with self._lock:
            now = self._clock.now()
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
        """See `Store`; it never waits."""
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
                outcome, _ = ANSWER[ask.quota.algorithm](state, ask.quota, 0, now)
                self._save(self._segment(ask.key), ask, outcome, state, now)

    def _ask(self, ask: Ask, cost: int, now: int) -> _Found:
        key, quota, _, _ = ask
        stored = self._segment(key).get(key)
        return ANSWER[quota.algorithm](stored[_STAMP_SIZE:] if stored else b"", quota, cost, now)

    def _unasked(self, ask: Ask, delay: int, now: int) -> _Found:
        """As it is while what it would have taken is not taken; it would have waited `delay`."""
        outcome, state = self._ask(ask, 0, now)
        return (outcome._replace(delay=delay) if delay else outcome), state

    def _withhold(self, asks: Sequence[Ask], found: list[_Found], now: int) -> None:
        """Leave untaken what a shadow's ban would have denied: it stands before as many asks as it costs."""
        for place, (_, quota, watched, shadow) in enumerate(asks):
            if quota.algorithm == "ban" and shadow and not found[place][0].allowed:
                for behind in range(place + 1, place + 1 + watched):
                    found[behind] = self._ask(asks[behind], 0, now)

    def _count_denials(self, asks: Sequence[Ask], found: list[_Found], now: int) -> None:
        """Tell each ban that does not stand of a denial by what it watches."""
        for place, ask in enumerate(asks):
            key, quota, watched, _ = ask
            behind = found[place + 1 : place + 1 + watched]
            counts = quota.algorithm == "ban" and quota.limit and found[place][0].allowed
            if counts and not all(said.allowed for said, _ in behind):
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
                holds = quota.burst or quota.limit or 1
                segment[key] = _STAMP.pack(expires, min(max(used - _USED_UP * cost // holds, 0), _USED_UP)) + state

    def _segment(self, key: str) -> _Segment:
        """Where the counter of that key is, or would be."""
        return self._segments[hash(key) % self._count]

    def _save(self, segment: _Segment, ask: Ask, outcome: Outcome, state: bytes, now: int) -> None:
        key, quota, cost, shadow = ask
        if key not in segment:
            self._make_room(segment, now)
        _, remaining, reset_after, _, _ = outcome
        if remaining < cost:  # the next such request is denied
            used = _USED_UP
        else:
            holds = quota.burst or quota.limit or 1
            used = _USED_UP * (holds - remaining) // holds if remaining < holds else 0
        if shadow:
            used //= 2  # it protects nothing: what is enforced stays longer
        segment[key] = _STAMP.pack(now + reset_after, used) + state

    def _make_room(self, segment: _Segment, now: int) -> None:
        """Drop a few expired counters of a segment, and one that has not expired where it is full."""
        if len(segment) < self._room:
            for key in _next(segment, _CHECKED):
                if _STAMP.unpack_from(segment[key])[0] <= now:
                    del segment[key]
            return
        sample = _living(segment, _SAMPLE, now)
        while len(segment) >= self._room:
            least = min(sample, key=_share)
            if least[0] == _USED_UP and len(sample) < min(_MOST_LOOKED_AT, self._room):
                sample += _living(segment, _SAMPLE, now)
                continue
            if least[0] >= _BARELY_USED:
                least = _of_the_flood(sample, least)
            del segment[least[1]]

    def after_fork(self) -> None:
        """Go on in the child of a fork."""
        self._lock = threading.Lock()  # the thread that held it may not exist here


def open_store(settings: StorageSettings, clock: Clock | None) -> Store:
    """The store of memory://."""
    return MemoryStore(max_counters=settings.max_counters, clock=clock)


def _living(segment: _Segment, count: int, now: int) -> list[tuple[int, str]]:
    """How much is used of the next counters of a segment, and their keys. Those that have expired are dropped."""
    found = []
    for key in _next(segment, count):
        expires, used = _STAMP.unpack_from(segment[key])
        if expires <= now:
            del segment[key]
        else:
            found.append((used, key))
    return found


def _of_the_flood(sample: list[tuple[int, str]], least: tuple[int, str]) -> tuple[int, str]:
    """What to drop of a sample that has no counter which is barely used: `least`, or one of the kind that crowds it.

    Where most of a store is used up, one kind of counter is likely to be flooding it: counters that few requests use
    up, by something that a client makes up. Dropping the least used would then free the other rules' counters each
    time that they are used a little.
    """
    kinds = [key.partition("=")[0] for _, key in sample]
    crowd = max(set(kinds), key=kinds.count)
    if least[0] < _USED_UP and 4 * kinds.count(crowd) < 3 * len(kinds):
        return least
    return min((one for one, kind in zip(sample, kinds, strict=True) if kind == crowd), key=_share)


def _next(segment: _Segment, count: int) -> list[str]:
    """The next keys of a segment, round and round; at least one where it has any."""
    hand = segment.hand
    found: list[str] = []
    while len(found) < count:
        if not hand:
            if found or not segment:
                break
            # Each sample is taken from old and new counters alike, for counters of one age are often alike.
            keys = list(segment)
            apart = len(keys) // _SAMPLE
            if apart < 2:
                hand += keys
            else:
                for start in random.sample(range(apart), apart):
                    hand += keys[start::apart]
        key = hand.pop()
        if key in segment:
            found.append(key)
    return found
