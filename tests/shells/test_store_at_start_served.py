"""`storage.required` under real servers: the first start fails, and a worker that is started again does not."""

import os
import signal

import httpx
import pytest

from tests.support.apps import AppExited, gunicorn, uvicorn
from tests.support.patience import eventually

APPS = """
from ratelimit_mw import asgi, wsgi

def plain_wsgi(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]

async def plain_asgi(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
    else:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

def of_wsgi():
    return wsgi.RateLimitMiddleware(plain_wsgi, "rules.yaml")

def of_asgi():
    return asgi.RateLimitMiddleware(plain_asgi, "rules.yaml")
"""
RULES = """\
domain: shop
storage: {{url: "{url}", timeout: 5s, required: true}}
rules: [{{name: all, limit: 1000 per day}}]
"""
NOWHERE = "redis://127.0.0.1:1/0"
GUNICORN = pytest.param(gunicorn, {"app": "served:of_wsgi()", "workers": 2}, id="gunicorn")


@pytest.fixture
def folder(tmp_path):
    """Makes the folder of the apps, whose rules are for the store at `url`."""

    def made(url):
        (tmp_path / "served.py").write_text(APPS)
        (tmp_path / "rules.yaml").write_text(RULES.format(url=url))
        return tmp_path

    return made


@pytest.mark.parametrize(
    ("server", "options"),
    [
        GUNICORN,
        pytest.param(uvicorn, {"app": "served:of_asgi", "args": ["--factory"]}, id="uvicorn"),
    ],
)
def test_the_first_start_without_a_required_store_ends_the_server(folder, server, options):
    with pytest.raises(AppExited) as ended, server(**options, cwd=folder(NOWHERE)):
        pass
    assert ended.value.status > 0
    assert "storage.required is true, and the store is away" in ended.value.log


@pytest.mark.parametrize(
    ("server", "options"),
    [
        GUNICORN,
        pytest.param(uvicorn, {"app": "served:of_asgi", "args": ["--factory"], "workers": 2}, id="uvicorn"),
    ],
)
def test_a_worker_that_is_started_again_serves_without_the_required_store(folder, fresh_server, server, options):
    with server(**options, cwd=folder(fresh_server.url)) as app:
        assert httpx.get(app.url).headers["x-ratelimit-limit"] == "1000"
        fresh_server.kill()
        first = app.pids
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: len(app.pids - first) >= len(first))
        eventually(lambda: answer(app.url) == (200, None))
        assert "storage.required is true" not in app.log


def answer(url):
    """The status and the limit of one request; None while no worker listens."""
    try:
        response = httpx.get(url)
    except httpx.TransportError:
        return None
    return response.status_code, response.headers.get("x-ratelimit-limit")
