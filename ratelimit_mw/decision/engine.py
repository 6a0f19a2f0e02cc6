"""The engine: it plans a request, makes one store call and returns the verdict.

`Waiting` limits the number of threads that wait for their turn at a leaky bucket (`max_waiting`).
"""

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any
from weakref import WeakSet

from ratelimit_mw.clock import Clock
from ratelimit_mw.decision.denials import DENIALS, DenialLog
from ratelimit_mw.decision.planning import Arguments, Plan, Planner, Refusal
from ratelimit_mw.decision.settlement import Settlement
from ratelimit_mw.decision.storage import Shadows, Storage
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import SECOND, Ask, Charge, Quota, Reply
from ratelimit_mw.process_local import lazy, lock, reset_after_fork
from ratelimit_mw.reload.watcher import Retriever
from ratelimit_mw.rules.compiled import NamedRule
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.stores.base import DECIDE, LOOK


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


_FREE = Verdict((), None)
_REFUSED = Verdict((), None, denied="unavailable")
_BLOCKED = Verdict((), None, denied="blocked")


class Engine:
    """Decides on requests by the rules of `retriever`, over the counters in `storage`.

    Threads and event loops may share one engine.

    Args:
        retriever: supplies the rules in force and the setting of the kill switch.
        storage: the store and the local store.
        clock: the user's clock (`ManualClock`); None for the system's.
    """

    def __init__(self, retriever: Retriever, storage: Storage, clock: Clock | None) -> None:
        self._retriever = retriever
        self._storage = storage
        self._clock = clock
        self._waiting = Waiting()
        self.shadows = Shadows()
        self._denials = DenialLog(clock)
        self.planner = Planner(self.shadows, clock)
        self.settlement = Settlement(storage)
        self.waits = storage.store.remote
        """Whether a decision may have to wait for a network."""
        retriever.require(storage.wrap_for)
        self.planner.names.bind(retriever)
        retriever.connect(self.planner.switch.turn)

    def connect(self) -> None:
        """Connect to the store at the start of the server, so that the first requests do not wait for it."""
        self._storage.connect()

    async def aconnect(self) -> None:
        """The awaitable twin of `connect`, for the running event loop."""
        await self._storage.aconnect()

    def current(self) -> Rules:
        """The rules in force. A request reads them once. The first call starts watching for changes."""
        retriever = self._retriever
        if not retriever.watching:
            retriever.watch()
        return retriever.rules

    def load(self, rules: Rules) -> float:
        """The load of this process, from 0 to 1, as the `load` section of `rules` measures it."""
        return self.planner.meter(rules).load()

    def decide(
        self,
        request: Request,
        cost: int = 1,
        *,
        commit: bool = True,
        rules: Rules | None = None,
        rule: str | NamedRule | None = None,
    ) -> Verdict:
        """Decide on a request and block until the store has answered.

        Args:
            request: the request, whose attributes are read when a rule needs them.
            cost: multiplies the cost of each rule.
            commit: whether to charge; False only looks (`peek`).
            rules: what `current` returned for this request; None to call `current`.
            rule: decide by this rule alone, whether or not its `match` holds.

        Raises:
            LookupError: there is no rule of this name.
            ValueError: the cost is not a whole number from 0 on, or the limit of `rule` cannot be used.
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
        rule: str | NamedRule | None = None,
    ) -> Coroutine[Any, Any, Verdict]:
        """The awaitable twin of `decide`."""
        rules = rules or self.current()
        if rules.attributes.awaited:
            return self._resolved(request, cost, commit, rules, rule)
        return self.aexecute(self.planner.admit(rules, request, cost, rule, commit=commit), rules, commit=commit)

    async def _resolved(
        self, request: Request, cost: int, commit: bool, rules: Rules, rule: str | NamedRule | None
    ) -> Verdict:
        await rules.attributes.resolve(request)
        plan = self.planner.admit(rules, request, cost, rule, commit=commit)
        return await self.aexecute(plan, rules, commit=commit)

    def execute(self, plan: Plan, rules: Rules, *, commit: bool = True, again: bool = False) -> Verdict:
        """Carry out a plan that was made by `rules`, and block until the store has answered.

        Args:
            plan: the plan of one request.
            rules: the rules that made the plan.
            commit: whether to charge; False only looks (`peek`).
            again: the request was decided before, so its shadow denials are already counted.
        """
        if rules.settling and self._clock:
            self._storage.renew()  # the renewing thread cannot follow a clock that is moved by hand
        asks = plan.asks
        if not asks:
            return verdict_without_counters(plan)
        store = self._storage.store
        try:
            reply = store.ask((asks, DECIDE if commit else LOOK))
        except StoreUnavailable:
            return self.without_store(plan.charges, commit)
        verdict = Verdict(plan.charges, reply)
        if verdict.shadowed and commit:
            if not again:
                self.shadows.count(verdict)
            if verdict.owed:
                with suppress(StoreUnavailable):  # what cannot be returned stays charged
                    store.refund(verdict.owed, reply.now)
        return verdict

    async def aexecute(self, plan: Plan, rules: Rules, *, commit: bool = True) -> Verdict:
        """The awaitable twin of `execute`."""
        if rules.settling and self._clock:
            await asyncio.to_thread(self._storage.renew)
        asks = plan.asks
        if not asks:
            return verdict_without_counters(plan)
        store = self._storage.store
        try:
            reply = await store.aask((asks, DECIDE if commit else LOOK))
        except StoreUnavailable:
            return self.without_store(plan.charges, commit)
        verdict = Verdict(plan.charges, reply)
        if verdict.shadowed and commit:
            self.shadows.count(verdict)
            if verdict.owed:
                with suppress(StoreUnavailable):
                    await store.arefund(verdict.owed, reply.now)
        return verdict

    def decide_locally(self, charges: Sequence[Charge]) -> Verdict:
        """Decide by the local store alone, which counts for this process."""
        verdict = self._conclude(charges, self._storage.local.decide([charge.ask for charge in charges]), commit=True)
        verdict.local = True
        return verdict

    def decide_in_turn(
        self, request: Request, cost: int = 1, *, rules: Rules | None = None, rule: str | NamedRule | None = None
    ) -> Verdict:
        """Decide on a request and sleep until its turn has come. For servers with a thread for each request.

        If `max_waiting` threads are waiting already, a request that would have to wait is denied.

        A thread takes its place before it asks the store, because a turn that a bucket has assigned cannot be
        returned. A thread without a place asks with charges `without_max_wait`, so that a request that need not
        wait never blocks. If only waiting would help, the thread blocks until a place is free and asks a second
        time, or the request is denied.

        The arguments and errors are those of `decide`.
        """
        rules = rules or self.current()
        plan = self.planner.admit(rules, request, cost, rule)
        most = most_waiting(plan.charges) if rules.waiting else None
        if most is None:
            return self.execute(plan, rules)
        waiting, place, again = self._waiting, WaitingPlace(), False
        try:
            if not waiting.enter(place, most):
                verdict = self.execute(Plan(without_max_wait(plan.charges)), rules)
                again = only_waiting_helps(plan.charges, verdict) and waiting.enter_when_free(place, most)
                if not again:
                    return verdict
            verdict = self.execute(plan, rules, again=again)
            if verdict.delay:
                waiting.decided(place)
                self.settlement.account(verdict)  # keeps the concurrent places of the request while it waits
                time.sleep(verdict.delay / SECOND)
            return verdict
        finally:
            waiting.leave(place)

    def _conclude(self, charges: Sequence[Charge], reply: Reply, commit: bool) -> Verdict:
        verdict = Verdict(charges, reply)
        if commit and verdict.shadowed:
            self.shadows.count(verdict)
        return verdict

    def report(self, verdict: Verdict, rules: Rules, given: Request | Arguments) -> None:
        """Log a denial. All code that denies a request calls it once.

        Args:
            verdict: the verdict that denies the request.
            rules: the rules that decided.
            given: the request, or the attributes of `check()`.
        """
        if DENIALS.isEnabledFor(logging.INFO):
            self._denials.write(verdict, rules, given)

    def forget_reports(self) -> None:
        """Log and count denials, bans and shed requests as if there were none before. For tests."""
        self._denials.reset()
        self.shadows.reset()
        self._storage.bans.reset()
        self.planner.shedder.reset()

    def without_store(self, charges: Sequence[Charge], commit: bool) -> Verdict:
        """Decide by each rule's `on_error` while the store is unavailable. `deny` wins over `local` and `allow`."""
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


def verdict_without_counters(plan: Plan) -> Verdict:
    """The verdict on a plan that asks no counter: the request is shed, blocked or free."""
    if isinstance(plan, Refusal):
        return plan.verdict
    return _BLOCKED if plan.charges else _FREE
