"""`limit: python:package.module:function`: a function of the app returns the limit of a request."""

import asyncio
import sys

import pytest
from flask import Flask
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from ratelimit_mw import ConfigurationError, RateLimiter
from ratelimit_mw import flask as in_flask
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware
from tests.inside.clients import from_address

HERE = "python:tests.rules.test_limit_function"
CALLS = []


def of_header(environ):
    """What a client asks for in X-Limit. "error" raises, and "none" returns None."""
    text = environ.get("HTTP_X_LIMIT", "2 per minute")
    CALLS.append(text)
    if text == "error":
        raise RuntimeError("hunter2")
    return {"none": None, "number": 5, "list": ["5 per hour"]}.get(text, text)


async def awaited(scope):
    await asyncio.sleep(0)
    return dict(scope["headers"]).get(b"x-limit", b"2 per minute").decode()


async def one(scope):
    return 1


def config(function="of_header", storage=None, client=None, **words):
    rule = {"name": "api", "by": "ip", "limit": f"{HERE}:{function}", **words}
    return {
        "domain": "function",
        "storage": {"timeout": "5s", **(storage or {})},
        "client": client or {},
        "rules": [{"algorithm": "fixed_window", **rule}],
    }


@pytest.fixture
def client_of(storage, clock):
    """A client of a Flask app with one rule of these words."""
    made = []

    def make(*args, **words):
        made.append(RateLimiter(config(*args, **words), storage=storage, clock=clock))
        app = Flask("function", root_path="/")
        app.add_url_rule("/", "index", lambda: "x")
        app.add_url_rule("/asked", "asked", lambda: str(in_flask.enforce("api").limit))
        app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=made[-1])
        return app.test_client()

    yield make
    for limiter in made:
        limiter.close()


def get(client, limit, times=1, path="/"):
    return [client.get(path, headers={"X-Limit": limit}).status_code for _ in range(times)]


def test_each_request_has_the_limit_that_the_function_returns(client_of, clock):
    client = client_of()
    assert get(client, "2 per minute", 3) == [200, 200, 429]
    assert get(client, "3 per minute", 2) == [200, 429]  # the same window, and so the same counter
    assert get(client, "1 per hour", 2) == [200, 429]  # another window
    assert get(client, "5 per day; 1 per year", 2) == [200, 429]
    assert get(client, "unlimited", 5) == [200] * 5
    assert get(client, "0 per second") == [429]
    clock.advance(60)
    answer = client.get("/", headers={"X-Limit": "7/min"})
    assert (answer.headers["X-RateLimit-Limit"], answer.headers["X-RateLimit-Remaining"]) == ("7", "6")


def test_a_rule_that_is_asked_for_by_name_calls_its_function_once_for_a_request(client_of):
    client = client_of(on_demand=True)
    CALLS.clear()
    assert get(client, "2 per minute", 3) == [200] * 3
    assert CALLS == []
    assert get(client, "2 per minute", 3, "/asked") == [200, 200, 429]
    assert len(CALLS) == 3


UNUSABLE = {
    "error": "raised, or returned no string",
    "none": "raised, or returned no string",
    "list": "raised, or returned no string",
    "number": "returned a string that is not a limit for this rule",
    "5 per hur": "returned a string that is not a limit for this rule",
    "python:x:y": "returned a string that is not a limit for this rule",
    "1 per minute": "returned a string that is not a limit for this rule",  # the rule costs 2
    "5 concurrent": "returned a string that is not a limit for this rule",
    "5 per minute" + "!" * 300: "returned a string that is not a limit for this rule",
}


@pytest.mark.parametrize("limit", UNUSABLE)
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({}, 200),
        ({"on_error": "deny"}, 429),
        ({"on_error": "local"}, 200),
        ({"on_error": "deny", "shadow": True}, 200),
    ],
)
def test_without_a_usable_limit_on_error_decides_and_it_is_logged_once(client_of, caplog, limit, words, expected):
    client = client_of(cost=2, **words)
    assert get(client, limit, 3) == [expected] * 3
    lines = [each.getMessage() for each in caplog.records if "has no limit, because" in each.getMessage()]
    assert [UNUSABLE[limit] in line for line in lines] == [True]
    assert "hunter2" not in caplog.text
    assert get(client, "4 per minute", 3) == ([200, 200, 200] if "shadow" in words else [200, 200, 429])


def test_a_text_that_a_function_returns_imports_no_module(client_of):
    assert get(client_of(), "python:nturl2path:url2pathname") == [200]
    assert "nturl2path" not in sys.modules


def test_a_storage_wide_on_error_also_decides(client_of):
    assert get(client_of(storage={"on_error": "deny"}), "none") == [429]


def test_other_rules_hold_where_a_function_returns_no_limit(storage, clock):
    rules = config()
    rules["rules"].append({"name": "all", "by": "ip", "limit": "1 per minute"})
    app = Flask("function", root_path="/")
    app.add_url_rule("/", "index", lambda: "x")
    with RateLimiter(rules, storage=storage, clock=clock) as limiter:
        app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)
        assert get(app.test_client(), "error", 2) == [200, 429]


@pytest.mark.parametrize("function", ["awaited"])
def test_the_function_may_be_async_under_asgi(storage, clock, function):
    async def index(_request):
        return PlainTextResponse("x")

    with RateLimiter(config(function), storage=storage, clock=clock) as limiter:
        app = Starlette(routes=[Route("/", index)], middleware=[Middleware(Asgi, limiter=limiter)])
        with TestClient(from_address(app, "192.0.2.1")) as client:
            assert get(client, "2 per minute", 3) == [200, 200, 429]
            assert get(client, "1 per hour", 2) == [200, 429]


@pytest.mark.parametrize("words", [f"limit: '{HERE}:awaited'", f"limit: 2 per minute, cost: '{HERE}:one'"])
def test_an_async_function_is_awaited_if_there_are_several_domains(tmp_path, clock, words):
    async def index(_request):
        return PlainTextResponse("ok")

    for name, own in (("a", words), ("b", "limit: 9 per minute")):
        (tmp_path / f"{name}.yaml").write_text(f"domain: {name}\nrules: [{{name: {name}, by: ip, {own}}}]\n")
    with RateLimiter(tmp_path, clock=clock) as limiter:
        app = Starlette(routes=[Route("/", index)], middleware=[Middleware(Asgi, limiter=limiter)])
        with TestClient(app) as client:
            assert [client.get("/").status_code for _ in range(3)] == [200, 200, 429]


def test_an_async_function_is_refused_under_wsgi():
    with pytest.raises(ConfigurationError, match="async functions can't be awaited under WSGI"):
        RateLimitMiddleware(Flask("function", root_path="/").wsgi_app, config=config("awaited"))


def test_bans_buckets_and_throttles_of_the_rule_hold_for_the_limits_of_its_function(client_of, clock):
    ban = {"after": "2 denials in 1 minute", "for": "10 minutes"}
    client = client_of(ban=ban, throttle={"soft": "50%"})
    assert get(client, "2 per minute", 5) == [200, 200, 200, 429, 429]
    clock.advance(61)
    assert get(client, "2 per minute") == [429]  # banned
    clock.advance(600)
    assert get(client, "2 per minute") == [200]


def test_a_leaky_bucket_delays_by_the_limit_of_the_function(client_of):
    client = client_of(algorithm="token_bucket", burst=1, max_wait="1ms")
    assert get(client, "1 per hour", 2) == [200, 429]


def test_overrides_and_explanations_know_the_rule(storage, clock):
    with RateLimiter(config(), storage=storage, clock=clock) as limiter:
        app = Flask("function", root_path="/")
        app.add_url_rule("/", "index", lambda: "x")
        app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)
        limiter.overrides.set({"ip": "127.0.0.1"}, rule="api", limit="1 per minute")
        assert get(app.test_client(), "9 per minute", 2) == [200, 429]
        (rule,) = limiter.explain({"ip": "192.0.2.1"}).rules
        assert rule.why == "it matches, but its function sets no limit for this request"
        with pytest.raises(ValueError, match="the limit of an override can't be a function"):
            limiter.overrides.set({"ip": "127.0.0.1"}, rule="api", limit=f"{HERE}:of_header")


def test_check_has_no_request_and_so_no_limit_and_says_so(storage, clock, caplog):
    with RateLimiter(config(), storage=storage, clock=clock) as limiter:
        assert all(limiter.check({"ip": "192.0.2.1"}).allowed for _ in range(5))
    assert "is not called by check(), which has no request" in caplog.text
    with RateLimiter(config(on_error="deny"), storage=storage, clock=clock) as limiter:
        assert not limiter.check({"ip": "192.0.2.1"}).allowed


def test_a_preflight_is_held_to_the_limit_of_the_function(client_of):
    client = client_of()
    headers = {"Origin": "https://x", "Access-Control-Request-Method": "GET", "X-Limit": "2 per minute"}
    assert [client.options("/", headers=headers).status_code for _ in range(21)] == [200] * 20 + [429]
    assert get(client, "2 per minute", 3) == [200, 200, 429]  # a counter of its own


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"limit": f"{HERE}:nothing"}, "rules.0..limit: .* is not a function: .* has no callable 'nothing'"),
        ({"limit": "python:no.such.module:x"}, "can't be imported"),
        ({"limit": "python:nothing"}, "does not name a function"),
        ({"limit": ["5 per hour", f"{HERE}:of_header"]}, "is not a limit"),
        ({"algorithm": "concurrency"}, "concurrency counts requests in flight; a function returns limits per time"),
        ({"buckets": 5}, "fixed_window has no buckets"),
    ],
)
def test_a_mistake_around_a_function_is_a_configuration_error(words, message):
    with pytest.raises(ConfigurationError, match=message):
        RateLimiter(config(**words), storage="memory://")
