"""A lease lasts ten seconds: a live worker renews it, and it ends with a worker that was killed."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from tests.shells.test_settling_served import get, serve
from tests.support.patience import eventually


@pytest.mark.timeout(180)
def test_a_long_response_keeps_its_place_and_a_killed_worker_loses_its_own(tmp_path, any_server):
    """Both middlewares at the same time, so that the test waits for one lease only."""

    def live(kind):
        one = {"name": kind, "limit": "1 concurrent", "by": "header:X-Id"}
        with serve(tmp_path, kind, 2, any_server.url, one) as app, ExitStack() as open_ones:
            long = tmp_path / f"long-{kind}"

            def stream(name):
                asked = httpx.stream("GET", app.url, params={"hold": long.name}, headers={"X-Id": name}, timeout=40)
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
            long.touch()
            eventually(lambda: get(app, id="long").status_code == 200, within=2)
            return freed_after

    with ThreadPoolExecutor(2) as pool:
        assert all(2 < after < 13 for after in pool.map(live, ["asgi", "wsgi"]))
