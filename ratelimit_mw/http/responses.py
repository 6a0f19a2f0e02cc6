"""Tracks the responses of apps under ASGI and WSGI, to settle the accounts of a request when its response ends.

For ASGI there are also the handlers of the lifespan and the check that asyncio runs the app. Responses of this package
that are no denials are a `ReadyResponse`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple
from wsgiref.types import StartResponse

from ratelimit_mw.decision.settlement import Account, Move, Settlement
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.http.answers import phrase
from ratelimit_mw.http.handle import BlockingHandle, RequestHandle
from ratelimit_mw.limiter import RateLimiter

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_STARTS = frozenset({"http.response.start", "websocket.http.response.start"})
_BODIES = frozenset({"http.response.body", "http.response.zerocopysend"})
_ACCEPTED = 101  # the status of a WebSocket that the app accepts
_REJECTED = 403  # the status of a WebSocket that the app closes before it accepts it
_FAILED = 500  # the status that the server sends if the app raises or sends no response


class ReadyResponse(NamedTuple):
    """A response of this package that is no denial. `asgi` is an ASGI app that sends it, and `wsgi` a WSGI app."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes

    async def asgi(self, scope: MutableMapping[str, Any], _receive: Receive, send: Send) -> None:
        """Send it under ASGI. The response to HEAD has no body."""
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in self._all_headers()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else self.body})

    def wsgi(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Send it under WSGI. The response to HEAD has no body."""
        start_response(f"{self.status} {phrase(self.status)}", self._all_headers())
        return [b"" if environ["REQUEST_METHOD"] == "HEAD" else self.body]

    def _all_headers(self) -> list[tuple[str, str]]:
        return [*self.headers, ("Content-Length", str(len(self.body)))]


class AsgiResponseTracker:
    """Tracks the response of an ASGI app. It settles the request's accounts by the status, and again at the end.

    The accounts are those that the handle has at that moment: the app may add some while it runs.

    The messages of the app never wait for the store. The task that settles by the status is made before the server can
    read the client's next request, and tasks run in order, so the account is settled first.

    If the app raises or ends without a response, the status counts as 500. If the app is cancelled, the status is
    unknown, and nothing is refunded.

    Args:
        settlement: carries out the moves of the accounts.
        handle: has the accounts.
        send: sends a message to the server.
    """

    def __init__(self, settlement: Settlement, handle: RequestHandle, send: Send) -> None:
        self._settlement = settlement
        self._handle = handle
        self._send = send
        self._tasks: list[asyncio.Task[None]] = []
        self._headers: Sequence[tuple[bytes, bytes]] = ()
        self._trailing = False

    async def serve(self, app: Callable[[Send], Awaitable[None]]) -> None:
        """Run `app` and track its response."""
        try:
            await app(self.send)
        except Exception:
            await self._end()
            raise
        except BaseException:
            self._release()
            raise
        await self._end()

    def send(self, message: Message) -> Awaitable[None]:
        """Pass a message of the app on to the server."""
        return self._send_and_settle(message) if self._handle.unsettled else self._send(message)

    async def _send_and_settle(self, message: Message) -> None:
        kind = message["type"]
        if kind in _STARTS:
            self._headers = list(message.get("headers") or ())
            message = {**message, "headers": self._headers}
            self._trailing = bool(message.get("trailers"))
            self._conclude(message["status"])
        elif kind == "websocket.accept":
            self._conclude(_ACCEPTED)
        elif kind == "websocket.close":
            self._conclude(_REJECTED)
        await self._send(message)
        if self._is_last(kind, message):
            self._release()

    async def _end(self) -> None:
        self._conclude(_FAILED)
        self._release()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _is_last(self, kind: str, message: Message) -> bool:
        if kind in _BODIES:
            return not message.get("more_body") and not self._trailing
        return kind == "http.response.pathsend" or (
            kind == "http.response.trailers" and not message.get("more_trailers")
        )

    def _conclude(self, status: int) -> None:
        for account in self._handle.unsettled:
            self._carry_out(account, account.conclude(status, self._header))

    def _release(self) -> None:
        for account in self._handle.unsettled:
            self._carry_out(account, account.end())

    def _header(self, name: str) -> str | None:
        wanted = name.encode("latin-1")
        return next((value.decode("latin-1") for key, value in self._headers if key.lower() == wanted), None)

    def _carry_out(self, account: Account, moves: Sequence[Move]) -> None:
        if moves:
            self._tasks.append(self._settlement.settle_soon(account, moves))


REFUNDS = "ratelimit.refunds"
"""The key of the scope that has what `refund_when` of the app's limits is asked when the response starts."""


async def refunding(app: App, scope: Message, receive: Receive, send: Send) -> None:
    """Serve an app in which limits have `refund_when`: the refunds are made before the response starts.

    If the app raises before, the status counts as 500.
    """
    refunds: list[Callable[[int, Iterable[tuple[bytes, bytes]]], Awaitable[None]]] = []
    scope[REFUNDS] = refunds

    async def settle(status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        while refunds:
            await refunds.pop(0)(status, headers)

    async def send_after(message: Message) -> None:
        if message["type"] == "http.response.start":
            await settle(message["status"], message.get("headers") or ())
        await send(message)

    try:
        await app(scope, receive, send_after)
    except Exception:
        await settle(500, ())
        raise


_LIFESPAN_ENDS = frozenset({"lifespan.startup.failed", "lifespan.shutdown.complete", "lifespan.shutdown.failed"})


def lifespan_with(app: App, limiter: RateLimiter, *, owned: bool) -> App:
    """The lifespan of `app`, which also connects `limiter` to its store at startup and closes it at shutdown.

    Both happen before the server gets the app's message, because it then sends requests or stops the event loop.

    Args:
        app: the app, which handles the lifespan itself.
        limiter: the limiter.
        owned: whether to close the limiter. It is not owned if the user made it.
    """

    async def lifespan(scope: Message, receive: Receive, send: Send) -> None:
        async def send_after(message: Message) -> None:
            if owned and message["type"] in _LIFESPAN_ENDS:
                await limiter.aclose()
            await send(message)

        try:
            await limiter.engine.storage.aconnect()
        except StoreUnavailable as error:  # the store is required
            await failing_lifespan(error)(scope, receive, send_after)
            return
        await app(scope, receive, send_after)

    return lifespan


def failing_lifespan(error: Exception) -> App:
    """A lifespan that fails at startup with `error`, so that the server shows it and stops."""

    async def lifespan(_scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": f"RateLimitMiddleware can't start:\n{error}"})
        raise error  # for test clients; servers have it from the message

    return lifespan


def asyncio_runs() -> bool:
    """Whether an asyncio event loop runs the caller. Hypercorn can also run apps under trio."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]


class WsgiResponseTracker:
    """Tracks the response of a WSGI app. It settles the request's accounts by the status, and again at the end.

    The accounts are those that the handle has at that moment: the app may add some while it runs.

    They are settled by the status before the first part of the body is sent, so before the client reads the response.
    If the app raises or ends without a response, the status counts as 500. If the server never reads the response,
    nothing is refunded.

    Args:
        handle: has the accounts.
        start_response: the function of the server.
    """

    def __init__(self, handle: BlockingHandle, start_response: StartResponse) -> None:
        self._handle = handle
        self._start_response = start_response
        self._status = 0
        self._headers: list[tuple[str, str]] = []

    def serve(self, app: Callable[[StartResponse], Iterable[bytes]]) -> Iterable[bytes]:
        """Run `app` and return its response. It is the app's own iterable if nothing is left to settle."""
        try:
            body = app(self.start_response)
        except BaseException as error:
            if isinstance(error, Exception):
                self.conclude(_FAILED)
            self._handle.release()
            raise
        if not self._status:  # a generator calls start_response with its first part
            return ClosingIterable(body, self._handle.release, self._settling)
        self.conclude(self._status)
        holds = any(account.holds for account in self._handle.unsettled)
        return ClosingIterable(body, self._handle.release) if holds else body

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: _ExcInfo | None = None
    ) -> Callable[[bytes], object]:
        """Pass the start of the response on to the server. The rate-limit headers already show what will remain."""
        self._status, self._headers = int(status[:3]), headers
        for account in self._handle.unsettled:
            account.show(self._status, self._header)
        return self._start_response(status, headers, exc_info) if exc_info else self._start_response(status, headers)

    def conclude(self, status: int) -> None:
        """Settle by the status of the app's response; by `status` if the app has not started a response."""
        for account in self._handle.unsettled:
            Settlement.settle(account, account.conclude(self._status or status, self._header))

    def _settling(self, body: Iterable[bytes]) -> Iterator[bytes]:
        """The parts of a body. The request is settled by the first part and by the end."""
        try:
            for part in body:
                self.conclude(_FAILED)
                yield part
        except Exception:
            self.conclude(_FAILED)
            raise
        self.conclude(_FAILED)

    def _header(self, name: str) -> str | None:
        return next((value for key, value in self._headers if key.lower() == name), None)


class ClosingIterable:
    """The app's iterable, with a final step that runs when the server closes it or drops it without a close.

    Args:
        body: the iterable.
        then: the final step. After an asynchronous exception it may run twice, which must have the same effect as once.
        parts: makes the iterator over the iterable.
    """

    _then: Callable[[], object] | None = None  # if an asynchronous exception ends `__init__` early

    def __init__(
        self,
        body: Iterable[bytes],
        then: Callable[[], object],
        parts: Callable[[Iterable[bytes]], Iterator[bytes]] = iter,
    ) -> None:
        self._body = body
        self._parts = parts
        self._then = then

    def __iter__(self) -> Iterator[bytes]:
        return self._parts(self._body)

    def close(self) -> None:
        """Close the iterable and run the final step."""
        try:
            close: Any = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            self._end()

    def __del__(self) -> None:
        self._end()

    def _end(self) -> None:
        then = self._then
        if then is not None:
            then()
            self._then = None  # last, so that it runs again after an asynchronous exception
