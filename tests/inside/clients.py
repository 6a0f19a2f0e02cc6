"""Clients of one app: in this process on memory, and behind servers on Redis."""

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from tempfile import TemporaryDirectory

import httpx
import pytest

from tests.support.apps import gunicorn, uvicorn
from tests.support.patience import WITHIN

SERVERS = {"gunicorn": gunicorn, "uvicorn": uvicorn}


def client_of(here: Callable[[], AbstractContextManager[httpx.Client]], **servers):
    """The fixture of a client: `here()`, then one behind each of `servers`, named and with what it is to run."""

    @pytest.fixture(scope="module", params=["here", *servers])
    def client(request):
        name = request.param
        with here() if name == "here" else behind(name, request.getfixturevalue("redis"), **servers[name]) as made:
            yield made

    return client


def in_process(app):
    """A client of a WSGI app of this process, named as on a command line."""
    module, _, name = app.partition(":")
    app = getattr(import_module(module), name)

    def threaded(environ, start_response):
        return app({**environ, "wsgi.multithread": True}, start_response)

    return httpx.Client(transport=httpx.WSGITransport(threaded), base_url="http://app")


def from_address(app, ip):
    """An ASGI app whose requests come from `ip`. The oldest Starlette's test client can't be told an address."""

    async def asked(scope, receive, send):
        await app(scope if scope["type"] == "lifespan" else {**scope, "client": (ip, 5)}, receive, send)

    return asked


@contextmanager
def behind(server, redis, **options):
    with (
        TemporaryDirectory() as folder,  # for what a server that is told to end leaves behind
        SERVERS[server](env={"REDIS_URL": redis.url, "TMPDIR": folder}, **options) as running,
        httpx.Client(base_url=running.url, timeout=WITHIN) as client,
    ):
        yield client
