"""One response under ASGI, followed to its end, where something is to be settled by it."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from ratelimit_mw.decision.account import Account, Move
from ratelimit_mw.decision.settlement import Settlement

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

_STARTS = frozenset({"http.response.start", "websocket.http.response.start"})
_BODIES = frozenset({"http.response.body", "http.response.zerocopysend"})
_SWITCHED, _REFUSED, _FAILED = 101, 403, 500


class Following:
    """Follows what an app sends, and settles the request's account: by its status, and when all of it was sent.

    Nothing the app sends waits for the store. What is sent first settles before the server can read the client's next
    request: its task was made before, and tasks go in order. An app that raises, or that ends without a response, is
    answered for with 500; one that is cancelled gets nothing back, for nobody knows what it would have said.
    """

    def __init__(self, settlement: Settlement, account: Account, send: Send) -> None:
        self._settlement = settlement
        self._account = account
        self._send = send
        self._tasks: list[asyncio.Task[None]] = []
        self._headers: Sequence[tuple[bytes, bytes]] = ()
        self._concluded = self._trailing = False

    async def serve(self, app: Callable[[Send], Awaitable[None]]) -> None:
        """Let `app` send."""
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
        """Pass on what the app sends."""
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
