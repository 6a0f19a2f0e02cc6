"""Waiting for a turn at a leaky bucket: how many threads may wait, and the charges of a request that must not wait.

`Waiting` limits the number of threads that wait (`max_waiting`).
"""

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from weakref import WeakSet

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.model import Ask, Charge, Quota
from ratelimit_mw.process_local import lazy, lock, reset_after_fork


class WaitingPlace:
    """The right of one thread to wait. It ends when the thread gives it back or drops its last reference."""

    __slots__ = ("__weakref__",)


class Waiting:
    """The places for threads that wait for their turn at a bucket, counted for this process.

    A place is taken by a thread that waits, or by a thread that asks the store whether it must wait. If all places
    are taken, a thread that must wait blocks while asking threads have some of them, because those threads may not
    have to wait. New threads get no place while a thread blocks. It therefore blocks no longer than the decisions
    that are running. The child of a fork starts with no places taken.

    An asynchronous exception (gevent's timeouts, `PyThreadState_SetAsyncExc`) may be raised at any line. Places are
    therefore kept in weak sets, so that they end with the request at the latest. `threading.Condition` is not used,
    because an exception inside it can leave its lock locked.
    """

    _lock = lazy(lock)

    def __init__(self) -> None:
        self._begin()
        reset_after_fork(self)

    def _begin(self) -> None:
        self._asking: WeakSet[WaitingPlace] = WeakSet()
        self._waiting: WeakSet[WaitingPlace] = WeakSet()
        self._blocked: WeakSet[WaitingPlace] = WeakSet()
        self._gates: list[threading.Lock] = []

    def after_fork(self) -> None:
        """Reset in the child of a fork. The lock is replaced, because a thread of the parent may have locked it."""
        vars(self).pop("_lock", None)
        self._begin()

    def enter(self, place: WaitingPlace, most: int) -> bool:
        """Take one of `most` places before asking the store.

        Returns False if all places are taken or if a thread is blocked.
        """
        with self._lock:
            if self._blocked or len(self._asking) + len(self._waiting) >= most:
                return False
            self._asking.add(place)
            return True

    def enter_when_free(self, place: WaitingPlace, most: int) -> bool:
        """Block until one of `most` places is free, and take it.

        Returns False as soon as waiting threads have all places.
        """
        self._blocked.add(place)
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
                gate.acquire(timeout=_CHECK_AGAIN)
        finally:
            self._blocked.discard(place)

    def decided(self, place: WaitingPlace) -> None:
        """Record that the asking thread with this place now waits."""
        with self._lock:
            self._waiting.add(place)
            self._asking.discard(place)
            self._wake()

    def leave(self, place: WaitingPlace) -> None:
        """Give the place back, whether the thread was asking or waiting."""
        with self._lock:
            self._asking.discard(place)
            self._waiting.discard(place)
            self._wake()

    def _wake(self) -> None:
        """Wake all blocked threads, so that they check again."""
        while self._gates:
            self._gates.pop().release()


_CHECK_AGAIN = 1.0
"""Seconds after which a blocked thread checks by itself. A thread may have ended without giving its place back."""


def most_waiting(charges: Sequence[Charge]) -> int | None:
    """The number of threads that may wait for the buckets in `charges`: the smallest `max_waiting`.

    Returns None if no charge can make a request wait.
    """
    waits = [rule.max_waiting for rule, ask in charges if _may_wait(ask)]
    return min(waits, default=None)


def without_max_wait(charges: Sequence[Charge]) -> Sequence[Charge]:
    """The same charges without `max_wait`: a request that would have to wait is denied instead.

    Such a denial does not count towards a ban.
    """
    return with_max_wait(charges, 0)


def with_max_wait(charges: Sequence[Charge], most: int) -> Sequence[Charge]:
    """The same charges with a `max_wait` of `most` microseconds at most. See `without_max_wait`."""
    return [
        Charge(rule, ask._replace(quota=_with_max_wait(ask.quota, most)))
        if _may_wait(ask) and ask.quota.max_wait > most
        else Charge(rule, ask)
        for rule, ask in charges
    ]


def only_waiting_helps(charges: Sequence[Charge], verdict: Verdict) -> bool:
    """Whether a request that was denied under charges `without_max_wait` could pass if it waits.

    That is the case if only buckets with a `max_wait` deny it.
    """
    if verdict.reason != "limited":
        return False
    queues = {ask.key for _, ask in charges if _may_wait(ask)}
    pairs = zip(verdict.charges, verdict.outcomes, strict=True)
    denying = [ask.key for (_, ask), outcome in pairs if not outcome.allowed and not ask.shadow]
    return bool(denying) and queues.issuperset(denying)


def _may_wait(ask: Ask) -> bool:
    return ask.quota.max_wait > 0 and not ask.shadow


@lru_cache(maxsize=1024)
def _with_max_wait(quota: Quota, most: int) -> Quota:
    return replace(quota, max_wait=most, ban=quota.ban and replace(quota.ban, after=0))
