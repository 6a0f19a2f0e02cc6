"""What a response settles, over real HTTP: uvicorn and gunicorn, several processes on Redis, one on memory."""

import os
import signal
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from ratelimit_mw import RateLimiter
from tests.support.apps import gunicorn, uvicorn, within_a_minute

SERVED = """
import asyncio, os, time
from urllib.parse import parse_qs
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi

CONFIG = {config!r}


async def asgi(scope, receive, send):
    asked = {{key: values[0] for key, values in parse_qs(scope["query_string"].decode()).items()}}
    if scope["type"] != "http":
        raise RuntimeError
    headers = [(b"x-pid", str(os.getpid()).encode()), (b"x-cost", asked.get("cost", "1").encode())]
    if "charge" in asked:
        await scope["ratelimit"].charge(int(asked["charge"]))
    await asyncio.sleep(float(asked.get("think", 0)))
    await send({{"type": "http.response.start", "status": int(asked.get("status", 200)), "headers": headers}})
    end = time.monotonic() + float(asked.get("hold", 0))
    while time.monotonic() < end:
        await send({{"type": "http.response.body", "body": b"x", "more_body": True}})
        await asyncio.sleep(0.05)
    await send({{"type": "http.response.body", "body": b"y"}})


def wsgi(environ, start_response):
    asked = {{key: values[0] for key, values in parse_qs(environ["QUERY_STRING"]).items()}}
    if "charge" in asked:
        environ["ratelimit.decision"].charge(int(asked["charge"]))
    time.sleep(float(asked.get("think", 0)))
    headers = [("X-Pid", str(os.getpid())), ("X-Cost", asked.get("cost", "1"))]
    start_response(asked.get("status", "200") + " X", headers)
    end = time.monotonic() + float(asked.get("hold", 0))
    while time.monotonic() < end:
        yield b"x"
        time.sleep(0.05)
    yield b"y"


if {kind!r} == "asgi":
    app = Asgi(asgi, CONFIG)
else:
    app = Wsgi(wsgi, CONFIG)
"""
CONTEXT = ssl.create_default_context()  # to make one takes a client longer than to ask

KINDS = pytest.mark.parametrize("kind", ["asgi", "wsgi"])
STORES = pytest.mark.parametrize("workers", [pytest.param(1, id="memory"), pytest.param(2, id="Redis")])


@pytest.fixture
def url(request, workers):
    return "memory://" if workers == 1 else request.getfixturevalue("any_server").url


def serve(tmp_path, kind, workers, url, *rules, timeout="2s"):
    config = {"domain": "d", "storage": {"url": url, "timeout": timeout}, "rules": list(rules)}
    (tmp_path / f"served_{kind}.py").write_text(SERVED.format(kind=kind, config=config))
    if kind == "asgi":
        return uvicorn("served_asgi:app", workers=workers, cwd=tmp_path)
    return gunicorn("served_wsgi:app", workers=workers, cwd=tmp_path, args=["--threads", "24"])


def get(app, **asked):
    headers = {"X-Id": asked.pop("id", "x")}
    return httpx.get(app.url, params=asked, headers=headers, timeout=40, verify=CONTEXT)


def at_once(number, app, **asked):
    with ThreadPoolExecutor(number) as pool:
        return [answer.result() for answer in [pool.submit(get, app, **asked) for _ in range(number)]]


def statuses(answers):
    return sorted(answer.status_code for answer in answers)


@KINDS
@STORES
def test_fifty_wrong_passwords_at_once_are_three_tries(tmp_path, kind, workers, url):
    tries = {"name": "tries", "limit": "3 per minute", "algorithm": "sliding_log", "count": {"status": [401, 403]}}
    with serve(tmp_path, kind, workers, url, tries) as app:
        assert statuses(get(app) for _ in range(10)) == [200] * 10
        assert statuses(at_once(50, app, status=401, think=0.2)) == [401] * 3 + [429] * 47
        assert get(app).status_code == 429


@KINDS
@STORES
def test_what_the_response_costs_is_charged_behind_it(tmp_path, kind, workers, url):
    costly = {"name": "costly", "limit": "100 per minute", "algorithm": "fixed_window", "cost": "response:X-Cost"}
    within_a_minute(10)
    with serve(tmp_path, kind, workers, url, costly) as app:
        answers = [get(app, cost=40), get(app, cost=0), get(app, charge=10), get(app, cost=80)]
        assert [int(answer.headers["x-ratelimit-remaining"]) for answer in answers] == [60, 60, 49, 0]
        time.sleep(0.1)
        assert get(app).status_code == 429


@KINDS
@STORES
def test_so_many_are_in_flight_and_no_more(tmp_path, kind, workers, url):
    with serve(tmp_path, kind, workers, url, {"name": "three", "limit": "3 concurrent"}) as app:
        answers = at_once(12, app, hold=1.5)
        assert statuses(answers) == [200] * 3 + [429] * 9
        assert {answer.headers.get("retry-after") for answer in answers if answer.status_code == 429} == {"1"}
        time.sleep(0.2)
        assert statuses(at_once(3, app, hold=0.5)) == [200] * 3


@pytest.mark.timeout(180)
def test_a_long_response_keeps_its_place_and_a_killed_worker_loses_its_own(tmp_path, any_server):
    """A lease lasts ten seconds: both middlewares at the same time, that the test takes as long but once."""

    def live(kind):
        one = {"name": kind, "limit": "1 concurrent", "by": "header:X-Id"}
        with serve(tmp_path, kind, 2, any_server.url, one) as app, ExitStack() as open_ones:

            def stream(name):
                asked = httpx.stream("GET", app.url, params={"hold": 15}, headers={"X-Id": name}, timeout=40)
                answer = open_ones.enter_context(asked)
                return answer.status_code, int(answer.headers["x-pid"])

            began = time.monotonic()
            _, lives = stream("long")
            others = ((name, stream(name)[1]) for name in map("other-{}".format, range(50)))
            killed, dies = next((name, pid) for name, pid in others if pid != lives)
            os.kill(dies, signal.SIGKILL)
            killed_at = time.monotonic()
            time.sleep(1)
            assert get(app, id=killed).status_code == 429
            while get(app, id=killed).status_code == 429:
                assert time.monotonic() - killed_at < 20
                time.sleep(0.25)
            freed_after = time.monotonic() - killed_at
            while time.monotonic() - began < 13:
                assert get(app, id="long").status_code == 429
                time.sleep(0.5)
            time.sleep(began + 16 - time.monotonic())
            assert get(app, id="long").status_code == 200
            return freed_after

    with ThreadPoolExecutor(2) as pool:
        assert all(2 < after < 13 for after in pool.map(live, ["asgi", "wsgi"]))


@KINDS
def test_a_store_that_goes_away_meanwhile_fails_no_response(tmp_path, kind, fresh_server):
    rules = [
        {"name": "tries", "limit": "3 per hour", "count": {"status": 401}},
        {"name": "costly", "limit": "100 per hour", "cost": "response:X-Cost"},
        {"name": "three", "limit": "3 concurrent"},
    ]
    with (
        serve(tmp_path, kind, 1, fresh_server.url, *rules, timeout="200ms") as app,
        ThreadPoolExecutor(1) as pool,
        RateLimiter({"domain": "d", "rules": rules[:1]}, storage=fresh_server.url) as looking,
    ):
        get(app)
        answer = pool.submit(get, app, think=1, cost=50)
        time.sleep(0.5)
        fresh_server.pause()
        try:
            assert answer.result().status_code == 200
        finally:
            fresh_server.resume()
        assert statuses(get(app, status=500) for _ in range(3)) == [500] * 3
        time.sleep(2)
        assert get(app).status_code == 200
        # What could not be given back stays charged, once.
        assert looking.peek({"ip": "127.0.0.1"}, 0).remaining in (2, 3)
        assert "Traceback" not in app.log
