"""A rule that the app asks for by its name and has enforced: under both middlewares, on both stores."""

import asyncio
import json
import time
from wsgiref.util import setup_testing_defaults

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.shells.asking import IP, START, exchange, http_scope

MAIL = {"name": "mail", "limit": "2 per minute", "algorithm": "fixed_window", "on_demand": True}
ALL = {"name": "all", "limit": "9 per minute", "algorithm": "fixed_window"}


@pytest.fixture
def engine(storage):
    made = []

    def make(*rules, **sections):
        config = {"domain": "d", "rules": list(rules), "storage": {"timeout": "5s"}, **sections}
        made.append(RateLimiter(config, storage=storage, clock=ManualClock(START)))
        return made[-1]

    yield make
    for limiter in made:
        limiter.close()


def under_asgi(limiter, *asked, path="/", method="GET"):
    """What each `enforce(*arguments)` came to in one request, and the rate headers of its response."""
    came = []

    async def app(scope, receive, send):
        came.extend([await scope["ratelimit"].enforce(*arguments) for arguments in asked])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x"})

    async def main():
        sent = await exchange(Asgi(app, limiter=limiter), http_scope(path, method=method))
        await limiter.aclose()
        return sent[0]["headers"]

    fields = asyncio.run(main())
    return came, {name.decode(): value.decode() for name, value in fields}


def under_wsgi(limiter, *asked, path="/", method="GET"):
    came, said = [], []

    def app(environ, start_response):
        came.extend([environ["ratelimit.decision"].enforce(*arguments) for arguments in asked])
        start_response("200 OK", [])
        return [b"x"]

    environ = {"PATH_INFO": path, "REQUEST_METHOD": method, "REMOTE_ADDR": IP, "wsgi.multithread": True}
    setup_testing_defaults(environ)
    list(Wsgi(app, limiter=limiter)(environ, lambda *arguments: said.append(arguments)))
    return came, {name.lower(): value for name, value in said[0][1]}


EACH = pytest.mark.parametrize("ask", [pytest.param(under_asgi, id="ASGI"), pytest.param(under_wsgi, id="WSGI")])


@EACH
def test_a_denial_is_worded_as_the_response_settings_say(engine, ask):
    limiter = engine(MAIL, response={"status": 403, "body": "problem", "message": "{ip}: {limit} of {rule}"})
    (first, second, third), _ = ask(limiter, ["mail"], ["mail"], ["mail"])
    assert (first.denial, second.denial) == (None, None)
    assert (first.decision.remaining, second.decision.remaining) == (1, 0)
    status, headers, body = third.denial
    assert (third.decision.allowed, status) == (False, 403)
    assert dict(headers) == {
        "Content-Type": "application/problem+json",
        "Content-Length": str(len(body)),
        "Cache-Control": "no-store",
        "Retry-After": "40",
        "X-RateLimit-Limit": "2",
        "X-RateLimit-Remaining": "0",
        "X-RateLimit-Reset": str(START + 40),
    }
    assert json.loads(body)["detail"] == f"{IP}: 2 of mail"


@EACH
def test_the_answer_to_head_has_no_body(engine, ask):
    (came,), _ = ask(engine({**MAIL, "limit": "0 per minute"}), ["mail"], method="HEAD")
    assert came.denial.body == b""


@EACH
def test_a_cost(engine, ask):
    (came, over), _ = ask(engine(MAIL), ["mail", 2], ["mail", 1])
    assert (came.decision.remaining, over.decision.allowed) == (0, False)
    with pytest.raises(ValueError, match="whole number"):
        ask(engine(MAIL), ["mail", -1])


@EACH
@pytest.mark.parametrize(
    ("asked", "limit", "remaining"),
    [
        pytest.param([], "9", "8", id="not asked"),
        pytest.param([["mail"]], "2", "1", id="it binds more"),
        pytest.param([["wide"]], "9", "8", id="it binds less"),
        pytest.param([["mail"], ["wide"]], "2", "1", id="the first binds most"),
        pytest.param([["wide"], ["mail"], ["mail"], ["mail"]], "2", "0", id="denied at last, and served nevertheless"),
    ],
)
def test_the_headers_speak_of_the_rule_that_binds_most(engine, ask, asked, limit, remaining):
    _, headers = ask(engine(ALL, MAIL, {**MAIL, "name": "wide", "limit": "50 per minute"}), *asked)
    assert (headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]) == (limit, remaining)


@EACH
def test_the_headers_where_no_other_rule_applies(engine, ask):
    limiter = engine(MAIL)
    assert "x-ratelimit-limit" not in ask(limiter)[1]
    assert ask(limiter, ["mail"])[1]["x-ratelimit-remaining"] == "1"


@EACH
def test_it_waits_for_its_turn(engine, ask):
    limiter = engine({"name": "turns", "limit": "10 per second", "algorithm": "leaky_bucket", "on_demand": True})
    began = time.monotonic()
    came, _ = ask(limiter, ["turns"], ["turns"])
    assert time.monotonic() - began >= 0.1
    assert [one.decision.delay for one in came] == [0.0, 0.1]


@EACH
def test_a_store_that_is_away(ask):
    limiter = RateLimiter({"domain": "d", "rules": [{**MAIL, "on_error": "deny"}]}, storage="redis://127.0.0.1:9")
    (away,), headers = ask(limiter, ["mail"])
    limiter.close()
    assert (away.denial.status, dict(away.denial.headers)["Retry-After"]) == (503, "1")
    assert "x-ratelimit-limit" not in headers


@EACH
@pytest.mark.parametrize(
    ("exempt", "path"),
    [
        pytest.param({"ip": "203.0.113.0/24"}, "/", id="an address"),
        pytest.param({"path": "/health"}, "/health", id="a path"),
        pytest.param({"methods": ["GET"]}, "/", id="everything of a method"),
    ],
)
def test_who_is_exempt_is_exempt_from_it_too(engine, ask, exempt, path):
    came, headers = ask(engine(ALL, MAIL, exempt=[exempt]), *[["mail"]] * 5, path=path)
    assert [one.denial for one in came] == [None] * 5
    assert "x-ratelimit-limit" not in headers
    came, _ = ask(engine(ALL, MAIL, exempt=[{"ip": "192.0.2.1"}, {"path": "/other"}]), *[["mail"]] * 3, path=path)
    assert came[-1].denial


@EACH
@pytest.mark.parametrize(
    ("rule", "remaining"),
    [
        pytest.param({"limit": "2 per hour", "count": {"status": 401}}, 1, id="count"),
        pytest.param({"limit": "2 per hour", "cost": "response:X-Cost"}, 1, id="cost"),
    ],
)
def test_a_rule_that_goes_by_the_response_is_charged_at_once_and_the_log_says_so(engine, ask, rule, remaining, caplog):
    limiter = engine({"name": "late", "match": {"path": "/elsewhere"}, **rule})
    (*_, came), _ = ask(limiter, ["late", 0], ["late"])
    assert (came.denial, came.decision.remaining) == (None, remaining)
    said = [message for message in caplog.messages if "'late'" in message]
    assert len(said) == 1
    assert "depends on the response" in said[0]
