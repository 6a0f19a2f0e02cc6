"""The middleware for WSGI apps: Flask, Django, Falcon, Bottle and the rest."""

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication

from ratelimit_mw.decision.load import WSGI_CAPACITY, time_in_queue
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.deferral.http import WsgiDeferral, respond_wsgi
from ratelimit_mw.http.answers import Answers, phrase
from ratelimit_mw.http.handle import BlockingHandle, given_or_made, refuse_awaited
from ratelimit_mw.http.responses import Ending, WsgiResponseTracker
from ratelimit_mw.identity.http_request import wsgi_requests_of
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.stores import Store

# Named here, for the annotations of a function made for each request are evaluated for each request.
_Headers = list[tuple[str, str]]
_ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None
_Write = Callable[[bytes], object]


class RateLimitMiddleware:
    """Lets through to `app` what the rules allow, and answers the rest itself.

    `config` is a rules file or a mapping of the same shape, `storage` wins over the file's URL; or `limiter` is
    an engine that several apps share. Exactly one of config and limiter, else TypeError. Raises
    ConfigurationError with every problem found, and where the rules name an async function, which WSGI has no
    loop for.

    Frameworks differ in how they read unusual requests, as a cookie that is sent twice; such a request is counted under
    each value. For a Django app there is one way to read. It is recognised also inside other middlewares, as long as
    these keep it in `app`, `wsgi_app` or `application`.

    A request that has to wait for its turn at a bucket waits here, in its thread. `max_waiting` threads do at most,
    and a request that finds none free to wait is denied.

    The app's iterable goes back to the server as it is: nothing is buffered, `close()` is the server's to call,
    and `wsgi.file_wrapper` still works; only where a limit is `N concurrent`, or goes by the load, it is wrapped, to be
    followed to its end.
    `environ["ratelimit.decision"]` is always there.
    """

    def __init__(
        self,
        app: WSGIApplication,
        config: str | os.PathLike[str] | Mapping[str, object] | None = None,
        *,
        limiter: RateLimiter | None = None,
        storage: str | Store | None = None,
    ) -> None:
        used = given_or_made(config, limiter, storage)
        used.require(refuse_awaited)
        used.require(used.deferrals.require)
        self.app = app
        self._request = wsgi_requests_of(app)
        self._limiter = used
        self._engine = engine = used.engine
        self._deferral = WsgiDeferral(app, used.deferrals, lambda rules: engine.planner.meter(rules).load())
        self._latest = used.response, _answers(used.rules)
        engine.connect()  # WSGI servers do not tell apps of their start: most import the app in each worker

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request."""
        rules = self._engine.current()  # once: the request goes by one version of the rules from beginning to end
        if not rules.metered:
            return self._serve(rules, environ, start_response)
        meter = self._engine.planner.meter(rules)
        here = object()
        try:
            meter.arrived(WSGI_CAPACITY, here)
            body = self._serve(rules, environ, start_response)
            if not isinstance(body, list | tuple):  # the thread is busy as long as it streams
                return Ending(body, partial(meter.left, here))
            meter.left(here)
        except BaseException:  # an exception from elsewhere, too
            meter.left(here)
            raise
        return body

    def _serve(self, rules: Rules, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        request = self._request(environ)
        engine = self._engine
        if rules.metered and (waited := time_in_queue(request, rules.attributes.from_proxy)):
            engine.planner.meter(rules).queued(waited)
        replayed = rules.deferring and self._deferral.admits(request, rules)
        verdict = Verdict((), None) if replayed else engine.decide_in_turn(request, rules=rules)
        environ["ratelimit.decision"] = handle = BlockingHandle(verdict, self._limiter, request, rules)
        answered, answers = self._latest
        if answered is not rules.response:  # which each version has anew
            answers = _answers(rules)
            self._latest = rules.response, answers
        if not verdict.allowed:
            if rules.deferring and (page := self._deferral.put_off(verdict, rules, request)):
                return respond_wsgi(
                    page, "", _beside(answers, handle, start_response) if answers.rated else start_response
                )
            status, headers, body = answers.denial(verdict, request)
            start_response(f"{status} {phrase(status)}", headers)
            return [body]
        if (verdict.binding >= 0 or rules.demanding) and answers.rated:
            start_response = _beside(answers, handle, start_response)
        app: WSGIApplication = self.app
        if rules.deferring:
            app = lambda _, start_response: self._deferral.serve(rules, request, start_response)  # noqa: E731
        if rules.settling and (account := engine.settlement.account(verdict)).settles:
            return WsgiResponseTracker(engine.settlement, account, start_response).serve(partial(app, environ))
        return app(environ, start_response)


def _beside(answers: Answers[str], handle: BlockingHandle, start_response: StartResponse) -> StartResponse:
    """Starts with our headers beside the app's own."""
    beside = answers.beside

    def start_beside(status: str, headers: _Headers, exc_info: _ExcInfo = None) -> _Write:
        own_and_ours = beside(headers, handle.told)
        # As the app called it: a server may tell two arguments from three.
        return start_response(status, own_and_ours, exc_info) if exc_info else start_response(status, own_and_ours)

    return start_beside


def _answers(rules: Rules) -> Answers[str]:
    return Answers(rules.response, rules.attributes.address, name=str, value=str)
