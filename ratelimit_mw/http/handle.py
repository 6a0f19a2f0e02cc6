"""What both middlewares share for each request: the choice of the limiter, and the handle that the app sees."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from ratelimit_mw.decision.planning import whole
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.http.answers import Answers, Denial
from ratelimit_mw.identity.request import Request
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import SECOND, Decision
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.stores import Store


def given_or_made(
    config: str | os.PathLike[str] | Mapping[str, object] | None,
    limiter: RateLimiter | None,
    storage: str | Store | None,
) -> RateLimiter:
    """The limiter of a middleware. Raises TypeError unless exactly one of `config` and `limiter` is given."""
    if config is not None and limiter is None:
        return RateLimiter(config, storage=storage)
    if limiter is None or config is not None:
        raise TypeError("RateLimitMiddleware takes either a config or a limiter: exactly one of them")
    if storage is not None:
        raise TypeError("RateLimitMiddleware takes storage with a config only: a limiter has its own")
    if not isinstance(limiter, RateLimiter):
        raise TypeError(f"limiter takes a RateLimiter, not {type(limiter).__name__}; rules are given as config")
    return limiter


def refuse_awaited(rules: Rules) -> None:
    """Raise ConfigurationError if the rules need an event loop. For servers without one."""
    if rules.attributes.awaited:
        names = ", ".join(name for name, _ in rules.attributes.awaited)
        raise ConfigurationError(
            [Problem(f"async functions can't be awaited under WSGI: {names}", hint="write them as plain functions")]
        )


class Enforced(NamedTuple):
    """What a rule that was asked for by name has decided.

    Attributes:
        decision: The decision.
        denial: The status, the headers and the body of the answer if the rule denies the request, else None.
    """

    decision: Decision
    denial: Denial[str] | None


class Handle:
    """The decision on the current request, as the app sees it. It has all fields of `Decision`.

    The Decision is made when a field is first read, because most apps never read one.
    """

    __slots__ = ("_limiter", "_request", "_rules", "_verdict", "told")

    def __init__(self, verdict: Verdict, limiter: RateLimiter, request: Request, rules: Rules) -> None:
        self._verdict = verdict
        self._limiter = limiter
        self._request = request
        self._rules = rules
        self.told = verdict
        """The verdict whose limit the headers of the response report."""

    @property
    def decision(self) -> Decision:
        """The Decision as a value of its own."""
        return self._verdict.decision

    @property
    def limiter(self) -> RateLimiter:
        """The engine that decided. Its `state` tells which rules are in force, its `overrides` change them."""
        return self._limiter

    def _enforced(self, verdict: Verdict) -> Enforced:
        if not verdict.allowed:
            rules = self._rules
            answers = Answers(rules.response, rules.attributes.address, name=str, value=str)
            return Enforced(verdict.decision, answers.denial(verdict, self._request))
        if verdict.binds_more_than(self.told):
            self.told = verdict
        return Enforced(verdict.decision, None)

    @property
    def domain(self) -> str:
        """The domain of the rules that decided."""
        return self._rules.domain

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copy and pickle look up attributes before __init__ has run
            raise AttributeError(name)
        return getattr(self.decision, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *Decision._fields]

    def __repr__(self) -> str:
        return repr(self.decision)


class AsyncHandle(Handle):
    """`scope["ratelimit"]` under ASGI: the decision, and awaitable calls that charge, refund and ask further rules.

    No call raises because the store is unavailable: what cannot be charged is free, what cannot be given back stays
    charged. Places in flight (`N concurrent`) are left alone by all of them.
    """

    __slots__ = ()

    async def charge(self, amount: int = 1) -> None:
        """Charge each counter of this request more, above its limit if need be.

        Args:
            amount: How much. A whole number from 0.

        Raises:
            ValueError: The amount is negative.
        """
        settlement = self._limiter.engine.settlement
        account = settlement.account(self._verdict)
        await settlement.asettle(account, account.more(whole(amount)))

    async def refund(self, amount: int | None = None) -> None:
        """Give back what this request took from each of its counters, never more than it took.

        Args:
            amount: How much. A whole number from 0; None gives back everything.

        Raises:
            ValueError: The amount is negative.
        """
        settlement = self._limiter.engine.settlement
        account = settlement.account(self._verdict)
        await settlement.asettle(account, account.back(None if amount is None else whole(amount)))

    async def check(self, rule: str, cost: int = 1) -> Decision:
        """Decide on this request by one rule, and charge it if it is allowed.

        The `match` of the rule need not hold. A rule with `on_demand` applies only here. A name that the rules do not
        have limits nothing and is logged once.

        Args:
            rule: The name of the rule.
            cost: What the request charges, as a multiple of the rule's `cost`. A whole number from 0.

        Raises:
            ValueError: The cost is negative.
        """
        return (await self._limiter.engine.adecide(self._request, cost, rules=self._rules, rule=rule)).decision

    async def enforce(self, rule: str, cost: int = 1) -> Enforced:
        """Do what `check` does, wait for the request's turn, and word the denial.

        From then on the headers of the response report this rule, if it binds more than those before.

        Args:
            rule: As for `check`.
            cost: As for `check`.

        Raises:
            ValueError: The cost is negative.
        """
        verdict = await self._limiter.engine.adecide(self._request, cost, rules=self._rules, rule=rule)
        if verdict.delay:
            await asyncio.sleep(verdict.delay / SECOND)
        return self._enforced(verdict)


class BlockingHandle(Handle):
    """`environ["ratelimit.decision"]` under WSGI: as `AsyncHandle`, with calls that block."""

    __slots__ = ()

    def charge(self, amount: int = 1) -> None:
        """See `AsyncHandle.charge`."""
        settlement = self._limiter.engine.settlement
        account = settlement.account(self._verdict)
        settlement.settle(account, account.more(whole(amount)))

    def refund(self, amount: int | None = None) -> None:
        """See `AsyncHandle.refund`."""
        settlement = self._limiter.engine.settlement
        account = settlement.account(self._verdict)
        settlement.settle(account, account.back(None if amount is None else whole(amount)))

    def check(self, rule: str, cost: int = 1) -> Decision:
        """See `AsyncHandle.check`."""
        return self._limiter.engine.decide(self._request, cost, rules=self._rules, rule=rule).decision

    def enforce(self, rule: str, cost: int = 1) -> Enforced:
        """See `AsyncHandle.enforce`."""
        return self._enforced(self._limiter.engine.decide_in_turn(self._request, cost, rules=self._rules, rule=rule))


class TwinHandle(BlockingHandle):
    """`request.ratelimit` under Django: calls that block, and their awaitable twins, with an `a` before the name."""

    __slots__ = ()

    @classmethod
    def of(cls, other: Handle, request: Request) -> Self:
        """A handle for the decision of `other`, with a request of which more is known."""
        return cls(other._verdict, other._limiter, request, other._rules)  # noqa: SLF001  the same class

    @property
    def _twin(self) -> AsyncHandle:
        return AsyncHandle(self._verdict, self._limiter, self._request, self._rules)

    async def acharge(self, amount: int = 1) -> None:
        """See `AsyncHandle.charge`."""
        await self._twin.charge(amount)

    async def arefund(self, amount: int | None = None) -> None:
        """See `AsyncHandle.refund`."""
        await self._twin.refund(amount)

    async def acheck(self, rule: str, cost: int = 1) -> Decision:
        """See `AsyncHandle.check`."""
        return await self._twin.check(rule, cost)

    async def aenforce(self, rule: str, cost: int = 1) -> Enforced:
        """See `AsyncHandle.enforce`."""
        twin = self._twin
        twin.told = self.told
        enforced = await twin.enforce(rule, cost)
        self.told = twin.told
        return enforced
