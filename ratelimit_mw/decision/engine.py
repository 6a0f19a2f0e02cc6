"""The engine: it plans a request, makes one store call and returns the verdict."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from operator import itemgetter
from time import perf_counter
from typing import Any

from ratelimit_mw.clock import Clock
from ratelimit_mw.decision.denials import DENIALS, DenialLog
from ratelimit_mw.decision.planning import FREE, Plan, Planner
from ratelimit_mw.decision.settlement import Settlement
from ratelimit_mw.decision.storage import Storage
from ratelimit_mw.decision.verdict import Conclusion, Verdict
from ratelimit_mw.decision.waiting import (
    Waiting,
    WaitingPlace,
    may_wait,
    most_waiting,
    only_waiting_helps,
    waiting_at_most,
)
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.identity.request import Arguments, Request
from ratelimit_mw.model import SECOND, Charge, Reply, Rule
from ratelimit_mw.process_local import lazy
from ratelimit_mw.reload.watcher import Retriever
from ratelimit_mw.rules.compiled import NamedRule
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.stores.base import DECIDE, LOOK, Intent, ReplyFields, Step, Steps, adrive, drive
from ratelimit_mw.tally import DENIED, SHADOW_DENIED, Passes

_ADMITTED = itemgetter(0)

_UNAVAILABLE = Verdict((), None, denied="unavailable")


class Engine:
    """Decides on requests by the rules of `retriever`, over the counters in `storage`.

    Threads and event loops may share one engine.

    Args:
        retriever: supplies the rules in force and the setting of the kill switch.
        storage: the store and the local store.
        clock: the user's clock (`ManualClock`); None for the system's.
    """

    _waiting = lazy(Waiting)

    def __init__(self, retriever: Retriever, storage: Storage, clock: Clock | None) -> None:
        self.retriever = retriever
        self.storage = storage
        self._clock = clock
        self.on_denial: Callable[[Verdict, int, str, bool], None] | None = None
        """Is called with each denial on the path of the request: the verdict, the index of the counter that denies (-1
        for none), the reason, and whether a shadow rule would have denied it. None if no code needs it."""
        self.tally = storage.tally
        self.planner = Planner(self._would_shed, self.tally.shed, clock, retriever.names)
        self.settlement = Settlement(storage)
        self.waits = storage.store.waits
        """Whether a decision may have to wait for the store."""
        retriever.require(storage.wrap_for)
        retriever.on_switch = self.planner.switch.turn

    @cached_property
    def _denials(self) -> DenialLog:
        return DenialLog(self._clock)

    def current(self) -> Rules:
        """The rules in force. A request reads them once. The first call starts watching for changes."""
        retriever = self.retriever
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
        rule: NamedRule | None = None,
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
            ValueError: the cost is not a whole number of at least 0, or the limit of `rule` cannot be used.
        """
        rules = rules or self.current()
        return self.execute(self.planner.admit(rules, request, cost, rule, commit=commit), rules, commit=commit)

    async def adecide(
        self,
        request: Request,
        cost: int = 1,
        *,
        commit: bool = True,
        rules: Rules | None = None,
        rule: NamedRule | None = None,
    ) -> Verdict:
        """The awaitable twin of `decide`."""
        rules = rules or self.current()
        if rules.attributes.awaited:
            await rules.attributes.resolve(request)
        plan = self.planner.admit(rules, request, cost, rule, commit=commit)
        return await self.aexecute(plan, rules, commit=commit)

    def execute(self, plan: Plan, rules: Rules, commit: bool = True) -> Verdict:
        """Carry out a plan that was made by `rules`, and block until the store has answered.

        The caller passes a verdict that is not `simple` to `report`.

        Args:
            plan: the plan of one request.
            rules: the rules that made the plan.
            commit: whether to charge; False only looks (`peek`).
        """
        if commit:
            return plan.verdict_of(self.take(plan, rules))
        return drive(self.storage.store, self._steps(plan, rules, commit))

    async def aexecute(self, plan: Plan, rules: Rules, commit: bool = True) -> Verdict:
        """The awaitable twin of `execute`."""
        if commit:
            return plan.verdict_of(await self.atake(plan, rules))
        return await adrive(self.storage.store, self._steps(plan, rules, commit))

    def take(self, plan: Plan, rules: Rules) -> Conclusion:
        """Do what `execute` does, without making a verdict that may never be read."""
        place = plan.place or self.place(plan)
        if place is None:
            return drive(self.storage.store, self._steps(plan, rules, commit=True))
        due, decide = self.tally.due, plan.shape.decide  # read first: to call what an attribute holds takes longer
        started = perf_counter() if due() else 0.0
        try:
            reply: ReplyFields = decide(place)
        except StoreUnavailable:
            return self.without_store(plan.charges, True, started)
        return self._concluded(plan, reply, started)

    async def atake(self, plan: Plan, rules: Rules) -> Conclusion:
        """The awaitable twin of `take`."""
        if not plan.shape.direct:
            return await adrive(self.storage.store, self._steps(plan, rules, commit=True))
        if not self.waits:
            return self.take(plan, rules)
        due = self.tally.due
        started = perf_counter() if due() else 0.0
        try:
            reply = await self.storage.store.reply_to((plan.asks, DECIDE))
        except StoreUnavailable:
            return self.without_store(plan.charges, True, started)
        return self._concluded(plan, reply, started)

    def place(self, plan: Plan) -> Any:
        """Where the store has the counters of a plan: `Plan.place`. None if the plan takes several steps."""
        shape = plan.shape
        if shape.place is None and shape.direct:
            # The place last, because another thread may execute the plan as soon as it is set.
            shape.decide, shape.place = self.storage.store.decider(plan.asks) or (None, None)
            shape.direct = shape.place is not None
        plan.place = shape.place and shape.place(plan.asks)
        return plan.place

    def _concluded(self, plan: Plan, reply: ReplyFields, started: float) -> Conclusion:
        """What is concluded on a plan that was executed in one step. It is counted. See `_counted`."""
        passes = plan.shape.brief_passes
        if passes is not None and reply[1][0][0] and (len(reply[1]) == 1 or all(map(_ADMITTED, reply[1]))):
            passes.number += 1
            if started:
                self._measure(plan.verdict_of(reply), started, answered=True)
            return reply
        return self._counted(plan, plan.concluded(reply), started, certain=reply[2] is not None)

    def _steps(self, plan: Plan, rules: Rules, commit: bool) -> Steps[Verdict]:
        """Carry out a plan that takes more than one step. See `execute`."""
        if rules.holding and self._clock:
            renew = self.storage.renew  # here, because the renewing thread cannot follow a clock that is moved by hand
            yield Step(renew, partial(asyncio.to_thread, renew))
        if not plan.asks:
            return self._without_counters(plan, commit)
        started = perf_counter() if self.tally.due() else 0.0
        try:
            reply: Reply = yield plan.asks, DECIDE if commit else LOOK
        except StoreUnavailable:
            return self.without_store(plan.charges, commit, started)
        verdict = plan.concluded(reply)
        if commit:
            self._counted(plan, verdict, started, certain=reply.only is not None)
            if verdict.shadowed and verdict.owed:
                with suppress(StoreUnavailable):  # what cannot be returned stays charged
                    yield verdict.owed, Intent(charged_at=reply.now)
        return verdict

    def _counted(self, plan: Plan, verdict: Verdict, started: float, *, certain: bool) -> Verdict:
        """Count a verdict, and return it. Denied requests are counted by `report`.

        Args:
            plan: the plan.
            verdict: the verdict on it.
            started: when the store was asked, if that is measured; otherwise 0.
            certain: the denial was certain without asking the store.
        """
        if verdict.simple:
            passes = plan.shape.passes or self._passes(plan, verdict.charges)
            passes.number += 1
        elif verdict.allowed or certain:
            self._count(plan, verdict, certain=certain)
        if started:
            self._measure(verdict, started, answered=not certain)
        return verdict

    def _without_counters(self, plan: Plan, commit: bool) -> Verdict:
        verdict = plan.verdict
        if commit and verdict.allowed:
            self.tally.unlimited += 1
        if commit and self.tally.tracers:
            self.tally.traced(verdict.decision)
        return verdict

    def _passes(self, plan: Plan, charges: Sequence[Charge]) -> Passes:
        """What counts the requests that all rules of `charges` simply allow: those of the plan, or of a service."""
        labels = charges[0][0].label if len(charges) == 1 else tuple([rule.label for rule, _ in charges])
        passes = self.tally.passes.get(labels)
        if charges is plan.charges:
            plan.shape.passes = passes
            plan.shape.brief_passes = passes if plan.shape.brief else None
        return passes or self.tally.passes_of(labels, charges)

    def _count(self, plan: Plan, verdict: Verdict, *, certain: bool) -> None:
        """Count a request that its counters did not simply allow. See `_counted` for the arguments."""
        if certain:
            self.tally.local_denials += 1
        if not verdict.allowed:
            return
        if verdict.delay or verdict.over or not all(map(_ADMITTED, verdict.rows)):
            self.tally.passed(verdict.charges, verdict.outcomes, verdict.over, verdict.delay)
        else:
            self._passes(plan, verdict.charges).number += 1

    def _measure(self, verdict: Verdict, started: float, *, answered: bool = False) -> None:
        """Count the measures of a request. `started` is when the store was asked, `answered` whether it replied."""
        tally = self.tally
        tally.measured(perf_counter() - started, verdict.charges, verdict.rows)
        if answered and not tally.store_up:
            tally.answered()
        if tally.tracers:
            tally.traced(verdict.decision)

    def decide_locally(self, charges: Sequence[Charge], *, commit: bool = True) -> Verdict:
        """Decide by the local store alone, which counts for this process. See `execute` for `commit`."""
        local = self.storage.local
        reply = local.decide([charge.ask for charge in charges], commit=commit)
        verdict = Verdict(charges, reply)
        verdict.local = True
        if commit and verdict.allowed:
            self.tally.passed(charges, verdict.outcomes, verdict.over, verdict.delay)
        if commit and verdict.owed:
            local.refund(verdict.owed, reply.now)
        return verdict

    def decide_in_turn(
        self, request: Request, cost: int = 1, *, rules: Rules | None = None, rule: NamedRule | None = None
    ) -> Verdict:
        """Decide on a request and sleep until its turn has come. For servers with a thread for each request.

        A request that would have to wait is denied if `max_waiting` threads are waiting already, and if the server has
        one thread alone.

        A turn that a bucket has assigned cannot be returned. The store is therefore asked with charges
        that must not wait first. Only if waiting would help, the thread takes a place and asks a second time.

        The arguments and errors are those of `decide`.
        """
        rules = rules or self.current()
        plan = self.planner.admit(rules, request, cost, rule)
        # `waiting` does not know of the limits that the app declares.
        most = most_waiting(plan.charges) if rules.waiting or rule is not None else None
        if most is None:
            verdict = self.execute(plan, rules)
            if verdict.delay:  # a service has assigned a turn
                time.sleep(verdict.delay / SECOND)
            return verdict
        verdict = self.execute(self.planner.plan_of(waiting_at_most(plan.charges, 0), plan.shape.direct), rules)
        if not (only_waiting_helps(plan.charges, verdict) and may_wait(request.context)):
            return verdict
        waiting, place = self._waiting, WaitingPlace()
        try:
            if waiting.enter(place, most):
                verdict = self.execute(plan, rules)
                if verdict.delay:
                    self.settlement.account(verdict)  # keeps the concurrent places of the request while it waits
                    time.sleep(verdict.delay / SECOND)
            return verdict
        finally:
            waiting.leave(place)

    def report(self, verdict: Verdict, rules: Rules, given: Request | Arguments) -> None:
        """Count a denial and log it, and also the denials that shadow rules would have made.

        All code that decides on a request calls it once, unless the verdict is `simple`.

        Args:
            verdict: the verdict.
            rules: the rules that decided.
            given: the request, or the attributes of `check()`.
        """
        if verdict.shadowed:
            for place, (charge, outcome) in enumerate(zip(verdict.charges, verdict.outcomes, strict=True)):
                if charge.ask.shadow and not (outcome.allowed or charge.rule.quota_group):  # a group denies together
                    self._told(verdict, place, outcome.reason, rules, given, shadow=True)
        if verdict.allowed:
            return
        tally, charges, place = self.tally, verdict.charges, verdict.binding
        rule = charges[place][0] if place >= 0 else None
        passes = tally.passes.get(rule.label) if rule is not None and len(charges) == 1 else None
        if passes is None:
            reason: str = verdict.reason or "limited"
            tally.refused(charges, verdict.outcomes, verdict.over, rule=rule, reason=reason)
        else:  # the common case, without a call: the only counter that was asked denies
            tally.denied += 1
            cell = passes.cells[0]
            cell.counts[DENIED] += 1
            reason = verdict.outcomes[0].reason
            cell.reasons[reason] += 1
        self._told(verdict, place, reason, rules, given)

    def _told(
        self,
        verdict: Verdict,
        place: int,
        reason: str,
        rules: Rules,
        given: Request | Arguments,
        *,
        shadow: bool = False,
    ) -> None:
        """Pass on a denial by the counter with the index `place`."""
        if self.on_denial is not None:
            self.on_denial(verdict, place, reason, shadow)
        if DENIALS.isEnabledFor(logging.INFO):
            self._denials.write(verdict, place, reason, rules, given, shadow=shadow)

    def _would_shed(self, verdict: Verdict, rule: Rule, rules: Rules, request: Request) -> None:
        """Count and log a request that a shadow rule would have shed."""
        self.tally.cell(rule).counts[SHADOW_DENIED] += 1
        self._told(verdict, -1, "shed", rules, request, shadow=True)

    def forget_reports(self) -> None:
        """Log and count denials, bans and shed requests as if there were none before. For tests."""
        self._denials.lines.reset()
        self.tally.reset()
        self.storage.ban_lines.reset()
        self.planner.shedder.reset()

    def without_store(self, charges: Sequence[Charge], commit: bool, started: float = 0.0) -> Verdict:
        """Decide by each rule's `on_error` while the store is unavailable. `deny` wins over `local` and `allow`.

        `started` is when the store was asked (by `perf_counter`), if that is measured.
        """
        local = [charge for charge in charges if charge.rule.on_error == "local"]
        if any(rule.on_error == "deny" and (rule.quota_group or not ask.shadow) for rule, ask in charges):
            verdict = _UNAVAILABLE
        else:
            verdict = self.decide_locally(local, commit=commit) if local else FREE
        if commit:
            self.tally.failed()
            if verdict is FREE:
                self.tally.unchecked += 1
            if started:
                self._measure(verdict, started)
        return verdict
