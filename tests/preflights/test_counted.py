"""What becomes of preflights in the middlewares; in memory and on Redis. The plan of each is in test_plans.py."""

import asyncio
from wsgiref.util import setup_testing_defaults

import pytest

from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.deferral import deferrals_of
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.shells.asking import IP, exchange, http_scope
from tests.support.counts import shadow_denials

ORIGIN = "https://shop.example"
PREFLIGHT = {"origin": ORIGIN, "access-control-request-method": "POST"}
FIXED = {"by": "ip", "limit": "3 per minute", "algorithm": "fixed_window"}
CLIENT = {"client": {"user": "header:x-user", "tier": "header:x-tier", "secret": "s"}}


def ask_asgi(engine, method="POST", headers=(), *, status=200, cost=None):
    """The status of the answer, or None where the app was not asked; and the headers."""

    async def app(scope, receive, send):
        own = [(b"x-cost", cost.encode())] if cost else []
        await send({"type": "http.response.start", "status": status, "headers": own})
        await send({"type": "http.response.body", "body": b"hello"})

    lines = [(name.encode(), text.encode()) for name, text in dict(headers).items()]
    start, *_ = asyncio.run(exchange(Asgi(app, limiter=engine), http_scope("/work", method=method, headers=lines)))
    return start["status"], {name.decode(): value.decode() for name, value in start["headers"]}


def ask_wsgi(engine, method="POST", headers=(), *, status=200, cost=None):
    said = []

    def app(environ, start_response):
        start_response(f"{status} Fine", [("X-Cost", cost)] if cost else [])
        return [b"hello"]

    environ = {"PATH_INFO": "/work", "REQUEST_METHOD": method, "REMOTE_ADDR": IP}
    environ |= {f"HTTP_{name.upper().replace('-', '_')}": text for name, text in dict(headers).items()}
    setup_testing_defaults(environ)
    body = Wsgi(app, limiter=engine)(environ, lambda *arguments: said.append(arguments))
    b"".join(body)
    getattr(body, "close", lambda: None)()
    ((line, fields),) = said
    return int(line[:3]), {name.lower(): value for name, value in fields}


@pytest.fixture(params=[ask_asgi, ask_wsgi], ids=["ASGI", "WSGI"])
def ask(request):
    return request.param


@pytest.fixture
def engine(storage, clock):
    """Makes a limiter of these rules."""
    made = []

    def make(*rules, **sections):
        named = [{"name": f"r{n}", **FIXED, **rule} for n, rule in enumerate(rules)]
        config = {"domain": "d", "storage": {"timeout": "5s"}, **CLIENT, **sections, "rules": named}
        made.append(RateLimiter(config, storage=storage, clock=clock))
        return made[-1]

    yield make
    for limiter in made:
        limiter.close()


def preflights(ask, limiter, count, **options):
    return [ask(limiter, "OPTIONS", PREFLIGHT, **options)[0] for _ in range(count)]


def requests(ask, limiter, count, headers=(), **options):
    return [ask(limiter, "POST", headers, **options)[0] for _ in range(count)]


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param({}, id="a window"),
        pytest.param({"algorithm": "token_bucket", "max_wait": "1m"}, id="turns"),
        pytest.param({"consistency": "lease"}, id="lease"),
        pytest.param({"limit": ["3 per minute", "9 per hour"], "by": ["ip", "global"]}, id="several counters"),
        pytest.param({"cost": "response:X-Cost"}, id="a cost from the response"),
    ],
)
def test_preflights_and_requests_have_a_counter_each(ask, engine, rule):
    limiter = engine(rule)
    assert preflights(ask, limiter, 40, cost="3").count(200) == 30
    first = requests(ask, limiter, 3)
    assert first == [200, 200, 200]
    limiter.reset({"ip": IP, "method": "POST", "path": "/work"})
    assert requests(ask, limiter, 3) == first
    assert preflights(ask, limiter, 40).count(200) == 30


def test_a_denied_preflight_says_when_to_come_back(ask, engine, clock):
    limiter = engine({})
    preflights(ask, limiter, 30)
    status, headers = ask(limiter, "OPTIONS", PREFLIGHT)
    assert (status, headers["retry-after"], headers["x-ratelimit-limit"]) == (429, "40", "30")
    assert not [name for name in headers if name.startswith("access-control-")]
    clock.advance(40)
    assert preflights(ask, limiter, 1) == [200]


def test_a_rule_that_names_options_counts_preflights_like_any_request(ask, engine):
    limiter = engine({"match": {"methods": ["POST", "OPTIONS"]}})
    assert preflights(ask, limiter, 2) == [200, 200]
    assert requests(ask, limiter, 2) == [200, 429]


def test_preflights_bring_no_ban_nearer(ask, engine):
    limiter = engine({"ban": {"after": "4 denials in 1 minute", "for": "10 minutes"}})
    assert preflights(ask, limiter, 60).count(200) == 30
    assert requests(ask, limiter, 6) == [200, 200, 200, 429, 429, 429]
    assert not limiter.peek({"ip": IP}).banned
    preflights(ask, limiter, 30)
    assert not limiter.peek({"ip": IP}).banned
    requests(ask, limiter, 1)
    assert limiter.peek({"ip": IP}).banned


def test_a_client_who_is_banned_is_denied_its_preflights_too(ask, engine, clock):
    limiter = engine({"ban": {"after": "2 denials in 1 minute", "for": "10 minutes"}})
    requests(ask, limiter, 5)
    clock.advance(120)
    assert preflights(ask, limiter, 2) == [429, 429]
    limiter.reset({"ip": IP})
    assert preflights(ask, limiter, 2) == [200, 200]


def test_a_preflight_takes_no_concurrent_place(ask, engine):
    limiter = engine({"limit": "1 concurrent", "algorithm": "concurrency"})
    seen = []

    async def app(scope, receive, send):  # the only place is taken now
        seen.append(await asyncio.to_thread(preflights, ask, limiter, 5))
        seen.append(await asyncio.to_thread(requests, ask, limiter, 1))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    asyncio.run(exchange(Asgi(app, limiter=limiter), http_scope("/work", method="POST")))
    assert seen == [[200] * 5, [429]]
    assert requests(ask, limiter, 2) == [200, 200]


def test_only_what_counts_is_counted(ask, engine):
    limiter = engine({"count": {"status": [401, 403]}})
    assert preflights(ask, limiter, 10) == [200] * 10
    assert preflights(ask, limiter, 32, status=401) == [401] * 30 + [429] * 2
    assert requests(ask, limiter, 4, status=401) == [401] * 3 + [429]


def test_a_shadow_rule_counts_what_it_would_deny(ask, engine):
    limiter = engine({"shadow": True})
    assert preflights(ask, limiter, 32) == [200] * 32
    assert shadow_denials(limiter)["r0"] == 2


def test_users_of_one_address(ask, engine):
    limiter = engine({"by": "user|ip"})
    for user in range(10):
        assert preflights(ask, limiter, 3) == [200] * 3
        assert requests(ask, limiter, 4, {"x-user": str(user)}) == [200, 200, 200, 429]
    assert preflights(ask, limiter, 1) == [429]
    limiter.reset({"ip": IP, "user": "7"})
    assert requests(ask, limiter, 1, {"x-user": "7"}) == [200]
    assert preflights(ask, limiter, 1) == [429], "the counter of the address is not this user's"
    limiter.reset({"ip": IP})
    assert preflights(ask, limiter, 1) == [200]


def test_overrides_hold_for_preflights(ask, engine, clock):
    limiter = engine({})
    limiter.overrides.set({"ip": IP}, rule="r0", limit="1 per minute")
    assert preflights(ask, limiter, 11) == [200] * 10 + [429]
    limiter.overrides.set({"ip": IP}, exempt=True)
    assert preflights(ask, limiter, 5) == [200] * 5
    limiter.overrides.set({"ip": IP}, block=True)
    assert preflights(ask, limiter, 1) == [403]


def test_the_same_by_check_peek_and_explain(engine):
    limiter = engine({"match": {"methods": "POST"}}, {"limit": "2 concurrent", "algorithm": "concurrency"})
    asked = {"ip": IP, "path": "/", "method": "options", **{f"header:{name}": text for name, text in PREFLIGHT.items()}}
    assert [limiter.check(asked, 3).allowed for _ in range(31)] == [True] * 30 + [False]
    assert not limiter.peek(asked).allowed
    assert limiter.peek({"ip": IP, "method": "POST"}).remaining == 3
    explanation = limiter.explain(asked)
    assert explanation.note == "a CORS preflight for POST: it has counters of its own"
    first, second = explanation.rules
    assert (first.status, first.keys, first.allowed) == ("applies", (f"d:r0:preflight-fw60:{{ip={IP}}}",), False)
    assert (second.status, second.why) == ("unlimited", "it matches, but a CORS preflight takes no place in flight")
    assert limiter.explain({**asked, "header:access-control-request-method": "GET"}).rules[0].status == "no match"
    limiter.reset(asked)
    assert limiter.check(asked).allowed


def test_a_store_that_is_away_is_what_the_rule_says(ask, clock):
    rule = {"name": "r0", **FIXED, "on_error": "deny"}
    config = {"domain": "d", "storage": {"url": "redis://127.0.0.1:1", "timeout": "5s"}, "rules": [rule]}
    with RateLimiter(config, clock=clock) as limiter:
        assert preflights(ask, limiter, 1) == [503]


def test_preflights_are_never_deferred(ask, any_server, clock):
    rule = {"name": "r0", **FIXED, "on_limit": "defer"}
    with RateLimiter({"domain": "d", "rules": [rule], **CLIENT}, storage=any_server.url, clock=clock) as limiter:
        assert preflights(ask, limiter, 32) == [200] * 30 + [429] * 2
        assert requests(ask, limiter, 4) == [200] * 3 + [202]
        assert deferrals_of(limiter).queue(limiter.rules).length() == 1


LOADED = {"load": "python:tests.preflights.test_counted:full"}


def full():
    return 0.9  # all requests of low priority are shed, and none of critical ones


@pytest.mark.parametrize(
    ("rules", "statuses"),
    [
        pytest.param([{"priority": "low"}], (503, 503), id="shed like the request that it announces"),
        pytest.param([{"priority": "low", "match": {"methods": "POST"}}], (503, 503), id="by the method announced"),
        pytest.param([{"priority": "critical"}], (200, 200), id="important like that one"),
        pytest.param(
            [{"priority": "low"}, {"priority": "critical", "by": "user"}], (503, 503), id="without its credentials"
        ),
        pytest.param(
            [{"priority": "low"}, {"replaces": "r0", "match": {"methods": "POST"}, "priority": "critical"}],
            (200, 200),
            id="what replaces a priority does so for preflights",
        ),
        pytest.param(
            [{"priority": "critical"}, {"replaces": "r0", "match": {"methods": "OPTIONS"}, "priority": "low"}],
            (503, 200),
            id="a rule that names OPTIONS says how important it is",
        ),
    ],
)
def test_under_load_a_preflight_is_no_way_around_shedding(ask, engine, rules, statuses):
    limiter = engine(*({"limit": "unlimited", **rule} for rule in rules), **LOADED)
    assert (*preflights(ask, limiter, 1), *requests(ask, limiter, 1)) == statuses


@pytest.mark.parametrize(
    ("entry", "status"),
    [({"methods": "OPTIONS"}, 200), ({"methods": "POST"}, 503), ({"path": "/work"}, 200)],
    ids=["OPTIONS", "the method announced", "the path"],
)
def test_no_announced_method_exempts_a_preflight_from_shedding(ask, engine, entry, status):
    limiter = engine({"limit": "unlimited", "priority": "low"}, exempt=[entry], **LOADED)
    assert preflights(ask, limiter, 1) == [status]


def test_a_plan_that_is_remembered_for_other_options_counts_no_preflight(ask, engine):
    """A plan is kept when it is made the second time. A preflight has the same method, path and address."""
    limiter = engine({"match": {"methods": "POST"}})
    assert [ask(limiter, "OPTIONS")[0] for _ in range(5)] == [200] * 5
    assert preflights(ask, limiter, 31) == [200] * 30 + [429]
