"""Requests to the two middlewares, driven by hand, and their answers in one shape."""

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from wsgiref.util import setup_testing_defaults

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi

START = 1_700_000_000  # 20 s into a minute, as windows are counted
IP = "203.0.113.7"


def rules(limit="2 per minute", **sections):
    """A configuration with one rule for everybody; `rules=` and other sections replace or join it."""
    everybody = {"name": "everybody", "by": "ip", "limit": limit, "algorithm": "fixed_window"}
    return {"domain": "shop", "storage": {"timeout": "5s"}, "rules": [everybody], **sections}


class InSteps(MemoryStore):
    """Counters in memory that no plan takes in one step."""

    def decider(self, asks):
        return None


def limiter(limit="2 per minute", *, clock=None, storage=None, **sections):
    """A limiter in memory. With IN_STEPS in the environment, no plan is taken in one step: see `make soak`."""
    clock = clock or ManualClock(START)
    if storage is None and "storage" not in sections and "IN_STEPS" in os.environ:
        storage = InSteps(clock=clock)
    return RateLimiter(rules(limit, **sections), storage=storage, clock=clock)


def http_scope(path="/", *, method="GET", ip=IP, headers=(), **more):
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": list(headers),
        "client": (ip, 40000) if ip else None,
        "server": ("127.0.0.1", 8000),
        **more,
    }


def websocket_scope(path="/", **more):
    scope = http_scope(path, scheme="ws", subprotocols=[], **more)
    del scope["method"]
    return {**scope, "type": "websocket"}


async def exchange(app, scope, incoming=({"type": "http.request", "body": b"", "more_body": False},)):
    """What the app sends to a server that hands it these messages and then says that the client left."""
    sent, waiting = [], list(incoming)

    async def receive():
        return waiting.pop(0) if waiting else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    return sent


def serve(app, scope, **options):
    return asyncio.run(exchange(app, scope, **options))


@dataclass
class Answer:
    """`fields` are the headers in order, their names in lower case; `seen` what the app found of its limits."""

    status: int
    fields: list[tuple[str, str]]
    body: bytes
    seen: object = None

    @property
    def headers(self):
        assert len({name for name, _ in self.fields}) == len(self.fields), "no header twice"
        return dict(self.fields)

    @property
    def rate(self):
        """Limit, remaining and reset, as far as they were sent."""
        names = ("x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset")
        return [self.headers[name] for name in names if name in self.headers]


Ask = Callable[..., Answer]


def ask_asgi(engine, path="/", *, method="GET", ip=IP, own: Iterable[tuple[str, str]] = (), accept=None):
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["ratelimit"])
        headers = [(name.lower().encode(), value.encode()) for name, value in own]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"hello"})

    headers = [] if accept is None else [(b"accept", accept.encode("latin-1"))]
    start, body = serve(Asgi(app, limiter=engine), http_scope(path, method=method, ip=ip, headers=headers))
    assert (start["type"], body["type"]) == ("http.response.start", "http.response.body")
    assert all(name.islower() for name, _ in start["headers"])
    fields = [(name.decode(), value.decode()) for name, value in start["headers"]]
    return Answer(start["status"], fields, body["body"], *seen)


def ask_wsgi(engine, path="/", *, method="GET", ip=IP, own: Iterable[tuple[str, str]] = (), accept=None):
    seen, said = [], []

    def app(environ, start_response):
        seen.append(environ["ratelimit.decision"])
        start_response("200 OK", list(own))
        return [b"hello"]

    environ = {"PATH_INFO": path, "REQUEST_METHOD": method, "REMOTE_ADDR": ip or "", "wsgi.multithread": True}
    environ |= {} if accept is None else {"HTTP_ACCEPT": accept}
    setup_testing_defaults(environ)
    body = Wsgi(app, limiter=engine)(environ, lambda *arguments: said.append(arguments))
    ((status, headers),) = said
    parts = b"".join(body)
    getattr(body, "close", lambda: None)()
    return Answer(int(status[:3]), [(name.lower(), value) for name, value in headers], parts, *seen)


EACH_SHELL = pytest.mark.parametrize("ask", [pytest.param(ask_asgi, id="ASGI"), pytest.param(ask_wsgi, id="WSGI")])
