"""Waiting for a place: `RateLimiter.acquire`, and blocks of code under a limit.

`acquisition` makes the steps of both. Steps wait for decisions and for time; `stores.base.drive` carries them out with
blocking calls, `adrive` with awaited ones.
"""

import asyncio
import math
import time
from collections.abc import Callable
from types import TracebackType

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.clock import Clock, ManualClock, clock_to_move, monotonic
from ratelimit_mw.decision.engine import Engine
from ratelimit_mw.decision.planning import Plan
from ratelimit_mw.decision.settlement import Account
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.decision.waiting import waiting_at_most
from ratelimit_mw.errors import LimitExceeded
from ratelimit_mw.identity.request import Arguments
from ratelimit_mw.model import NEVER, SECOND, Decision
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.stores.base import Step, Steps, Store, adrive, drive

_POLL = SECOND // 10
"""How often a place in flight is asked for. Its `retry_after` is only a guess."""

_UNAVAILABLE = SECOND
"""How often a store that is unavailable is asked, if its rules deny requests for this time."""


def _pause(until: float, wait: float, clock: ManualClock | None) -> Step:
    """Return the step that waits for a number of microseconds. A `ManualClock` is moved to `until` instead."""
    if clock is None:
        return Step(time.sleep, asyncio.sleep, wait / SECOND)
    return Step(_move, _amove, clock, until)


def _move(clock: ManualClock, until: float) -> None:
    if clock.now() < until:  # several may wait for the same time
        clock.advance((until - clock.now()) / SECOND)


async def _amove(clock: ManualClock, until: float) -> None:
    await asyncio.sleep(0)
    _move(clock, until)


def checked_timeout(timeout: float) -> float:
    """Return a timeout in microseconds. Raises ValueError unless it is a number of seconds of at least 0."""
    if not timeout >= 0:  # NaN is refused, too
        raise ValueError(f"timeout is {timeout!r}: it must be a number of seconds of at least 0")
    microseconds = timeout * SECOND
    # A ManualClock has whole microseconds, so it would never reach a part of one.
    return microseconds if microseconds == math.inf else round(microseconds)


def acquisition(
    engine: Engine, plan: Callable[[], tuple[Rules, Plan]], clock: Clock | None, timeout: float
) -> Steps[tuple[Verdict, Rules]]:
    """Decide again and again, until a request is allowed and its turn has come, or until the timeout.

    A denial is final before the timeout if no time helps, or if the limit certainly denies until after it.

    Args:
        engine: decides.
        plan: makes the plan of the request by the rules in force. Called for each decision.
        clock: the user's clock, or None for the system's.
        timeout: the longest wait, in microseconds.

    Returns:
        The last verdict, and its rules.
    """
    moved = clock_to_move(clock)
    now = monotonic if moved is None else moved.now
    deadline = now() + timeout
    while True:
        rules, made = plan()
        left = max(deadline - now(), 0)
        if rules.waiting and made.asks and left < math.inf:  # a bucket must not assign a turn after the deadline
            made = engine.planner.plan_of(waiting_at_most(made.charges, math.floor(left)), direct=False)
        verdict: Verdict = yield Step(engine.execute, engine.aexecute, made, rules)
        at = now()
        left = deadline - at
        if verdict.allowed:
            if verdict.delay:
                account = engine.settlement.account(verdict)  # keeps the concurrent places while the request waits
                try:
                    yield _pause(at + verdict.delay, verdict.delay, moved)
                except GeneratorExit:  # nothing can be awaited
                    raise
                except BaseException:  # the task was cancelled, for example: the request needs its places no longer
                    yield Step(engine.settlement.settle, engine.settlement.asettle_anyway, account, account.end())
                    raise
            return verdict, rules
        wait = _wait(verdict)
        if left <= 0 or wait == math.inf or (wait > left and _certain(verdict)):
            return verdict, rules
        wait = min(wait, left)
        yield _pause(at + wait, wait, moved)


def _wait(verdict: Verdict) -> float:
    """The microseconds until a denied request is tried again. Infinity if waiting does not help."""
    outcome = verdict.outcome
    if outcome is None:
        return math.inf if verdict.reason == "blocked" else verdict.wait or _UNAVAILABLE
    if outcome.retry_after == NEVER:
        return math.inf
    quota = verdict.charges[verdict.binding].ask.quota
    return min(outcome.retry_after, _POLL) if ALGORITHMS[quota.algorithm].in_flight else outcome.retry_after


def _certain(verdict: Verdict) -> bool:
    """Whether the counter that denies longest can be opened by time alone."""
    if verdict.outcome is None:
        return False
    quota = verdict.charges[verdict.binding].ask.quota
    return not quota.refundable and quota.over != "elastic" and quota.consistency == "strict"


class LimitedBlock:
    """A block of code under a rule, for `with` and `async with`. See `RateLimiter.limited`.

    The block begins when the rule allows it. It holds its places in flight (`N concurrent`) until it ends. What it is
    charged otherwise stays charged, also after an exception. The object may be used for several blocks.

    Raises:
        LimitExceeded: The rule denies the block. It is raised at the beginning, and the block does not run.
    """

    def __init__(
        self,
        engine: Engine,
        store: Store,
        steps: Callable[[], Steps[tuple[Verdict, Rules]]],
        given: Arguments,
    ) -> None:
        self._engine = engine
        self._store = store
        self._steps = steps
        self._given = given
        self._running: list[Account] = []

    def __enter__(self) -> Decision:
        return self._begun(*drive(self._store, self._steps()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        account = self._running.pop()
        self._engine.settlement.settle(account, account.end())

    async def __aenter__(self) -> Decision:
        return self._begun(*await adrive(self._store, self._steps()))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        account = self._running.pop()
        await self._engine.settlement.asettle_anyway(account, account.end())

    def _begun(self, verdict: Verdict, rules: Rules) -> Decision:
        if not verdict.simple:
            self._engine.report(verdict, rules, self._given)
        if not verdict.allowed:
            raise LimitExceeded(verdict.decision)
        self._running.append(self._engine.settlement.account(verdict))
        return verdict.decision
