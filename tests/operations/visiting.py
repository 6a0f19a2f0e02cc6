"""Requests to the live page, under ASGI and under WSGI, and their answers in one shape."""

import asyncio
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from ratelimit_mw import ManualClock
from ratelimit_mw.operations.page import Page
from tests.shells.asking import IP, START, Answer, exchange, http_scope, limiter

TOKEN = "a token of 24 characters"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
WRONG = {"Authorization": "Bearer this is not the token"}


def page_of(engine=None, *, token=TOKEN, **options):
    """A page on a clock that stands still."""
    return Page(engine or limiter(clock=ManualClock(START)), token=token, **options)


def visit_asgi(page, path="/", *, method="GET", ip=IP, headers=None, root="/_limits"):
    lines = [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
    scope = http_scope(root + path, method=method, ip=ip, headers=lines, root_path=root)
    start, end = asyncio.run(exchange(page, scope))
    fields = [(name.decode(), value.decode()) for name, value in start["headers"]]
    return Answer(start["status"], fields, end["body"])


def visit_wsgi(page, path="/", *, method="GET", ip=IP, headers=None, root="/_limits"):
    environ = {"SCRIPT_NAME": root, "PATH_INFO": path, "REQUEST_METHOD": method, "REMOTE_ADDR": ip or ""}
    environ["QUERY_STRING"] = ""
    for name, value in (headers or {}).items():
        environ[f"HTTP_{name.upper().replace('-', '_')}"] = value
    setup_testing_defaults(environ)
    said = []
    served = validator(page.wsgi)(environ, lambda *arguments: said.append(arguments))
    whole = b"".join(served)
    served.close()
    ((status, fields, *_),) = said
    return Answer(int(status[:3]), [(name.lower(), value) for name, value in fields], whole)


EACH_SHELL = pytest.mark.parametrize(
    "visit", [pytest.param(visit_asgi, id="ASGI"), pytest.param(visit_wsgi, id="WSGI")]
)
