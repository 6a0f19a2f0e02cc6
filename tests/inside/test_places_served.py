"""`N concurrent` in the code of an app whose stream does not come to its end, also under real servers."""

import asyncio
import gc
import textwrap

import httpx
import pytest
from django.http import StreamingHttpResponse
from django.test.utils import override_settings
from django.urls import path

from ratelimit_mw import RateLimiter
from ratelimit_mw.django import limited
from tests.inside.test_django_middleware import GET_ASGI
from tests.inside.test_places import NAMED, PLACE, is_free
from tests.shells.asking import http_scope
from tests.support.apps import ROOT, gunicorn, uvicorn
from tests.support.patience import WITHIN, aeventually, at_most, eventually

RULES = '{"domain": "places", "storage": {"timeout": "5s"}, "client": {"secret": "x"}, "rules": []}'
FASTAPI = """
    import asyncio

    from fastapi import Depends, FastAPI
    from fastapi.responses import StreamingResponse
    from ratelimit_mw.fastapi import add_rate_limits, limited

    app = FastAPI()
    add_rate_limits(app, RULES)


    @app.get("/", dependencies=[Depends(limited("1 concurrent"))])
    async def stream(parts: int = 1) -> StreamingResponse:
        async def body():
            for _ in range(parts):
                yield "part\\n"
                await asyncio.sleep(0.02)

        return StreamingResponse(body())
"""
FLASK = """
    import time

    from flask import Flask, Response, request
    from ratelimit_mw.flask import limited
    from ratelimit_mw.wsgi import RateLimitMiddleware

    app = Flask(__name__)
    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, RULES)


    @app.get("/")
    @limited("1 concurrent")
    def stream():
        def body():
            for _ in range(parts):
                yield "part\\n"
                time.sleep(0.02)

        parts = int(request.args.get("parts", 1))
        return Response(body())
"""


def serve_fastapi(folder):
    return uvicorn("streaming:app", cwd=folder, env={"PYTHONPATH": f"{ROOT}:{folder}"})


def serve_flask(folder):
    return gunicorn("streaming:app", cwd=folder, env={"PYTHONPATH": f"{ROOT}:{folder}"}, args=["--threads", "4"])


@pytest.mark.parametrize(
    ("serve", "code"),
    [pytest.param(serve_fastapi, FASTAPI, id="uvicorn"), pytest.param(serve_flask, FLASK, id="gunicorn")],
)
def test_a_client_that_leaves_a_stream_frees_its_place(tmp_path, serve, code):
    (tmp_path / "streaming.py").write_text(f"RULES = {RULES}\n{textwrap.dedent(code)}", "utf-8")
    with serve(tmp_path) as app:

        def status():
            return httpx.get(app.url, timeout=WITHIN).status_code

        assert [status() for _ in range(3)] == [200] * 3
        for _ in range(2):
            with httpx.stream("GET", app.url, params={"parts": 1_000_000}, timeout=WITHIN) as endless:
                parts = endless.iter_text()  # the stream is closed when this is dropped
                assert next(parts).startswith("part")
                denied = httpx.get(app.url, timeout=WITHIN)
                assert (denied.status_code, denied.headers.get("Retry-After")) == (429, "1")
            assert eventually(lambda: status() == 200)


async def parts():
    for part in "abc":
        yield part


@limited(NAMED[0])
async def awaited(request):
    return StreamingHttpResponse(parts())


@limited(NAMED[0])
def blocking(request):
    return StreamingHttpResponse(iter("abc"))


@pytest.mark.parametrize("view", [awaited, blocking])
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous")
@pytest.mark.filterwarnings("ignore:Unclosed file:ResourceWarning")  # of Django, which does not close the request
def test_a_django_stream_frees_its_place_if_the_server_cannot_send_it(view):
    received, sent = [{"type": "http.request"}], []

    async def receive():
        return received.pop() if received else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)
        if len(sent) == 3:
            raise OSError

    async def main():
        with pytest.raises(OSError):
            await GET_ASGI()(http_scope(), receive, send)
        with at_most(5):  # less than a place lives that is not renewed
            await aeventually(lambda: is_free(limiter))

    rules = {"domain": "places", "rules": [PLACE]}
    with RateLimiter(rules, storage="memory://") as limiter:
        with override_settings(RATELIMIT=limiter, ROOT_URLCONF=(path("", view),)):
            asyncio.run(main())
        gc.collect()  # here, where the warning is ignored
