"""The engine: plan, one store call, verdict; and waiting for a turn."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any
from weakref import WeakSet

from ratelimit_mw.clock import Clock
from ratelimit_mw.decision.planning import Plan, Planner, Refusal
from ratelimit_mw.decision.settlement import Settlement
from ratelimit_mw.decision.storage import Shadows, Storage
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import SECOND, Ask, Charge, Quota, Reply
from ratelimit_mw.process_local import lazy, lock, reset_after_fork
from ratelimit_mw.reload.watcher import Retriever
from ratelimit_mw.rules.domains import Rules


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

    _lock = lazy(lock)

    def __init__(self) -> None:
        self._begin()
        reset_after_fork(self)

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


_FREE = Verdict((), None)
_REFUSED = Verdict((), None, denied="unavailable")
_BLOCKED = Verdict((), None, denied="blocked")


class Engine:
    """Decides on requests by the rules that `retriever` has, over the counters in `storage`.

    Threads and event loops may share it. `clock` is there where one was handed in.
    """

    def __init__(self, retriever: Retriever, storage: Storage, clock: Clock | None) -> None:
        self._retriever = retriever
        self._storage = storage
        self._clock = clock
        self._waiting = Waiting()
        self.shadows = Shadows()
        self.planner = Planner(self.shadows, clock)
        self.settlement = Settlement(storage)
        retriever.require(storage.decide_here)
        retriever.connect(self.planner.switch.turn)

    def connect(self) -> None:
        """Connect to the store as the server starts, so that the first requests do not wait for that."""
        self._storage.connect()

    async def aconnect(self) -> None:
        """The awaitable twin of `connect`, for the running event loop."""
        await self._storage.aconnect()

    def current(self) -> Rules:
        """The rules in force, as a request reads them: once. From the first request on they are kept up to date."""
        retriever = self._retriever
        if not retriever.watching:
            retriever.watch()
        return retriever.rules

    def decide(
        self,
        request: Request,
        cost: int = 1,
        *,
        commit: bool = True,
        rules: Rules | None = None,
        rule: str | None = None,
    ) -> Verdict:
        """Decide on a request, for a shell that blocks. `rules` are what `current` gave it.

        With `rule`, by the rule of that name alone, whether or not its `match` holds.
        """
        rules = rules or self.current()
        return self.execute(self.planner.admit(rules, request, cost, rule, commit=commit), rules, commit=commit)

    def adecide(
        self,
        request: Request,
        cost: int = 1,
        *,
        commit: bool = True,
        rules: Rules | None = None,
        rule: str | None = None,
    ) -> Coroutine[Any, Any, Verdict]:
        """The awaitable twin of `decide`, for a shell that awaits."""
        rules = rules or self.current()
        if rules.attributes.awaited:
            return self._resolved(request, cost, commit, rules, rule)
        return self.aexecute(self.planner.admit(rules, request, cost, rule, commit=commit), rules, commit=commit)

    async def _resolved(self, request: Request, cost: int, commit: bool, rules: Rules, rule: str | None) -> Verdict:
        await rules.attributes.resolve(request)
        plan = self.planner.admit(rules, request, cost, rule, commit=commit)
        return await self.aexecute(plan, rules, commit=commit)

    def execute(self, plan: Plan, rules: Rules, *, commit: bool = True, again: bool = False) -> Verdict:
        """Decide by a plan that was made by `rules`; `again` where shadow rules have had their say on the request."""
        if rules.settling and self._clock:
            self._storage.renew()  # no thread knows when a clock moves that is moved by hand
        asks = plan.asks
        if not asks:
            return idle(plan)
        store = self._storage.store
        try:
            reply = store.decide(asks, commit=commit)
        except StoreUnavailable:
            return self.without_store(plan.charges, commit)
        verdict = Verdict(plan.charges, reply)
        if verdict.shadowed and commit:
            if not again:
                self.shadows.count(verdict)
            if verdict.owed:
                with suppress(StoreUnavailable):  # what can't be returned stays charged
                    store.refund(verdict.owed, reply.now)
        return verdict

    async def aexecute(self, plan: Plan, rules: Rules, *, commit: bool = True) -> Verdict:
        """The awaitable twin of `execute`."""
        if rules.settling and self._clock:
            await asyncio.to_thread(self._storage.renew)
        asks = plan.asks
        if not asks:
            return idle(plan)
        store = self._storage.store
        try:
            reply = await store.adecide(asks, commit=commit)
        except StoreUnavailable:
            return self.without_store(plan.charges, commit)
        verdict = Verdict(plan.charges, reply)
        if verdict.shadowed and commit:
            self.shadows.count(verdict)
            if verdict.owed:
                with suppress(StoreUnavailable):
                    await store.arefund(verdict.owed, reply.now)
        return verdict

    def decide_here(self, charges: Sequence[Charge]) -> Verdict:
        """Decide on a plan by counters of this process alone."""
        verdict = self._conclude(charges, self._storage.local.decide([charge.ask for charge in charges]), commit=True)
        verdict.local = True
        return verdict

    def decide_in_turn(
        self, request: Request, cost: int = 1, *, rules: Rules | None = None, rule: str | None = None
    ) -> Verdict:
        """Decide on a request, and return when its turn has come: for a shell that has a thread for each request.

        Where as many threads wait as may, a request that would have to wait is denied.

        A thread asks with a place to wait in, so that nothing has to be given back: a turn that was given is never
        given again. Who finds no place while others ask asks nonetheless, but not to wait, so that no request that
        needs no turn is held up by another's; one that does need a turn then hears what became of the others before
        it asks a second time, or is denied.
        """
        rules = rules or self.current()
        plan = self.planner.admit(rules, request, cost, rule)
        most = most_waiting(plan.charges) if rules.waiting else None
        if most is None:
            return self.execute(plan, rules)
        waiting, place, again = self._waiting, Place(), False
        try:
            if not waiting.enter(place, most):
                verdict = self.execute(Plan(impatient(plan.charges)), rules)
                again = lacks_patience(plan.charges, verdict) and waiting.enter_at_last(place, most)
                if not again:
                    return verdict
            verdict = self.execute(plan, rules, again=again)
            if verdict.delay:
                waiting.decided(place)
                self.settlement.account(verdict)  # what is held is held while it waits
                time.sleep(verdict.delay / SECOND)
            return verdict
        finally:
            waiting.leave(place)

    def _conclude(self, charges: Sequence[Charge], reply: Reply, commit: bool) -> Verdict:
        verdict = Verdict(charges, reply)
        if commit and verdict.shadowed:
            self.shadows.count(verdict)
        return verdict

    def without_store(self, charges: Sequence[Charge], commit: bool) -> Verdict:
        """What each rule's `on_error` makes of a store that is away; deny wins."""
        if any(rule.on_error == "deny" and (rule.quota_group or not ask.shadow) for rule, ask in charges):
            return _REFUSED
        charges = [charge for charge in charges if charge.rule.on_error == "local"]
        if not charges:
            return _FREE
        local = self._storage.local
        reply = local.decide([charge.ask for charge in charges], commit=commit)
        verdict = self._conclude(charges, reply, commit)
        verdict.local = True
        if commit and verdict.owed:
            local.refund(verdict.owed, reply.now)
        return verdict


def idle(plan: Plan) -> Verdict:
    """The verdict on a plan that asks nothing."""
    if isinstance(plan, Refusal):
        return plan.verdict
    return _BLOCKED if plan.charges else _FREE
