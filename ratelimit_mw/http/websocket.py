"""WebSockets: limits on messages, and detection of a closed connection that the server does not report."""

import asyncio
import copy
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any, NamedTuple

from ratelimit_mw.decision.engine import Engine, verdict_without_counters
from ratelimit_mw.decision.planning import Plan
from ratelimit_mw.decision.verdict import Reason, Verdict
from ratelimit_mw.identity.http_request import AsgiRequest
from ratelimit_mw.identity.identifier import CONNECTION
from ratelimit_mw.model import NEVER, SECOND, Charge, Rule
from ratelimit_mw.rules.compiled import BLOCKED
from ratelimit_mw.rules.domains import Rules

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LOOK_EVERY = 1.0
"""Seconds between two checks whether the connection is closed, while the app waits."""

_ABNORMAL_CLOSURE = 1006  # RFC 6455: the connection ended without a close frame


def hearing_of_the_end(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> tuple[Receive, Send]:
    """`receive` and `send` of a connection, which tell the app of its end even where the server does not.

    Past the end, `receive` of a WebSocket returns a disconnect, and `send` raises ConnectionResetError for a message
    that others may follow (which ASGI asks for); what else the app sends is ignored, as hypercorn does.
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
                async with asyncio.timeout(LOOK_EVERY):
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
    """Wait for `send` and return True; return False as soon as the stream is closed."""
    task = asyncio.ensure_future(sending)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=LOOK_EVERY)
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


class _Fate(NamedTuple):
    """What becomes of a message: it passes at `turn`, by the loop's clock, or it is dropped, or `close` says how."""

    passes: bool
    turn: float = 0.0
    close: Message | None = None


class Messages:
    """Stands between a server and an app, and lets through the messages that the rules allow, in order.

    One message at a time is held here, while the store is asked and until its turn has come; those behind it stay with
    the server, whose flow control holds the client. An app that stops waiting (a timeout around its `receive`) loses
    nothing and pays nothing twice: it finds the message when it asks again. Where a socket is closed, the client gets
    a close frame and the app what it gets when a client leaves: a disconnect, and an OSError from what it sends.

    What is counted by connection is counted in this process. Of a message that another counter denies it is given
    back. Rules that change hold from the next message on, but a socket that no rule concerned when it opened stays
    free.
    """

    def __init__(self, engine: Engine, rules: Rules, request: AsgiRequest, receive: Receive, send: Send) -> None:
        self._engine = engine
        self._rules = rules
        self._opening = request
        self._connection = f"{CONNECTION}={token_hex(8)}"
        self._request = self._anew()
        self._receive = receive
        self._send = send
        self._in_turn = asyncio.Lock()
        self._held: Message | None = None
        self._decision: asyncio.Future[_Fate] | None = None
        self._closed: Message | None = None
        self._left = False

    async def receive(self) -> Message:
        """The next message for the app."""
        async with self._in_turn:
            while self._closed is None:
                message = self._held
                if message is None:
                    message = await self._receive()
                    if message["type"] != "websocket.receive":
                        return message
                    self._held = message
                if self._decision is None:
                    self._decision = asyncio.ensure_future(self._decide())
                passes, turn, close = await asyncio.shield(self._decision)
                wait = turn - asyncio.get_running_loop().time()
                if wait > 0:
                    await asyncio.sleep(wait)
                self._held = self._decision = None
                if passes:
                    return message
                if close is not None:
                    await self._close(close)
                else:
                    await asyncio.sleep(0)  # a client that floods the socket must not block the loop
            return self._closed

    async def send(self, message: Message) -> None:
        """Pass on a message of the app, until the socket is closed."""
        if self._closed is None:
            self._left = self._left or message["type"] == "websocket.close"
            await self._send(message)
        elif message["type"] != "websocket.close":
            raise ConnectionAbortedError("the WebSocket was closed: its client sent more than the rules allow")

    async def _close(self, close: Message) -> None:
        self._closed = {**close, "type": "websocket.disconnect"}
        if not self._left:
            with suppress(OSError):  # the client has closed it
                await self._send(close)

    async def _decide(self) -> _Fate:
        rules = self._engine.current()
        if rules is not self._rules:
            self._rules, self._request = rules, self._anew()
        limiting = rules.messages
        if limiting is None:
            return _Fate(passes=True)
        if limiting.attributes.awaited:
            await limiting.attributes.resolve(self._request)
        plan = self._engine.planner.plan(limiting, self._request)
        charges = plan.charges
        if charges is BLOCKED:
            return _denied(verdict_without_counters(plan), charges)
        here = [charge for charge in charges if self._connection in charge.ask.key]
        shared = [charge for charge in charges if self._connection not in charge.ask.key] if here else charges
        verdict = own = self._engine.decide_locally(here) if here else None
        if shared and (own is None or own.allowed):
            verdict = await self._engine.aexecute(Plan(shared), limiting)
            if own is not None and not verdict.allowed:
                settlement = self._engine.settlement
                account = settlement.account(own)
                settlement.settle(account, account.back(None))
        if verdict is None:
            return _Fate(passes=True)
        if not verdict.allowed:
            return _denied(verdict, charges)
        delay = max(verdict.delay, own.delay if own is not None else 0)
        return _Fate(passes=True, turn=asyncio.get_running_loop().time() + delay / SECOND)

    def _anew(self) -> AsgiRequest:
        """The request that opened the socket, of which nothing is remembered yet.

        Its path is that of the opening: a mount may have taken its own part from the scope since.
        """
        request = copy.copy(self._opening)
        request.values = {CONNECTION: self._connection}
        return request


def _denied(verdict: Verdict, charges: Sequence[Charge]) -> _Fate:
    denying: list[Rule] = []
    if verdict.reason == "unavailable":
        denying = [charge.rule for charge in charges if charge.rule.on_error == "deny"]
    elif verdict.reason != "blocked":
        said = zip(verdict.charges, verdict.outcomes, strict=True)
        denying = [charge.rule for charge, outcome in said if not outcome.allowed and not charge.ask.shadow]
    if denying and all(rule.messages == "drop" for rule in denying):
        return _Fate(passes=False)
    code, reason = _CLOSES.get(verdict.reason, _TOO_MANY)
    outcome = verdict.outcome
    if outcome is not None and outcome.retry_after != NEVER:
        reason = f"{reason}; retry after {-(-outcome.retry_after // SECOND)} s"
    return _Fate(passes=False, close={"type": "websocket.close", "code": code, "reason": reason})
