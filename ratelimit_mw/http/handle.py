"""The handle: the decision on the current request, as the app sees it, and what it can do with it.

The first requests also show mistakes in the setup, such as an untrusted proxy. Afterwards the middleware makes its
requests directly, so that these checks cost nothing.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeVar
from weakref import ref

from ratelimit_mw.decision.planning import whole
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.http.answers import Denial, LatestAnswers
from ratelimit_mw.http.asked import UNSET, Key, text_of_key
from ratelimit_mw.identity.address import canonical
from ratelimit_mw.identity.http_request import drops_underscores
from ratelimit_mw.identity.request import Request
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import SECOND, Decision
from ratelimit_mw.rules.compiled import NamedRule
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.inline import InlineLimit


class Enforced(NamedTuple):
    """The result of a rule that the app has asked for by name.

    Attributes:
        decision: The decision of the rule.
        denial: The status, the headers and the body to answer with if the rule denies the request, otherwise None.
    """

    decision: Decision
    denial: Denial[str] | None


class Handle:
    """The decision on the current request, as the app sees it. It has all fields of `Decision`.

    The Decision is made when a field is first read, because most apps read none.
    """

    __slots__ = ("_limiter", "_request", "_rules", "_verdict", "reported")

    if TYPE_CHECKING:  # the fields of Decision, which `__getattr__` returns
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

    def __init__(self, verdict: Verdict, limiter: RateLimiter, request: Request, rules: Rules) -> None:
        self._verdict = verdict
        self._limiter = limiter
        self._request = request
        self._rules = rules
        self.reported = verdict
        """The verdict whose limit the headers of the response show."""

    @property
    def decision(self) -> Decision:
        """The decision as a `Decision`."""
        return self._verdict.decision

    @property
    def limiter(self) -> RateLimiter:
        """The limiter that decided. Its `state` has the rules in force, and its `overrides` change limits."""
        return self._limiter

    def _read_again(self) -> Request:
        """The request, without the attributes that were absent: the app may have found them since, as by its login."""
        values = self._request.values
        for name in [name for name, value in values.items() if value is None]:
            del values[name]
        return self._request

    def _named(self, rule: str | InlineLimit, key: Key, limit: str | None) -> str | NamedRule:
        """The rule that is asked for. It is made before the request is read again: it says what must be read."""
        name = rule if isinstance(rule, str) else self._limiter.engine.planner.names.name_of(self._rules, rule)
        if key is UNSET and limit is None:
            return name
        if not (limit is None or isinstance(limit, str)):
            raise TypeError(f"limit takes a text such as '5 per minute', not {limit!r}")
        return NamedRule(name, None if key is UNSET else text_of_key(key), limit)

    def _checked(self, verdict: Verdict) -> Decision:
        if not verdict.allowed:
            self._limiter.engine.report(verdict, self._rules, self._request)
        return verdict.decision

    def _enforced(self, verdict: Verdict) -> Enforced:
        if not verdict.allowed:
            self._limiter.engine.report(verdict, self._rules, self._request)
            answers = self._limiter.kept(LatestAnswers, lambda: LatestAnswers(name=str, value=str))
            return Enforced(verdict.decision, answers.of(self._rules).denial(verdict, self._request))
        if verdict.binds_more_than(self.reported):
            self.reported = verdict
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
    """`scope["ratelimit"]` under ASGI: the decision, and awaitable methods that charge, refund and ask further rules.

    No method raises because the store is unavailable. What cannot be charged is then free, and what cannot be refunded
    stays charged. No method changes the places in flight (`N concurrent`).
    """

    __slots__ = ()

    async def charge(self, amount: int = 1) -> None:
        """Charge each counter of this request more, even above its limit.

        Args:
            amount: How much to charge. A whole number from 0 on.

        Raises:
            ValueError: The amount is negative.
        """
        settlement = self._limiter.engine.settlement
        account = settlement.account(self._verdict)
        await settlement.asettle(account, account.more(whole(amount)))

    async def refund(self, amount: int | None = None) -> None:
        """Refund what this request took from each of its counters, at most all of it.

        Args:
            amount: How much to refund. A whole number from 0 on; None refunds everything.

        Raises:
            ValueError: The amount is negative.
        """
        settlement = self._limiter.engine.settlement
        account = settlement.account(self._verdict)
        await settlement.asettle(account, account.back(None if amount is None else whole(amount)))

    async def check(
        self, rule: str | InlineLimit, cost: int = 1, *, key: Key = UNSET, limit: str | None = None
    ) -> Decision:
        """Decide on this request by one rule, and charge it if it is allowed.

        An attribute that was absent before is read again, so a login inside the app counts. One that was present stays.
        The `match` of the rule is ignored. A rule with `on_demand` applies only through this method and `enforce`. A
        reload is refused if it lacks a rule that was asked for before.

        Args:
            rule: The name of the rule. (`limited` also passes limits of its own.)
            cost: What the request is charged, as a multiple of the rule's `cost`. A whole number from 0 on.
            key: What the rule counts by in place of its `by`: a text, a whole number or a UUID. It is hashed. With None
                or "", the rule does not apply, as if an attribute were absent.
            limit: A limit in place of the rule's, in the form of a rules file, such as "5 per hour".

        Raises:
            LookupError: There is no rule of this name.
            ValueError: The cost is negative, or the rule cannot have this limit.
            TypeError: The key or the limit has another type.
        """
        return await self._check(self._named(rule, key, limit), cost)

    async def enforce(
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
        return await self._enforce(self._named(rule, key, limit), cost)

    async def _check(self, rule: str | NamedRule, cost: int) -> Decision:
        verdict = await self._limiter.engine.adecide(self._read_again(), cost, rules=self._rules, rule=rule)
        return self._checked(verdict)

    async def _enforce(self, rule: str | NamedRule, cost: int) -> Enforced:
        verdict = await self._limiter.engine.adecide(self._read_again(), cost, rules=self._rules, rule=rule)
        if verdict.delay:
            await asyncio.sleep(verdict.delay / SECOND)
        return self._enforced(verdict)


class BlockingHandle(Handle):
    """`environ["ratelimit.decision"]` under WSGI: the methods of `AsyncHandle`, which block here."""

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


class TwinHandle(BlockingHandle):
    """`request.ratelimit` under Django: methods that block, and awaitable twins whose names begin with `a`."""

    __slots__ = ()

    @classmethod
    def of(cls, other: Handle, request: Request) -> Self:
        """A handle for the decision of `other`, with a request that has more attributes."""
        return cls(other._verdict, other._limiter, request, other._rules)  # noqa: SLF001  the same class

    @property
    def _twin(self) -> AsyncHandle:
        return AsyncHandle(self._verdict, self._limiter, self._request, self._rules)

    async def _asking(self) -> AsyncHandle:
        """The handle that asks for a rule."""
        return self._twin

    async def acharge(self, amount: int = 1) -> None:
        """See `AsyncHandle.charge`."""
        await self._twin.charge(amount)

    async def arefund(self, amount: int | None = None) -> None:
        """See `AsyncHandle.refund`."""
        await self._twin.refund(amount)

    async def acheck(
        self, rule: str | InlineLimit, cost: int = 1, *, key: Key = UNSET, limit: str | None = None
    ) -> Decision:
        """See `AsyncHandle.check`."""
        named = self._named(rule, key, limit)
        return await (await self._asking())._check(named, cost)  # noqa: SLF001  one of our own

    async def aenforce(
        self, rule: str | InlineLimit, cost: int = 1, *, key: Key = UNSET, limit: str | None = None
    ) -> Enforced:
        """See `AsyncHandle.enforce`."""
        named = self._named(rule, key, limit)
        twin = await self._asking()
        twin.reported = self.reported
        enforced = await twin._enforce(named, cost)  # noqa: SLF001
        self.reported = twin.reported
        return enforced


_log = logging.getLogger("ratelimit_mw")

_EXAMINED = 100
"""The number of requests that are examined."""

_FORWARDING = ("X-Forwarded-For", "Forwarded", "X-Real-IP")

R = TypeVar("R", bound=Request)


class _Middleware(Protocol):
    _request: Any


class FirstRequests(Generic[R]):
    """Makes the first requests of a middleware, and logs each mistake in the setup that they show, once.

    Args:
        middleware: Its `_request` is this object, and becomes `make` after the last examined request.
        make: Makes a request of a scope or an environ.
        limiter: The limiter of the middleware.
        key: The key of the scope or the environ that holds the handle of an outer middleware. None if an outer
            middleware is allowed.
        look: Is called once, at the first request.
    """

    def __init__(
        self,
        middleware: _Middleware,
        make: Callable[[Any], R],
        limiter: RateLimiter,
        key: str | None,
        look: Callable[[], None] | None = None,
    ) -> None:
        self._middleware = ref(middleware)
        self._make = make
        self._limiter = limiter
        self._key = key
        self._look = look
        self._left = _EXAMINED
        self._proxied = False

    def __call__(self, context: Any) -> R:
        """Make a request, and examine it."""
        request = self._make(context)
        self._left -= 1
        if self._left <= 0 and (middleware := self._middleware()) is not None:
            middleware._request = self._make  # noqa: SLF001 - this is the middleware's own part
        if self._look is not None:
            look, self._look = self._look, None
            look()
        self._examine_proxy(request)
        self._examine_server(request)
        self._read_user(request)
        if self._key is not None:
            self._examine_handle(context.get(self._key))
        return request

    def _read_user(self, request: R) -> None:
        """Let the rules read the user of each examined request, because their reader notices that no request has one.

        The plan of a request that was seen before is kept, unless the request has values. The blank one is no
        attribute.
        """
        if any("user" in part.attributes.used for part in self._limiter.engine.current().parts):
            request.values[""] = None

    def _examine_proxy(self, request: R) -> None:
        parts = self._limiter.engine.current().parts
        if self._proxied or parts[0].attributes.client_address.header is not None:
            return
        peer = request.peer
        for name in _FORWARDING:
            value = request.header(name.lower())
            # A server that trusts its proxy, as uvicorn does, has already replaced the peer by the reported address.
            if value and not (peer and peer in value) and any("ip" in part.attributes.used for part in parts):
                self._proxied = True
                _log.warning(
                    "a request came with %s, but client.trusted_proxies and client.trusted_hops are not set: it is "
                    "counted as %s. If this is your proxy, all of its clients share one counter: add it to "
                    "client.trusted_proxies. If no proxy of yours sets the header, ignore this (logged once)",
                    name,
                    canonical(peer) or "unknown",  # any other text may be a secret
                )
                return

    def _examine_server(self, request: R) -> None:
        """Log a WSGI server that may take another spelling for the header that the trusted proxies write."""
        header = self._limiter.engine.current().parts[0].attributes.client_address.header
        if self._proxied or header is None or "-" not in header or "wsgi.version" not in (request.context or ()):
            return
        if request.header(header) is not None:
            self._proxied = True
            if not drops_underscores(request.context):
                _log.warning(
                    "a proxy is trusted for %s, but this WSGI server is not known to drop header names with '_': it "
                    "may take a client's %s for the same header, and the client then chooses its address. Let the "
                    "proxy drop such names (nginx does; Envoy: headers_with_underscores_action: REJECT_REQUEST), or "
                    "use gunicorn or waitress. If your proxy drops them, ignore this (logged once)",
                    header.title(),
                    header.title().replace("-", "_"),
                )

    def _examine_handle(self, around: object) -> None:
        domain = self._limiter.engine.current().domain
        if isinstance(around, Handle) and around.domain == domain:
            self._key = None
            _log.warning(
                "two middlewares around one app have the domain %r: each request is charged twice. Remove one of them, "
                "or give them rules of different domains (logged once)",
                domain,
            )
