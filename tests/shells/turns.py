"""Apps in two processes behind one leaky bucket, and requests to them."""

import ssl
import time

import httpx

from tests.support.apps import gunicorn, uvicorn

QUEUE = {"name": "queue", "limit": "20 per second", "algorithm": "leaky_bucket", "burst": 10}
CONTEXT = ssl.create_default_context()  # to make one takes a client longer than to ask


def config(*rules, **rule):
    return {"domain": "d", "storage": {"timeout": "5s"}, "rules": [{**QUEUE, **rule}, *rules]}


SERVED = """
import json, os, time
from ratelimit_mw.{kind} import RateLimitMiddleware

CONFIG = {config}

def report(number, came):
    found = {{"came": came, "start": time.time(), "number": int(number), "process": os.getpid()}}
    return json.dumps(found).encode()

async def asgi(scope, receive, send):
    body = report(scope["query_string"].decode(), scope["came"])
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    await send({{"type": "http.response.body", "body": body}})

def wsgi(environ, start_response):
    body = report(environ["QUERY_STRING"], environ["came"])
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]

limited = RateLimitMiddleware({kind}, CONFIG)

async def asgi_app(scope, receive, send):
    await limited({{**scope, "came": time.time()}}, receive, send)

def wsgi_app(environ, start_response):
    return limited({{**environ, "came": time.time()}}, start_response)
"""


def serve(tmp_path, kind, server, **rule):
    written = {**config(**rule), "storage": {"url": server.url, "timeout": "5s"}}
    (tmp_path / "served.py").write_text(SERVED.format(kind=kind, config=written))
    if kind == "asgi":
        return uvicorn("served:asgi_app", workers=2, cwd=tmp_path)
    return gunicorn("served:wsgi_app", workers=2, cwd=tmp_path, args=["--threads", "12"])


def ask(url, number, timeout=60.0, after=0.0):
    time.sleep(after)
    return httpx.get(f"{url}/?{number}", timeout=timeout, verify=CONTEXT)
