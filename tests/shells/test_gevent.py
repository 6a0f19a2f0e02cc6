"""Under gunicorn's gevent worker: greenlets share round trips as threads do, and nothing stops the worker."""

import asyncio
from collections import Counter

import httpx
import pytest

from tests.support.apps import gunicorn
from tests.support.patience import eventually
from tests.support.proxy import Proxy

APP = """\
from gevent.monkey import is_module_patched
from ratelimit_mw.wsgi import RateLimitMiddleware
import time

def plain(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    time.sleep(0.05)
    return [str(is_module_patched("socket")).encode()]

app = RateLimitMiddleware(plain, "rules.yaml")
"""
RULES = """\
domain: d
storage: {{url: "{url}", timeout: {timeout}}}
reload: 100ms
rules:
  - {{name: all, match: {{path: /}}, limit: 150 per hour, algorithm: sliding_log}}
  - {{name: lease, match: {{path: /lease}}, limit: 40 per 3650 days, algorithm: fixed_window, consistency: lease}}
  - {{name: held, match: {{path: /held}}, limit: 40 concurrent}}
  - {{name: failures, match: {{path: /failures}}, limit: 40 per 3650 days, count: {{status: [401]}}}}
  - {{name: elastic, match: {{path: /elastic}}, limit: 40 per hour, throttle: {{elastic: {{up_to: 200%, below: 0.7}}}}}}
  - {{name: queue, match: {{path: /queue}}, limit: 15 per minute, algorithm: leaky_bucket, max_waiting: 1}}
"""
LIMIT = 150
PATHS = ("/lease", "/held", "/failures", "/elastic")
PRELOADED = pytest.mark.parametrize(
    "args",
    [
        pytest.param([], id="loaded by the worker"),
        pytest.param(["--preload"], id="loaded before the fork", marks=pytest.mark.soak),
    ],
)


@pytest.fixture
def serve(tmp_path):
    """Starts the app over the store at `url`."""

    def served(args, url, timeout):
        (tmp_path / "green.py").write_text(APP)
        (tmp_path / "rules.yaml").write_text(RULES.format(url=url, timeout=timeout))
        # Within its keep-alive time, two seconds by default, a gevent worker must also have read the first request of a
        # connection. Otherwise it closes the connection. A busy machine takes longer for hundreds of them.
        return gunicorn("green:app", cwd=tmp_path, args=["-k", "gevent", "--keep-alive", "60", *args])

    return served


def asked(url, number):
    """What so many requests, all at once, are answered."""

    async def ask():
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        async with httpx.AsyncClient(limits=limits, timeout=100) as client:
            return await asyncio.gather(*(client.get(url) for _ in range(number)))

    return asyncio.run(ask())


@PRELOADED
def test_greenlets_share_round_trips_and_count_exactly(serve, any_server, args):
    with Proxy(any_server.port) as proxy, serve(args, proxy.url, "20s") as app:
        assert httpx.get(app.url).text == "True", "nothing is patched"
        proxy.delay(0.05)  # a tenth of a second to the store and back, so that others arrive meanwhile
        before = any_server.calls("evalsha")
        codes = Counter(answer.status_code for answer in asked(app.url, 2 * LIMIT))
        assert codes == {200: LIMIT - 1, 429: LIMIT + 1}
        assert any_server.calls("evalsha") - before < LIMIT / 3


@PRELOADED
def test_a_store_that_hangs_stops_no_worker_and_limits_hold_again_once_it_is_back(serve, any_server, args):
    with Proxy(any_server.port) as proxy, serve(args, proxy.url, "300ms") as app:
        assert httpx.get(app.url).headers["x-ratelimit-remaining"] == str(LIMIT - 1)
        proxy.black_hole()
        answers = asked(app.url, 50)
        assert {(answer.status_code, answer.headers.get("x-ratelimit-limit")) for answer in answers} == {(200, None)}
        proxy.heal()
        eventually(lambda: "x-ratelimit-limit" in httpx.get(app.url).headers, every=0.05)
        assert "Traceback" not in app.log


@PRELOADED
def test_what_begins_a_thread_or_keeps_an_account_stops_no_worker(serve, any_server, args):
    with serve(args, any_server.url, "20s") as app:
        told = {path: Counter(answer.status_code for answer in asked(app.url + path, 60)) for path in PATHS}
        assert "Traceback" not in app.log
    assert all(codes[200] + codes[429] == 60 and codes[200] >= 40 for codes in told.values()), told
    assert told["/lease"][200] == 40


@PRELOADED
def test_so_many_greenlets_wait_for_their_turn_and_the_rest_is_denied(serve, any_server, args):
    with Proxy(any_server.port) as proxy, serve(args, proxy.url, "20s") as app:
        proxy.delay(0.05)  # so that all ask before the first is answered

        # A turn is four seconds: the one that waits keeps its place until all have asked.
        assert Counter(answer.status_code for answer in asked(app.url + "/queue", 20)) == {200: 2, 429: 18}
        assert "Traceback" not in app.log


@PRELOADED
def test_rules_that_changed_before_the_first_request_are_taken_up(serve, any_server, tmp_path, args):
    with serve(args, any_server.url, "20s") as app:
        new = RULES.replace("150", "151").format(url=any_server.url, timeout="20s")
        (tmp_path / "rules.yaml").write_text(new)
        asked(app.url, 20)
        eventually(lambda: httpx.get(app.url).headers["x-ratelimit-limit"] == "151", every=0.05)
