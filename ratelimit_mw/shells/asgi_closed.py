"""WebSockets whose server knows that they are over, but does not tell the app.

ASGI says that an app hears of the end of a WebSocket by a `websocket.disconnect`, and that `send` raises OSError
afterwards. hypercorn (0.18 and earlier) does neither where a client sends data before the handshake is accepted: it
answers 400 by itself, drops what the app sends, and lets `receive` wait for ever. It also drops what is sent after a
disconnect, so an app that only sends never ends. Such an app would hold its concurrent places until the server stops.

hypercorn's `send` is a method of an object that says by `closed` whether the socket is over. The two functions of a
socket are wrapped so that the app hears of it. A server without such an object is left as it is.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LOOK_EVERY = 1.0
"""Seconds between two looks at whether the socket is over, while the app waits for a message."""

_ABNORMAL_CLOSURE = 1006  # a code of RFC 6455: the connection ended without a close frame


def hearing_of_the_end(receive: Receive, send: Send) -> tuple[Receive, Send]:
    """`receive` and `send` of a WebSocket, which tell the app of its end even where the server does not.

    Past the end, `receive` returns a disconnect, and `send` raises ConnectionResetError for a message (which ASGI
    asks for); what else the app sends is ignored, as hypercorn does.
    """
    stream: Any = getattr(send, "__self__", None)
    if not isinstance(getattr(stream, "closed", None), bool):
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
        if stream.closed and message["type"] == "websocket.send":
            raise ConnectionResetError("the WebSocket is closed: its client has left")
        await send(message)

    return receive_or_end, send_or_raise
