"""Soft and elastic limits under real servers, and the load as the middlewares see it."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from wsgiref.util import setup_testing_defaults

import pytest

from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.shells.asking import IP, exchange, http_scope
from tests.shells.loads import Idle
from tests.support.patience import WITHIN, eventually

RULES = """
rules:
  - {name: soft, match: {path: /soft}, by: query:who, limit: 10 per day, throttle: {soft: 20%}}
  - name: elastic
    match: {path: /elastic}
    by: query:who
    limit: 10 per day
    throttle: {elastic: {up_to: 200%, below: 0.7}}
"""


def test_limits_give_way_over_http(serve_under_load):
    client, set_load = serve_under_load(RULES, "0.1")
    soft = [client.get("/soft?who=a") for _ in range(13)]
    idle = [client.get("/elastic?who=a") for _ in range(21)]
    set_load("0.9")
    client.get("/elastic?who=nobody")
    eventually(lambda: client.get("/elastic?who=a").status_code == 429, every=0.1)
    time.sleep(1.2)  # until the limit is as far closed as it gets
    loaded = [client.get("/elastic?who=b") for _ in range(12)]
    assert [answer.status_code for answer in soft] == [200] * 12 + [429]
    assert [answer.headers.get("X-RateLimit-Over") for answer in soft] == [None] * 10 + ["soft"] * 2 + [None]
    assert {answer.headers["X-RateLimit-Limit"] for answer in soft} == {"10"}
    assert [answer.status_code for answer in idle] == [200] * 20 + [429]
    assert [answer.headers.get("X-RateLimit-Over") for answer in idle] == [None] * 10 + ["elastic"] * 10 + [None]
    assert [answer.status_code for answer in loaded] == [200] * 10 + [429] * 2


def elastic(capacity):
    rule = {"name": "a", "limit": "10 per day", "throttle": {"elastic": {"up_to": "200%", "below": 0.7}}}
    return RateLimiter({"domain": "d", "load": {"capacity": capacity}, "rules": [rule]}, storage="memory://")


def measured(engine, ahead):
    """The meter of an engine on a machine that does nothing else, its clock `ahead[0]` seconds ahead."""
    meter = engine.engine.planner.meter(engine.rules)
    meter.processor, meter.clock = Idle(), lambda: time.monotonic() + ahead[0]
    meter.watch = lambda loop: None  # the loop's own lag is not what this is about
    return meter


def passed(engine, ip):
    return sum(engine.check({"ip": ip}).allowed for _ in range(30))


def test_requests_in_flight_close_a_limit_under_asgi():
    async def main():
        ahead, engine = [0.0], elastic(capacity=4)
        meter, done = measured(engine, ahead), asyncio.Event()

        async def app(scope, receive, send):
            await done.wait()

        served = Asgi(app, limiter=engine)
        before = passed(engine, "192.0.2.1")
        slow = [asyncio.create_task(exchange(served, http_scope())) for _ in range(5)]
        await asyncio.sleep(0)
        for _ in range(2):
            ahead[0] += 10
            meter.load()
        under_load = passed(engine, "192.0.2.2")
        done.set()
        await asyncio.gather(*slow)
        for _ in range(2):
            ahead[0] += 10
            passed(engine, IP)
        return before, under_load, passed(engine, "192.0.2.3")

    assert asyncio.run(main()) == (20, 10, 20)


def test_busy_threads_close_a_limit_under_wsgi():
    ahead, engine, done = [0.0], elastic(capacity=4), threading.Event()
    meter, came = measured(engine, ahead), threading.Barrier(6)

    def app(environ, start_response):
        came.wait(WITHIN)
        done.wait(WITHIN)
        start_response("200 OK", [])
        return []

    served = Wsgi(app, limiter=engine)

    def one(_):
        environ = {"REMOTE_ADDR": IP}
        setup_testing_defaults(environ)
        served(environ, lambda status, headers: None)

    before = passed(engine, "192.0.2.1")
    with ThreadPoolExecutor(5) as pool:
        slow = pool.map(one, range(5))
        came.wait(WITHIN)
        for _ in range(2):
            ahead[0] += 10
            meter.load()
        under_load = passed(engine, "192.0.2.2")
        done.set()
        list(slow)
    for _ in range(2):
        ahead[0] += 10
        passed(engine, IP)
    assert (before, under_load, passed(engine, "192.0.2.3")) == (20, 10, 20)


@pytest.mark.parametrize("end", ["closed", "closed twice", "forgotten"])
def test_a_thread_is_busy_as_long_as_it_streams(end):
    engine, closed = elastic(capacity=4), []

    class Stream:
        def __iter__(self):
            yield b"x"

        def close(self):
            closed.append(1)

    def app(environ, start_response):
        start_response("200 OK", [])
        return Stream() if environ["PATH_INFO"] == "/stream" else [b"x"]

    served, meter = Wsgi(app, limiter=engine), engine.engine.planner.meter(engine.rules)
    bodies = [ask(served, "/stream") for _ in range(3)]
    assert ask(served, "/") == [b"x"]
    assert meter.in_flight == 3
    assert [list(body) for body in bodies] == [[b"x"]] * 3
    assert meter.in_flight == 3
    if end != "forgotten":
        for body in bodies:
            body.close()
        if end == "closed twice":
            bodies[0].close()
        assert closed == [1] * (4 if end == "closed twice" else 3)
    bodies.clear()
    body = None
    assert meter.in_flight == 0


def ask(served, path):
    environ = {"REMOTE_ADDR": IP, "PATH_INFO": path}
    setup_testing_defaults(environ)
    return served(environ, lambda status, headers: None)


@pytest.mark.parametrize(
    ("client", "loads"),
    [
        pytest.param({"trusted_proxies": "10.0.0.0/8"}, [1.0, 0.0], id="listed"),
        pytest.param({"trusted_hops": 1}, [1.0, 1.0], id="one hop"),
    ],
)
def test_a_queue_before_the_threads_closes_a_limit_if_a_trusted_proxy_says_so(client, loads):
    rule = {"name": "a", "limit": "10 per day", "throttle": {"elastic": {"up_to": "200%", "below": 0.7}}}
    seen = []
    for proxy in ("10.0.0.1", "192.0.2.9"):
        with RateLimiter({"domain": "d", "client": client, "rules": [rule]}, storage="memory://") as engine:
            meter = measured(engine, [0.0])

            def app(environ, start_response):
                start_response("200 OK", [])
                return []

            environ = {"REMOTE_ADDR": proxy, "HTTP_X_REQUEST_START": f"t={time.time() - 2:.3f}"}
            setup_testing_defaults(environ)
            Wsgi(app, limiter=engine)(environ, lambda status, headers: None)
            seen.append(meter.load())
    assert seen == loads
