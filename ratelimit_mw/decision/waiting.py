"""Threads that wait for their turn: how many do, and what is asked of a store when no more may."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.forks import begins_anew
from ratelimit_mw.late import condition, late
from ratelimit_mw.model import Ask, Charge, Quota


class Waiting:
    """The places for threads that wait for a turn at a bucket, counted for this process.

    A place belongs to a thread that waits, or to one that asks the store whether it has to. A thread that has to wait
    and finds none is held up while some belong to those who ask, for they may turn out not to wait. That takes no
    longer than their decisions: who comes meanwhile gets no place. A child of a fork has none of its parent's threads.
    """

    _told = late(condition)

    def __init__(self) -> None:
        self._begin()
        begins_anew(self)

    def _begin(self) -> None:
        self._asking = self._waiting = self._held_up = 0

    def after_fork(self) -> None:
        """Begin anew in a child: its parent may have held the lock."""
        vars(self).pop("_told", None)
        self._begin()

    def enter(self, most: int) -> bool:
        """Take one of `most` places to ask from, unless all are taken or somebody is held up."""
        with self._told:
            if self._held_up or self._asking + self._waiting >= most:
                return False
            self._asking += 1
            return True

    def enter_at_last(self, most: int) -> bool:
        """Take a place as soon as one is free; False once all belong to threads that wait."""
        with self._told:
            self._held_up += 1
            try:
                while self._waiting < most <= self._waiting + self._asking:
                    self._told.wait()
                if self._waiting >= most:
                    return False
                self._asking += 1
                return True
            finally:
                self._held_up -= 1

    def decided(self, *, waits: bool) -> None:
        """Keep the place for as long as the thread waits, or give it back at once."""
        with self._told:
            self._asking -= 1
            self._waiting += waits
            if self._held_up:
                self._told.notify_all()

    def leave(self) -> None:
        """Give back the place of a thread that has waited."""
        with self._told:
            self._waiting -= 1
            if self._held_up:
                self._told.notify_all()


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
