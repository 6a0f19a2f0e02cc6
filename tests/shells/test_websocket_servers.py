"""WebSockets over a real server and a real client."""

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.support.apps import uvicorn

APP = """
from ratelimit_mw.asgi import RateLimitMiddleware

async def app(scope, receive, send):
    if scope["type"] != "websocket":
        raise NotImplementedError(scope["type"])
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": str(scope["ratelimit"].remaining)})
    await send({"type": "websocket.close"})

limited = RateLimitMiddleware(app, {"domain": "d", "rules": [{"name": "a", "limit": "1 per hour"}]})

async def without_extensions(scope, receive, send):
    await limited({**scope, "extensions": {}}, receive, send)
"""
IMPLEMENTATIONS = pytest.mark.parametrize("implementation", ["websockets", "websockets-sansio"])


@IMPLEMENTATIONS
@pytest.mark.parametrize(
    ("app", "status"),
    [
        pytest.param("limited", 429, id="by a response, which uvicorn offers"),
        pytest.param("without_extensions", 403, id="by a close before accept, which servers turn into a 403"),
    ],
)
def test_a_handshake_is_limited_and_denied(tmp_path, implementation, app, status):
    (tmp_path / "served.py").write_text(APP)
    with uvicorn(f"served:{app}", args=["--ws", implementation], cwd=tmp_path) as server:
        url = server.url.replace("http", "ws")
        with connect(url, proxy=None) as socket:
            assert socket.recv() == "0"
            assert socket.response.headers["X-RateLimit-Limit"] == "1"
        with pytest.raises(InvalidStatus) as denied:
            connect(url, proxy=None)
        response = denied.value.response
        assert response.status_code == status
        if status == 429:
            assert response.body == b'{"message": "Too many requests"}'
            assert response.headers["Cache-Control"] == "no-store"
            assert int(response.headers["Retry-After"]) > 0
        assert "Traceback" not in server.log
