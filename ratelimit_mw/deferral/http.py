"""Deferral in the ASGI and WSGI middlewares.

A denied request may be put into the queue. Its replay by a worker passes to the app. Status pages are answered here.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.deferral.service import DeferralService, Page
from ratelimit_mw.deferral.stored_request import HEADER, of_asgi, of_wsgi
from ratelimit_mw.http.answers import phrase
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest
from ratelimit_mw.rules.domains import Rules

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
_HEADER = HEADER.encode()


class AsgiDeferral:
    """Handles status pages, replays and deferred requests in front of `app`. `load` returns the load of the process."""

    def __init__(self, app: App, service: DeferralService, load: Callable[[Rules], float]) -> None:
        self._app = app
        self._service = service
        self._load = load

    def admits(self, request: AsgiRequest, rules: Rules) -> bool:
        """Return True for a replay, which its worker has already charged."""
        return request.context["type"] == "http" and self._service.admits(request, rules)

    async def put_off(self, verdict: Verdict, rules: Rules, request: AsgiRequest, receive: Receive) -> Page | None:
        """Queue a denied request and return its page, or None if it stays denied."""
        scope = request.context
        length = request.header("content-length")
        if scope["type"] != "http" or not self._service.may_defer(verdict, request, rules, length):
            return None
        lane = self._service.lane(request, rules)
        if lane is None:
            return None
        body = await _body(receive, rules.defer.max_body)
        if body is None:
            return None
        stored = of_asgi(request, rules.defer.headers)
        root = scope.get("root_path") or ""
        return await asyncio.to_thread(self._service.put, verdict, rules, stored, body, lane=lane, root=root)

    async def serve(self, rules: Rules, request: AsgiRequest, receive: Receive, send: Send) -> None:
        """Respond with a status page or to an invalid replay. Pass every other request to the app."""
        page = await self._page(rules, request) if request.context["type"] == "http" else None
        if page is None:
            await self._app(request.context, receive, send)
        else:
            await respond_asgi(page, request.method, send)

    async def _page(self, rules: Rules, request: AsgiRequest) -> Page | None:
        scope, service = request.context, self._service
        if service.admits(request, rules):
            arrived = await asyncio.to_thread(service.arrive, request, rules, self._load(rules))
            if isinstance(arrived, Page):
                return arrived
            scope["client"] = (arrived.peer, 0) if arrived.peer else None
            scope["scheme"] = arrived.scheme
            scope["headers"] = [line for line in scope["headers"] if line[0].lower() != _HEADER]
        elif request.path.startswith(rules.defer.path):
            return await asyncio.to_thread(service.page, request, rules)
        return None


async def respond_asgi(found: Page, method: str, send: Send) -> None:
    """Respond with a page of the middleware."""
    headers = [(name.lower().encode(), value.encode()) for name, value in found.headers]
    await send({"type": "http.response.start", "status": found.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else found.body})


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


class WsgiDeferral:
    """Handles status pages, replays and deferred requests in front of `app`. `load` returns the load of the process."""

    def __init__(self, app: WSGIApplication, service: DeferralService, load: Callable[[Rules], float]) -> None:
        self._app = app
        self._service = service
        self._load = load
        self.admits = service.admits
        """Return True for a replay, which its worker has already charged."""

    def put_off(self, verdict: Verdict, rules: Rules, request: WsgiRequest) -> Page | None:
        """Queue a denied request and return its page, or None if it stays denied."""
        environ = request.context
        length = environ.get("CONTENT_LENGTH")
        if not self._service.may_defer(verdict, request, rules, length):
            return None
        lane = self._service.lane(request, rules)
        if lane is None:
            return None
        body = _wsgi_body(environ, length, rules.defer.max_body)
        if body is None:
            return None
        stored = of_wsgi(request, rules.defer.headers)
        root = environ.get("SCRIPT_NAME") or ""
        return self._service.put(verdict, rules, stored, body, lane=lane, root=root)

    def serve(self, rules: Rules, request: WsgiRequest, start_response: StartResponse) -> Iterable[bytes]:
        """Respond with a status page or to an invalid replay. Pass every other request to the app."""
        page = self._page(rules, request)
        if page is None:
            return self._app(request.context, start_response)
        return respond_wsgi(page, request.method, start_response)

    def _page(self, rules: Rules, request: WsgiRequest) -> Page | None:
        environ, service = request.context, self._service
        if service.admits(request, rules):
            arrived = service.arrive(request, rules, self._load(rules))
            if isinstance(arrived, Page):
                return arrived
            environ["REMOTE_ADDR"] = arrived.peer or ""
            environ["wsgi.url_scheme"] = arrived.scheme
            environ.pop(_WSGI_HEADER, None)
        elif request.path.startswith(rules.defer.path):
            return service.page(request, rules)
        return None


def respond_wsgi(found: Page, method: str, start_response: StartResponse) -> Iterable[bytes]:
    """Respond with a page of the middleware."""
    start_response(f"{found.status} {phrase(found.status)}", found.headers)
    return [b"" if method == "HEAD" else found.body]


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
