"""`N concurrent` in the code of an app, under real servers: a client that leaves a stream frees its place."""

import textwrap

import httpx
import pytest

from tests.support.apps import ROOT, gunicorn, uvicorn
from tests.support.patience import WITHIN, eventually

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
