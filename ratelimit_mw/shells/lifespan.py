"""What a limiter has to do with the lifespan of an ASGI app: it is closed at the end, and its errors stop the start."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ratelimit_mw.limiter import RateLimiter

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[MutableMapping[str, Any], _Receive, _Send], Awaitable[None]]

_ENDS = frozenset({"lifespan.startup.failed", "lifespan.shutdown.complete", "lifespan.shutdown.failed"})


def closing(app: _App, limiter: RateLimiter) -> _App:
    """`app`'s lifespan, at whose end `limiter` is closed; the server may stop the loop once it heard of the end."""

    async def lifespan(scope: _Message, receive: _Receive, send: _Send) -> None:
        async def send_and_close(message: _Message) -> None:
            if message["type"] in _ENDS:
                await limiter.aclose()
            await send(message)

        await app(scope, receive, send_and_close)

    return lifespan


def failing(error: Exception) -> _App:
    """A lifespan that fails at startup because of `error`, so that the server says why and stops."""

    async def lifespan(_scope: _Message, receive: _Receive, send: _Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": f"RateLimitMiddleware can't start:\n{error}"})
        raise error  # for test clients; servers have heard it already

    return lifespan
