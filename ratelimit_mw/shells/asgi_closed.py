"""Connections whose server knows that they are over, but does not tell the app.

ASGI says that an app hears of the end of a WebSocket by a `websocket.disconnect`, and that `send` raises OSError
afterwards. hypercorn (0.18 and earlier) differs:

- It answers 400 by itself where a client sends data before a WebSocket's handshake is accepted. It then drops what
  the app sends, and `receive` waits for ever.
- It drops what is sent after a disconnect, so an app that only sends never ends.
- By HTTP/2, `send` waits for ever where the client has reset the stream.

Such an app would hold its concurrent places until the server stops. hypercorn's `send` is a method of an object that
says by `closed` whether the connection is over. The two functions of a connection are wrapped so that the app hears
of it. A server without such an object is left as it is.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

LOOK_EVERY = 1.0
"""Seconds between two looks at whether the connection is over, while the app waits."""

_ABNORMAL_CLOSURE = 1006  # a code of RFC 6455: the connection ended without a close frame


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
    """Await what is sent, and return True; or give up, and return False, once the stream is closed."""
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
