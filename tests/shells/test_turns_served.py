"""A queue under real WSGI servers: the requests of one client that wait leave threads for those of others."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support.apps import gunicorn, waitress
from tests.support.patience import WITHIN, eventually

APP = """
from ratelimit_mw.wsgi import RateLimitMiddleware

def plain(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]

QUEUE = {"name": "queue", "by": "query:who", "limit": "1 per minute", "algorithm": "leaky_bucket", "burst": 20}
app = RateLimitMiddleware(plain, {"domain": "d", "storage": {"timeout": "5s"}, "rules": [QUEUE]})
"""
HELD = 8  # requests of one client at a time, more than there are threads


@pytest.mark.parametrize(
    ("server", "options", "waiting", "idle"),
    [
        pytest.param(gunicorn, {"workers": 2}, 0, 2, id="gunicorn with one thread in each of two workers"),
        pytest.param(gunicorn, {"args": ["--threads", "4", "--graceful-timeout", "1"]}, 1, 1, id="gunicorn's threads"),
        pytest.param(waitress, {"args": ["--threads", "4"]}, 1, 1, id="waitress"),
    ],
)
def test_a_stranger_is_answered_while_a_client_fills_the_queue(tmp_path, server, options, waiting, idle):
    (tmp_path / "served.py").write_text(APP)

    def ask(who):
        return httpx.get(f"{running.url}/?who={who}", timeout=WITHIN).status_code

    with ThreadPoolExecutor(HELD) as pool, server("served:app", cwd=tmp_path, **options) as running:
        held = [pool.submit(ask, "hog") for _ in range(HELD)]
        eventually(lambda: sum(each.done() for each in held) == HELD - waiting)
        assert [ask(f"stranger{number}") for number in range(8)] == [200] * 8
        assert sum(not each.done() for each in held) == waiting, "a stranger waits as long as the queue"
    answered = [each.result() for each in held if each.exception() is None]  # the server ends before the turn comes
    assert len(answered) == HELD - waiting
    assert 1 <= answered.count(200) <= idle
    assert answered.count(429) == len(answered) - answered.count(200)
