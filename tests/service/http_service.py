"""The HTTP app of the service under a real uvicorn in this process, so that a test can move its clock."""

import asyncio
import logging
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx
import uvicorn

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.service.access import Access
from ratelimit_mw.service.api import http_app
from ratelimit_mw.service.settings import Settings
from ratelimit_mw.service.state import Service

START = 1_700_000_000  # 20 s into a minute, as windows are counted
CLIENT = {"secret": "for-tests", "trusted_proxies": ["127.0.0.0/8"]}


def file(rules=(), **sections):
    """A rules file whose proxies on this machine are trusted."""
    everybody = {"name": "everybody", "by": "ip", "limit": "2 per minute", "algorithm": "fixed_window"}
    return {
        "domain": "shop",
        "storage": {"timeout": "5s"},
        "client": CLIENT,
        "response": {"reset": "delta"},
        "rules": [*rules] or [everybody],
        **sections,
    }


def service(config=None, *, storage=None, clock=None, token_file=None, **settings):
    """A service that is ready. Its limiter has the clock `START`, unless another is given."""
    chosen = Settings(rules="", token_file=token_file, **settings)
    limiter = RateLimiter(config or file(), storage=storage, clock=clock or ManualClock(START))
    made = Service(chosen, limiter, Access(chosen))
    made.started = True
    return made


@contextmanager
def serving(app, *, uds=None, protocol="auto"):
    """Serve an ASGI app, and yield an httpx client of it. uvicorn is configured as the service configures it."""
    if uds is None:
        bound = socket.socket()
        bound.bind(("127.0.0.1", 0))
    else:
        bound = socket.socket(socket.AF_UNIX)
        bound.bind(str(uds))
    config = uvicorn.Config(
        app,
        http=protocol,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        ws="none",
    )
    server, ready = uvicorn.Server(config), threading.Event()

    async def run():
        await_start = server.startup

        async def startup(sockets=None):
            await await_start(sockets)
            ready.set()

        server.startup = startup
        await server.serve([bound])

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    thread.start()
    try:
        assert ready.wait(30), "uvicorn did not start"
        transport = httpx.HTTPTransport(uds=str(uds)) if uds else None
        base = "http://service" if uds else f"http://127.0.0.1:{bound.getsockname()[1]}"
        with httpx.Client(base_url=base, transport=transport, timeout=30, trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(30)
        bound.close()
        if uds is not None:
            Path(uds).unlink(missing_ok=True)


class OneServer:
    """One server for many tests. Each test puts its own service behind it with `use`, which returns a client."""

    def __init__(self, client):
        self.client = client
        self.made = None
        self.app = None

    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)

    def use(self, config=None, *, made=None, **options):
        self.close()
        self.made = made or service(config, **options)
        self.app = http_app(self.made)
        return self.client

    def close(self):
        if self.made is not None:
            self.made.limiter.close()


@contextmanager
def one_server():
    """Yield a `OneServer`."""
    server = OneServer(None)
    with serving(server) as server.client:
        yield server
        server.close()


def nginx(uri="/", method="GET", ip="203.0.113.7", **headers):
    """The headers with which nginx asks about a request."""
    return {"X-Forwarded-For": ip, "X-Original-Method": method, "X-Original-URI": uri, **headers}


def ingress(uri="/", method="GET", ip="203.0.113.7", host="shop.example", **headers):
    """The headers with which ingress-nginx asks about a request."""
    url = f"https://{host}{uri}"
    return {"X-Forwarded-For": ip, "X-Original-Method": method, "X-Original-URL": url, "Host": "limits", **headers}


def traefik(uri="/", method="GET", ip="203.0.113.7", host="shop.example", **headers):
    """The headers with which Traefik and Caddy ask about a request."""
    return {
        "X-Forwarded-For": ip,
        "X-Forwarded-Method": method,
        "X-Forwarded-Uri": uri,
        "X-Forwarded-Host": host,
        **headers,
    }
