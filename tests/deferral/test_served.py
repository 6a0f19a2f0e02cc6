"""Real servers, and the worker as an operator starts it."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx
import pytest

from tests.support.apps import gunicorn, uvicorn
from tests.support.patience import WITHIN, eventually
from tests.support.processes import end, spawn


@pytest.fixture
def rules(tmp_path, any_server):
    """Writes the rules of an app, and names them in what the app finds in its environment."""

    def write(limit="1 per second", **defer):
        rule = {
            "name": "reports",
            "match": {"path": "/reports"},
            "limit": limit,
            "algorithm": "sliding_log",
            "on_limit": "defer",
        }
        storage = {"url": any_server.url, "timeout": "5s"}
        config = {"domain": "shop", "storage": storage, "client": {"secret": "s"}, "rules": [rule]}
        config |= {"load": "python:tests.deferral.asking:idle", "defer": defer}
        (tmp_path / "r.yaml").write_text(json.dumps(config))
        return {"RULES": str(tmp_path / "r.yaml"), "REDIS_URL": any_server.url}

    return write


@contextmanager
def worker(env, *args):
    command = [sys.executable, "-m", "ratelimit_mw", "worker", env["RULES"], *args]
    process = spawn(command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        assert b"ready" in process.stdout.readline()
        yield process
    finally:
        end(process)
        process.stdout.close()


def notes(server):
    with server.client() as client:
        return [json.loads(note) for note in client.lrange("notes", 0, -1)]


def replayed(server):
    return [note for note in notes(server) if "idempotency-key" in note["headers"]]


def put_off(client, body, **more):
    """Send it until it is put off; where its fate is told."""
    client.post("/reports", json={})
    while (answer := client.post("/reports?a=%20b", json=body, **more)).status_code != 202:
        pass
    return answer.headers["location"]


def fate(client, location):
    return client.get(location).json()


@pytest.mark.parametrize(
    ("serve", "shell"), [pytest.param(uvicorn, "asgi", id="uvicorn"), pytest.param(gunicorn, "wsgi", id="gunicorn")]
)
def test_what_is_put_off_is_done_later_as_it_was_sent(any_server, rules, serve, shell):
    env = rules()
    app = f"tests.deferral.apps:{shell}"
    with serve(app, env=env) as running, httpx.Client(base_url=running.url) as client:
        location = put_off(client, {"put": "off"}, headers={"Authorization": "Bearer 1", "X-A": "b"})
        assert (replayed(any_server), fate(client, location)["state"]) == ([], "queued")
        with worker(env, "--to", running.url):
            told = eventually(lambda: (found := fate(client, location))["state"] == "done" and found)
    assert told["response"] == {"status": 200, "content_type": "text/plain", "body": 'made {"put":"off"}'}
    (note,) = replayed(any_server)
    assert (note["method"], note["body"], note["address"]) == ("POST", '{"put":"off"}', "127.0.0.1")
    assert note["target"].startswith("/reports?a=")
    assert note["headers"]["authorization"] == "Bearer 1"
    assert note["headers"]["x-a"] == "b"
    assert note["headers"]["host"] == running.url.removeprefix("http://")
    assert "x-ratelimit-deferred" not in note["headers"]


@pytest.mark.soak
def test_a_worker_killed_while_a_request_is_under_way_leaves_it_unknown(any_server, rules):
    env = rules()
    with (
        uvicorn("tests.deferral.apps:asgi", workers=2, env=env) as running,
        httpx.Client(base_url=running.url, timeout=WITHIN) as client,
    ):
        location = put_off(client, {"hold": True})
        with worker(env, "--to", running.url, "--timeout", "30") as first:
            eventually(lambda: replayed(any_server))
            first.send_signal(signal.SIGKILL)
            first.wait()
        with worker(env, "--to", running.url, "--timeout", "0.5"):
            told = eventually(lambda: (found := fate(client, location))["state"] != "running" and found)
        any_server.admin.set("go", 1)
    assert told["state"] == "unknown"
    assert told["reason"] == "the worker stopped while the request was in progress"
    assert len(replayed(any_server)) == 1
    assert deferred(env, "list", "--json")["parked"][0]["id"] == location.rpartition("/")[2]


def test_a_worker_that_is_to_stop_ends_what_is_under_way(any_server, rules):
    env = rules()
    app = gunicorn("tests.deferral.apps:wsgi", args=["--threads", "4"], env=env)
    with app as running, httpx.Client(base_url=running.url, timeout=WITHIN) as client:
        location = put_off(client, {"hold": True})
        with worker(env, "--to", running.url) as process:
            eventually(lambda: replayed(any_server))
            process.send_signal(signal.SIGTERM)
            any_server.admin.set("go", 1)
            assert process.wait(WITHIN) == 0
            assert b"stopped" in process.stdout.read()
        assert fate(client, location)["state"] == "done"


@pytest.mark.soak
def test_two_workers_apply_each_once(any_server, rules):
    env = rules(limit="20 per second")
    with uvicorn("tests.deferral.apps:asgi", env=env) as running, httpx.Client(base_url=running.url) as client:
        locations = []
        while len(locations) < 40:
            answer = client.post("/reports", json={"n": len(locations)})
            locations += [answer.headers["location"]] if answer.status_code == 202 else []
        with worker(env, "--to", running.url), worker(env, "--to", running.url):
            eventually(lambda: fate(client, locations[-1])["state"] == "done")
    keys = [note["headers"]["idempotency-key"] for note in replayed(any_server)]
    assert keys == [location.rpartition("/")[2] for location in locations], "each once, and in their order"


@pytest.mark.soak
def test_a_full_queue_denies_and_what_fails_again_and_again_is_parked(any_server, rules):
    env = rules(max_attempts=2, max_length=1)
    with uvicorn("tests.deferral.apps:asgi", env=env) as running, httpx.Client(base_url=running.url) as client:
        location = put_off(client, {"status": 500})
        while (full := client.post("/reports", json={})).status_code == 200:
            pass
        assert full.status_code == 429
        with worker(env, "--to", running.url):
            told = eventually(lambda: (found := fate(client, location))["state"] == "parked" and found)
            assert told["reason"] == "the request failed 2 times"
            assert told["response"]["status"] == 500
            name = location.rpartition("/")[2]
            (parked,) = deferred(env, "list", "--json")["parked"]
            assert (parked["id"], parked["state"], parked["attempts"]) == (name, "parked", 2)
            assert deferred(env, "retry", "--all", "--json")["queued"] == {name: True}
            eventually(lambda: len(replayed(any_server)) == 4)


def deferred(env, *args):
    command = [sys.executable, "-m", "ratelimit_mw", "deferred", *args, "--rules", env["RULES"]]
    return json.loads(subprocess.run(command, capture_output=True, check=True, env={**os.environ, **env}).stdout)
