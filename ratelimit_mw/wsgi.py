"""The middleware for WSGI apps: Flask, Django, Falcon, Bottle and the rest."""

import os
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication

from ratelimit_mw.decision.load import WSGI_CAPACITY, time_in_queue
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.deferral import WsgiDeferral
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.http.answers import LatestAnswers, phrase
from ratelimit_mw.http.handle import BlockingHandle
from ratelimit_mw.http.responses import ClosingIterable, WsgiResponseTracker
from ratelimit_mw.http.setup import (
    MisplacedLimits,
    limiter_for,
    refuse_asgi_app,
    refuse_awaited,
    register_names,
    require_names,
    rules_of_view,
    views_of_flask,
)
from ratelimit_mw.identity.http_request import FirstRequests, WsgiRequest, detached_environ, wsgi_head
from ratelimit_mw.identity.request import routed
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import SECOND
from ratelimit_mw.rules.domains import Rules, require_routes
from ratelimit_mw.stores import Store

__all__ = ["RateLimitMiddleware"]


class RateLimitMiddleware:
    """Passes to `app` the requests that the rules allow, and answers all others.

    `environ["ratelimit.decision"]` is the decision, see `BlockingHandle`.

    Frameworks differ in how they read unusual requests, for example a cookie that is sent twice. Such a request is
    counted under each value. For a Django app, only Django's reading is used. A Django app is also recognised inside
    other middlewares if they keep it in `app`, `wsgi_app` or `application`.

    A request that must wait for its turn at a bucket waits here, in its thread. At most `max_waiting` threads wait.
    If they all wait, or if the server has one thread, a request that must wait is denied.

    The iterable of the app is passed to the server unchanged. Nothing is buffered, the server calls `close()`, and
    `wsgi.file_wrapper` works. The iterable is wrapped only for limits that are `N concurrent` or depend on the load,
    because such a limit must know when the response ends.

    Args:
        app: The app.
        config: The rules, as for `RateLimiter`.
        limiter: An engine that is already made, which several apps may share. It is not closed with this middleware.
        storage: Where the counters are, as for `RateLimiter`. It is allowed with `config` only.

    Raises:
        TypeError: Both `config` and `limiter` are given, or neither; or `app` is an ASGI app.
        ConfigurationError: The rules cannot be used. The error has every problem found.
            Rules that name an async function are refused, because WSGI has no event loop.
    """

    def __init__(
        self,
        app: WSGIApplication,
        config: str | os.PathLike[str] | Mapping[str, object] | None = None,
        *,
        limiter: RateLimiter | None = None,
        storage: str | Store | None = None,
    ) -> None:
        refuse_asgi_app(app)
        used = limiter_for(config, limiter, storage)
        used.require(refuse_awaited)
        used.require(require_routes(app))
        self._deferral = WsgiDeferral(used)
        views = views_of_flask(app)
        require_names(used, [found for view in views for found in rules_of_view(view)])
        misplaced = MisplacedLimits()
        misplaced.look(views)

        def look_again() -> None:
            """Look at the views that were added since."""
            views = views_of_flask(app)
            misplaced.look(views)
            register_names(used, views)

        self.app = app
        self._first = FirstRequests(used.engine.current, "ratelimit.decision", look_again)
        self.limiter = used
        self._engine = used.engine
        self._request_of = routed(WsgiRequest, app)
        self._latest = LatestAnswers(name=str, value=str)
        self._answers = self._latest.of(used.rules)
        try:
            used.engine.storage.connect()  # WSGI has no startup event, but most servers import the app in each worker
        except StoreUnavailable:  # the store is required
            if limiter is None:
                used.close()
            raise

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        engine, answers = self._engine, self._answers
        rules, retriever = answers.rules, engine.retriever
        if rules is not retriever.rules or not retriever.watching:
            answers = self._answers = self._latest.of(engine.current())
            rules = answers.rules  # one version of the rules applies to the whole request
        if rules.special:
            return self._serve_special(rules, environ, start_response)
        head = wsgi_head(environ, self._request_of, rules.fields)
        request = None if rules.bare else self._request_of(environ, head)
        if self._first.left:
            self._first.examine(request or self._request_of(environ, head))
        planner = engine.planner
        plan = planner.plan_of_head(rules, environ, head) if request is None else planner.plan(rules, request)
        conclusion = engine.take(plan, rules)
        if not (isinstance(conclusion, tuple) or conclusion.simple):
            verdict = conclusion
            request = request or self._request_of(environ, head)
            engine.report(verdict, rules, request)
            if not verdict.allowed:
                return self._deny(rules, verdict, request, start_response)
            if verdict.delay:  # of a service: other rules that delay requests are special
                time.sleep(verdict.delay / SECOND)
        handle = BlockingHandle(conclusion, self.limiter, request, answers, environ, head, plan)
        environ["ratelimit.decision"] = handle
        app = self.app  # to call what an attribute holds takes longer than to read and then call it
        try:
            body = app(environ, partial(BlockingHandle.start, handle, start_response))
        except BaseException:
            handle.release()
            raise
        # A view that was unknown until this request may have taken a place.
        return ClosingIterable(body, handle.release) if handle.unsettled else body

    def _serve_special(self, rules: Rules, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Serve a request under rules that are `special`: they need more than one decision before the app is called."""
        if not rules.metered:
            return self._serve(rules, environ, start_response)
        meter = self._engine.planner.meter(rules)
        here = object()
        try:
            meter.arrived(WSGI_CAPACITY, here)
            body = self._serve(rules, environ, start_response)
            if not isinstance(body, list | tuple):  # a streamed response occupies the thread until it ends
                return ClosingIterable(body, partial(meter.left, here))
            meter.left(here)
        except BaseException:  # also an asynchronous exception
            meter.left(here)
            raise
        return body

    def _serve(self, rules: Rules, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        request = self._request_of(environ)
        if self._first.left:
            self._first.examine(request)
        engine = self._engine
        if rules.metered and (waited := time_in_queue(request, rules.attributes.from_proxy)):
            engine.planner.meter(rules).queued(waited)
        app = self.app
        if rules.deferring:
            verdict, app = self._deferral.decide(app, request, rules)
        else:
            verdict = engine.decide_in_turn(request, rules=rules)
        if not verdict.simple and (verdict.allowed or app is self.app):
            engine.report(verdict, rules, request)
        if app is self.app and not verdict.allowed:
            return self._deny(rules, verdict, request, start_response)
        answers = self._latest.of(rules)
        handle = BlockingHandle(verdict, self.limiter, request, answers, environ)
        environ["ratelimit.decision"] = handle
        handle.open_account()
        return WsgiResponseTracker(handle, partial(handle.start, start_response)).serve(partial(app, environ))

    def _deny(
        self, rules: Rules, verdict: Verdict, request: WsgiRequest, start_response: StartResponse
    ) -> Iterable[bytes]:
        answers = self._latest.of(rules)
        request.context["ratelimit.decision"] = BlockingHandle(verdict, self.limiter, request, answers)
        status, headers, body = answers.denial(verdict, request)
        request.context = detached_environ(request.context)
        start_response(f"{status} {phrase(status)}", headers)
        return [body]
