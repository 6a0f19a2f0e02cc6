"""uvicorn examples.llm.app:app"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from anyio import CancelScope
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.types import AsyncHandle

USERS = {"key-of-ann": "ann", "key-of-bob": "bob"}


class ApiKeys:
    """Puts the user of an API key into the scope."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "http":
            scope["user"] = USERS.get(Headers(scope=scope).get("authorization", "").removeprefix("Bearer "))
        await self.app(scope, receive, send)


limiter = RateLimiter(Path(__file__).with_name("ratelimits.yaml"))
app = FastAPI()
app.add_middleware(RateLimitMiddleware, limiter=limiter)
app.add_middleware(ApiKeys)  # added last, so it is outside: the rules know the user


class Chat(BaseModel):
    """The body of a request."""

    model: str = Field(pattern="^(small|large)$")
    prompt: str = Field(max_length=10_000)
    max_tokens: int = Field(default=500, ge=1, le=1000)


async def generate(chat: Chat) -> AsyncIterator[str]:
    """A model that only counts. Put yours here."""
    for number in range(chat.max_tokens):
        await asyncio.sleep(0.005)
        yield f"{number} "


class Metered(StreamingResponse):
    """Streams tokens. When the response ends, in whatever way, it settles what they cost."""

    def __init__(self, tokens: AsyncIterator[str], limits: AsyncHandle, reserved: int, used: int) -> None:
        self.limits = limits
        self.reserved = reserved
        self.used = used
        super().__init__(self.counted(tokens), media_type="text/plain")

    async def counted(self, tokens: AsyncIterator[str]) -> AsyncIterator[str]:
        """Count the tokens that are streamed."""
        async for token in tokens:
            self.used += 1
            yield token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond, and settle."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            with CancelScope(shield=True):  # a middleware outside may cancel this when the client leaves
                if self.used > self.reserved:
                    await self.limits.charge(self.used - self.reserved)
                else:
                    await self.limits.refund(self.reserved - self.used)


@app.post("/v1/chat")
async def chat(request: Request, chat: Chat) -> Response:
    user = request.scope["user"]
    if user is None:
        raise HTTPException(401, "Unknown key")
    limits: AsyncHandle = request.scope["ratelimit"]
    prompt = len(chat.prompt.split())  # the tokens of the prompt, as your model counts them
    reserved = prompt + chat.max_tokens
    asked = await limits.enforce("tokens", reserved, key=f"{user} {chat.model}")
    if asked.denial is not None:
        status, headers, body = asked.denial
        return Response(body, status, dict(headers))
    return Metered(generate(chat), limits, reserved, prompt)
