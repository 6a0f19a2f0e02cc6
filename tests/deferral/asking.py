"""Requests with bodies to the two middlewares, driven by hand. The app notes what reaches it, and answers with it."""

import asyncio
import inspect
import json
from io import BytesIO
from wsgiref.util import setup_testing_defaults

import httpx
import pytest
from asgiref.wsgi import WsgiToAsgi

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.deferral.worker import Target
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.shells.asking import IP, START, Answer, exchange, http_scope

REPORTS = {
    "name": "reports",
    "match": {"path": "/reports"},
    "limit": "1 per minute",
    "algorithm": "fixed_window",
    "on_limit": "defer",
}


def limiter(server, *others, clock=None, load="tests.deferral.asking:idle", **defer):
    """An engine whose rule `reports` defers; others join it, or replace it where they have its name."""
    rules = [*([] if any(rule["name"] == "reports" for rule in others) else [REPORTS]), *others]
    storage = {"timeout": "5s"}  # the machine may be busy
    config = {"domain": "shop", "storage": storage, "rules": rules, "defer": defer, "load": f"python:{load}"}
    return RateLimiter(
        config, storage=server if isinstance(server, str) else server.url, clock=clock or ManualClock(START)
    )


def idle():
    return 0.0


def busy():
    return 1.0


def in_process(app):
    """A target that is an app of this process, instead of a server."""
    asgi = app if inspect.iscoroutinefunction(app.__call__) else WsgiToAsgi(app)
    return Target("http://app", httpx.ASGITransport(asgi, raise_app_exceptions=False))


class Asked:
    """What the app got."""

    def __init__(self):
        self.requests = []

    def asgi(self, engine):
        async def app(scope, receive, send):
            message = await receive()
            headers = {name.decode(): value.decode() for name, value in scope["headers"]}
            self.note(scope["path"], headers, message["body"], scope["client"] and scope["client"][0])
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"made"})

        return Asgi(app, limiter=engine)

    def wsgi(self, engine):
        def app(environ, start_response):
            headers = {
                key[5:].replace("_", "-").lower(): value for key, value in environ.items() if key.startswith("HTTP_")
            }
            self.note(environ["PATH_INFO"], headers, environ["wsgi.input"].read(), environ["REMOTE_ADDR"] or None)
            start_response("200 OK", [])
            return [b"made"]

        return Wsgi(app, limiter=engine)

    def note(self, path, headers, body, address):
        self.requests.append((path, headers, body, address))


def ask_asgi(engine, path="/reports", *, method="POST", body=b"", headers=(), ip=IP, asked=None, parts=None, **scope):
    lines = [(name.encode(), value.encode()) for name, value in dict(headers).items()]
    if parts is None:
        lines.append((b"content-length", str(len(body)).encode()))
        parts = [body]
    incoming = [{"type": "http.request", "body": part, "more_body": n < len(parts)} for n, part in enumerate(parts, 1)]
    app = (asked or Asked()).asgi(engine)
    made = http_scope(path, method=method, headers=lines, ip=ip, **scope)
    start, *rest = asyncio.run(exchange(app, made, incoming=incoming))
    fields = [(name.decode(), value.decode()) for name, value in start["headers"]]
    return Answer(start["status"], fields, b"".join(part["body"] for part in rest))


def ask_wsgi(engine, path="/reports", *, method="POST", body=b"", headers=(), ip=IP, asked=None, parts=None, **environ):
    said = []
    made = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in dict(headers).items()}
    made |= {"PATH_INFO": path, "REQUEST_METHOD": method, "REMOTE_ADDR": ip or ""}
    if parts is None:
        made |= {"CONTENT_LENGTH": str(len(body))}
    else:
        body = b"".join(parts)
        made |= {"HTTP_TRANSFER_ENCODING": "chunked", "wsgi.input_terminated": True}
    made |= {"wsgi.input": BytesIO(body), **environ}
    setup_testing_defaults(made)
    answer = (asked or Asked()).wsgi(engine)(made, lambda *arguments: said.append(arguments))
    ((status, fields),) = said
    content = b"".join(answer)
    getattr(answer, "close", lambda: None)()
    return Answer(int(status[:3]), [(name.lower(), value) for name, value in fields], content)


EACH_SHELL = pytest.mark.parametrize("ask", [pytest.param(ask_asgi, id="ASGI"), pytest.param(ask_wsgi, id="WSGI")])


def state(ask, engine, location):
    return json.loads(ask(engine, location, method="GET").body)
