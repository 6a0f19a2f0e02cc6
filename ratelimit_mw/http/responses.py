"""Sends responses under ASGI and WSGI: adds their headers, and settles the request's account when they end."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from types import TracebackType
from typing import Any
from wsgiref.types import StartResponse

from ratelimit_mw.decision.settlement import Account, Move, Settlement
from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.rules.domains import Rules

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

_STARTS = frozenset({"http.response.start", "websocket.http.response.start"})
_BODIES = frozenset({"http.response.body", "http.response.zerocopysend"})
_SWITCHED, _REFUSED, _FAILED = 101, 403, 500


class AsgiResponseTracker:
    """Follows what an app sends, and settles the request's account: by its status, and when all of it was sent.

    Nothing the app sends waits for the store. What is sent first settles before the server can read the client's next
    request: its task was made before, and tasks go in order. An app that raises, or that ends without a response, is
    answered for with 500; one that is cancelled gets nothing back: its answer is not known.
    """

    def __init__(self, settlement: Settlement, account: Account, send: Send) -> None:
        self._settlement = settlement
        self._account = account
        self._send = send
        self._tasks: list[asyncio.Task[None]] = []
        self._headers: Sequence[tuple[bytes, bytes]] = ()
        self._concluded = self._trailing = False

    async def serve(self, app: Callable[[Send], Awaitable[None]]) -> None:
        """Run `app` and track its response."""
        try:
            await app(self.send)
        except Exception:
            await self._end()
            raise
        except BaseException:
            self._carry_out(self._account.end())
            raise
        await self._end()

    async def send(self, message: Message) -> None:
        """Pass on a message of the app."""
        kind = message["type"]
        if not self._concluded:
            if kind in _STARTS:
                self._headers = list(message.get("headers") or ())
                message = {**message, "headers": self._headers}
                self._trailing = bool(message.get("trailers"))
                self._conclude(message["status"])
            elif kind == "websocket.accept":
                self._conclude(_SWITCHED)
            elif kind == "websocket.close":
                self._conclude(_REFUSED)
        await self._send(message)
        if self._is_last(kind, message):
            self._carry_out(self._account.end())

    async def _end(self) -> None:
        self._conclude(_FAILED)
        self._carry_out(self._account.end())
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _is_last(self, kind: str, message: Message) -> bool:
        if kind in _BODIES:
            return not message.get("more_body") and not self._trailing
        return kind == "http.response.pathsend" or (
            kind == "http.response.trailers" and not message.get("more_trailers")
        )

    def _conclude(self, status: int) -> None:
        if not self._concluded:
            self._concluded = True
            self._carry_out(self._account.conclude(status, self._header))

    def _header(self, name: str) -> str | None:
        wanted = name.encode("latin-1")
        return next((value.decode("latin-1") for key, value in self._headers if key.lower() == wanted), None)

    def _carry_out(self, moves: Sequence[Move]) -> None:
        if moves:
            self._tasks.append(self._settlement.settle_soon(self._account, moves))


_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[MutableMapping[str, Any], _Receive, _Send], Awaitable[None]]

_ENDS = frozenset({"lifespan.startup.failed", "lifespan.shutdown.complete", "lifespan.shutdown.failed"})


def accompanying(app: _App, limiter: RateLimiter, *, owned: bool) -> _App:
    """`app`'s lifespan: `limiter` connects to its store at the start, and is closed at the end where it is `owned`.

    Both happen before the server hears of it: then it sends requests, or stops the loop.
    """

    async def lifespan(scope: _Message, receive: _Receive, send: _Send) -> None:
        async def send_after(message: _Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                await limiter.engine.aconnect()
            elif owned and message["type"] in _ENDS:
                await limiter.aclose()
            await send(message)

        await app(scope, receive, send_after)

    return lifespan


def failing(error: Exception) -> _App:
    """A lifespan that fails at startup with `error`, so that the server shows it and stops."""

    async def lifespan(_scope: _Message, receive: _Receive, send: _Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": f"RateLimitMiddleware can't start:\n{error}"})
        raise error  # for test clients; servers know it from the message

    return lifespan


def asyncio_runs() -> bool:
    """Whether an asyncio event loop runs the caller. Hypercorn can also run apps with trio."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def refuse_asyncio(limiter: RateLimiter) -> None:
    """Let `limiter` have only rules that need no asyncio. Raises ConfigurationError where those in force do.

    Counters in memory need none, unless a rule has to wait for something.
    """

    def check(rules: Rules) -> None:
        used = [] if limiter.in_memory else ["counters in Redis"]
        used += ["`concurrent`, `count` or a cost found in the response"] if rules.settling else []
        used += ["waiting for a turn (`leaky_bucket`, `max_wait`)"] if rules.waiting else []
        used += ["limits, shedding or deferral by the load"] if rules.metered else []
        used += ["`messages` of WebSockets"] if rules.messages is not None else []
        if used:
            raise ConfigurationError(
                [
                    Problem(
                        f"the server runs the app by trio, and these need asyncio: {', '.join(used)}",
                        hint="run hypercorn with `--worker-class asyncio` or `uvloop`",
                    )
                ]
            )

    limiter.require(check)


_ExcInfo = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]

_WSGI_RESPONSE_FAILED = 500


class WsgiResponseTracker:
    """Follows an app's response, and settles the request's account: by its status, and when all of it was sent.

    The status settles before the first part of the body goes out, so that it is done when the client reads it. An app
    that raises, or that ends without a response, is answered for with 500; one whose server never asked for its
    response gets nothing back.
    """

    def __init__(self, settlement: Settlement, account: Account, start_response: StartResponse) -> None:
        self._settlement = settlement
        self._account = account
        self._start_response = start_response
        self._status = 0
        self._headers: list[tuple[str, str]] = []

    def serve(self, app: Callable[[StartResponse], Iterable[bytes]]) -> Iterable[bytes]:
        """The response of `app`. It is the app's own iterable if nothing is left to settle."""
        try:
            body = app(self.start_response)
        except BaseException as error:
            if isinstance(error, Exception):
                self.conclude(_WSGI_RESPONSE_FAILED)
            self.end()
            raise
        if not self._status:  # a generator calls start_response with its first part
            return _Body(body, self)
        self.conclude(self._status)
        return _Body(body, self) if self._account.holds else body

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: _ExcInfo | None = None
    ) -> Callable[[bytes], object]:
        """Pass on the start of the response. Our headers already show what will remain."""
        self._status, self._headers = int(status[:3]), headers
        self._account.show(self._status, self._header)
        return self._start_response(status, headers, exc_info) if exc_info else self._start_response(status, headers)

    def conclude(self, status: int) -> None:
        """Settle by the status of the app's response; by `status` if the app never started one."""
        self._settlement.settle(self._account, self._account.conclude(self._status or status, self._header))

    def end(self) -> None:
        """Release the concurrent places of the request."""
        self._settlement.settle(self._account, self._account.end())

    def _header(self, name: str) -> str | None:
        return next((value for key, value in self._headers if key.lower() == name), None)


class _Body:
    """The app's iterable."""

    def __init__(self, body: Iterable[bytes], following: WsgiResponseTracker) -> None:
        self._body = body
        self._following = following
        self._parts: Iterator[bytes] | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._parts is None:
            self._parts = iter(self._body)
        try:
            part = next(self._parts)
        except Exception:  # also StopIteration: the status is final
            self._following.conclude(_WSGI_RESPONSE_FAILED)
            raise
        self._following.conclude(_WSGI_RESPONSE_FAILED)
        return part

    def close(self) -> None:
        """End the response: the server is done with it."""
        try:
            close: Any = getattr(self._body, "close", None)
            if close is not None:
                close()
        finally:
            if self._parts is not None:
                self._following.conclude(_WSGI_RESPONSE_FAILED)
            self._following.end()


class Ending:
    """The app's iterable, and what is to be done when the server is done with it, or has forgotten it.

    Doing that twice must be the same as once.
    """

    def __init__(self, body: Iterable[bytes], then: Callable[[], object]) -> None:
        self._body = body
        self._then: Callable[[], object] | None = then

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        """Close the iterable and run the final step: the server is done with it."""
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
