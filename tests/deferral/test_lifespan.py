import asyncio

import pytest

from ratelimit_mw.deferral.replay import in_process, lifespan
from ratelimit_mw.deferral.stored_request import StoredRequest
from ratelimit_mw.errors import Lost

POST = StoredRequest("POST", "http", "/a%20b//c?d=%0D", (("host", "shop.example"), ("x-a", "b")), "192.0.2.1", "/", {})


def test_an_app_is_started_and_stopped_and_finds_its_state():
    heard = []

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            heard.append((await receive())["type"])
            scope["state"]["pool"] = "open"
            await send({"type": "lifespan.startup.complete"})
            heard.append((await receive())["type"])
            await send({"type": "lifespan.shutdown.complete"})
            return
        heard.append((scope["state"]["pool"], scope["path"], scope["query_string"], scope["client"][0]))
        await send({"type": "http.response.start", "status": 204, "headers": [(b"x", b"y")]})
        await send({"type": "http.response.body", "body": b""})

    async def scenario():
        async with in_process(app) as target:
            return await target.send(POST, b"", {}, 10)

    answer = asyncio.run(scenario())
    assert (answer.status, answer.headers["x"], answer.body) == (204, "y", b"")
    called = ("open", "/a b//c", b"d=%0D", "192.0.2.1")
    assert heard == ["lifespan.startup", called, "lifespan.shutdown"]


def test_a_startup_that_fails_is_said():
    async def app(scope, receive, send):
        await receive()
        await send({"type": "lifespan.startup.failed", "message": "no database"})

    async def scenario():
        async with lifespan(app):
            raise AssertionError("it must not begin")

    with pytest.raises(RuntimeError, match="the app's startup failed: no database"):
        asyncio.run(scenario())


def test_an_app_that_knows_no_lifespan_does_without():
    async def app(scope, receive, send):
        if scope["type"] != "http":
            raise ValueError("only http")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"long"})

    async def scenario():
        async with in_process(app) as target:
            return await target.send(POST, b"", {}, 3)

    assert asyncio.run(scenario()).body is None


def test_an_app_that_ends_without_a_response_is_lost():
    async def app(scope, receive, send):
        return

    async def scenario():
        async with in_process(app) as target:
            await target.send(POST, b"", {}, 3)

    with pytest.raises(Lost):
        asyncio.run(scenario())
