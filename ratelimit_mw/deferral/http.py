"""Deferral in the ASGI and WSGI middlewares: the decision on a request by rules that defer.

The middleware gets the verdict, and what must serve the request: its app, or a page in place of the app. A page is an
app of the same kind.
"""

import asyncio
from typing import Any
from wsgiref.types import WSGIApplication

from ratelimit_mw.decision.planning import Plan
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.decision.waiting import without_max_wait
from ratelimit_mw.deferral.service import deferrals_of
from ratelimit_mw.deferral.stored_request import HEADER, of_asgi, of_wsgi
from ratelimit_mw.http.responses import App, ReadyResponse, Receive
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest
from ratelimit_mw.identity.request import Request
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.rules.domains import Rules

_HEADER = HEADER.encode()
_UNDECIDED = Verdict((), None)


class _Deferral:
    """What the middlewares of ASGI and WSGI share.

    Args:
        limiter: The limiter of the middleware.

    Raises:
        ConfigurationError: A rule defers, but the storage has no queue.
    """

    def __init__(self, limiter: RateLimiter) -> None:
        self._engine = limiter.engine
        self._service = deferrals_of(limiter)
        limiter.require(self._service.require)

    def _plan(self, request: Request, rules: Rules) -> Plan:
        """Return the plan of a replay. It does not wait for its turn at a bucket: the worker sends it again instead."""
        plan = self._engine.planner.plan(rules, request)
        return Plan(without_max_wait(plan.charges)) if rules.waiting and plan.asks else plan


class AsgiDeferral(_Deferral):
    """Decides for an ASGI middleware. See `_Deferral` for arguments."""

    async def decide(self, app: App, request: AsgiRequest, rules: Rules, receive: Receive) -> tuple[Verdict, App]:
        """Return the verdict on a request, and what must serve it: `app` or a page.

        A denied request that is now in the queue has a page. `app` must not serve any other denied request.
        """
        scope = request.context
        if scope["type"] != "http":
            return await self._engine.adecide(request, rules=rules), app
        token = self._service.replay_token(request, rules)
        if token is None:
            verdict = await self._engine.adecide(request, rules=rules)
            page = await self._page(verdict, request, rules, receive)
            return verdict, app if page is None else page.asgi
        found = await asyncio.to_thread(self._service.replay, token, rules)
        if isinstance(found, ReadyResponse):
            return _UNDECIDED, found.asgi
        scope["client"] = (found.peer, 0) if found.peer else None
        scope["scheme"] = found.scheme
        scope["headers"] = [line for line in scope["headers"] if line[0].lower() != _HEADER]
        found.restore(request)
        if rules.attributes.awaited:
            await rules.attributes.resolve(request)
        verdict = await self._engine.aexecute(self._plan(request, rules), rules)
        refused = self._service.refused_replay(verdict)
        return verdict, app if refused is None else refused.asgi

    async def _page(
        self, verdict: Verdict, request: AsgiRequest, rules: Rules, receive: Receive
    ) -> ReadyResponse | None:
        service = self._service
        if verdict.allowed:
            asked = service.status_asked(request, rules)
            return None if asked is None else await asyncio.to_thread(asked)
        lane = service.lane(verdict, request, rules, request.header("content-length"))
        body = None if lane is None else await _body(receive, rules.defer.max_body)
        if lane is None or body is None:
            return None
        stored = of_asgi(request, rules.defer.headers)
        root = request.context.get("root_path") or ""
        return await asyncio.to_thread(service.put, verdict, rules, stored, body, lane=lane, root=root)


async def _body(receive: Receive, most: int) -> bytes | None:
    """Read the whole body. None if it is longer than `most` bytes or the client disconnects before its end."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        most -= len(parts[-1])
        if most < 0:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


_WSGI_HEADER = f"HTTP_{HEADER.upper().replace('-', '_')}"


class WsgiDeferral(_Deferral):
    """Decides for a WSGI middleware. See `_Deferral` for arguments."""

    def decide(self, app: WSGIApplication, request: WsgiRequest, rules: Rules) -> tuple[Verdict, WSGIApplication]:
        """Return the verdict on a request, and what must serve it: `app` or a page. See `AsgiDeferral.decide`."""
        environ = request.context
        token = self._service.replay_token(request, rules)
        if token is None:
            verdict = self._engine.decide_in_turn(request, rules=rules)
            page = self._page(verdict, request, rules)
            return verdict, app if page is None else page.wsgi
        found = self._service.replay(token, rules)
        if isinstance(found, ReadyResponse):
            return _UNDECIDED, found.wsgi
        environ["REMOTE_ADDR"] = found.peer or ""
        environ["wsgi.url_scheme"] = found.scheme
        environ.pop(_WSGI_HEADER, None)
        found.restore(request)
        verdict = self._engine.execute(self._plan(request, rules), rules)
        refused = self._service.refused_replay(verdict)
        return verdict, app if refused is None else refused.wsgi

    def _page(self, verdict: Verdict, request: WsgiRequest, rules: Rules) -> ReadyResponse | None:
        service, environ = self._service, request.context
        if verdict.allowed:
            asked = service.status_asked(request, rules)
            return asked and asked()
        length = environ.get("CONTENT_LENGTH")
        lane = service.lane(verdict, request, rules, length)
        body = None if lane is None else _wsgi_body(environ, length, rules.defer.max_body)
        if lane is None or body is None:
            return None
        stored = of_wsgi(request, rules.defer.headers)
        root = environ.get("SCRIPT_NAME") or ""
        return service.put(verdict, rules, stored, body, lane=lane, root=root)


def _wsgi_body(environ: dict[str, Any], length: str | None, most: int) -> bytes | None:
    """Read the whole body. None if it is longer than `most` bytes, incomplete, or of unknown length."""
    if length:
        left = int(length)
    elif environ.get("wsgi.input_terminated"):
        left = most + 1
    else:
        return b"" if "HTTP_TRANSFER_ENCODING" not in environ else None
    parts: list[bytes] = []
    while left > 0:
        part: bytes = environ["wsgi.input"].read(left)
        if not part:
            break
        parts.append(part)
        left -= len(part)
    body = b"".join(parts)
    complete = left == 0 if length else len(body) <= most
    return body if complete else None
