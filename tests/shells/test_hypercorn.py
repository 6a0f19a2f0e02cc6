"""The middleware under hypercorn: WebSockets that it does not end, and apps that it runs by trio."""

import base64
import os
import socket
import subprocess
import sys
import time
from urllib.parse import urlsplit

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ResponseReceived

from tests.support.apps import hypercorn

SOCKETS = """
import asyncio
from ratelimit_mw.asgi import RateLimitMiddleware

RULES = {"domain": "d", "rules": [{"name": "sockets", "match": {"path": "/ws"}, "limit": "3 concurrent"}]}

def serving(handle):
    async def app(scope, receive, send):
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await handle(receive, send)
        else:
            raise NotImplementedError(scope["type"])
    return RateLimitMiddleware(app, RULES)

async def answer(receive, send):
    while (await receive())["type"] != "websocket.disconnect":
        await send({"type": "websocket.send", "text": "you said something"})

async def tick(receive, send):
    while True:
        await send({"type": "websocket.send", "text": "tick"})
        await asyncio.sleep(0.05)

answering, ticking = serving(answer), serving(tick)
"""
GARBAGE = [
    pytest.param(b"\xff" * 40, id="reserved bits and an unknown opcode"),
    pytest.param(b"\x81\x02hi", id="a frame without a mask"),
    pytest.param(b"\x81\x82\0\0\0\0\xff\xfe", id="text that is not UTF-8"),
    pytest.param(b"\x89\xfe\xff\xff" + b"a" * 100, id="a ping that is too long"),
    pytest.param(b"\x88\x81\0\0\0\0\x01", id="a close frame with half a code"),
    pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="a request"),
]


def open_socket(url, behind=b""):
    """A connection that asks for a WebSocket, has `behind` in the same packet, and has read the start of the answer."""
    address = urlsplit(url)
    connection = socket.create_connection((address.hostname, address.port), timeout=30)
    key = base64.b64encode(os.urandom(16)).decode()
    connection.sendall(
        f"GET /ws HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        + behind
    )
    return connection, connection.recv(4096).split()[1]


def places_free(url):
    """How many of three places a client gets, within a minute of trying; it gives them back."""
    free, deadline = 0, time.monotonic() + 60
    while free < 3 and time.monotonic() < deadline:
        opened = [open_socket(url) for _ in range(3)]
        free = sum(status == b"101" for _, status in opened)
        for connection, _ in opened:
            connection.close()
        time.sleep(0.1)
    return free


@pytest.fixture(scope="module", params=["answering", pytest.param("ticking", marks=pytest.mark.soak)])
def sockets(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sockets")
    (folder / "served.py").write_text(SOCKETS)
    with hypercorn(f"served:{request.param}", cwd=folder) as server:
        yield server


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("when", ["before it is accepted", "after it was accepted"])
def test_a_websocket_that_sends_garbage_gives_its_place_back(sockets, garbage, when):
    for _ in range(3):
        early = when == "before it is accepted"
        connection, status = open_socket(sockets.url, garbage if early else b"")
        assert status in ({b"400", b"101"} if early else {b"101"})
        if not early:
            connection.sendall(garbage)
        connection.close()
    assert places_free(sockets.url) == 3


STREAMS = """
import asyncio
from ratelimit_mw.asgi import RateLimitMiddleware

def serving(times, more):
    async def app(scope, receive, send):
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(times):
            await asyncio.sleep(0.05)
            await send({"type": "http.response.body", "body": b"more", "more_body": more})
    return RateLimitMiddleware(app, {"domain": "d", "rules": [{"name": "streams", "limit": "3 concurrent"}]})

short, endless = serving(1, False), serving(1_000_000, True)
"""


class Http2:
    """A connection by HTTP/2 in clear text, on which a test opens and resets streams."""

    def __init__(self, url):
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port), timeout=30)
        self._http = H2Connection(H2Configuration(client_side=True))
        self._http.initiate_connection()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()

    def ask(self, path="/"):
        """Open a stream that asks for a path, and return its number."""
        stream = self._http.get_next_available_stream_id()
        headers = [(":method", "GET"), (":path", path), (":scheme", "http"), (":authority", "h")]
        self._http.send_headers(stream, headers, end_stream=True)
        self._flush()
        return stream

    def reset(self, stream):
        self._http.reset_stream(stream)
        self._flush()

    def statuses(self, streams):
        """The statuses of the answers on these streams, as soon as all have begun."""
        found = {}
        while len(found) < len(streams):
            for event in self._http.receive_data(self._socket.recv(65_536)):
                if isinstance(event, ResponseReceived) and event.stream_id in streams:
                    found[event.stream_id] = int(dict(event.headers)[b":status"])
            self._flush()
        return [found[stream] for stream in streams]

    def _flush(self):
        self._socket.sendall(self._http.data_to_send())


@pytest.mark.parametrize("app", [pytest.param("short", marks=pytest.mark.soak), "endless"])
@pytest.mark.parametrize("reset_when", ["at once", "when it has begun", "with the connection"])
def test_a_reset_stream_gives_its_place_back(tmp_path, app, reset_when):
    (tmp_path / "served.py").write_text(STREAMS)
    with hypercorn(f"served:{app}", cwd=tmp_path) as server, Http2(server.url) as first:
        streams = [first.ask() for _ in range(3)]
        if reset_when != "at once":
            assert first.statuses(streams) == [200] * 3
        if reset_when == "with the connection":
            first.__exit__()
        else:
            for stream in streams:
                first.reset(stream)
        free, deadline = 0, time.monotonic() + 60
        while free < 3 and time.monotonic() < deadline:
            time.sleep(0.2)
            with Http2(server.url) as another:
                free = another.statuses([another.ask() for _ in range(3)]).count(200)
        assert free == 3


def test_streams_of_one_connection_hold_a_place_each(tmp_path):
    (tmp_path / "served.py").write_text(STREAMS)
    with hypercorn("served:endless", cwd=tmp_path) as server, Http2(server.url) as connection:
        streams = [connection.ask() for _ in range(9)]
        assert sorted(connection.statuses(streams)) == [200] * 3 + [429] * 6


TRIO = """
from ratelimit_mw.asgi import RateLimitMiddleware

async def app(scope, receive, send):
    raise NotImplementedError

limited = RateLimitMiddleware(app, {"domain": "d", "rules": [{"name": "all", "limit": "2 per hour"}]})
"""


def test_a_start_under_trio_is_refused(tmp_path):
    (tmp_path / "served.py").write_text(TRIO)
    command = [sys.executable, "-m", "hypercorn", "served:limited", "--bind", "127.0.0.1:0", "--worker-class", "trio"]
    ended = subprocess.run(
        command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert "the server runs the app under trio, and the limiter needs asyncio" in ended.stdout + ended.stderr
