"""A Starlette app with each kind of route, in two middlewares."""

from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route, Router, WebSocketRoute

from ratelimit_mw.starlette import limited


async def page(request):
    return PlainTextResponse("")


@limited("mail")
async def mail(request):
    return PlainTextResponse("")


class Orders(HTTPEndpoint):
    async def get(self, request):
        return PlainTextResponse("")

    @limited("mail")
    async def post(self, request):
        return PlainTextResponse("")


async def other_app(scope, receive, send):
    """An app of no framework."""


app = Starlette(
    routes=[
        Route("/login", page, methods=["GET", "POST"]),
        Route("/mail", mail, methods=["POST"]),
        Route("/orders", Orders),
        Mount("/api", routes=[Route("/items/{id:int}", page), Route("/{rest:path}", page)]),
        Mount("/other", other_app),
        Host("admin.example.com", Router([Route("/admin", page)])),
        WebSocketRoute("/talk", page),
        Route("/health", page),
    ],
    middleware=[Middleware(GZipMiddleware)],
)
wrapped = GZipMiddleware(app)
