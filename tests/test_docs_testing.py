"""docs/testing.md: the files on the page are a test suite, which passes. So are further tests of the same apps."""

import re
import subprocess
import sys

import pytest

from tests.support.apps import ROOT

PAGE = (ROOT / "docs/testing.md").read_text()
FILES = dict(re.findall(r"^```\w+\n# ([\w.]+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))

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


@pytest.mark.parametrize("files", [pytest.param(FILES, id="the page"), pytest.param(FILES | MORE, id="more")])
def test_the_tests_of_the_apps_pass(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{''.join(files.values()).count('def test_')} passed" in done.stdout


def test_the_page_shows_three_frameworks_and_rules_alone():
    assert len([name for name in FILES if name.startswith("test_")]) == 4
