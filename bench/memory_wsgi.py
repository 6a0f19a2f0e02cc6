"""WSGI on memory: what one rule adds to a request."""

import time
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.util import setup_testing_defaults

from flask import Flask
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

from bench.measure import Figure, in_turn
from bench.memory_asgi import config
from ratelimit_mw.wsgi import RateLimitMiddleware

REQUESTS = 2000
App = Callable[[dict[str, Any], Any], Iterable[bytes]]


def bare(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"ok"]


def flask(storage: str | None = None) -> App:
    app = Flask("bench")
    app.add_url_rule("/items", view_func=lambda: "ok")
    if storage:
        Limiter(
            get_remote_address, app=app, default_limits=["1000000000/minute"], storage_uri=storage, headers_enabled=True
        )
    return app


def environ() -> dict[str, Any]:
    made: dict[str, Any] = {"REMOTE_ADDR": "203.0.113.7", "PATH_INFO": "/items"}
    setup_testing_defaults(made)
    return made


def request(app: App, template: dict[str, Any]) -> None:
    body = app(dict(template), lambda status, headers, exc_info=None: None)
    for _ in body:
        pass
    close = getattr(body, "close", None)
    if close:
        close()


def seconds_per_request(app: App) -> Callable[[], float]:
    template = environ()

    def run() -> float:
        start = time.perf_counter()
        for _ in range(REQUESTS):
            request(app, template)
        return (time.perf_counter() - start) / REQUESTS

    return run


def figures() -> list[Figure]:
    apps = {
        "bare": bare,
        "ratelimit_mw": RateLimitMiddleware(bare, config("1000000000 per minute")),
        "flask": flask(),
        "flask-limiter": flask("memory://"),
    }
    took = in_turn({name: seconds_per_request(app) for name, app in apps.items()})
    ours = took["ratelimit_mw"] - took["bare"]
    theirs = took["flask-limiter"] - took["flask"]
    case = "WSGI, memory, one rule: time added"
    return [
        Figure(case, "ratelimit_mw", ours * 1e6, "us", "bar: 10"),
        Figure(case, "flask-limiter", theirs * 1e6, "us", f"ours is {ours / theirs:.2f} of it (bar: 0.10)"),
    ]
