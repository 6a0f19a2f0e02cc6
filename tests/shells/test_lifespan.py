"""The middleware's own part in a lifespan: it stops a server that has no usable rules, and closes what it made."""

import asyncio
import re

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from ratelimit_mw import ConfigurationError
from ratelimit_mw.asgi import RateLimitMiddleware
from tests.shells.asking import exchange, http_scope, limiter, rules
from tests.support.apps import ROOT, AppExited, uvicorn
from tests.support.patience import WITHIN, aeventually

BROKEN = {"domain": "d", "rules": [{"name": "a", "limit": "5 per minit"}, {"name": "b", "limt": "1 per hour"}]}
STARTUP, SHUTDOWN = {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}


async def hello(request):
    return PlainTextResponse("hello")


def starlette(config=None, **options):
    return Starlette(routes=[Route("/", hello)], middleware=[Middleware(RateLimitMiddleware, config=config, **options)])


async def lifespan(app, *incoming):
    sent, waiting = [], list(incoming)

    async def receive():
        return waiting.pop(0)

    async def send(message):
        sent.append(message)

    try:
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    except ConfigurationError as error:
        sent.append(error)
    return sent


async def connections(server, wanted):
    """The clients of a server, less the one that asks, once they are as many as wanted."""
    # A server notices a closed connection when its turn comes.
    await aeventually(lambda: len(server.admin.client_list()) - 1 == wanted)
    return wanted


# --------------------------------------------------------------------------------------- a broken config


def test_made_by_hand_it_raises_at_once():
    with pytest.raises(ConfigurationError) as raised:
        RateLimitMiddleware(hello, BROKEN)
    assert "minit" in str(raised.value)
    assert "limt" in str(raised.value)


def test_made_by_hand_under_a_running_loop_it_raises_at_once_too():
    """uvicorn has its loop running when it imports the app."""

    async def run():
        with pytest.raises(ConfigurationError):
            RateLimitMiddleware(hello, BROKEN)

    asyncio.run(run())


def test_built_inside_the_lifespan_it_fails_the_startup_with_every_message():
    failed, error = asyncio.run(lifespan(starlette(BROKEN), STARTUP))
    assert failed["type"] == "lifespan.startup.failed"
    assert failed["message"] == f"RateLimitMiddleware can't start:\n{error}"
    assert "minit" in failed["message"]
    assert "limt" in failed["message"]


def test_a_wrong_call_fails_the_startup_as_well():
    """Else the server would take the TypeError for an app without a lifespan, and go on."""
    app = starlette(rules(), limiter=limiter())
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return STARTUP

    with pytest.raises(TypeError):
        asyncio.run(app({"type": "lifespan", "state": {}}, receive, send))
    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]


def test_a_server_that_goes_on_regardless_limits_nothing_by_mistake():
    async def run():
        app = starlette(BROKEN)
        await lifespan(app, STARTUP)
        with pytest.raises(ConfigurationError):
            await exchange(app, http_scope())

    asyncio.run(run())


@pytest.mark.parametrize("mounted", [False, True])
def test_built_by_a_request_it_raises(mounted):
    """Without a lifespan there is nobody to tell."""
    app = starlette(BROKEN)
    web = TestClient(Starlette(routes=[Mount("/", app)]) if mounted else app)
    with pytest.raises(ConfigurationError):
        web.get("/")


def test_a_test_client_of_the_app_sees_the_error():
    with pytest.raises(ConfigurationError, match="minit"), TestClient(starlette(BROKEN)):
        pass


APP = """
from starlette.applications import Starlette
from ratelimit_mw.asgi import RateLimitMiddleware

app = Starlette()
{add}
"""
ADDED = 'app.add_middleware(RateLimitMiddleware, config="rules.yaml")'
WRAPPED = 'app = RateLimitMiddleware(app, config="rules.yaml")'


MADE = """
from ratelimit_mw import RateLimiter
app.add_middleware(RateLimitMiddleware, limiter=RateLimiter("rules.yaml"))
"""
IN_FASTAPI = """
from fastapi import FastAPI
from ratelimit_mw.fastapi import add_rate_limits
app = FastAPI()
add_rate_limits(app, "rules.yaml")
"""


@pytest.mark.parametrize(
    ("add", "args"),
    [
        pytest.param(ADDED, [], id="built in the lifespan"),
        pytest.param(ADDED, ["--lifespan", "on"], id="built in the lifespan, which has to be there"),
        pytest.param(WRAPPED, [], id="built at import"),
        pytest.param(WRAPPED, ["--lifespan", "off"], id="built at import, no lifespan"),
        pytest.param(MADE, ["--lifespan", "off"], id="its limiter made at import, no lifespan"),
        pytest.param(IN_FASTAPI, ["--lifespan", "off"], id="add_rate_limits, no lifespan"),
    ],
)
def test_uvicorn_stops_and_says_why(tmp_path, add, args):
    (tmp_path / "served.py").write_text(APP.format(add=add))
    (tmp_path / "rules.yaml").write_text("domain: d\nrules:\n- name: a\n  limit: 5 per minit\n- name: b\n  limt: 1\n")
    with pytest.raises(AppExited) as exited, uvicorn("served:app", args=args, cwd=tmp_path):
        pass
    assert exited.value.status != 0
    lines = exited.value.log.removesuffix("ERROR:    Application startup failed. Exiting.\n").splitlines()
    assert [re.findall(r"rules\.yaml:[\d:]+", line) for line in lines[-3:]] == [
        ["rules.yaml:4:10:"], ["rules.yaml:5:3:"], ["rules.yaml:6:3:"],
    ]  # fmt: skip
    # The problems are in the file, so the traceback has only the way from the app's line to the limiter.
    assert sum(f'File "{ROOT}/ratelimit_mw/' in line for line in lines) <= 3
    assert "another exception" not in exited.value.log


def test_uvicorn_starts_with_good_rules_and_stops_cleanly(tmp_path, any_server):
    (tmp_path / "served.py").write_text(APP.format(add=ADDED))
    (tmp_path / "rules.yaml").write_text(
        f"domain: d\nstorage: {{url: '{any_server.url}'}}\nrules:\n- name: a\n  limit: 5 per minute\n"
    )
    with uvicorn("served:app", cwd=tmp_path) as app:
        app.process.terminate()
        app.process.wait(WITHIN)
        assert "Application shutdown complete" in app.log
        assert "Traceback" not in app.log


# ------------------------------------------------------------------------------------------- the engine


OPEN = 2
"""The connections of an engine that serves: one for decisions, and one of the watcher."""


def through_a_lifespan(app, server, *, after):
    """Start the app, let it serve, stop it; the server's connections while it serves and when it says it is done."""

    async def run():
        counted = []
        incoming = iter([STARTUP, SHUTDOWN])

        async def receive():
            message = next(incoming)
            if message is SHUTDOWN:
                await exchange(app, http_scope())
                counted.append(await connections(server, OPEN))
            return message

        async def send(message):
            if message["type"] == "lifespan.shutdown.complete":
                counted.append(await connections(server, after))

        await app({"type": "lifespan", "state": {}}, receive, send)
        return counted

    return asyncio.run(run())


def test_an_engine_made_here_is_closed_before_the_shutdown_is_complete(fresh_server):
    app = starlette(rules(), storage=fresh_server.url)
    assert through_a_lifespan(app, fresh_server, after=0) == [OPEN, 0]


def test_an_engine_that_was_handed_in_is_its_owner_s_to_close(fresh_server):
    engine = limiter(storage=fresh_server.url)
    assert through_a_lifespan(starlette(limiter=engine), fresh_server, after=OPEN) == [OPEN, OPEN]
    engine.close()


@pytest.mark.parametrize("handed_in", [False, True])
def test_the_store_is_connected_before_the_server_hears_that_the_app_has_started(fresh_server, handed_in):
    """A busy machine takes longer to connect than a request may wait: the first requests would not be limited."""
    engine = limiter(storage=fresh_server.url)
    app = starlette(limiter=engine) if handed_in else starlette(rules(), storage=fresh_server.url)
    counted = []

    async def run():
        async def receive():
            return STARTUP if not counted else SHUTDOWN

        async def send(message):
            if message["type"] == "lifespan.startup.complete":
                counted.append(await connections(fresh_server, 1))

        await app({"type": "lifespan", "state": {}}, receive, send)
        await engine.aclose()

    asyncio.run(run())
    assert counted == [1]


@pytest.mark.parametrize("fault", ["killed", "paused"])
def test_an_app_starts_all_the_same_where_its_store_is_away(fresh_server, fault):
    app = starlette(rules(), storage=fresh_server.url)
    if fault == "killed":
        fresh_server.kill()
    else:
        fresh_server.pause()
    sent = asyncio.run(lifespan(app, STARTUP, SHUTDOWN))
    fresh_server.resume()
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_an_app_can_be_started_again_after_it_was_shut_down(any_server):
    """As test clients do, a loop each."""
    app = starlette(rules("2 per 3650 days"), storage=any_server.url)
    statuses = []
    for _ in range(3):
        with TestClient(app) as web:
            statuses.append(web.get("/").status_code)
    assert statuses == [200, 200, 429]


def test_an_app_without_a_lifespan_keeps_its_engine(any_server):
    """It raises on the scope, as the specification has it, and serves all the same."""

    async def app(scope, receive, send):
        if scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def run():
        limited = RateLimitMiddleware(app, rules("1 per 3650 days"), storage=any_server.url)
        with pytest.raises(NotImplementedError):
            await lifespan(limited, STARTUP)
        return [(await exchange(limited, http_scope()))[0]["status"] for _ in range(2)]

    assert asyncio.run(run()) == [200, 429]


def test_a_store_that_was_away_at_the_shutdown_is_asked_at_the_next_start(fresh_server):
    app = starlette(rules("1 per 3650 days"), storage=fresh_server.url)
    with TestClient(app) as web:
        fresh_server.kill()
        assert [web.get("/").status_code for _ in range(3)] == [200, 200, 200]
    fresh_server.start()
    with TestClient(app) as web:
        assert [web.get("/").status_code for _ in range(2)] == [200, 429]
