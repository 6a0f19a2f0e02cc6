"""What a limiter has to do with the lifespan of an ASGI app: it connects at the start, and is closed at the end.

Its errors stop the start.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.rules.domains import Rules

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
    """A lifespan that fails at startup because of `error`, so that the server says why and stops."""

    async def lifespan(_scope: _Message, receive: _Receive, send: _Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.failed", "message": f"RateLimitMiddleware can't start:\n{error}"})
        raise error  # for test clients; servers have heard it already

    return lifespan


def asyncio_runs() -> bool:
    """True where an asyncio loop runs the caller; hypercorn can run apps by trio instead."""
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
