"""When a response ends, and what is settled then: places in flight, and charges that depend on the status."""

import asyncio
from wsgiref.util import setup_testing_defaults

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.shells.asking import IP, ask_wsgi, http_scope

PLACE = {"name": "r", "limit": "1 concurrent"}
FAILURES = {"name": "r", "limit": "3 per hour", "algorithm": "fixed_window", "count": {"status": [401]}}


@pytest.fixture
def engine():
    made = []

    def make(rule):
        made.append(RateLimiter({"domain": "d", "rules": [rule], "storage": {"timeout": "5s"}}, clock=ManualClock()))
        return made[-1]

    yield make
    for limiter in made:
        limiter.close()


def free(limiter):
    """Whether the place in flight is free."""
    return ask_wsgi(limiter).status == 200


class Interrupted(BaseException):
    """Neither a failure of the app nor a status."""


START = {"type": "http.response.start", "status": 200, "headers": []}
TRAILED = {**START, "trailers": True}
MORE = {"type": "http.response.body", "body": b"x", "more_body": True}
LAST = {"type": "http.response.body", "body": b"x"}
ZEROCOPY = {"type": "http.response.zerocopysend", "file": 0}
PATH = {"type": "http.response.pathsend", "path": "/x"}
TRAILERS = {"type": "http.response.trailers", "headers": []}


@pytest.mark.parametrize(
    ("messages", "freed"),
    [
        pytest.param([START, MORE, LAST], [False, False, True], id="the last part of the body"),
        pytest.param([START, {**ZEROCOPY, "more_body": True}, ZEROCOPY], [False, False, True], id="a file descriptor"),
        pytest.param([START, PATH], [False, True], id="a path"),
        pytest.param(
            [TRAILED, LAST, {**TRAILERS, "more_trailers": True}, TRAILERS], [False, False, False, True], id="trailers"
        ),
        pytest.param([START, LAST, LAST], [False, True, True], id="what follows the end"),
    ],
)
def test_a_place_in_flight_is_free_after_the_last_message(engine, messages, freed):
    limiter, seen = engine(PLACE), []

    async def app(scope, receive, send):
        for message in messages:
            await send(message)
            for _ in range(10):  # the task that gives the place back runs in one of these steps
                await asyncio.sleep(0)
            seen.append(free(limiter))

    async def main():
        async def nothing(*_):
            pass

        await Asgi(app, limiter=limiter)(http_scope(), nothing, nothing)
        await limiter.aclose()

    asyncio.run(main())
    assert seen == freed


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        pytest.param(RuntimeError, 3, id="an exception counts as status 500"),
        pytest.param(Interrupted, 2, id="the status of an interrupted app is unknown"),
    ],
)
@pytest.mark.parametrize("kind", ["ASGI", "WSGI", "WSGI, while it is read"])
def test_an_app_that_raises(engine, kind, error, tries):
    def wsgi(environ, start_response):
        raise error

    def lazy(environ, start_response):
        raise error
        yield

    async def asgi(scope, receive, send):
        raise error

    def served(rule):
        limiter = engine(rule)

        async def main():
            with pytest.raises(error):
                await Asgi(asgi, limiter=limiter)(http_scope(), None, None)
            for _ in range(10):
                await asyncio.sleep(0)
            await limiter.aclose()

        if kind == "ASGI":
            asyncio.run(main())
        else:
            with pytest.raises(error):
                read(Wsgi(wsgi if kind == "WSGI" else lazy, limiter=limiter))
        return limiter

    assert free(served(PLACE))
    assert served(FAILURES).peek({"ip": IP}).remaining == tries


def read(app, parts=100):
    """Read so many parts of a response, and close it as servers do."""
    environ = {"REMOTE_ADDR": IP}
    setup_testing_defaults(environ)
    body = app(environ, lambda *_: lambda _: None)
    try:
        for _ in zip(range(parts), body, strict=False):
            pass
    finally:
        getattr(body, "close", lambda: None)()


@pytest.mark.parametrize(
    ("parts", "tries"),
    [
        pytest.param(0, 2, id="never read: nothing is known of its status"),
        pytest.param(1, 3, id="read in part"),
        pytest.param(9, 3, id="read"),
    ],
)
def test_the_body_of_a_generator_that_is_closed(engine, parts, tries):
    closed = []

    def lazy(environ, start_response):
        try:
            start_response("200 OK", [])
            yield b"x"
            yield b"y"
        finally:
            closed.append(True)

    limiter = engine(FAILURES)
    read(Wsgi(lazy, limiter=limiter), parts)
    assert limiter.peek({"ip": IP}).remaining == tries
    assert closed == ([True] if parts else []), "the app's own iterable is closed"
    limiter = engine(PLACE)
    read(Wsgi(lazy, limiter=limiter), parts)
    assert free(limiter)


def test_a_place_in_flight_is_held_until_the_server_closes_the_body(engine):
    limiter, freed = engine(PLACE), []

    class Body(list):
        def close(self):
            freed.append(free(limiter))

    def app(environ, start_response):
        start_response("200 OK", [])
        return Body([b"x"])

    read(Wsgi(app, limiter=limiter))
    assert [*freed, free(limiter)] == [False, True]
