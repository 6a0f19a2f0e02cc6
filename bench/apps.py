"""The apps that are measured: without a limiter, with this package, and with each peer.

All have the same eight routes. slowapi looks at each route for every request, so its cost grows with their number; that
of the others does not. Every limiter has one limit, by the client's address, that no client reaches, and sends its
headers with each response. Each peer is set up as its documentation shows. Its limit is one for the whole app
(`application_limits`), as ours is.

No app is behind a server: what a server does costs the same in all of them, and would only hide the difference.
"""

import asyncio
import gc
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice
from typing import Any, NamedTuple

from bench.measure import OURS, Figure, Run, beside
from bench.traffic import STREAMS, TEMPLATES, Request, flask_template

AsgiApp = Callable[..., Awaitable[None]]
WsgiApp = Callable[..., Iterable[bytes]]

PER_MINUTE = 1_000_000_000
PEER_LIMIT = f"{PER_MINUTE}/minute"
IN_FLIGHT = 100  # requests at once, in the rows on Redis
TOGETHER = 50  # requests that exist at a time where the processor's time is measured


def config(limit: str = f"{PER_MINUTE} per minute", **rule: object) -> dict[str, object]:
    """Our rules. The timeout is long, so that no decision of a busy machine is skipped (`on_error: allow`)."""
    return {
        "domain": "bench",
        "client": {"secret": "bench"},
        "storage": {"timeout": "5s"},
        "rules": [{"name": "all", "by": "ip", "limit": limit, **rule}],
    }


FIVE = [
    {"name": "everything", "by": "ip", "limit": "1000000 per minute"},
    {"name": "daily", "by": "ip", "limit": "1000000 per day", "algorithm": "fixed_window"},
    {"name": "user", "by": "header:authorization", "limit": "1000000 per minute", "algorithm": "token_bucket"},
    {"name": "session", "by": "cookie:session", "limit": "1000 per minute", "algorithm": "sliding_log"},
    {"name": "reads", "by": "global", "match": {"methods": ["GET"]}, "limit": "1000000 per minute"},
]
"""Five rules that all match each request."""

OURS_FIVE = f"{OURS}, five rules"

# ------------------------------------------------------------------------------------------------ the apps


async def empty_asgi(scope: Any, receive: Any, send: Any) -> None:
    """The least that an ASGI app can be."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"ok"})


def empty_app(who: str, url: str | None = None) -> AsgiApp:
    """Our middleware around an app that does nothing, or that app alone."""
    from ratelimit_mw.asgi import RateLimitMiddleware

    return RateLimitMiddleware(empty_asgi, config(), storage=url) if who == OURS else empty_asgi


def starlette_app(who: str, url: str | None = None) -> AsgiApp:
    """A Starlette app, with the limiter that `who` names, or with none."""
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def endpoint(request: Any) -> PlainTextResponse:
        return PlainTextResponse("ok")

    app = Starlette(routes=[Route(template, endpoint) for template in TEMPLATES])
    if who in {OURS, OURS_FIVE}:
        from ratelimit_mw.asgi import RateLimitMiddleware

        rules = config() if who == OURS else {**config(), "rules": FIVE}
        app.add_middleware(RateLimitMiddleware, config=rules, storage=url)
    elif who.startswith("slowapi"):
        from slowapi import Limiter
        from slowapi.middleware import SlowAPIASGIMiddleware, SlowAPIMiddleware
        from slowapi.util import get_remote_address

        app.state.limiter = Limiter(
            get_remote_address, application_limits=[PEER_LIMIT], headers_enabled=True, storage_uri=url
        )
        app.add_middleware(SlowAPIMiddleware if who.endswith("BaseHTTP") else SlowAPIASGIMiddleware)
    elif who == "asgi-ratelimit":
        from ratelimit import RateLimitMiddleware, Rule
        from ratelimit.auths.ip import client_ip
        from ratelimit.backends.redis import RedisBackend
        from redis.asyncio import StrictRedis

        app.add_middleware(
            RateLimitMiddleware,
            authenticate=client_ip,
            backend=RedisBackend(StrictRedis.from_url(url)),
            config={"^/": [Rule(minute=PER_MINUTE)]},
        )
    return app


def flask_app(who: str, url: str = "memory://") -> WsgiApp:
    """A Flask app, with the limiter that `who` names, or with none."""
    from flask import Flask

    app = Flask("bench")
    for number, template in enumerate(TEMPLATES):
        app.add_url_rule(flask_template(template), f"endpoint{number}", lambda **parameters: "ok")
    if who == OURS:
        from ratelimit_mw.wsgi import RateLimitMiddleware

        app.wsgi_app = RateLimitMiddleware(app.wsgi_app, config(), storage=url)
    elif who == "flask-limiter":
        from flask_limiter import Limiter
        from flask_limiter.util import get_remote_address

        Limiter(get_remote_address, app=app, application_limits=[PEER_LIMIT], headers_enabled=True, storage_uri=url)
    return app


ASGI_APPS: dict[str, Callable[..., AsgiApp]] = {"empty": empty_app, "Starlette": starlette_app}

# ------------------------------------------------------------------------------------- how they are asked


async def receive() -> dict[str, Any]:
    """An empty body."""
    return {"type": "http.request", "body": b"", "more_body": False}


async def send(message: dict[str, Any]) -> None:
    """Drop the message."""


class Statuses:
    """A `send` that counts the statuses of the responses."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    async def __call__(self, message: dict[str, Any]) -> None:
        if (status := message.get("status")) is not None:
            self.seen[status] = self.seen.get(status, 0) + 1


def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
    """Drop the head of the response."""


def ask_wsgi(app: WsgiApp, environ: dict[str, Any]) -> None:
    """One request, as a WSGI server serves it."""
    body = app(environ, start_response)
    for _ in body:
        pass
    if close := getattr(body, "close", None):
        close()


def wsgi_runs(app: WsgiApp, request: Request) -> None:
    """Raise unless the app serves the request and, if it has a limiter, sends its headers."""
    statuses = []
    for _ in app(request.environ(), lambda status, headers, exc_info=None: statuses.append(status)):
        pass
    if statuses != ["200 OK"]:
        raise RuntimeError(f"the app answers {request.path} with {statuses}")


async def asgi_runs(app: AsgiApp, request: Request) -> None:
    """Raise unless the app serves the request."""
    statuses = Statuses()
    await app(request.scope(), receive, statuses)
    if statuses.seen != {200: 1}:
        raise RuntimeError(f"the app answers {request.path} with {statuses.seen}")


# --------------------------------------------------------------------- contestants, see `bench.measure.Remote`


def asgi_cpu(who: str, stream: str, requests: int, seen: int) -> Run:
    """Seconds of the processor that a limiter adds to each request of a Starlette app, counters in memory.

    The app without a limiter and the app with it serve the same requests in turn, 50 at a time, in one process.

    Args:
        who: The limiter.
        stream: The requests, see `bench.traffic`.
        requests: How many of them are measured in a round.
        seen: How many the limiter has served before the first round.
    """
    coming, runner = STREAMS[stream](), asyncio.Runner()
    bare, limited = starlette_app("bare"), starlette_app(who)

    async def took(app: AsgiApp, served: list[Request]) -> float:
        scopes = [request.scope() for request in reversed(served)]
        start = time.thread_time()
        while scopes:  # a server drops a request after its response, too
            await app(scopes.pop(), receive, send)
        return time.thread_time() - start

    async def run(number: int) -> float:
        added = Added()
        for turn in range(number // TOGETHER):
            served = list(islice(coming, TOGETHER))
            for app in (bare, limited) if turn % 2 else (limited, bare):
                added.seconds += await took(app, served) * (1 if app is limited else -1)
        return added.per_request(number)

    runner.run(asgi_runs(limited, next(coming)))
    runner.run(took(limited, list(islice(coming, seen))))
    return lambda: runner.run(run(requests))


def wsgi_cpu(who: str, stream: str, requests: int, seen: int) -> Run:
    """Seconds of the processor that a limiter adds to each request of a Flask app: `asgi_cpu` for WSGI."""
    coming = STREAMS[stream]()
    bare, limited = flask_app("bare"), flask_app(who)

    def took(app: WsgiApp, served: list[Request]) -> float:
        environs = [request.environ() for request in reversed(served)]
        start = time.thread_time()
        while environs:
            ask_wsgi(app, environs.pop())
        return time.thread_time() - start

    def run() -> float:
        added = Added()
        for turn in range(requests // TOGETHER):
            served = list(islice(coming, TOGETHER))
            for app in (bare, limited) if turn % 2 else (limited, bare):
                added.seconds += took(app, served) * (1 if app is limited else -1)
        return added.per_request(requests)

    wsgi_runs(limited, next(coming))
    took(limited, list(islice(coming, seen)))
    return run


class Added:
    """What a limiter adds in one round: in the thread that serves, and in threads of its own.

    Only a limiter has other threads here (the memory storage of `limits` has one that looks for what has expired).
    They work at any time of the round, so all of their time is added.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._others = self._time_of_others()

    def per_request(self, requests: int) -> float:
        """Seconds of the processor for each request."""
        return (self.seconds + self._time_of_others() - self._others) / requests

    @staticmethod
    def _time_of_others() -> float:
        return time.process_time() - time.thread_time()


def asgi_rate(app_name: str, who: str, stream: str, requests: int, url: str) -> Run:
    """How fast an ASGI app serves with 100 requests in flight, counters in Redis."""
    app, coming, runner = ASGI_APPS[app_name](who, url), STREAMS[stream](), asyncio.Runner()
    runner.run(asgi_runs(app, next(coming)))
    return lambda: runner.run(
        rate_of([request.scope() for request in islice(coming, requests)], IN_FLIGHT, lambda s: app(s, receive, send))
    )


class Rate(NamedTuple):
    """What a round on Redis took: requests per second, and the process's own seconds for each of them."""

    per_second: float
    cpu: float


async def rate_of(prepared: list[Any], in_flight: int, ask: Callable[[Any], Awaitable[object]]) -> Rate:
    """How fast the prepared requests are served, `in_flight` at once. Each is dropped after its response."""
    number = len(prepared)
    prepared.reverse()

    async def client() -> None:
        while prepared:
            await ask(prepared.pop())

    gc.collect()
    gc.freeze()  # in a server, the requests of the whole round are not there at once for the collector to look at
    try:
        start, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(client() for _ in range(in_flight)))
        return _rate(number, start, cpu)
    finally:
        gc.unfreeze()


def wsgi_rate(who: str, stream: str, requests: int, threads: int, url: str) -> Run:
    """Requests per second of a Flask app with this number of threads, counters in Redis."""
    app, coming = flask_app(who, url), STREAMS[stream]()
    wsgi_runs(app, next(coming))
    return lambda: thread_rate(
        [request.environ() for request in islice(coming, requests)], threads, lambda environ: ask_wsgi(app, environ)
    )


def thread_rate(prepared: list[Any], threads: int, ask: Callable[[Any], object]) -> Rate:
    """How fast this number of threads serves the prepared requests. Each is dropped after its response."""
    number = len(prepared)

    def client(share: list[Any]) -> None:
        while share:
            ask(share.pop())

    clients = [threading.Thread(target=client, args=(prepared[n::threads][::-1],)) for n in range(threads)]
    prepared.clear()
    gc.collect()
    gc.freeze()
    try:
        start, cpu = time.perf_counter(), time.process_time()
        for each in clients:
            each.start()
        for each in clients:
            each.join()
        return _rate(number, start, cpu)
    finally:
        gc.unfreeze()


def _rate(requests: int, start: float, cpu: float) -> Rate:
    return Rate(requests / (time.perf_counter() - start), (time.process_time() - cpu) / requests)


def faster(what: str, ours: Sequence[Rate], peer: str, theirs: Sequence[Rate], **others: Any) -> Figure:
    """Our requests per second beside a peer's, with the time of the processor in the note."""
    mine, other = (1e6 * statistics.median(rate.cpu for rate in rates) for rates in (ours, theirs))
    return beside(
        what,
        [rate.per_second for rate in ours],
        peer,
        [rate.per_second for rate in theirs],
        "/s",
        note=f"CPU of the process: {mine:.0f} and {other:.0f} µs each",
        **others,
    )
