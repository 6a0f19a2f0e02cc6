"""An app behind each kind of server and on each kind of store, with a load that the test sets."""

from contextlib import ExitStack

import httpx
import pytest

from tests.support.apps import gunicorn, uvicorn

SERVED = """
from pathlib import Path
from ratelimit_mw.{kind} import RateLimitMiddleware

def load():
    return Path("level").read_text()

async def asgi(scope, receive, send):
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    await send({{"type": "http.response.body", "body": b"hello"}})

def wsgi(environ, start_response):
    start_response("200 OK", [("Content-Length", "5")])
    return [b"hello"]

app = RateLimitMiddleware({kind}, "ratelimits.yaml")
"""


@pytest.fixture(params=[("asgi", uvicorn), ("wsgi", gunicorn)], ids=["uvicorn", "gunicorn"])
def serve_under_load(request, tmp_path, storage):
    """Starts an app under `rules`, which come behind a domain, a load and a storage.

    Returns a client of it, and what sets the load.
    """
    kind, serve = request.param
    before = f'domain: d\nload: python:served:load\nstorage: {{url: "{storage}", timeout: 5s}}\n'
    with ExitStack() as stack:

        def served(rules, load):
            (tmp_path / "ratelimits.yaml").write_text(before + rules)
            (tmp_path / "served.py").write_text(SERVED.format(kind=kind))
            set_load = (tmp_path / "level").write_text
            set_load(load)
            running = stack.enter_context(serve("served:app", cwd=tmp_path))
            return stack.enter_context(httpx.Client(base_url=running.url, timeout=60)), set_load

        yield served
