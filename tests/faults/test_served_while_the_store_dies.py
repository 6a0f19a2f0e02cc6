"""Apps under load while their store is killed, stopped and started again: no request fails because of it."""

import asyncio
from collections import Counter

import httpx
import pytest

from tests.support.apps import gunicorn, uvicorn
from tests.support.patience import eventually

WSGI = """
from ratelimit_mw.wsgi import RateLimitMiddleware

def hello(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]

app = RateLimitMiddleware(hello, "rules.yaml")
"""
ASGI = """
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from ratelimit_mw.asgi import RateLimitMiddleware

async def hello(request):
    return PlainTextResponse("hello")

app = Starlette(routes=[Route("/", hello)])
app.add_middleware(RateLimitMiddleware, config="rules.yaml")
"""
RULES = """
domain: d
storage: {{url: "{url}", timeout: {timeout}}}
rules:
  - {{name: all, limit: 1000000 per hour, algorithm: fixed_window}}
"""


def served(tmp_path, server, way, timeout="1s"):
    (tmp_path / "served.py").write_text(ASGI if way == "uvicorn" else WSGI)
    (tmp_path / "rules.yaml").write_text(RULES.format(url=server.url, timeout=timeout))
    if way == "uvicorn":
        return uvicorn("served:app", workers=2, cwd=tmp_path)
    return gunicorn("served:app", workers=2, cwd=tmp_path, args=["-k", "gthread", "--threads", "8"])


async def under_load(url, trouble):
    """The statuses of what is asked while `trouble` lasts."""
    statuses, done = Counter(), asyncio.Event()

    async def ask(client):
        while not done.is_set():
            statuses[(await client.get(url)).status_code] += 1

    async with httpx.AsyncClient(timeout=60) as client, asyncio.TaskGroup() as group:
        for _ in range(10):
            group.create_task(ask(client))
        await asyncio.to_thread(trouble)
        done.set()
    return statuses


EACH = pytest.mark.parametrize("way", ["uvicorn", pytest.param("gunicorn", marks=pytest.mark.soak)])


@EACH
def test_no_request_fails_while_the_store_is_killed_stopped_and_started_again(tmp_path, fresh_server, way):
    with served(tmp_path, fresh_server, way) as app:

        def limited():
            return "x-ratelimit-limit" in httpx.get(app.url).headers

        def trouble():
            for _ in range(3):
                eventually(limited)
                fresh_server.kill()
                eventually(lambda: not limited())
                fresh_server.start()
                eventually(limited)
                fresh_server.pause()
                eventually(lambda: not limited())
                fresh_server.resume()

        statuses = asyncio.run(under_load(app.url, trouble))
        eventually(limited)
        assert set(statuses) == {200}
        assert "Traceback" not in app.log


@EACH
def test_the_first_requests_of_each_worker_are_limited(tmp_path, fresh_server, way):
    with served(tmp_path, fresh_server, way, timeout="20s") as app:

        async def first():
            async with httpx.AsyncClient(timeout=60) as client:
                return await asyncio.gather(*(client.get(app.url) for _ in range(20)))

        assert all("x-ratelimit-limit" in answer.headers for answer in asyncio.run(first()))
