"""The app as it is served where requests are put off, under ASGI."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.deferral.envelope import of_asgi
from ratelimit_mw.deferral.front import Front
from ratelimit_mw.deferral.marks import HEADER
from ratelimit_mw.deferral.page import Page
from ratelimit_mw.identity.asgi import AsgiRequest
from ratelimit_mw.rules.domains import Rules

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
_MARK = HEADER.encode()


class Deferral:
    """What stands before `app`: pages of ours, replays, and the way into the queue. `load` is that of the process."""

    def __init__(self, app: App, front: Front, load: Callable[[Rules], float]) -> None:
        self._app = app
        self._front = front
        self._load = load

    def admits(self, request: AsgiRequest, rules: Rules) -> bool:
        """True of a replay, which a worker has charged already."""
        return request.context["type"] == "http" and self._front.admits(request, rules)

    async def put_off(self, verdict: Verdict, rules: Rules, request: AsgiRequest, receive: Receive) -> Page | None:
        """Queue a request that was denied; None where it stays denied."""
        scope = request.context
        length = request.header("content-length")
        if scope["type"] != "http" or not self._front.may_put_off(verdict, request, rules, length):
            return None
        lane = self._front.lane(request, rules)
        if lane is None:
            return None
        body = await _body(receive, rules.defer.max_body)
        if body is None:
            return None
        envelope = of_asgi(request, rules.defer.headers)
        root = scope.get("root_path") or ""
        return await asyncio.to_thread(self._front.put, verdict, rules, envelope, body, lane=lane, root=root)

    async def serve(self, rules: Rules, request: AsgiRequest, receive: Receive, send: Send) -> None:
        """Let the app respond, unless a page of ours is asked for, or a replay is none any more."""
        page = await self._page(rules, request) if request.context["type"] == "http" else None
        if page is None:
            await self._app(request.context, receive, send)
        else:
            await respond(page, request.method, send)

    async def _page(self, rules: Rules, request: AsgiRequest) -> Page | None:
        scope, front = request.context, self._front
        if front.admits(request, rules):
            arrived = await asyncio.to_thread(front.arrive, request, rules, self._load(rules))
            if isinstance(arrived, Page):
                return arrived
            scope["client"] = (arrived.peer, 0) if arrived.peer else None
            scope["scheme"] = arrived.scheme
            scope["headers"] = [line for line in scope["headers"] if line[0].lower() != _MARK]
        elif request.path.startswith(rules.defer.path):
            return await asyncio.to_thread(front.page, request, rules)
        return None


async def respond(found: Page, method: str, send: Send) -> None:
    """Respond with a page of ours."""
    headers = [(name.lower().encode(), value.encode()) for name, value in found.headers]
    await send({"type": "http.response.start", "status": found.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else found.body})


async def _body(receive: Receive, most: int) -> bytes | None:
    """The whole body; None where it is longer than that, or the client left before its end."""
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
