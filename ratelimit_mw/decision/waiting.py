"""Waiting for a turn at a leaky bucket: which threads may wait, and the charges of a request that must not wait.

`Waiting` limits the number of threads that wait (`max_waiting`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any
from weakref import WeakSet

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.model import Ask, Charge, Quota
from ratelimit_mw.process_local import lazy, lock


class WaitingPlace:
    """The right of one thread to wait. It ends when the thread gives it back or drops its last reference."""

    __slots__ = ("__weakref__",)


class Waiting:
    """The places for threads that wait for their turn at a bucket, counted for this process.

    An asynchronous exception (gevent's timeouts, `PyThreadState_SetAsyncExc`) may be raised at any line. Places are
    therefore kept in a weak set, so that they end with the request at the latest. The engine makes one `lazy`, so the
    child of a fork starts with no places taken.
    """

    _lock = lazy(lock)

    def __init__(self) -> None:
        self._taken: WeakSet[WaitingPlace] = WeakSet()

    def enter(self, place: WaitingPlace, most: int) -> bool:
        """Take one of `most` places. Returns False if all are taken."""
        with self._lock:
            if len(self._taken) >= most:
                return False
            self._taken.add(place)
            return True

    def leave(self, place: WaitingPlace) -> None:
        """Give the place back, if it was taken."""
        with self._lock:
            self._taken.discard(place)


def may_wait(context: Mapping[str, Any] | None) -> bool:
    """Whether a request may keep its thread while it waits. `context` is its WSGI environ or its ASGI scope.

    The only thread of a WSGI server may not: no other request would be served.
    """
    return context is None or bool(context.get("wsgi.multithread", True))


def most_waiting(charges: Sequence[Charge]) -> int | None:
    """The number of threads that may wait for the buckets in `charges`: the smallest `max_waiting`.

    Returns None if no charge can make a request wait.
    """
    waits = [rule.max_waiting for rule, ask in charges if _may_wait(ask)]
    return min(waits, default=None)


def waiting_at_most(charges: Sequence[Charge], most: int) -> Sequence[Charge]:
    """The same charges with a `longest_wait` of `most` microseconds at most.

    A request that would have to wait longer is denied instead. Such a denial does not count towards a penalty.
    """
    return [
        Charge(rule, ask._replace(quota=_waiting_at_most(ask.quota, most)))
        if _may_wait(ask) and ask.quota.longest_wait > most
        else Charge(rule, ask)
        for rule, ask in charges
    ]


def only_waiting_helps(charges: Sequence[Charge], verdict: Verdict) -> bool:
    """Whether a request that was denied because it must not wait could pass if it waits.

    That is the case if only buckets with a `longest_wait` deny it.
    """
    if verdict.reason != "limited":
        return False
    queues = {ask.key for _, ask in charges if _may_wait(ask)}
    pairs = zip(verdict.charges, verdict.outcomes, strict=True)
    denying = [ask.key for (_, ask), outcome in pairs if not outcome.allowed and not ask.shadow]
    return bool(denying) and queues.issuperset(denying)


def _may_wait(ask: Ask) -> bool:
    return ask.quota.waits and not ask.shadow


@lru_cache(maxsize=1024)
def _waiting_at_most(quota: Quota, most: int) -> Quota:
    return replace(quota, longest_wait=most, penalty=quota.penalty and quota.penalty.without_counting)
