"""docs/testing.md: the files on the page are a test suite, which passes. So are further tests of the same apps."""

import os
import re
import subprocess
import sys

from tests.support.apps import ROOT

PAGE = (ROOT / "docs/testing.md").read_text()
FILES = dict(re.findall(r"^```\w+\n# ([\w.]+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", "."]
ENVIRON = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "RATELIMIT"))},
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # a second for each process
}
"""The environment of these suites, which have no plugins but ours."""

STARLETTE = """
from ratelimit_mw.asgi import RateLimitMiddleware
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route


async def home(request):
    return PlainTextResponse("welcome")


app = Starlette(routes=[Route("/", home)])
app.add_middleware(RateLimitMiddleware, config="ratelimits.yaml")
"""
MORE = {
    "starlette_app.py": STARLETTE,
    "test_more_of_starlette.py": """
from ratelimit_mw.testing import limiter_of
from starlette.testclient import TestClient
from starlette_app import app


def statuses(times):
    client = TestClient(app, client=("203.0.113.7", 50000))
    return [client.get("/").status_code for _ in range(times)]


def test_a_client_with_a_higher_limit(fresh_rate_limits):
    overrides = limiter_of(app).overrides
    overrides.set({"ip": "203.0.113.7"}, rule="everything", limit="5 per minute")
    try:
        assert statuses(6) == [200] * 5 + [429]
    finally:
        overrides.remove({"ip": "203.0.113.7"}, rule="everything")


def test_a_client_may_come_back_after_two_minutes(rate_limit_clock):
    assert statuses(4) == [200, 200, 200, 429]
    rate_limit_clock.advance(120)
    assert statuses(1) == [200]
""",
    "test_more_of_flask.py": """
from flask_app import app
from ratelimit_mw.testing import limiter_of


def statuses(times):
    client = app.test_client()
    return [client.get("/").status_code for _ in range(times)]


def test_the_fourth_request_of_a_minute_is_denied(fresh_rate_limits):
    assert statuses(4) == [200, 200, 200, 429]
    assert not limiter_of(app).peek({"ip": "127.0.0.1"}).allowed


def test_a_client_may_come_back_after_two_minutes(rate_limit_clock):
    assert statuses(4) == [200, 200, 200, 429]
    rate_limit_clock.advance(120)
    assert statuses(1) == [200]


def test_the_page_itself(no_rate_limits):
    assert statuses(20) == [200] * 20
""",
    "test_more_of_django.py": """
import django
from django.test import Client, override_settings
from ratelimit_mw.testing import limiter_of

django.setup()  # pytest-django does this for you
client = Client()


def statuses(times):
    return [client.get("/").status_code for _ in range(times)]


def test_the_fourth_request_of_a_minute_is_denied(fresh_rate_limits):
    assert statuses(4) == [200, 200, 200, 429]
    assert not limiter_of(client).peek({"ip": "127.0.0.1"}).allowed


def test_a_client_may_come_back_after_two_minutes(rate_limit_clock):
    assert statuses(4) == [200, 200, 200, 429]
    rate_limit_clock.advance(120)
    assert statuses(1) == [200]


def test_the_page_itself():
    with override_settings(RATELIMIT=None):
        assert statuses(20) == [200] * 20


def test_other_rules():
    rules = {"domain": "tests", "rules": [{"name": "one", "by": "ip", "limit": "1 per day"}]}
    with override_settings(RATELIMIT=rules):
        assert statuses(2) == [200, 429]
""",
}


def test_the_tests_of_the_apps_pass(tmp_path):
    files = FILES | MORE
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    command = [*PYTEST, "-W", "error"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRON, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{''.join(files.values()).count('def test_')} passed" in done.stdout


def test_the_page_shows_three_frameworks_and_rules_alone():
    assert len([name for name in FILES if name.startswith("test_")]) == 4


REDIS_RULES = """
domain: shop
storage: {url: "${REDIS_URL}", timeout: 5s}
rules:
  - {name: everything, by: ip, limit: 3 per day, algorithm: fixed_window}
"""
REDIS_SUITE = """
import os, subprocess, sys
import pytest
import redis
from ratelimit_mw import RateLimiter

CHECK = "import sys; from ratelimit_mw import RateLimiter; RateLimiter('ratelimits.yaml').check({'ip': sys.argv[1]})"
limiter = RateLimiter("ratelimits.yaml")


@pytest.mark.parametrize("test", range(2))
def test_a_worker_has_keys_of_its_own(test, fresh_rate_limits):
    limiter.check({"ip": "203.0.113.7"})
    subprocess.run([sys.executable, "-c", CHECK, "203.0.113.8"], check=True)
    with redis.Redis.from_url(os.environ["REDIS_URL"], protocol=2) as client:
        keys = [key.decode() for key in client.keys(f"shop@{os.environ['PYTEST_XDIST_WORKER']}:*")]
    assert len(keys) == 2, "the other is that of a process of the test"
    assert limiter.peek({"ip": "203.0.113.8"}).remaining == 2


def test_a_clock_that_drives(rate_limit_clock):
    with RateLimiter("ratelimits.yaml", clock=rate_limit_clock) as driven:
        assert [driven.check({"ip": "203.0.113.7"}).allowed for _ in range(4)] == [True, True, True, False]
        rate_limit_clock.advance(86_400)
        assert driven.check({"ip": "203.0.113.7"}).allowed


def test_a_clock_that_does_not_drive(rate_limit_clock):
    with RateLimiter("ratelimits.yaml") as by_the_server:
        by_the_server.check({"ip": "203.0.113.7"})
        with pytest.raises(RuntimeError, match="does not drive the limiter of 'shop'"):
            rate_limit_clock.advance(60)


def test_a_clock_that_is_not_moved(rate_limit_clock):
    limiter.check({"ip": "203.0.113.7"})
"""


def test_workers_share_no_counters_in_redis_and_a_clock_that_does_not_drive_is_an_error(tmp_path, any_server):
    files = {"conftest.py": FILES["conftest.py"], "ratelimits.yaml": REDIS_RULES, "test_redis.py": REDIS_SUITE}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    command = [*PYTEST, "-p", "xdist", "-n", "2"]
    environ = {**ENVIRON, "REDIS_URL": any_server.url}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert "5 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "ERROR at teardown of test_a_clock_that_is_not_moved" in done.stdout
