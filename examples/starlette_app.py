"""uvicorn examples.starlette_app:app --workers 2"""

from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ratelimit_mw.asgi import RateLimitMiddleware


async def index(request: Request) -> JSONResponse:
    return JSONResponse({"hello": "world"})


async def health(request: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})


async def login(request: Request) -> JSONResponse:
    return JSONResponse({"message": "Wrong password"}, status_code=401)


async def item(request: Request) -> JSONResponse:
    return JSONResponse({"item": request.path_params["id"], "remaining": request.scope["ratelimit"].remaining})


app = Starlette(
    routes=[
        Route("/", index),
        Route("/health", health),
        Route("/login", login, methods=["POST"]),
        Route("/api/items/{id:int}", item),
    ]
)
app.add_middleware(RateLimitMiddleware, config=Path(__file__).with_name("ratelimits.yaml"))
