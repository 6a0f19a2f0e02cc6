"""An ASGI app's lifespan, where no server runs it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import Any

Message = MutableMapping[str, Any]
App = Callable[[MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Any]


@asynccontextmanager
async def lifespan(app: App) -> AsyncIterator[dict[str, Any]]:
    """Run `app` from its startup to its shutdown; what it keeps in its state is what requests are to find in theirs.

    Raises RuntimeError where the startup fails. An app that knows no lifespan does without, as under a server.
    """
    state: dict[str, Any] = {}
    orders: asyncio.Queue[Message] = asyncio.Queue()
    said: asyncio.Queue[Message] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": state}
    running = asyncio.ensure_future(app(scope, orders.get, said.put))
    await orders.put({"type": "lifespan.startup"})
    answer = await _answer(running, said)
    if answer.get("type") == "lifespan.startup.failed":
        with suppress(Exception):
            await running
        raise RuntimeError(f"the app's startup failed: {answer.get('message', '')}")
    try:
        yield state
    finally:
        if answer:
            await orders.put({"type": "lifespan.shutdown"})
            await _answer(running, said)
        with suppress(Exception):  # whatever it says now, it has been said to its own log
            await running


async def _answer(running: "asyncio.Future[None]", said: "asyncio.Queue[Message]") -> Message:
    """What the app says next; nothing where it ends without a word."""
    heard = asyncio.ensure_future(said.get())
    await asyncio.wait((running, heard), return_when=asyncio.FIRST_COMPLETED)
    if heard.done():
        return heard.result()
    heard.cancel()
    return {}
