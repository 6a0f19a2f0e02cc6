"""What a response settles, over real HTTP: uvicorn and gunicorn, several processes on Redis, one on memory.

The app holds responses back until the test creates a file, so that no result depends on how long a request takes.
`tests/load/test_settling_times.py` kills a worker and waits until its leases have ended.
"""

import ssl
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from ratelimit_mw import RateLimiter
from tests.support.apps import gunicorn, uvicorn
from tests.support.patience import WITHIN, eventually

SERVED = """
import asyncio, os, time
from pathlib import Path
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
    if "think" in asked:
        Path("thinking").touch()
    while "think" in asked and not Path(asked["think"]).exists():
        await asyncio.sleep(0.05)
    await send({{"type": "http.response.start", "status": int(asked.get("status", 200)), "headers": headers}})
    while "hold" in asked and not Path(asked["hold"]).exists():
        await send({{"type": "http.response.body", "body": b"x", "more_body": True}})
        await asyncio.sleep(0.05)
    await send({{"type": "http.response.body", "body": b"y"}})


def wsgi(environ, start_response):
    asked = {{key: values[0] for key, values in parse_qs(environ["QUERY_STRING"]).items()}}
    if "charge" in asked:
        environ["ratelimit.decision"].charge(int(asked["charge"]))
    if "think" in asked:
        Path("thinking").touch()
    while "think" in asked and not Path(asked["think"]).exists():
        time.sleep(0.05)
    headers = [("X-Pid", str(os.getpid())), ("X-Cost", asked.get("cost", "1"))]
    start_response(asked.get("status", "200") + " X", headers)
    while "hold" in asked and not Path(asked["hold"]).exists():
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
STORES = pytest.mark.parametrize(
    "workers", [pytest.param(1, id="memory", marks=pytest.mark.soak), pytest.param(2, id="Redis")]
)


@pytest.fixture
def url(request, workers):
    return "memory://" if workers == 1 else request.getfixturevalue("any_server").url


def serve(tmp_path, kind, workers, url, *rules, timeout="5s"):
    config = {"domain": "d", "storage": {"url": url, "timeout": timeout}, "rules": list(rules)}
    (tmp_path / f"served_{kind}.py").write_text(SERVED.format(kind=kind, config=config))
    if kind == "asgi":
        return uvicorn("served_asgi:app", workers=workers, cwd=tmp_path)
    return gunicorn("served_wsgi:app", workers=workers, cwd=tmp_path, args=["--threads", "24"])


def get(app, **asked):
    with httpx.Client(timeout=WITHIN, verify=CONTEXT) as client:
        return get_by(client, app, **asked)


def get_by(client, app, **asked):
    headers = {"X-Id": asked.pop("id", "x")}
    return client.get(app.url, params=asked, headers=headers)


def at_once(number, app, **asked):
    with ThreadPoolExecutor(number) as pool:
        return [answer.result() for answer in [pool.submit(get, app, **asked) for _ in range(number)]]


def denied(answers):
    """How many of these futures have been answered by a denial."""
    return sum(answer.done() and answer.result().status_code == 429 for answer in answers)


def statuses(answers):
    return sorted(answer.status_code for answer in answers)


@KINDS
@STORES
def test_fifty_wrong_passwords_at_once_over_http_are_three_tries_of_all_processes(tmp_path, kind, workers, url):
    tries = {"name": "tries", "limit": "3 per day", "algorithm": "sliding_log", "count": {"status": [401, 403]}}
    with serve(tmp_path, kind, workers, url, tries) as app:
        assert statuses(get(app) for _ in range(10)) == [200] * 10
        with ThreadPoolExecutor(50) as pool:
            tries = [pool.submit(get, app, status=401, think="go-on") for _ in range(50)]
            eventually(lambda: denied(tries) == 47)
            (tmp_path / "go-on").touch()
        assert statuses(answer.result() for answer in tries) == [401] * 3 + [429] * 47
        assert get(app).status_code == 429


@KINDS
@STORES
def test_what_the_response_costs_is_charged_behind_it(tmp_path, kind, workers, url):
    costly = {"name": "costly", "limit": "100 per 1000 days", "algorithm": "fixed_window", "cost": "response:X-Cost"}
    # One connection: a worker settles a response before it reads the next request of its client.
    with (
        serve(tmp_path, kind, workers, url, costly) as app,
        httpx.Client(timeout=WITHIN, verify=CONTEXT) as client,
    ):
        asked = [{"cost": 40}, {"cost": 0}, {"charge": 10}, {"cost": 80}]
        answers = [get_by(client, app, **each) for each in asked]
        assert [int(answer.headers["x-ratelimit-remaining"]) for answer in answers] == [60, 60, 49, 0]
        eventually(lambda: get(app, cost=0).status_code == 429)


@KINDS
@STORES
def test_so_many_are_in_flight_and_no_more(tmp_path, kind, workers, url):
    with serve(tmp_path, kind, workers, url, {"name": "three", "limit": "3 concurrent"}) as app:
        with ThreadPoolExecutor(12) as pool:
            asked = [pool.submit(get, app, hold="released") for _ in range(12)]
            eventually(lambda: denied(asked) == 9)
            (tmp_path / "released").touch()
        answers = [answer.result() for answer in asked]
        assert statuses(answers) == [200] * 3 + [429] * 9
        assert {answer.headers.get("retry-after") for answer in answers if answer.status_code == 429} == {"1"}
        eventually(lambda: statuses(at_once(3, app)) == [200] * 3)


@KINDS
def test_a_store_that_goes_away_meanwhile_fails_no_response(tmp_path, kind, fresh_server):
    rules = [
        {"name": "tries", "limit": "3 per hour", "count": {"status": 401}},
        {"name": "costly", "limit": "100 per hour", "cost": "response:X-Cost"},
        {"name": "three", "limit": "3 concurrent"},
    ]
    with (
        serve(tmp_path, kind, 1, fresh_server.url, *rules, timeout="1s") as app,
        ThreadPoolExecutor(1) as pool,
        RateLimiter({"domain": "d", "rules": rules[:1]}, storage=fresh_server.url) as looking,
    ):
        get(app)
        answer = pool.submit(get, app, think="go-on", cost=50)
        eventually((tmp_path / "thinking").exists)
        fresh_server.pause()
        try:
            (tmp_path / "go-on").touch()
            assert answer.result().status_code == 200
        finally:
            fresh_server.resume()
        assert statuses(get(app, status=500) for _ in range(3)) == [500] * 3
        eventually(lambda: "x-ratelimit-limit" in get(app).headers)
        assert get(app).status_code == 200
        # What could not be given back stays charged, once.
        assert looking.peek({"ip": "127.0.0.1"}, 0).remaining in (2, 3)
        assert "Traceback" not in app.log
