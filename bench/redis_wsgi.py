"""WSGI on Redis: whole requests of one process with 8 threads."""

import threading
import time
from collections.abc import Callable

from bench.measure import Figure, in_turn
from bench.memory_asgi import config
from bench.memory_wsgi import App, environ, flask, request
from ratelimit_mw.wsgi import RateLimitMiddleware
from tests.support.servers import BINARIES, Server

EACH = 250


def per_second(app: App, threads: int) -> Callable[[], float]:
    template = environ()

    def client() -> None:
        for _ in range(EACH):
            request(app, template)

    def run() -> float:
        request(app, template)
        clients = [threading.Thread(target=client) for _ in range(threads)]
        start = time.perf_counter()
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        return threads * EACH / (time.perf_counter() - start)

    return run


def figures() -> list[Figure]:
    found = []
    with Server(BINARIES[0]) as server:
        limited = RateLimitMiddleware(flask(), config("1000000000 per minute"), storage=server.url)
        for threads in (1, 8, 32):
            apps = {"ratelimit_mw": limited, "flask-limiter": flask(server.url), "flask": flask()}
            rate = in_turn({name: per_second(app, threads) for name, app in apps.items()}, rounds=3)
            mine = rate["ratelimit_mw"]
            case = f"WSGI, Redis, {threads} threads: requests of a Flask app"
            bar = " (bar: 3)" if threads == 8 else ""
            found += [
                Figure(case, "ratelimit_mw", mine, "/s"),
                Figure(
                    case,
                    "flask-limiter",
                    rate["flask-limiter"],
                    "/s",
                    f"ours is {mine / rate['flask-limiter']:.1f} x{bar}",
                ),
                Figure(case, "no limiter", rate["flask"], "/s"),
            ]
    return found
