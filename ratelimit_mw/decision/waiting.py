"""Threads that wait for their turn: how many do, and what is asked of a store when no more may."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from weakref import WeakSet

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.forks import begins_anew
from ratelimit_mw.late import late, lock
from ratelimit_mw.model import Ask, Charge, Quota


class Place:
    """A place of a thread; the thread has it as long as it lives, unless it gives it back."""

    __slots__ = ("__weakref__",)


class Waiting:
    """The places for threads that wait for a turn at a bucket, counted for this process.

    A place belongs to a thread that waits, or to one that asks the store whether it has to. A thread that has to wait
    and finds none is held up while some belong to those who ask, for they may turn out not to wait. That takes no
    longer than their decisions: who comes in the meantime gets no place. A child of a fork has none of its parent's
    threads.

    An exception from elsewhere may come to a thread at any line. Places are known weakly, so that they end with the
    thread's request at the latest. There is no `threading.Condition`: an exception inside it can leave its lock held.
    """

    _lock = late(lock)

    def __init__(self) -> None:
        self._begin()
        begins_anew(self)

    def _begin(self) -> None:
        self._asking: WeakSet[Place] = WeakSet()
        self._waiting: WeakSet[Place] = WeakSet()
        self._held_up: WeakSet[Place] = WeakSet()
        self._gates: list[threading.Lock] = []

    def after_fork(self) -> None:
        """Begin again in a child: its parent may have held the lock."""
        vars(self).pop("_lock", None)
        self._begin()

    def enter(self, place: Place, most: int) -> bool:
        """Take one of `most` places to ask from, unless all are taken or some thread is held up."""
        with self._lock:
            if self._held_up or len(self._asking) + len(self._waiting) >= most:
                return False
            self._asking.add(place)
            return True

    def enter_at_last(self, place: Place, most: int) -> bool:
        """Take a place as soon as one is free; False once all belong to threads that wait."""
        self._held_up.add(place)
        try:
            while True:
                gate = threading.Lock()
                gate.acquire()
                with self._lock:
                    if len(self._waiting) >= most:
                        return False
                    if len(self._waiting) + len(self._asking) < most:
                        self._asking.add(place)
                        return True
                    self._gates.append(gate)
                gate.acquire(timeout=_LOOK_AGAIN)
        finally:
            self._held_up.discard(place)

    def decided(self, place: Place) -> None:
        """Keep the place for as long as the thread waits."""
        with self._lock:
            self._waiting.add(place)
            self._asking.discard(place)
            self._tell()

    def leave(self, place: Place) -> None:
        """Give the place back, of whichever kind it is."""
        with self._lock:
            self._asking.discard(place)
            self._waiting.discard(place)
            self._tell()

    def _tell(self) -> None:
        """Have those who are held up look again."""
        while self._gates:
            self._gates.pop().release()


_LOOK_AGAIN = 1.0
"""Seconds after which a thread that is held up looks whether others are gone that have not given their place back."""


def most_waiting(charges: Sequence[Charge]) -> int | None:
    """How many threads may wait for the turns that `charges` may bring; None where none brings one."""
    waits = [rule.max_waiting for rule, ask in charges if _brings_turns(ask)]
    return min(waits, default=None)


def impatient(charges: Sequence[Charge]) -> Sequence[Charge]:
    """The same charges, denied where they would have to wait; that brings nobody nearer to a ban."""
    return [
        Charge(rule, ask._replace(quota=_impatient(ask.quota))) if _brings_turns(ask) else Charge(rule, ask)
        for rule, ask in charges
    ]


def lacks_patience(charges: Sequence[Charge], verdict: Verdict) -> bool:
    """Whether a request that was asked impatiently may do better if it waits: none but buckets with turns deny it."""
    if verdict.reason != "limited":
        return False
    queues = {ask.key for _, ask in charges if _brings_turns(ask)}
    said = zip(verdict.charges, verdict.outcomes, strict=True)
    denying = [ask.key for (_, ask), outcome in said if not outcome.allowed and not ask.shadow]
    return bool(denying) and queues.issuperset(denying)


def _brings_turns(ask: Ask) -> bool:
    return ask.quota.max_wait > 0 and not ask.shadow


@lru_cache(maxsize=1024)
def _impatient(quota: Quota) -> Quota:
    return replace(quota, max_wait=0, ban=quota.ban and replace(quota.ban, after=0))
