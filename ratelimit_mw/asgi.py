"""The middleware for ASGI apps: Starlette, FastAPI, Litestar, Quart, Django and the rest."""

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from ratelimit_mw.decision.load import ASGI_CAPACITY
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.deferral import AsgiDeferral
from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.http.answers import LatestAnswers
from ratelimit_mw.http.handle import AsyncHandle
from ratelimit_mw.http.responses import (
    App,
    AsgiResponseTracker,
    Receive,
    Send,
    asyncio_runs,
    failing_lifespan,
    lifespan_with,
    refunding,
)
from ratelimit_mw.http.responses import (
    Message as Scope,
)
from ratelimit_mw.http.setup import (
    Found,
    MisplacedLimits,
    built_by_starlette,
    limiter_for,
    refuse_wsgi_app,
    require_names,
    routes_below,
    rules_of_view,
)
from ratelimit_mw.http.websocket import Messages, close_code, detecting_close
from ratelimit_mw.identity.http_request import AsgiRequest, FirstRequests, asgi_head, asgi_requests_of, detached_scope
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.logs import logger
from ratelimit_mw.model import SECOND
from ratelimit_mw.rules.domains import Rules, require_routes
from ratelimit_mw.stores import Store

__all__ = ["RateLimitMiddleware"]


_LIMITED = frozenset({"http", "websocket"})
_RUN_ASYNCIO = "run hypercorn with `--worker-class asyncio` or `uvloop`"


class RateLimitMiddleware:
    """Passes to `app` the requests that the rules allow, and answers all others.

    It limits http and websocket scopes. Other scopes pass unchanged. When the lifespan ends, it closes the limiter
    that it made itself. `scope["ratelimit"]` is the decision, see `AsyncHandle`. It is set in the server's own scope,
    not in a copy, so that outer middlewares can read what the router adds (`route`, `endpoint`).

    A request that must wait for its turn at a bucket waits here. It occupies no thread. If its client leaves, it keeps
    its turn, so that the turns of later requests stay the same.

    Starlette and FastAPI build their middlewares inside the lifespan. Servers take an exception there for "this app
    has no lifespan" and answer every request with a 500. A middleware that they build therefore does not raise. It
    answers with `lifespan.startup.failed` and the messages, and the server stops. If no lifespan runs (`--lifespan
    off`, an app that is mounted in another), make the RateLimiter when the module is imported and pass it as `limiter`.

    Args:
        app: The app.
        config: The rules, as for `RateLimiter`.
        limiter: An engine that is already made, which several apps may share. It is not closed with this middleware.
        storage: Where the counters are, as for `RateLimiter`. It is allowed with `config` only.

    Raises:
        TypeError: Both `config` and `limiter` are given, or neither; or `app` is a WSGI app.
        ConfigurationError: The rules cannot be used. The error has every problem found.
    """

    def __init__(
        self,
        app: App,
        config: str | os.PathLike[str] | Mapping[str, object] | None = None,
        *,
        limiter: RateLimiter | None = None,
        storage: str | Store | None = None,
    ) -> None:
        self.app = app
        self._kinds: frozenset[str] = frozenset()  # the limited scopes; none until asyncio is known to run
        self._named = False
        self._failure: Exception | None = None
        refuse_wsgi_app(app)
        self._request_of = asgi_requests_of(app)
        try:
            used = limiter_for(config, limiter, storage)
            used.require(require_routes(app))
            self._deferral = AsgiDeferral(used)
        except Exception as error:
            if not built_by_starlette(app):
                raise
            self._failure = error
            return
        self._lifespan = lifespan_with(app, used, owned=limiter is None)
        self._limiter = used
        self._engine = used.engine
        self._latest = LatestAnswers(name=lambda text: text.lower().encode("latin-1"), value=str.encode)
        self._answers = self._latest.of(used.rules)
        self._first = FirstRequests(used.engine.current, "ratelimit")

    @property
    def limiter(self) -> RateLimiter:
        """The limiter that decides. If the rules cannot be used, this raises what was found."""
        if self._failure is not None:
            raise self._failure
        return self._limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        kind = scope["type"]
        if kind not in self._kinds:
            await self._call_unknown(scope, receive, send)
            return
        engine, answers = self._engine, self._answers
        rules, retriever = answers.rules, engine.retriever
        if rules is not retriever.rules or not retriever.watching:
            answers = self._answers = self._latest.of(engine.current())
            rules = answers.rules  # one version of the rules applies to the whole request
        head = asgi_head(scope, self._request_of, rules.fields)
        request = None if rules.bare else self._request_of(scope, head)
        if self._first.left:
            self._first.examine(request or self._request_of(scope, head))
        if request is None:
            plan = engine.planner.plan_of_head(rules, scope, head)
        elif rules.special:
            await self._serve_special(rules, request, scope, receive, send)
            return
        else:
            if rules.attributes.awaited:
                await rules.attributes.resolve(request)
            plan = engine.planner.plan(rules, request)
        conclusion = await engine.atake(plan, rules) if engine.waits else engine.take(plan, rules)
        if not (isinstance(conclusion, tuple) or conclusion.simple):
            verdict, reported = conclusion, request or self._request_of(scope, head)
            engine.report(verdict, rules, reported)
            if not verdict.allowed:
                try:
                    await self._deny(verdict, rules, reported, send)
                finally:
                    reported.context = detached_scope(scope)
                return
            await _turn(verdict)  # of a service: other rules that delay requests are special
        handle = AsyncHandle(conclusion, self._limiter, request, answers, scope, head, plan)
        scope["ratelimit"] = handle
        app = self.app  # to call what an attribute holds takes longer than to read and then call it
        try:
            await app(scope, receive, partial(AsyncHandle.send, handle, send) if answers.rated else send)
        finally:
            if handle.unsettled:  # of a view that was unknown until this request, so that nothing tracks its response
                await handle.release()
            handle.detach(detached_scope(scope))

    async def _serve_special(
        self, rules: Rules, request: AsgiRequest, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Serve a request under rules that are `special`: they need more than one decision before the app is called."""
        engine = self._engine
        meter = engine.planner.meter(rules) if rules.metered else None
        try:
            if meter is not None:
                meter.watch(asyncio.get_running_loop())
                meter.arrived(ASGI_CAPACITY, request)
            app = self.app
            if rules.deferring:
                verdict, app = await self._deferral.decide(app, request, rules, receive)
            else:
                verdict = await engine.adecide(request, rules=rules)
            if not verdict.simple and (verdict.allowed or app is self.app):
                engine.report(verdict, rules, request)
            if app is self.app and not verdict.allowed:
                await self._deny(verdict, rules, request, send)
                return
            answers = self._latest.of(rules)
            if rules.settling:
                receive, send = detecting_close(scope, receive, send)
            handle = AsyncHandle(verdict, self._limiter, request, answers)
            scope["ratelimit"] = handle
            if answers.rated:  # a rule that the app asks for may bind later
                send = partial(handle.send, send)
            if rules.messages is not None and scope["type"] == "websocket" and rules.messages.concerns(request):
                messages = Messages(engine, rules, request, receive, send)
                receive, send = messages.receive, messages.send
            handle.open_account()
            serve = partial(_serve, app, verdict, request, receive)
            await AsgiResponseTracker(engine.settlement, handle, send).serve(serve)
        finally:
            if meter is not None:
                meter.left(request)
            request.context = detached_scope(scope)

    async def _deny(self, verdict: Verdict, rules: Rules, request: AsgiRequest, send: Send) -> None:
        """Answer a denied request."""
        scope = request.context
        answers = self._latest.of(rules)
        scope["ratelimit"] = AsyncHandle(verdict, self._limiter, request, answers)
        denial = answers.denial(verdict, request)
        kind = "http.response"
        if scope["type"] == "websocket":
            kind = "websocket.http.response"
            code = close_code(scope, denial.status)
            if code is not None:  # the server answers with 403 if a WebSocket is closed before it is accepted
                await send({"type": "websocket.close", "code": code})
                return
        await send({"type": f"{kind}.start", "status": denial.status, "headers": denial.headers})
        await send({"type": f"{kind}.body", "body": denial.body})

    async def _call_unknown(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a scope that is not limited, or the first one that is. Only then is it known which loop runs."""
        kind = scope["type"]
        if kind not in _LIMITED and kind != "lifespan":
            await self.app(scope, receive, send)
            return
        if self._failure is None and not asyncio_runs():
            problem = Problem("the server runs the app under trio, and the limiter needs asyncio", hint=_RUN_ASYNCIO)
            self._failure = ConfigurationError([problem])
        unknown = self._require_names() if self._failure is None else None
        if kind == "lifespan":
            failed = self._failure or unknown
            await (self._lifespan if failed is None else failing_lifespan(failed))(scope, receive, send)
            return
        if self._failure is not None:
            raise self._failure
        if unknown is not None:  # no lifespan runs, as for an app that is mounted in another
            logger.error("these rules cannot be used by name, and a request that needs one fails: %s", unknown)
        self._kinds = _LIMITED
        await self(scope, receive, send)

    def _require_names(self) -> ConfigurationError | None:
        """Check once that the rules have what the decorators of the app ask for. Returns the problems, if any."""
        if self._named:
            return None
        MisplacedLimits().look(getattr(route, "endpoint", None) for route in self._routes())
        try:
            asked = list(self._asked())
            require_names(self._limiter, asked)
        except ConfigurationError as error:
            return error
        if any(each.limit.refund_when is not None for each in asked):
            self.app = partial(refunding, self.app)
        self._named = True
        return None

    def _routes(self) -> Iterator[Any]:
        """The routes of the app."""
        return routes_below(self.app, RateLimitMiddleware)

    def _asked(self) -> Iterable[Found]:
        """What the decorators of the app's endpoints ask for."""
        return [found for route in self._routes() for found in rules_of_view(getattr(route, "endpoint", None))]


async def _turn(verdict: Verdict) -> None:
    """Wait for the turn of a request."""
    if verdict.delay:
        await asyncio.sleep(verdict.delay / SECOND)


async def _serve(app: App, verdict: Verdict, request: AsgiRequest, receive: Receive, send: Send) -> None:
    """Call `app` when the request's turn has come."""
    await _turn(verdict)
    await app(request.context, receive, send)
