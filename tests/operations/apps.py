"""Two apps with the live page at `/_limits`: `asgi` for uvicorn, `wsgi` for gunicorn. REDIS_URL is where they count."""

import os

from flask import Flask
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.operations.page import Page
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi

TOKEN = "the token of the live page"
RULES = {
    "domain": "shop",
    "client": {"secret": "of the test", "user": "header:X-User"},
    "storage": {"url": os.environ.get("REDIS_URL", "memory://")},
    "exempt": [{"path": "/_limits/*"}],
    "rules": [
        {"name": "everything", "by": "user|ip", "limit": "2 per year"},
        {"name": "paths", "by": "path", "limit": "1000 per year", "shadow": True},
    ],
}

limiter = RateLimiter(RULES)
page = Page(limiter, token=TOKEN)

asgi = Starlette()
asgi.mount("/_limits", page)
asgi.add_route("/items", lambda request: PlainTextResponse("hello"))
asgi.add_middleware(Asgi, limiter=limiter)

wsgi = Flask(__name__)
wsgi.add_url_rule("/items", view_func=lambda: "hello")
wsgi.wsgi_app = Wsgi(wsgi.wsgi_app, limiter=limiter)
wsgi.wsgi_app = DispatcherMiddleware(wsgi.wsgi_app, {"/_limits": page})
