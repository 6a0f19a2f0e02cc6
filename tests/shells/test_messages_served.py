"""Limits on WebSocket messages under a real server, with a real client: in Starlette and FastAPI."""

from contextlib import suppress

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.support.apps import uvicorn

RULES = """
domain: d
storage: {{url: "{url}", timeout: 5s}}
rules:
  - {{name: handshakes, limit: 100 per minute}}
  - {{name: chat, match: {{path: /chat}}, messages: close, by: header:X-User, limit: 3 per hour}}
  - name: ticker
    match: {{path: /ticker}}
    messages: drop
    by: connection
    limit: 2 per hour
"""
STARLETTE = """
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocketDisconnect
from ratelimit_mw.asgi import RateLimitMiddleware

async def echo(socket):
    await socket.accept()
    try:
        while True:
            await socket.send_text(await socket.receive_text())
    except WebSocketDisconnect as gone:
        print("left with", gone.code, flush=True)

app = Starlette(routes=[WebSocketRoute("/chat", echo), WebSocketRoute("/ticker", echo)])
app.add_middleware(RateLimitMiddleware, config="ratelimits.yaml")
"""
FASTAPI = """
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from ratelimit_mw.asgi import RateLimitMiddleware

app = FastAPI()
app.add_middleware(RateLimitMiddleware, config="ratelimits.yaml")

@app.websocket("/chat")
@app.websocket("/ticker")
async def echo(socket: WebSocket):
    await socket.accept()
    try:
        async for text in socket.iter_text():
            await socket.send_text(text)
        print("left with", 1008, flush=True)  # iter_text keeps the code to itself
    except WebSocketDisconnect as gone:
        print("left while we sent", gone.code, flush=True)
"""


def echoed(socket, *texts):
    """What came back of these, until the socket was closed or the last was answered."""
    found = []
    with suppress(ConnectionClosed):  # the server may close before the last text is sent
        for text in texts:
            socket.send(text)
    try:
        while len(found) < len(texts):
            found.append(socket.recv(timeout=30))
    except ConnectionClosed:
        pass
    return found


@pytest.mark.parametrize(
    ("source", "implementation"),
    [
        pytest.param(STARLETTE, "websockets", id="Starlette"),
        pytest.param(FASTAPI, "websockets-sansio", id="FastAPI"),
    ],
)
def test_a_client_that_sends_too_much_is_closed_or_not_heard(tmp_path, any_server, source, implementation):
    (tmp_path / "ratelimits.yaml").write_text(RULES.format(url=any_server.url))
    (tmp_path / "served.py").write_text(source)
    with uvicorn("served:app", args=["--ws", implementation], cwd=tmp_path) as server:
        base = server.url.replace("http", "ws")
        ada = {"X-User": "ada"}
        with connect(f"{base}/chat", proxy=None, additional_headers=ada) as first:
            assert echoed(first, "1", "2") == ["1", "2"]
            with connect(f"{base}/chat", proxy=None, additional_headers=ada) as second:
                assert echoed(second, "3", "4", "5") == ["3"], "two sockets of one user share"
                assert second.close_code == 1008
                assert second.close_reason.startswith("too many messages; retry after ")
        with connect(f"{base}/chat", proxy=None, additional_headers={"X-User": "grace"}) as other:
            assert echoed(other, "1", "2", "3") == ["1", "2", "3"]
        for _ in range(2):
            with connect(f"{base}/ticker", proxy=None) as socket:
                assert echoed(socket, "1", "2") == ["1", "2"]
                for _ in range(50):
                    socket.send("too many")
                socket.ping().wait(30)
                with pytest.raises(TimeoutError):
                    socket.recv(timeout=0.2)
                assert socket.close_code is None, "it stays open, and pings are answered"
        assert "left with 1008" in server.log
        assert "Traceback" not in server.log
