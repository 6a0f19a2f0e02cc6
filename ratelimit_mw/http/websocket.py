"""WebSockets: limits on messages, and detection of closed connections that the server does not report."""

import asyncio
import copy
from collections.abc import Awaitable, MutableMapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from secrets import token_hex
from typing import Any, NamedTuple

from ratelimit_mw.decision.engine import Engine
from ratelimit_mw.decision.verdict import Reason, Verdict
from ratelimit_mw.http.responses import Message, Receive, Send
from ratelimit_mw.identity.http_request import AsgiRequest
from ratelimit_mw.identity.identifier import CONNECTION
from ratelimit_mw.model import NEVER, SECOND, Charge, Rule
from ratelimit_mw.rules.domains import Rules

CHECK_EVERY = 1.0
"""Seconds between two checks whether the connection is closed, while the app waits."""

_POLICY_VIOLATION, _TRY_AGAIN_LATER = 1008, 1013  # codes of RFC 6455 and its registry
_ABNORMAL_CLOSURE = 1006  # RFC 6455: the connection ended without a close frame


def close_code(scope: MutableMapping[str, Any], status: int) -> int | None:
    """The code to close a WebSocket with that is denied before it is accepted; None if a response can be sent to it.

    Args:
        scope: The scope of a request or a WebSocket. A response can be sent to each request.
        status: The status of the denial.
    """
    if scope["type"] == "http" or "websocket.http.response" in (scope.get("extensions") or ()):
        return None
    return _TRY_AGAIN_LATER if status == HTTPStatus.SERVICE_UNAVAILABLE else _POLICY_VIOLATION


def detecting_close(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> tuple[Receive, Send]:
    """`receive` and `send` of a connection, which report its end to the app even if the server (hypercorn) does not.

    After the end, `receive` of a WebSocket returns a disconnect. `send` raises ConnectionResetError, as ASGI requires,
    for a message that others may follow. It ignores all other messages, as hypercorn does.
    """
    stream: Any = getattr(send, "__self__", None)
    if not isinstance(getattr(stream, "closed", None), bool):
        return receive, send
    is_websocket = scope["type"] == "websocket"
    is_one_stream_of_several = not str(scope.get("http_version", "")).startswith("1")
    if not is_websocket and not is_one_stream_of_several:
        return receive, send

    async def receive_or_end() -> Message:
        while True:
            try:
                async with asyncio.timeout(CHECK_EVERY):
                    return await receive()
            except TimeoutError:
                if stream.closed:
                    return {"type": "websocket.disconnect", "code": _ABNORMAL_CLOSURE}

    async def send_or_raise(message: Message) -> None:
        if not stream.closed:
            if not is_one_stream_of_several:
                await send(message)
            elif await _is_done(stream, send(message)):
                return
        if stream.closed and (message["type"] == "websocket.send" or message.get("more_body")):
            raise ConnectionResetError("the connection is closed: its client has left")

    return (receive_or_end if is_websocket else receive), send_or_raise


async def _is_done(stream: Any, sending: Awaitable[None]) -> bool:
    """Wait until `sending` is done and return True. Return False as soon as the stream is closed."""
    task = asyncio.ensure_future(sending)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=CHECK_EVERY)
            if stream.closed and not task.done():
                return False
    finally:
        task.cancel()
    task.result()
    return True


_TOO_MANY = (1008, "too many messages")  # a close code of RFC 6455
_CLOSES: dict[Reason | None, tuple[int, str]] = {
    "unavailable": (1013, "try again later"),
    "blocked": (1008, "forbidden"),
}


class _MessageDecision(NamedTuple):
    """The decision on one message.

    If it does not pass, it is dropped, or the socket is closed with the message `close`. If it passes, `turn` is the
    time of the event loop at which it does.
    """

    passes: bool
    turn: float = 0.0
    close: Message | None = None


class Messages:
    """Passes on the messages of one WebSocket that the rules allow, in order. It stands between the server and the app.

    One message at a time is kept here until the store has decided and its turn has come. Later messages stay with the
    server, whose flow control slows the client down. If the app stops waiting (a timeout around its `receive`), no
    message is lost or charged twice: the next call of `receive` returns it.

    If the rules close the socket, the client gets a close frame. The app gets what it gets when a client leaves: a
    disconnect from `receive`, and an OSError from `send`.

    A message that is counted by its connection alone is decided in the memory of this process. Changed rules apply from
    the next message on. However, a socket that no rule limited when it opened is never limited.

    Args:
        engine: decides on the messages.
        rules: the rules in force when the socket opened.
        request: the request that opened the socket.
        receive: receives a message from the server.
        send: sends a message to the server.
    """

    def __init__(self, engine: Engine, rules: Rules, request: AsgiRequest, receive: Receive, send: Send) -> None:
        self._engine = engine
        self._rules = rules
        self._opening = request
        self._connection = f"{CONNECTION}={token_hex(8)}"
        self._request = self._fresh_request()
        self._receive = receive
        self._send = send
        self._receiving = asyncio.Lock()
        self._pending: Message | None = None
        self._decision: asyncio.Future[_MessageDecision] | None = None
        self._closed: Message | None = None
        self._app_closed = False

    async def receive(self) -> Message:
        """The next message for the app."""
        async with self._receiving:
            while self._closed is None:
                message = self._pending
                if message is None:
                    message = await self._receive()
                    if message["type"] != "websocket.receive":
                        return message
                    self._pending = message
                if self._decision is None:
                    self._decision = asyncio.ensure_future(self._decide())
                passes, turn, close = await asyncio.shield(self._decision)
                wait = turn - asyncio.get_running_loop().time()
                if wait > 0:
                    await asyncio.sleep(wait)
                self._pending = self._decision = None
                if passes:
                    return message
                if close is not None:
                    await self._close(close)
                else:
                    await asyncio.sleep(0)  # a client that floods the socket must not block the loop
            return self._closed

    async def send(self, message: Message) -> None:
        """Pass a message of the app on to the server.

        Raises:
            ConnectionAbortedError: the rules have closed the socket.
        """
        if self._closed is None:
            self._app_closed = self._app_closed or message["type"] == "websocket.close"
            await self._send(message)
        elif message["type"] != "websocket.close":
            raise ConnectionAbortedError("the WebSocket was closed: its client sent more than the rules allow")

    async def _close(self, close: Message) -> None:
        self._closed = {**close, "type": "websocket.disconnect"}
        if not self._app_closed:
            with suppress(OSError):  # the client has closed it
                await self._send(close)

    async def _decide(self) -> _MessageDecision:
        rules = self._engine.current()
        if rules is not self._rules:
            self._rules, self._request = rules, self._fresh_request()
        limiting = rules.messages
        if limiting is None:
            return _MessageDecision(passes=True)
        if limiting.attributes.awaited:
            await limiting.attributes.resolve(self._request)
        plan = self._engine.planner.plan(limiting, self._request)
        charges = plan.charges
        if not charges:
            return _MessageDecision(passes=True)
        if plan.asks and all(self._connection in ask.key for ask in plan.asks):
            verdict = self._engine.decide_locally(charges)
        else:
            verdict = await self._engine.aexecute(plan, limiting)
        if not verdict.simple:
            self._engine.report(verdict, self._rules, self._request)
        if not verdict.allowed:
            return _denied(verdict, charges)
        return _MessageDecision(passes=True, turn=asyncio.get_running_loop().time() + verdict.delay / SECOND)

    def _fresh_request(self) -> AsgiRequest:
        """A copy of the request that opened the socket, without the attributes that were read from it.

        The path is not read again, because a mount may have removed its own part from the scope since.
        """
        request = copy.copy(self._opening)
        request.values = {CONNECTION: self._connection}
        return request


def _denied(verdict: Verdict, charges: Sequence[Charge]) -> _MessageDecision:
    denying: list[Rule] = []
    if verdict.reason == "unavailable":
        denying = [charge.rule for charge in charges if charge.rule.on_error == "deny"]
    elif verdict.reason != "blocked":
        pairs = zip(verdict.charges, verdict.outcomes, strict=True)
        denying = [charge.rule for charge, outcome in pairs if not outcome.allowed and not charge.ask.shadow]
    if denying and all(rule.messages == "drop" for rule in denying):
        return _MessageDecision(passes=False)
    code, reason = _CLOSES.get(verdict.reason, _TOO_MANY)
    outcome = verdict.outcome
    if outcome is not None and outcome.retry_after != NEVER:
        reason = f"{reason}; retry after {-(-outcome.retry_after // SECOND)} s"
    return _MessageDecision(passes=False, close={"type": "websocket.close", "code": code, "reason": reason})
