"""LIMITS_TOKEN=<16 or more characters> uvicorn examples.live_page:app

A Starlette app with the live page at /_limits/. The token is the password.
"""

import os
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.operations.page import Page

limiter = RateLimiter(Path(__file__).with_name("ratelimits.yaml"))


async def index(request: Request) -> JSONResponse:
    return JSONResponse({"hello": "world"})


shop = Starlette(routes=[Route("/", index)])

# The page is outside of the middleware, so the limits do not apply to it.
app = Starlette(
    routes=[
        Mount("/_limits", Page(limiter, token=os.environ["LIMITS_TOKEN"])),
        Mount("/", RateLimitMiddleware(shop, limiter=limiter)),
    ]
)
