"""The middleware for Django projects, which knows `request.user`."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from ratelimit_mw.decision.account import Account, Move
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.django.answering import answer, tell
from ratelimit_mw.django.engine import limiter
from ratelimit_mw.django.visitor import Environ, Scope, user_of, visitor
from ratelimit_mw.load.meter import ASGI_CAPACITY, WSGI_CAPACITY, time_in_queue
from ratelimit_mw.model import SECOND
from ratelimit_mw.response.answers import Answers
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.shells.handle import Handle, TwinHandle
from ratelimit_mw.shells.middleware import refuse_awaited

_log = logging.getLogger("ratelimit_mw")


class RateLimitMiddleware:
    """Lets through to the project's views what the rules of `settings.RATELIMIT` allow, and answers the rest itself.

    It stands behind AuthenticationMiddleware in MIDDLEWARE. A rule's `user` is whoever is logged in, by primary key,
    unless `client.user` says otherwise. `request.ratelimit` is the request's handle, whose methods block and have
    awaitable twins (`acheck`). Under ASGI it awaits, where Django lets it; under WSGI it refuses rules that name an
    async function. A request that the WSGI or ASGI middleware around the project has decided by rules of the same
    domain is not decided again.
    """

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._limiter = limiter()
        self._engine = self._limiter.engine
        self._latest: tuple[Any, Answers[str]] | None = None
        self._awaits = iscoroutinefunction(get_response)
        if self._awaits:
            markcoroutinefunction(self)
        else:
            self._limiter.require(refuse_awaited)
            self._engine.connect()
        if self._limiter.rules.deferring:
            _log.warning(
                "on_limit: defer is done by the middlewares around an application, of ratelimit_mw.wsgi and .asgi; "
                "where ratelimit_mw.django.RateLimitMiddleware decides, those requests are denied"
            )

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Serve one request."""
        return self._aserve(request) if self._awaits else self._serve(request)

    def _serve(self, request: Any) -> HttpResponseBase:
        rules = self._engine.current()
        asked = visitor(request)
        around = self._decided_around(request, asked)
        if around is not None:
            response: HttpResponseBase = self.get_response(request)
            around.told = request.ratelimit.told
            return response
        with self._load(rules, asked) as busy:
            verdict = self._engine.decide_in_turn(asked, rules=rules)
            handle, answers = self._begun(request, asked, rules, verdict)
            if not verdict.allowed:
                return answer(answers.denial(verdict, asked))
            account = self._account(rules, verdict)
            try:
                response = self.get_response(request)
            except BaseException:
                self._end(account)
                raise
            _keep(busy, response)
        if account is not None:
            self._engine.settlement.settle(account, self._concluded(account, response))
        tell(answers, response, handle.told)
        return response

    async def _aserve(self, request: Any) -> HttpResponseBase:
        rules = self._engine.current()
        asked = visitor(request)
        if rules.client.user is None and any(part.attributes.reads("user") for part in rules.parts):
            asked.values["user"] = await sync_to_async(user_of)(request)
        around = self._decided_around(request, asked)
        if around is not None:
            response: HttpResponseBase = await self.get_response(request)
            around.told = request.ratelimit.told
            return response
        with self._load(rules, asked) as busy:
            verdict = await self._engine.adecide(asked, rules=rules)
            handle, answers = self._begun(request, asked, rules, verdict)
            if not verdict.allowed:
                return answer(answers.denial(verdict, asked))
            account = self._account(rules, verdict)
            try:
                if verdict.delay:
                    await asyncio.sleep(verdict.delay / SECOND)
                response = await self.get_response(request)
            except BaseException:
                if account is not None:
                    self._engine.settlement.settle_soon(account, account.end())
                raise
            _keep(busy, response)
        if account is not None:
            await self._engine.settlement.asettle(account, self._concluded(account, response))
        tell(answers, response, handle.told)
        return response

    def _decided_around(self, request: Any, asked: Environ | Scope) -> Handle | None:
        """The handle of the middleware around the project, where it has decided; the headers are written there."""
        around = asked.context.get("ratelimit" if isinstance(asked, Scope) else "ratelimit.decision")
        if not isinstance(around, Handle) or around.domain != self._limiter.rules.domain:
            return None
        request.ratelimit = TwinHandle.of(around, asked)
        return around

    def _begun(
        self, request: Any, asked: Environ | Scope, rules: Rules, verdict: Verdict
    ) -> tuple[TwinHandle, Answers[str]]:
        handle = TwinHandle(verdict, self._limiter, asked, rules)
        request.ratelimit = handle
        if self._latest is None or self._latest[0] is not rules.response:  # which each version has anew
            self._latest = rules.response, Answers(rules.response, rules.attributes.address, name=str, value=str)
        return handle, self._latest[1]

    def _account(self, rules: Rules, verdict: Verdict) -> Account | None:
        """The account of a request, where the response has to be looked at."""
        account = self._engine.settlement.account(verdict) if rules.settling else None
        return account if account is not None and account.settles else None

    def _concluded(self, account: Account, response: Any) -> list[Move]:
        """What follows from a response; what is held is held until a streaming one is closed."""

        def header(name: str) -> str | None:
            value: str | None = response.get(name)
            return value

        account.show(response.status_code, header)
        moves = account.conclude(response.status_code, header)
        if not account.holds:
            return moves
        if not response.streaming:
            return [*moves, *account.end()]
        _at_close(response, lambda: self._end(account))
        return moves

    def _end(self, account: Account | None) -> None:
        if account is not None:
            self._engine.settlement.settle(account, account.end())

    def _load(self, rules: Rules, asked: Environ | Scope) -> ExitStack:
        """Tells the meter of the process's load that a request is here, where a limit goes by that; left with it."""
        busy = ExitStack()
        if rules.metered:
            meter = self._engine.planner.meter(rules)
            if self._awaits:
                meter.watch(asyncio.get_running_loop())
            elif waited := time_in_queue(asked, rules.attributes.from_proxy):
                meter.queued(waited)
            busy.callback(meter.left, asked)
            meter.arrived(ASGI_CAPACITY if self._awaits else WSGI_CAPACITY, asked)
        return busy


def _keep(busy: ExitStack, response: Any) -> None:
    """A response that is streamed keeps its thread busy, or its task, until it is closed."""
    if response.streaming:
        _at_close(response, busy.pop_all().close)


def _at_close(response: Any, then: Callable[[], None]) -> None:
    """Have the server do something more when it is done with a response."""
    close = response.close

    def close_and_then() -> None:
        try:
            close()
        finally:
            then()

    response.close = close_and_then  # of this one alone
