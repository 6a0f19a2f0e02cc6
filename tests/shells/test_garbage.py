"""Requests are freed at the end of their responses, without the garbage collector, where the framework frees them.

A marker in the scope or the environ and the input of the server are freed together with the request that held them.
"""

import asyncio
import gc
import io
import weakref
from wsgiref.util import setup_testing_defaults

import pytest

from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.shells.asking import http_scope

EACH_STATE = pytest.mark.parametrize(
    ("rule", "response"),
    [
        pytest.param({"limit": "9 per minute"}, {}, id="limited"),
        pytest.param({"limit": "9 per minute"}, {"headers": []}, id="limited, no headers"),
        pytest.param({"limit": "9 per minute", "match": {"path": "/other"}}, {}, id="not limited"),
        pytest.param({"limit": "0 per minute"}, {}, id="denied"),
        pytest.param({"limit": "9 per minute", "count": {"status": 401}}, {}, id="settled by the response"),
    ],
)


class Marker(io.BytesIO):
    """What a server passes with a request; freed when nothing refers to the request."""


class Response:
    """What a server sends a response with: it has the scope or the environ, as in uvicorn and waitress."""

    def __init__(self, context):
        self.context = context

    async def send(self, message):
        pass

    def start(self, status, headers, exc_info=None):
        return lambda _: None


def flask():
    from flask import Flask, request

    app = Flask(__name__)
    app.route("/")(lambda: request.path)
    return app


def bottle():
    from bottle import Bottle, request

    app = Bottle()
    app.route("/")(lambda: request.path)
    return app


def falcon():
    from falcon import App

    class Root:
        def on_get(self, req, resp):
            resp.text = req.path

    app = App()
    app.add_route("/", Root())
    return app


def werkzeug():
    from werkzeug.wrappers import Request, Response

    return Request.application(lambda request: Response(request.path))


def plain(environ, start_response):
    start_response("200 OK", [])
    return [b"/"]


def starlette():
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def root(request):
        return PlainTextResponse(request.url.path)

    return Starlette(routes=[Route("/", root)])


def fastapi():
    from fastapi import Depends, FastAPI, Request

    app = FastAPI()

    async def dependency(request: Request):
        yield request.url.path

    @app.get("/")
    async def root(path: str = Depends(dependency)):
        return path

    return app


def litestar():
    from litestar import Litestar, get

    @get("/")
    async def root() -> str:
        return "/"

    return Litestar([root])


def quart():
    from quart import Quart, request

    app = Quart(__name__)

    @app.route("/")
    async def root():
        return request.path

    return app


def falcon_asgi():
    from falcon.asgi import App

    class Root:
        async def on_get(self, req, resp):
            resp.text = req.path

    app = App()
    app.add_route("/", Root())
    return app


async def plain_asgi(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"/"})


def serve_wsgi(app):
    """Serve one request, and return the weak references to what came with it."""
    marker, body_read = Marker(), Marker()
    seen = [weakref.ref(marker), weakref.ref(body_read)]
    environ = {"test.marker": marker, "wsgi.input": body_read, "REMOTE_ADDR": "203.0.113.7"}
    setup_testing_defaults(environ)
    body = app(environ, Response(environ).start)
    b"".join(body)
    getattr(body, "close", lambda: None)()
    return seen


def serve_asgi(app):
    async def main():
        marker = Marker()
        scope = http_scope(**{"test.marker": marker})
        waiting = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive():
            return waiting.pop() if waiting else await asyncio.Event().wait()

        await app(scope, receive, Response(scope).send)
        return [weakref.ref(marker)]

    return asyncio.run(main())


def left_over(serve, app):
    """How many of the things that came with the second request are left when it has been served."""
    serve(app)
    gc.disable()
    try:
        return sum(each() is not None for each in serve(app))
    finally:
        gc.enable()


def limiter(rule, response):
    rules = {"domain": "d", "response": response, "rules": [{"name": "r", **rule}]}
    return RateLimiter({**rules, "storage": {"timeout": "5s"}})


@EACH_STATE
@pytest.mark.parametrize("make", [flask, bottle, falcon, werkzeug, lambda: plain], ids=lambda make: make.__name__)
def test_a_request_under_wsgi_leaves_no_garbage(make, rule, response):
    app = make()
    call = getattr(app, "wsgi_app", app)
    with limiter(rule, response) as engine:
        assert left_over(serve_wsgi, Wsgi(call, limiter=engine)) <= left_over(serve_wsgi, call)


@EACH_STATE
@pytest.mark.parametrize(
    "make", [starlette, fastapi, litestar, quart, falcon_asgi, lambda: plain_asgi], ids=lambda make: make.__name__
)
def test_a_request_under_asgi_leaves_no_garbage(make, rule, response):
    app = make()
    with limiter(rule, response) as engine:
        assert left_over(serve_asgi, Asgi(app, limiter=engine)) <= left_over(serve_asgi, app)
