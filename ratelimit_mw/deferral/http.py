"""Deferral in the ASGI and WSGI middlewares.

A denied request may be put into the queue. A replay by a worker, and a request for a status page, are answered before
they are decided.
"""

import asyncio
from collections.abc import Iterable
from typing import Any
from wsgiref.types import StartResponse

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.deferral.service import DeferralPage, deferrals_of
from ratelimit_mw.deferral.stored_request import HEADER, of_asgi, of_wsgi
from ratelimit_mw.http.answers import phrase
from ratelimit_mw.http.responses import Receive, Send
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.rules.domains import Rules

_HEADER = HEADER.encode()


class _Deferral:
    """What the middlewares of ASGI and WSGI share.

    Args:
        limiter: The limiter of the middleware.

    Raises:
        ConfigurationError: A rule defers, but the storage has no queue.
    """

    def __init__(self, limiter: RateLimiter) -> None:
        self._service = deferrals_of(limiter)
        limiter.require(self._service.require)


class AsgiDeferral(_Deferral):
    """Handles status pages, replays and deferred requests for an ASGI middleware. See `_Deferral` for arguments."""

    async def answer(self, request: AsgiRequest, rules: Rules) -> DeferralPage | bool:
        """Return the page for a request that is not to be decided. True if it is a replay, which the app must get."""
        scope = request.context
        arrival = self._service.arrival(request, rules) if scope["type"] == "http" else None
        if arrival is None:
            return False
        found = await asyncio.to_thread(arrival)
        if isinstance(found, DeferralPage):
            return found
        scope["client"] = (found.peer, 0) if found.peer else None
        scope["scheme"] = found.scheme
        scope["headers"] = [line for line in scope["headers"] if line[0].lower() != _HEADER]
        return True

    async def put_off(
        self, verdict: Verdict, rules: Rules, request: AsgiRequest, receive: Receive
    ) -> DeferralPage | None:
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


async def respond_asgi(found: DeferralPage, method: str, send: Send) -> None:
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


class WsgiDeferral(_Deferral):
    """Handles status pages, replays and deferred requests for a WSGI middleware. See `_Deferral` for arguments."""

    def answer(self, request: WsgiRequest, rules: Rules) -> DeferralPage | bool:
        """Return the page for a request that is not to be decided. True if it is a replay, which the app must get."""
        environ, arrival = request.context, self._service.arrival(request, rules)
        if arrival is None:
            return False
        found = arrival()
        if isinstance(found, DeferralPage):
            return found
        environ["REMOTE_ADDR"] = found.peer or ""
        environ["wsgi.url_scheme"] = found.scheme
        environ.pop(_WSGI_HEADER, None)
        return True

    def put_off(self, verdict: Verdict, rules: Rules, request: WsgiRequest) -> DeferralPage | None:
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


def respond_wsgi(found: DeferralPage, method: str, start_response: StartResponse) -> Iterable[bytes]:
    """Respond with a page of the middleware."""
    start_response(f"{found.status} {phrase(found.status)}", list(found.headers))
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
