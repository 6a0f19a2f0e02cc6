"""The example apps under the servers that their docstrings name, asked over HTTP."""

import re
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import httpx
import pytest

from tests.support.apps import ROOT, AppExited, gunicorn, uvicorn
from tests.support.patience import WITHIN

EXAMPLES = ROOT / "examples"
APPS = [
    pytest.param((uvicorn, "starlette_app", "app"), id="Starlette"),
    pytest.param((uvicorn, "fastapi_app", "app"), id="FastAPI"),
    pytest.param((gunicorn, "flask_app", "app"), id="Flask"),
    pytest.param((gunicorn, "django_app", "application"), id="Django"),
]


def statuses(client, method, path, times, **options):
    """How often each status came back, of so many requests from 16 threads. Each has a client of its own."""

    def ask(share):
        with httpx.Client(base_url=client.base_url, timeout=WITHIN, verify=False) as own:  # loads no certificates
            return [own.request(method, path, **options).status_code for _ in range(share)]

    with ThreadPoolExecutor(16) as pool:
        return Counter(chain.from_iterable(pool.map(ask, [len(range(n, times, 16)) for n in range(min(times, 16))])))


@pytest.fixture(params=APPS)
def served(request, any_server, tmp_path):
    """An example app in two processes on Redis, and a client of it.

    Its limits are those of fifty minutes, so that none of them ends while a busy machine answers.
    """
    serve, module, name = request.param
    shutil.copy(EXAMPLES / f"{module}.py", tmp_path)
    text = (EXAMPLES / "ratelimits.yaml").read_text()
    text = text.replace("storage:\n", "storage:\n  timeout: 5s\n")
    (tmp_path / "ratelimits.yaml").write_text(re.sub("per (minute|10 seconds)", "per 50 minutes", text))
    env = {"REDIS_URL": any_server.url}
    with (
        serve(f"{module}:{name}", workers=2, cwd=tmp_path, env=env) as app,
        httpx.Client(base_url=app.url, timeout=WITHIN) as client,
    ):
        yield app, client


def buckets_belong_to_users_and_depend_on_their_tier(client):
    """Empties the buckets of three clients. Returns how many requests were allowed."""
    allowed = 0
    for headers, burst in [
        ({}, 5),
        ({"Authorization": "Bearer ada"}, 5),
        ({"Authorization": "Bearer grace", "X-Plan": "premium"}, 20),
    ]:
        first = client.get("/api/items/7", headers=headers)
        assert first.json() == {"item": 7, "remaining": burst - 1}
        assert first.headers["X-RateLimit-Limit"] == str(burst)
        assert first.headers["X-RateLimit-Remaining"] == str(burst - 1)
        rest = statuses(client, "GET", "/api/items/8", burst + 10, headers=headers)
        assert rest == {200: burst - 1, 429: 11}
        allowed += burst
    return allowed


def test_two_workers_on_one_redis_admit_exactly_what_the_rules_say(served, any_server):
    app, client = served
    assert len(app.pids) == 2

    assert statuses(client, "GET", "/health", 150) == {200: 150}
    asked = [key for key in any_server.keys() if ":probe:" not in key]  # noqa: SIM118  a server is no dict
    assert asked == [], "an exempt path asks no counter"

    ada = {"Authorization": "Bearer lovelace"}
    assert statuses(client, "POST", "/login", 20, headers=ada) == {401: 5, 429: 15}
    bob = {"Authorization": "Bearer bob"}
    assert statuses(client, "POST", "/login", 5, headers=bob) == {429: 5}, "another user, but the same address"

    api = buckets_belong_to_users_and_depend_on_their_tier(client)
    assert statuses(client, "GET", "/", 130) == {200: 100 - api, 429: 30 + api}, "logins were not counted here as well"
    denied = client.get("/api/items/1", headers=ada)
    assert denied.status_code == 429, "the rule for everything also covers the API"
    assert denied.headers["X-RateLimit-Limit"] == "100"
    keys = any_server.keys()
    assert keys
    assert not any("lovelace" in key for key in keys), "no token in a key"


@pytest.mark.parametrize("app", [APPS[0], APPS[2]])
def test_a_broken_file_stops_the_server_at_start_and_says_why(tmp_path, app):
    serve, module, name = app
    shutil.copy(EXAMPLES / f"{module}.py", tmp_path)
    text = (EXAMPLES / "ratelimits.yaml").read_text()
    broken = text.replace("algorithm: sliding_log", "algoritm: sliding_log").replace("100 per minute", "100 per minit")
    (tmp_path / "ratelimits.yaml").write_text(broken)

    with pytest.raises(AppExited) as caught, serve(f"{module}:{name}", cwd=tmp_path):
        pass

    assert caught.value.status != 0
    for word, line in (("minit", 17), ("algoritm", 23)):
        place = re.search(rf"ratelimits\.yaml:{line}:\d+: [^\n]*{word}", caught.value.log)
        assert place, caught.value.log


@pytest.mark.parametrize("app", APPS)
def test_each_example_says_how_it_is_started(app):
    serve, module, name = app
    command = f"{serve.__name__} examples.{module}:{name} --workers 2"
    assert (EXAMPLES / f"{module}.py").read_text().startswith(f'"""{command}')
    assert f"$ {command}\n" in (ROOT / "docs" / "frameworks.md").read_text()
