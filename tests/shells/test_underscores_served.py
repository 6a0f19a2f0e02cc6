"""WSGI servers and header names with underscores: those that keep them are logged where a proxy is trusted."""

import sys

import httpx
import pytest

from tests.support.apps import gunicorn, serve, waitress

APP = """
import logging
logging.basicConfig()
from ratelimit_mw.wsgi import RateLimitMiddleware

def plain(environ, start_response):
    body = environ.get("HTTP_X_FORWARDED_FOR", "dropped").encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]

RULES = [{"name": "r", "by": "ip", "limit": "9 per hour"}]
CLIENT = {"trusted_proxies": ["127.0.0.1"]}
app = RateLimitMiddleware(plain, {"domain": "d", "storage": {"timeout": "5s"}, "client": CLIENT, "rules": RULES})
"""
RUN = "import sys; sys.path.insert(0, '.'); from served import app; "
WSGIREF = """\
from wsgiref.simple_server import make_server
server = make_server("127.0.0.1", 0, app)
print(f"Running on http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
"""
RUNSERVER = """\
from django.conf import settings
settings.configure()
from django.core.servers import basehttp
server = basehttp.WSGIServer(("127.0.0.1", 0), basehttp.WSGIRequestHandler)
server.set_app(app)
print(f"Running on http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
"""
PYWSGI = """\
from gevent.pywsgi import WSGIServer
server = WSGIServer(("127.0.0.1", 0), app)
server.start()
print(f"Running on http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
"""
WERKZEUG = "from werkzeug.serving import run_simple; run_simple('127.0.0.1', 0, app)"


def script(text):
    return lambda path: serve([sys.executable, "-c", RUN + text], 1, "unning on", {}, path)


def module(*words):
    return lambda path: serve([sys.executable, "-m", *words], 1, "unning on", {}, path)


@pytest.mark.parametrize(
    ("server", "kept"),
    [
        pytest.param(lambda path: gunicorn("served:app", cwd=path), False, id="gunicorn"),
        pytest.param(lambda path: waitress("served:app", cwd=path), False, id="waitress"),
        pytest.param(script(WERKZEUG), False, id="werkzeug"),
        pytest.param(script(RUNSERVER), False, id="runserver"),
        pytest.param(script(PYWSGI), False, id="gevent"),
        pytest.param(script(WSGIREF), True, id="wsgiref"),
        pytest.param(module("hypercorn", "wsgi:served:app", "--bind", "127.0.0.1:0"), True, id="hypercorn"),
        pytest.param(
            module("uvicorn", "--interface", "wsgi", "--port", "0", "--no-proxy-headers", "served:app"),
            True,
            id="uvicorn",
        ),
    ],
)
def test_a_server_that_keeps_underscores_is_logged_once_if_a_proxy_is_trusted(tmp_path, server, kept):
    (tmp_path / "served.py").write_text(APP)
    with server(tmp_path) as app:
        forged = httpx.get(app.url, headers={"X_Forwarded_For": "192.0.2.9"})
        assert forged.text == ("192.0.2.9" if kept else "dropped")
        for _ in range(2):
            httpx.get(app.url, headers={"X-Forwarded-For": "203.0.113.7"})
        assert app.log.count("may take a client's X_Forwarded_For for the same header") == int(kept)
