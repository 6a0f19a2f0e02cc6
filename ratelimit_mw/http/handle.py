"""The handle: the decision on the current request, as the app sees it, and what it can do with it."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ratelimit_mw.decision.planning import NO_PLAN, Plan
from ratelimit_mw.decision.settlement import Account, Move, Settlement
from ratelimit_mw.decision.verdict import Conclusion, Verdict
from ratelimit_mw.http.answers import Answers, DenialResponse, LatestAnswers
from ratelimit_mw.identity.http_request import FIELDS, RequestHead, detached_environ
from ratelimit_mw.identity.request import Request
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import SECOND, Decision
from ratelimit_mw.rules.compiled import NamedRule
from ratelimit_mw.rules.domains import Rules, require_routes_of
from ratelimit_mw.rules.inline import UNSET, InlineLimit, Key, named_rule
from ratelimit_mw.units import whole

_H = TypeVar("_H", bound="RequestHandle")

_STARTS = frozenset({"http.response.start", "websocket.accept", "websocket.http.response.start"})

Headers = list[tuple[str, str]]
ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None


class Enforced(NamedTuple):
    """The result of a rule that the app has asked for by name. It is true if the rule allows the request.

    Attributes:
        decision: The decision of the rule.
        denial: The status, the headers and the body to answer with if the rule denies the request, otherwise None.
    """

    decision: Decision
    denial: DenialResponse[str] | None

    def __bool__(self) -> bool:
        return self.decision.allowed


class RequestHandle:
    """The decision on the current request, as the app sees it. It has all fields of `Decision`.

    The Decision is made when a field is first read, because most apps read none.

    No method raises because the store is unavailable. What cannot be charged is then free, and what cannot be refunded
    stays charged. A place in flight (`N concurrent`) that `check` or `enforce` takes is held until the response has
    ended. `charge` and `refund` do not change places.
    """

    # What few handles have is a default of the class, because a handle is made for each request.
    _by_name: tuple[Verdict, ...] = ()  # those of rules that the app has asked for, if they allow the request
    _reported: Verdict | None = None  # that of them whose limit the headers of the response show
    unsettled: tuple[Account, ...] = ()
    """Internal. The accounts that the middleware settles when the response is known and when it has ended."""

    if TYPE_CHECKING:  # the fields of Decision, which are set below
        allowed: bool
        rule: str | None
        limit: int | None
        remaining: int | None
        reset_after: float
        retry_after: float
        delay: float
        reset_at: float
        over: str | None
        policies: tuple[Decision, ...]
        banned: bool
        reason: str | None
        used: int | None

    def __init__(  # noqa: PLR0917  arguments by name take longer
        self,
        conclusion: Conclusion,
        limiter: RateLimiter,
        request: Request | None,
        answers: Answers[Any],
        context: Any = None,
        head: RequestHead | None = None,
        plan: Plan = NO_PLAN,
    ) -> None:
        self._conclusion = conclusion  # by `plan`, it becomes a verdict when that is read
        self._plan = plan
        self._limiter = limiter
        self._made = request  # None: it is made of `context` and `head` when it is read
        self._answers = answers
        self._context = context
        self._head = head

    @property
    def _verdict(self) -> Verdict:
        made = self._plan.verdict_of(self._conclusion)
        # Atomic: with a verdict for each thread, a charge would have two accounts, and could be refunded twice.
        verdict: Verdict = vars(self).setdefault("_first_made", made)
        self._conclusion = verdict
        return verdict

    @property
    def reported(self) -> Verdict:
        """The verdict whose limit the headers of the response show."""
        return self._reported or self._verdict

    @reported.setter
    def reported(self, verdict: Verdict) -> None:
        self._reported = verdict

    @property
    def _request(self) -> Request:
        """The request, as rules read it."""
        request = self._made
        if request is None:
            head: Any = self._head
            # Without the header fields that rules have found, because a middleware inside may have changed them.
            request = self._made = head[0](self._context, head[:FIELDS])
        return request

    @property
    def _rules(self) -> Rules:
        """The rules that decided."""
        return self._answers.rules

    def detach(self, context: dict[str, Any]) -> None:
        """Internal. Replace the scope or the environ with `context`, a copy that does not refer back to this handle."""
        self._context = context
        if self._made is not None:
            self._made.context = context

    @property
    def decision(self) -> Decision:
        """The decision as a `Decision`."""
        return self._verdict.decision

    @property
    def limiter(self) -> RateLimiter:
        """The limiter that decided. Its `state` has the rules in force, and its `overrides` change limits."""
        return self._limiter

    @property
    def domain(self) -> str:
        """The domain of the rules that decided."""
        return self._rules.domain

    @property
    def method(self) -> str:
        """The method of the request. HEAD is GET."""
        method = self._request.method
        return "GET" if method == "HEAD" else method

    @property
    def latest(self) -> Verdict | None:
        """The last verdict of a rule that the app has asked for and that allowed the request."""
        return self._by_name[-1] if self._by_name else None

    def open_account(self) -> None:
        """Internal. Open the account of the middleware's own decision, if its charges depend on the response."""
        if self._rules.settling and (account := self._limiter.engine.settlement.account(self._verdict)).settles:
            self.unsettled = (account,)

    def refund_of(self, verdict: Verdict) -> tuple[Account, Sequence[Move]]:
        """What refunds all that a verdict has charged."""
        account = self._limiter.engine.settlement.account(verdict)
        return account, account.back(None)

    def as_kind(self, kind: type[_H], request: Request) -> _H:
        """A handle of another class for the same decision, with a request that has more attributes."""
        return kind(self._verdict, self._limiter, request, self._answers)

    async def acharge(self, amount: int = 1) -> None:
        """Charge each counter of this request more, even above its limit.

        The counters are those of all rules that have charged the request, also of those that the app asked for.

        Args:
            amount: How much to charge. A whole number of at least 0.

        Raises:
            ValueError: The amount is negative.
        """
        for account, moves in self._more(amount):
            await Settlement.asettle(account, moves)

    async def arefund(self, amount: int | None = None) -> None:
        """Refund what this request took from each of its counters, at most all of it.

        The counters are those of all rules that have charged the request, also of those that the app asked for.

        Args:
            amount: How much to refund. A whole number of at least 0; None refunds everything.

        Raises:
            ValueError: The amount is negative.
        """
        for account, moves in self._back(amount):
            await Settlement.asettle(account, moves)

    async def acheck(
        self, rule: str | InlineLimit, cost: int = 1, *, key: Key = UNSET, limit: str | None = None
    ) -> Decision:
        """Decide on this request by one rule, and charge it if it is allowed.

        An attribute that was absent before is read again, so a login inside the app counts. One that was present stays.
        The `match` of the rule is ignored. A rule with `on_demand` applies only through this method and `enforce`. A
        reload is refused if it lacks a rule that was asked for before.

        Args:
            rule: The name of the rule. (`limited` also passes limits of its own.)
            cost: What the request is charged, as a multiple of the rule's `cost`. A whole number of at least 0.
            key: What the rule counts by in place of its `by`: a text, a whole number or a UUID. It is hashed. With None
                or "", the rule does not apply, as if an attribute were absent.
            limit: A limit in place of the rule's, in the form of a rules file, such as "5 per hour".

        Raises:
            LookupError: There is no rule of this name.
            ValueError: The cost is negative, or the rule cannot have this limit.
            TypeError: The key or the limit has another type.
        """
        return self._checked(await self._adecide(self._named(rule, key, limit), cost))

    async def aenforce(
        self, rule: str | InlineLimit, cost: int = 1, *, key: Key = UNSET, limit: str | None = None
    ) -> Enforced:
        """Do what `check` does, wait for the request's turn, and make the denial.

        If the rule binds more than those before it, the headers of the response show its limit.

        Args:
            rule: As for `check`.
            cost: As for `check`.
            key: As for `check`.
            limit: As for `check`.

        Raises:
            LookupError: There is no rule of this name.
            ValueError: The cost is negative, or the rule cannot have this limit.
            TypeError: The key or the limit has another type.
        """
        verdict = await self._adecide(self._named(rule, key, limit), cost)
        enforced = self._enforced(verdict)
        if verdict.delay:
            await asyncio.sleep(verdict.delay / SECOND)
        return enforced

    async def _adecide(self, rule: NamedRule, cost: int) -> Verdict:
        return await self._limiter.engine.adecide(await self._aread_again(), cost, rules=self._rules, rule=rule)

    def _read_again(self) -> Request:
        """The request, without the attributes that were absent: the app may have found them since, as by its login."""
        values = self._request.values
        for name in [name for name, value in values.items() if value is None]:
            del values[name]
        return self._request

    async def _aread_again(self) -> Request:
        return self._read_again()

    def _named(self, rule: str | InlineLimit, key: Key, limit: str | None) -> NamedRule:
        """The rule that is asked for. It is made before the request is read again: it says what must be read."""
        name = self._limiter.engine.planner.names.name_of(self._rules, rule)
        if not isinstance(rule, str):
            require_routes_of(self._request, rule, self._rules)
        return named_rule(name, key, limit)

    def _accounts(self) -> list[Account]:
        """The accounts of this request, the latest first."""
        settlement = self._limiter.engine.settlement
        return [settlement.account(verdict) for verdict in (*reversed(self._by_name), self._verdict)]

    def _more(self, amount: int) -> list[tuple[Account, Sequence[Move]]]:
        charged: set[str] = set()
        return [(account, account.more(whole(amount), charged)) for account in self._accounts()]

    def _back(self, amount: int | None) -> list[tuple[Account, Sequence[Move]]]:
        left: dict[str, int] = {}
        most = None if amount is None else whole(amount)
        return [(account, account.back(most, left)) for account in self._accounts()]

    def _checked(self, verdict: Verdict) -> Decision:
        if verdict.allowed:
            self._by_name += (verdict,)
            if self._rules.holding and (account := self._limiter.engine.settlement.account(verdict)).holds:
                self.unsettled += (account,)
        if not verdict.simple:
            self._limiter.engine.report(verdict, self._rules, self._request)
        return verdict.decision

    def _enforced(self, verdict: Verdict) -> Enforced:
        decision = self._checked(verdict)
        if not verdict.allowed:
            answers = self._limiter.kept(LatestAnswers, lambda: LatestAnswers(name=str, value=str))
            return Enforced(decision, answers.of(self._rules).denial(verdict, self._request))
        if verdict.binds_more_than(self.reported):
            self.reported = verdict
        return Enforced(decision, None)

    def __bool__(self) -> bool:
        return self.decision.allowed

    def __repr__(self) -> str:
        return repr(self.decision)


for _field in (*Decision._fields, "banned"):
    setattr(RequestHandle, _field, property(attrgetter(f"decision.{_field}")))


class AsyncHandle(RequestHandle):
    """`scope["ratelimit"]` under ASGI: the decision, and awaitable methods that charge, refund and ask further rules.

    No method raises because the store is unavailable. What cannot be charged is then free, and what cannot be refunded
    stays charged. A place in flight (`N concurrent`) that `check` or `enforce` takes is held until the response has
    ended. `charge` and `refund` do not change places.
    """

    async def release(self) -> None:
        """Internal. Release the concurrent places of the request, because its response has ended."""
        for account in self.unsettled:
            await self._limiter.engine.settlement.asettle_anyway(account, account.end())

    def send(self, respond: Callable[..., Awaitable[None]], message: MutableMapping[str, Any]) -> Awaitable[None]:
        """Internal. Send a message of the app with `respond`, with the rate-limit headers if it starts the response.

        The handle does not hold `respond`, which often refers to the server's scope, which refers to the handle.

        It is not a coroutine function, because that would add a coroutine to each message. The app's message is copied
        and not changed, because apps may send the same message and the same list of headers again.
        """
        if message["type"] in _STARTS:
            add_headers = self._answers.add_headers
            own = message.get("headers") or ()
            message = {**message, "headers": add_headers(own, self._reported or self._conclusion, self._plan)}
        return respond(message)

    charge = RequestHandle.acharge
    refund = RequestHandle.arefund
    check = RequestHandle.acheck
    enforce = RequestHandle.aenforce


class BlockingHandle(RequestHandle):
    """`environ["ratelimit.decision"]` under WSGI, and `request.ratelimit` under Django.

    Its methods are those of `AsyncHandle`, which block here. Each has an awaitable twin, whose name begins with `a`.
    """

    def release(self) -> None:
        """Internal. Release the concurrent places of the request, because its response has ended."""
        for account in self.unsettled:
            Settlement.settle(account, account.end())

    def start(
        self, respond: Callable[..., Any], status: str, headers: Headers, exc_info: ExcInfo = None
    ) -> Callable[[bytes], object]:
        """Internal. Start the response of the app with `respond`, with the rate-limit headers."""
        add_headers = self._answers.add_headers
        added = add_headers(headers, self._reported or self._conclusion, self._plan)
        self.detach(detached_environ(self._context))  # now, because the app has decided who the client is
        # With as many arguments as the app passed, because a server may treat two and three differently.
        write: Callable[[bytes], object] = respond(status, added, exc_info) if exc_info else respond(status, added)
        return write

    def charge(self, amount: int = 1) -> None:
        """See `AsyncHandle.charge`."""
        for account, moves in self._more(amount):
            Settlement.settle(account, moves)

    def refund(self, amount: int | None = None) -> None:
        """See `AsyncHandle.refund`."""
        for account, moves in self._back(amount):
            Settlement.settle(account, moves)

    def check(self, rule: str | InlineLimit, cost: int = 1, *, key: Key = UNSET, limit: str | None = None) -> Decision:
        """See `AsyncHandle.check`."""
        named = self._named(rule, key, limit)
        return self._checked(self._limiter.engine.decide(self._read_again(), cost, rules=self._rules, rule=named))

    def enforce(
        self, rule: str | InlineLimit, cost: int = 1, *, key: Key = UNSET, limit: str | None = None
    ) -> Enforced:
        """See `AsyncHandle.enforce`."""
        engine, named = self._limiter.engine, self._named(rule, key, limit)
        return self._enforced(engine.decide_in_turn(self._read_again(), cost, rules=self._rules, rule=named))
