"""Shedding under real servers, and the seed's story: many reports for an analytics job do not hurt a payment."""

import asyncio
import queue
import threading
from wsgiref.util import setup_testing_defaults

import pytest

from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.shells.asking import IP, exchange, http_scope
from tests.shells.loads import Idle
from tests.support.patience import eventually

RULES = """
response: {body: problem}
rules:
  - {name: everybody, limit: 1000 per day}
  - {name: pay, match: {path: /pay}, limit: unlimited, priority: critical}
  - {name: analytics, match: {path: "/analytics/*"}, limit: unlimited, priority: low}
"""
PATHS = ("/analytics/daily", "/", "/pay")


def test_low_is_shed_first_over_http(serve_under_load):
    client, set_load = serve_under_load(RULES, "0.775")
    half = [[client.get(path).status_code for _ in range(20)] for path in PATHS]
    set_load("0.9")
    # The load is looked at ten times a second.
    eventually(lambda: 200 not in [client.get("/analytics/x").status_code for _ in range(4)], every=0.1)
    shed, *others = [client.get(path) for path in PATHS]
    assert [statuses.count(503) for statuses in half] == [pytest.approx(10, abs=2), 0, 0]
    assert [other.status_code for other in others] == [200, 200]
    assert (shed.status_code, shed.json()["status"]) == (503, 503)
    assert shed.json()["type"] == "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
    assert 5 <= int(shed.headers["Retry-After"]) <= 10
    assert not [name for name in shed.headers if "ratelimit" in name]


class Server:
    """Eight threads, or a loop of as much, of a machine that does nothing else; its time is moved by hand.

    `ask` says how a request fares: the status of its response, or None if it is still being served.
    """

    def __init__(self, engine):
        self._ahead = 0.0
        meter = engine.engine.planner.meter(engine.rules)
        meter.processor, meter.clock = Idle(), lambda: 1_000.0 + self._ahead
        meter.watch = lambda loop: None  # the loop's own lag is not what this is about

    def pass_time(self):
        self._ahead += 20


class AsgiServer(Server):
    def __init__(self, engine):
        super().__init__(engine)
        self._app = Asgi(self._serve, limiter=engine)
        self._runner = asyncio.Runner()
        self._done = asyncio.Event()
        self._under_way = []

    async def _serve(self, scope, receive, send):
        if scope["path"] == "/analytics":
            await self._done.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    def ask(self, path):
        async def one():
            asked = asyncio.create_task(exchange(self._app, http_scope(path)))
            for _ in range(20):
                await asyncio.sleep(0)
            if asked.done():
                return asked.result()[0]["status"]
            self._under_way.append(asked)
            return None

        return self._runner.run(one())

    def finish(self):
        async def wait():
            await asyncio.gather(*self._under_way)

        self._done.set()
        self._runner.run(wait())

    def close(self):
        self._runner.close()


class WsgiServer(Server):
    def __init__(self, engine):
        super().__init__(engine)
        self._app = Wsgi(self._serve, limiter=engine)
        self._done = threading.Event()
        self._said = queue.Queue()
        self._threads = []

    def _serve(self, environ, start_response):
        if environ["PATH_INFO"] == "/analytics" and not self._done.is_set():
            self._said.put(None)
            self._done.wait(60)
        start_response("200 OK", [])
        return []

    def ask(self, path):
        environ = {"PATH_INFO": path, "REMOTE_ADDR": IP}
        setup_testing_defaults(environ)
        self._threads.append(threading.Thread(target=self._one, args=(environ,)))
        self._threads[-1].start()
        return self._said.get(timeout=60)

    def _one(self, environ):
        self._app(environ, lambda status, headers: self._said.put(int(status[:3])))

    def finish(self):
        self._done.set()
        for thread in self._threads:
            thread.join(60)
        while not self._said.empty():
            self._said.get()

    def close(self):
        self.finish()


REPORTS = {"name": "reports", "match": {"path": "/analytics"}, "limit": "unlimited", "priority": "low"}


@pytest.mark.parametrize("kind", [pytest.param(AsgiServer, id="ASGI"), pytest.param(WsgiServer, id="WSGI")])
@pytest.mark.parametrize("rules", [pytest.param([], id="no priorities"), pytest.param([REPORTS], id="low")])
def test_reports_of_an_analytics_job_leave_room_for_payments(kind, rules):
    everybody = {"name": "everybody", "limit": "1000 per minute"}
    config = {"domain": "d", "load": {"capacity": 8}, "rules": [everybody, *rules]}
    with RateLimiter(config, storage="memory://") as engine:
        server = kind(engine)
        try:
            reports = []
            for _ in range(12):
                server.pass_time()
                reports.append(server.ask("/analytics"))
                assert server.ask("/pay") == 200
            admitted = reports.count(None)
            if rules:
                assert admitted in (6, 7), "one thread of eight at least is left for everybody else"
                assert reports.count(503) == 12 - admitted
            else:
                assert admitted == 12, "more than the server has threads"
            server.finish()
            server.pass_time()
            assert server.ask("/analytics") == 200
        finally:
            server.close()
