"""The examples in four workers that share an `lmdb://` file, under the servers and workers that apps run in."""

import http.client
import os
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.apps import ROOT, gunicorn, uvicorn
from tests.support.patience import WITHIN, eventually

RULES = """\
domain: shop
storage: {url: "lmdb://FILE", timeout: 20s, on_error: deny}
rules:
  - {name: everything, by: ip, limit: 100 per 3650 days}
"""
SERVED = [
    pytest.param((uvicorn, "starlette_app:app", ()), id="uvicorn"),
    pytest.param((gunicorn, "flask_app:app", ()), id="gunicorn sync"),
    pytest.param((gunicorn, "flask_app:app", ("--threads", "4")), id="gunicorn gthread", marks=pytest.mark.soak),
    pytest.param((gunicorn, "flask_app:app", ("-k", "gevent")), id="gunicorn gevent", marks=pytest.mark.soak),
    pytest.param((gunicorn, "flask_app:app", ("--preload",)), id="gunicorn sync, preloaded", marks=pytest.mark.soak),
    pytest.param(
        (gunicorn, "flask_app:app", ("--preload", "-k", "gevent")),
        id="gunicorn gevent, preloaded",
        marks=pytest.mark.soak,
    ),
]


def status(url):
    """The status of a GET on a connection of its own: threads that share a client may close each other's sockets."""
    host, _, path = url.removeprefix("http://").partition("/")
    connection = http.client.HTTPConnection(host, timeout=WITHIN)
    try:
        connection.request("GET", f"/{path}")
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("served", SERVED)
def test_400_requests_at_once_to_four_workers_pass_100_times(served, tmp_path):
    serve, name, args = served
    module = name.partition(":")[0]
    (tmp_path / f"{module}.py").write_text((ROOT / "examples" / f"{module}.py").read_text())
    (tmp_path / "ratelimits.yaml").write_text(RULES.replace("FILE", f"{tmp_path}/limits"))
    with serve(name, workers=4, cwd=tmp_path, args=args) as app, ThreadPoolExecutor(16) as pool:
        statuses = Counter(pool.map(lambda _: status(app.url + "/api/items/7"), range(400)))
    assert statuses == {200: 100, 429: 300}


def garbage(path):
    """Another program replaces the file. It does not write into it: that would end the workers that use it."""
    path.with_name("other").write_bytes(b"x" * 9_000)
    path.with_name("other").rename(path)


@pytest.mark.parametrize(
    ("serve", "name"),
    [
        pytest.param(uvicorn, "starlette_app:app", id="uvicorn", marks=pytest.mark.soak),
        pytest.param(gunicorn, "flask_app:app", id="gunicorn"),
    ],
)
@pytest.mark.parametrize(
    ("spoil", "repair"),
    [
        pytest.param(lambda path: path.chmod(0o644), lambda path: path.chmod(0o600), id="a stray chmod"),
        pytest.param(garbage, Path.unlink, id="garbage"),
        pytest.param(
            lambda path: path.parent.rename(f"{path.parent}2"), lambda path: path.parent.mkdir(), id="no folder"
        ),
    ],
)
def test_a_file_that_cannot_be_used_and_a_dying_worker_do_not_end_a_server(serve, name, spoil, repair, tmp_path):
    module = name.partition(":")[0]
    path = tmp_path / "run" / "limits"
    path.parent.mkdir()
    (tmp_path / f"{module}.py").write_text((ROOT / "examples" / f"{module}.py").read_text())
    (tmp_path / "ratelimits.yaml").write_text(RULES.replace("FILE", str(path)))
    with (
        serve(name, workers=2, cwd=tmp_path) as app,
        httpx.Client(base_url=app.url, timeout=WITHIN, limits=httpx.Limits(max_keepalive_connections=0)) as client,
    ):

        def statuses(times):
            return Counter(client.get("/api/items/7").status_code for _ in range(times))

        assert statuses(10) == {200: 10}
        workers = app.pids
        spoil(path)
        os.kill(min(workers), signal.SIGKILL)
        eventually(lambda: app.pids - workers)
        eventually(lambda: "Waiting does not help" in app.log)
        assert not statuses(20).keys() - {200, 503}
        repair(path)
        eventually(lambda: [statuses(20).keys() - {200, 429} for _ in range(3)] == [set()] * 3)
        # A worker counts in the old file until it notices, within a second, that the path leads to another one.
        eventually(lambda: statuses(20) == {429: 20})
        assert app.process.poll() is None
