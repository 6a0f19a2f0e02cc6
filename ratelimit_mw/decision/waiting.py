"""Threads that wait for their turn: how many do, and what is asked of a store when no more may."""

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ratelimit_mw.model import Charge, Quota


class Waiting:
    """The places for threads that wait for a turn at a bucket, counted for this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._taken = 0

    def enter(self, most: int) -> bool:
        """Take a place, unless `most` or more are taken."""
        with self._lock:
            if self._process != os.getpid():  # forked: those who wait are the parent's
                self._process, self._taken = os.getpid(), 0
            if self._taken >= most:
                return False
            self._taken += 1
            return True

    def leave(self) -> None:
        """Give a place back."""
        with self._lock:
            self._taken -= 1


def most_waiting(charges: Sequence[Charge]) -> int | None:
    """How many threads may wait for the turns that `charges` may bring; None where none brings one."""
    waits = [rule.max_waiting for rule, ask in charges if ask.quota.max_wait and not ask.shadow]
    return min(waits, default=None)


def impatient(charges: Sequence[Charge]) -> Sequence[Charge]:
    """The same charges, denied where they would have to wait; that brings nobody nearer to a ban."""
    return [
        Charge(rule, ask._replace(quota=_impatient(ask.quota))) if ask.quota.max_wait else Charge(rule, ask)
        for rule, ask in charges
    ]


@lru_cache(maxsize=1024)
def _impatient(quota: Quota) -> Quota:
    return replace(quota, max_wait=0, ban=quota.ban and replace(quota.ban, after=0))
