"""What helps to test an app: `reset_all`, `limiter_of`, the switch for a test, and Django's changed settings.

The fixtures of the plugin are tested by the suite on docs/testing.md.
"""

import asyncio
from collections import Counter

import pytest
from fastapi import FastAPI
from flask import Flask
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.middleware.proxy_fix import ProxyFix

from ratelimit_mw import ConfigurationError, ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.clock import machine_clock_is
from ratelimit_mw.fastapi import add_rate_limits
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.testing import _reset_all, forced, limiter_of
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.shells.asking import START
from tests.support.counts import shadow_bans, shadow_denials

ALICE = {"ip": "192.0.2.1"}


def rules(domain="shop", limit="1 per minute", **more):
    rule = {"name": "a", "by": "ip", "limit": limit, "algorithm": "fixed_window", **more}
    return {"domain": domain, "storage": {"timeout": "5s"}, "rules": [rule]}


def allowed(limiter, attributes=None):
    return limiter.check(attributes or ALICE).allowed


# ------------------------------------------------------------------------------------------ reset_all


def test_all_counters_and_bans_are_forgotten_and_overrides_stay(storage):
    config = rules(ban={"after": "1 denial", "for": "1 hour"})
    with RateLimiter(config, storage=storage, clock=ManualClock(START)) as limiter:
        limiter.overrides.set({"ip": "192.0.2.9"}, block=True)
        assert [allowed(limiter) for _ in range(3)] == [True, False, False]
        assert limiter.check(ALICE).banned
        limiter.reset_all()
        assert [limiter.check(ALICE).allowed for _ in range(2)] == [True, False]
        asyncio.run(limiter.areset_all())
        assert allowed(limiter)
        assert not allowed(limiter, {"ip": "192.0.2.9"})


def test_the_counters_of_other_domains_stay(any_server):
    clock = ManualClock(START)
    domains = ("shop", "shop2", "sh*p")
    limiters = [RateLimiter(rules(domain), storage=any_server.url, clock=clock) for domain in domains]
    assert all(map(allowed, limiters))
    limiters[2].reset_all()
    assert [allowed(limiter) for limiter in limiters] == [False, False, True]
    limiters[0].reset_all()
    assert [allowed(limiter) for limiter in limiters] == [True, False, False]
    for limiter in limiters:
        limiter.close()


def test_many_counters_are_forgotten_in_several_calls(storage):
    with RateLimiter(rules(), storage=storage, clock=ManualClock(START)) as limiter:
        clients = [{"ip": f"192.0.2.{number}"} for number in range(120)]
        assert all(allowed(limiter, client) for client in clients)
        limiter.reset_all()
        assert all(allowed(limiter, client) for client in clients)


@pytest.mark.parametrize("consistency", ["lease", "write_back"])
def test_what_a_process_has_spent_by_itself_is_forgotten_too(any_server, consistency):
    config = rules(limit="5 per hour", consistency=consistency)
    with RateLimiter(config, storage=any_server.url, clock=ManualClock(START)) as limiter:
        for _ in range(2):
            assert [allowed(limiter) for _ in range(6)] == [True] * 5 + [False]
            limiter.reset_all()


def test_counters_that_are_counted_locally_are_forgotten():
    with RateLimiter(rules(on_error="local"), storage="redis://127.0.0.1:9/0", clock=ManualClock(START)) as limiter:
        assert [allowed(limiter) for _ in range(2)] == [True, False]
        keys = list(limiter.engine.storage.local.keys("shop:"))
        limiter.engine.storage.store.close()
        limiter.engine.storage.store = MemoryStore()  # the server is not there, so that nothing else can be reset
        limiter.reset_all()
        assert (len(keys), list(limiter.engine.storage.local.keys("shop:"))) == (1, [])


def test_the_limiter_of_an_app_whose_lifespan_has_ended_is_reset_too():
    app = Starlette(routes=[Route("/", home)])
    app.add_middleware(Asgi, config=rules(limit="1 per day"))
    for _ in range(2):
        _reset_all()
        with TestClient(app) as client:
            assert [client.get("/").status_code for _ in range(2)] == [200, 429]


def denied_and_reported(limiter, caplog):
    """The names of the rules in the records of 20 denied requests, and what else is told of them."""
    caplog.clear()
    for _ in range(20):
        limiter.check(ALICE)
    lines = [line.split(" so far")[0] for line in caplog.messages if "would have" in line]
    denials = [record.rule for record in caplog.records if record.name == "ratelimit_mw.denials"]
    return denials, lines, shadow_denials(limiter), shadow_bans(limiter)


def test_what_is_logged_and_counted_of_denials_begins_again(caplog):
    caplog.set_level("INFO", "ratelimit_mw")
    never = {"by": "ip", "limit": "0 per minute"}
    shadow = {"name": "dark", "shadow": True, "ban": {"after": "2 denials in 1 minute", "for": "1 minute"}, **never}
    config = {"domain": "shop", "rules": [{"name": "a", **never}, shadow]}
    with RateLimiter(config, storage="memory://", clock=ManualClock(START)) as limiter:
        first = denied_and_reported(limiter, caplog)
        assert Counter(first[0]) == {"a": 10, "dark": 10}
        assert (first[2], first[3]) == ({"dark": 20}, {"dark": 1})
        assert denied_and_reported(limiter, caplog)[0] == []
        limiter.tally.shed["low"] += 1
        _reset_all()
        assert (shadow_denials(limiter), shadow_bans(limiter), limiter.tally.shed) == ({}, {}, {})
        assert denied_and_reported(limiter, caplog) == first


def test_a_minute_of_the_clock_of_a_test_begins_new_records(caplog):
    caplog.set_level("INFO", "ratelimit_mw.denials")
    with RateLimiter(rules(limit="0 per minute"), storage="memory://") as limiter:
        clock = ManualClock(START)
        with machine_clock_is(clock):
            assert [len(denied_and_reported(limiter, caplog)[0]) for _ in range(2)] == [10, 0]
            clock.advance(60)
            assert len(denied_and_reported(limiter, caplog)[0]) == 10


# ------------------------------------------------------------------------------------------- switches


def test_the_switch_of_a_test_applies_to_limiters_before_and_within_it():
    before = RateLimiter(rules("before", "0 per minute"))
    with forced("off"):
        within = RateLimiter(rules("within", "0 per minute"))
        assert (allowed(before), allowed(within)) == (True, True)
        assert within.switch.setting.word == "off"
        before.switch.set("on")
        assert allowed(before)
    assert (allowed(before), allowed(within)) == (False, False)
    before.close()
    within.close()


def test_the_environment_is_read_when_a_limiter_is_made(monkeypatch):
    before = RateLimiter(rules("before", "0 per minute"))
    monkeypatch.setenv("RATELIMIT_MW", "off")
    after = RateLimiter(rules("after", "0 per minute"))
    monkeypatch.setenv("RATELIMIT_MW", "on")
    assert (allowed(before), allowed(after)) == (False, True)
    before.close()
    after.close()


# ------------------------------------------------------------------------------------------ limiter_of


async def home(_request):
    return PlainTextResponse("home")


@pytest.fixture
def engine():
    with RateLimiter(rules()) as made:
        yield made


def starlette_app(**middleware):
    app = Starlette(routes=[Route("/", home)])
    app.add_middleware(Asgi, **middleware)
    app.add_middleware(GZipMiddleware)
    return app


def test_the_limiter_of_a_starlette_app_is_found_before_and_after_its_first_request():
    app = starlette_app(config=rules(limit="1 per day"))
    found = limiter_of(app)
    client = TestClient(app)
    assert [client.get("/").status_code for _ in range(2)] == [200, 429]
    assert limiter_of(app) is limiter_of(client) is found
    found.close()


def test_a_limiter_that_an_app_was_given_is_found_without_making_its_middlewares(engine):
    app = starlette_app(limiter=engine)
    assert limiter_of(app) is engine
    assert app.middleware_stack is None


def test_the_limiter_of_a_mounted_app_is_found(engine):
    within = FastAPI()
    add_rate_limits(within, limiter=engine)
    mounts = [
        Starlette(routes=[Route("/", home), Mount("/api", app=within)]),
        Starlette(routes=[Mount("/", app=Asgi(Starlette(), limiter=engine))]),
        Starlette(routes=[Mount("/", routes=[], middleware=[Middleware(Asgi, limiter=engine)])]),
        GZipMiddleware(Asgi(GZipMiddleware(Starlette()), limiter=engine)),
    ]
    assert [limiter_of(app) for app in mounts] == [engine] * 4


def test_the_outermost_limiter_is_found_first(engine):
    with RateLimiter(rules("other")) as other:
        within = Asgi(Starlette(), limiter=other)
        assert limiter_of(Asgi(Starlette(routes=[Mount("/", app=within)]), limiter=engine)) is engine


def test_the_limiter_of_a_flask_app_is_found(engine):
    app = Flask("app")
    app.wsgi_app = ProxyFix(Wsgi(app.wsgi_app, limiter=engine))
    other = Flask("other")
    found = [app, app.test_client(), app.wsgi_app, DispatcherMiddleware(other, {"/app": app})]
    assert [limiter_of(each) for each in found] == [engine] * 4


def test_an_app_without_a_limiter_is_an_error():
    for app in (Starlette(routes=[Route("/", home)]), Flask("app"), home, None):
        with pytest.raises(LookupError, match="has no RateLimitMiddleware"):
            limiter_of(app)


def test_rules_that_cannot_be_used_are_an_error_of_limiter_of():
    with pytest.raises(ConfigurationError):
        limiter_of(starlette_app(config={"domain": "shop"}))
