"""`RateLimiter.explain`: what it says of every fate that a request and a rule can have."""

import asyncio

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.identity.http_request import AsgiRequest

LIMIT = {"limit": "5 per minute", "algorithm": "fixed_window"}


def limiter(*rules, **more):
    named = [{"name": f"r{n}", **LIMIT, **rule} for n, rule in enumerate(rules)]
    return RateLimiter({"domain": "d", "rules": named, **more}, clock=ManualClock(1_700_000_040))


def told(*rules, ip="192.0.2.1", before=0, cost=1, more=None, **attributes):
    """What is said of a request, after `before` others like it."""
    asked = {"ip": ip, "method": "GET", "path": "/", **attributes}
    with limiter(*rules, **(more or {})) as engine:
        for _ in range(before):
            engine.check(asked, cost)
        return engine.explain(asked, cost)


@pytest.mark.parametrize(("burst", "throttle"), [(20, None), (3, None), (20, {"soft": "50%"})])
def test_limit_remaining_and_explain_speak_of_the_burst_of_a_bucket(burst, throttle):
    words = {"limit": "5 per minute", "algorithm": "token_bucket", "burst": burst}
    with limiter(words | ({"throttle": throttle} if throttle else {})) as engine:
        decision = engine.check({"ip": "192.0.2.1"})
        assert (decision.limit, decision.remaining, decision.used) == (burst, burst - 1, 1)
        assert f"'r0' has {burst - 1} of {burst} left" in engine.explain({"ip": "192.0.2.1"}).outcome


def test_a_bucket_whose_limit_is_0_has_a_limit_of_0():
    with limiter({"limit": "0 per minute", "algorithm": "token_bucket", "burst": 20}) as engine:
        decision = engine.check({"ip": "192.0.2.1"})
    assert (decision.allowed, decision.limit, decision.remaining) == (False, 0, 0)


def test_a_wait_below_a_second_is_told():
    explained = told({"limit": "2 per second", "algorithm": "token_bucket"}, before=2)
    assert explained.outcome == "would be denied by 'r0', for 0.5 s"


@pytest.mark.parametrize(
    ("rules", "given", "status", "why"),
    [
        pytest.param([{}], {}, "applies", "", id="applies"),
        pytest.param(
            [{"match": {"path": ["/a", "/b"]}}],
            {},
            "no match",
            "the path is /, but must be one of /a, /b",
            id="another path",
        ),
        pytest.param(
            [{"match": {"methods": ["POST"], "ip": "10.0.0.0/8"}}],
            {},
            "no match",
            "the method is GET, but must be POST; the address is 192.0.2.1, but must be 10.0.0.0/8",
            id="another method and address",
        ),
        pytest.param(
            [{"match": {"host": "example.com"}}],
            {"host": "example.org:80"},
            "no match",
            "host is example.org, but must be example.com",
            id="another host",
        ),
        pytest.param(
            [{"match": {"header:X-Key": "letmein"}}],
            {"header:X-Key": "hunter2"},
            "no match",
            "header:X-Key is another, but must be letmein",
            id="another header, which is not told",
        ),
        pytest.param(
            [{"match": {"cookie:a": "1"}}], {}, "no match", "cookie:a is absent, but must be 1", id="no cookie"
        ),
        pytest.param([{"match": {"query:a": "1"}}], {"query:a": "1"}, "applies", "", id="the query"),
        pytest.param(
            [{}, {"replaces": "r0"}], {}, "replaced", "it matches, but 'r1' matches too and replaces it", id="replaced"
        ),
        pytest.param(
            [{}, {"replaces": "r0", "by": "tier"}], {}, "applies", "", id="not replaced by who has no counter"
        ),
        pytest.param(
            [{"by": "user+path:id"}],
            {"user": "ada"},
            "no counter",
            "it matches, but has nothing to count by: the request has no path:id",
            id="an attribute is absent",
        ),
        pytest.param(
            [{"by": ["ip", "user"]}],
            {},
            "applies",
            "in part, because the request has no user",
            id="one of two counters",
        ),
        pytest.param(
            [{"by": "path:id", "match": {"path": "/{id}"}}], {"path": "/7"}, "applies", "", id="a parameter of the path"
        ),
        pytest.param([{"by": ["global", "route"], "match": {"path": "/*"}}], {}, "applies", "", id="global and route"),
        pytest.param(
            [{"limit": "unlimited", "algorithm": "sliding_window"}],
            {},
            "unlimited",
            "it matches, and is unlimited",
            id="unlimited",
        ),
        pytest.param(
            [{"limit": {"default": "1/s", "gold": "unlimited"}}],
            {"tier": "gold"},
            "unlimited",
            "it matches, and is unlimited",
            id="unlimited for this tier",
        ),
    ],
)
def test_what_becomes_of_the_first_rule(rules, given, status, why):
    first = told(*rules, **given).rules[0]
    assert (first.status, first.why) == (status, why)
    assert bool(first.counters) == (status == "applies")


def test_a_denial_in_full():
    assert (
        str(told({}, {"limit": "3 per minute", "shadow": True}, before=6))
        == """\
GET / from 192.0.2.1: would be denied by 'r0', for 60 s

✗ r0  applies
    d:r0:fw60:{ip=192.0.2.1}
      5 per minute, fixed_window: 0 left; room in 60 s; as if unused in 60 s

○ r1  applies, shadow
    d:r1:fw60:{ip=192.0.2.1}
      3 per minute, fixed_window: 0 left; room in 60 s; as if unused in 60 s

What would change that, each by itself:
  - 60 s pass without another request
  - 'r0' may do more than 5 per minute
  - the counters of 'r0' are reset"""
    )


def test_a_cost_that_is_too_high_now_or_for_ever():
    assert told({}, before=1, cost=3).changes == (
        "60 s pass without another request",
        "the request costs no more than 2",
        "'r0' may do more than 5 per minute",
        "the counters of 'r0' are reset",
    )
    assert told({}, cost=9).changes == ("the request costs no more than 5", "'r0' may do more than 5 per minute")
    assert told({"limit": "0 per day"}).changes == ("'r0' may do more than 0 per day",)


def test_buckets_say_what_they_hold():
    bucket = told({"algorithm": "token_bucket", "burst": 9}, before=2).rules[0].counters[0]
    assert (bucket.limit, bucket.remaining) == ("5 per minute, 9 at once", 7)


@pytest.mark.parametrize(
    ("more", "given", "note"),
    [
        pytest.param(
            {"exempt": [{"path": "/", "methods": ["GET"]}]},
            {},
            "exempt[0] (the path /, the method GET) exempts it",
            id="exempt",
        ),
    ],
)
def test_what_is_never_counted(more, given, note):
    explanation = told({}, more=more, **given)
    assert (explanation.note, explanation.outcome) == (note, "would pass, uncounted")
    assert [(rule.status, rule.why, rule.keys) for rule in explanation.rules] == [("exempt", note, ())]


@pytest.mark.parametrize(
    ("switch", "outcome"),
    [
        ("off", "would pass, uncounted"),
        ("shadow", "would pass, uncounted"),
        ("on", "would be denied by 'r0', for 60 s"),
    ],
)
def test_the_kill_switch(monkeypatch, switch, outcome):
    monkeypatch.setenv("RATELIMIT_MW", switch)
    with limiter({}) as engine:
        asked = {"ip": "192.0.2.1"}
        if switch == "off":
            assert engine.explain(asked).rules[0].counters == ()
        for _ in range(5):
            engine.check(asked)
        explanation = engine.explain(asked)
    assert explanation.outcome == outcome
    assert explanation.note == ("" if switch == "on" else f"RATELIMIT_MW={switch} is set")


@pytest.mark.parametrize(
    ("on_error", "outcome", "changes"),
    [
        pytest.param("allow", "would pass, uncounted", (), id="allow"),
        pytest.param(
            "deny",
            "would be denied",
            ("the store answers again", "on_error of the rules that apply is allow or local"),
            id="deny",
        ),
        pytest.param("local", "would pass; 'r0' has 5 of 5 left", (), id="local"),
    ],
)
def test_the_store_away(on_error, outcome, changes):
    rules = [{"name": "r0", **LIMIT}]
    away = {"url": "redis://127.0.0.1:1/0", "on_error": on_error}
    with RateLimiter({"domain": "d", "storage": away, "rules": rules}) as engine:
        explanation = engine.explain({"ip": "::1"})
        twin = asyncio.run(engine.aexplain({"ip": "::1"}))
    assert explanation.note.startswith("the store did not answer (")
    assert (explanation.outcome, explanation.changes, explanation.rules[0].counters) == (outcome, changes, ())
    assert explanation.error
    assert twin.error


def test_overrides_show():
    with limiter({}) as engine:
        engine.overrides.set({"ip": "192.0.2.1"}, rule="r0", limit="7 per minute")
        assert engine.explain({"ip": "192.0.2.1"}).rules[0].counters[0].limit == "7 per minute"
        engine.overrides.set({"ip": "192.0.2.2"}, exempt=True)
        exempt = engine.explain({"ip": "192.0.2.2"})
        assert (exempt.rules[0].status, exempt.note) == ("exempt", "an override exempts this client")
        engine.overrides.set({"ip": "192.0.2.4"}, rule="r0", limit="unlimited")
        free = engine.explain({"ip": "192.0.2.4"}).rules[0]
        assert (free.status, free.why) == (
            "unlimited",
            "it matches, and an override makes it unlimited for this client",
        )
        engine.overrides.set({"ip": "192.0.2.3"}, block=True)
        blocked = engine.explain({"ip": "192.0.2.3"})
        assert (blocked.note, blocked.rules, blocked.decision.allowed) == (
            "an override blocks this client, with 403",
            (),
            False,
        )


def test_a_list_of_entries_asks_descriptors():
    config = {"domain": "d", "descriptors": [{"key": "a", "rate_limit": {"unit": "day", "requests_per_unit": 5}}]}
    with RateLimiter(config, clock=ManualClock()) as engine:
        engine.check([("a", "x")])
        lines = engine.explain([("a", "x")]).lines()
    assert lines[0].startswith("a=x from an unknown address: would pass; ")
    assert "      5 per day, fixed_window: 4 left" in lines[-1]


def test_several_domains_are_told_apart(tmp_path):
    for name in ("shop", "blog"):
        (tmp_path / f"{name}.yaml").write_text(f"domain: {name}\nrules: [{{name: a, limit: 5/s}}]\n", "utf-8")
    with RateLimiter(tmp_path, clock=ManualClock()) as engine:
        explanation = engine.explain({"ip": "::1"})
        one = engine.explain({"ip": "::1"}, domain="shop")
    assert [(rule.name, rule.keys) for rule in explanation.rules] == [
        ("blog: a", ("blog:a:sw1:{ip=::/64}",)),
        ("shop: a", ("shop:a:sw1:{ip=::/64}",)),
    ]
    assert [rule.name for rule in one.rules] == ["a"]


def test_the_twin_says_the_same_and_takes_a_request():
    async def ask(engine):
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("192.0.2.1", 1)}
        return await engine.aexplain(AsgiRequest(scope))

    with limiter({}) as engine:
        assert asyncio.run(ask(engine)) == engine.explain({"ip": "192.0.2.1", "method": "GET", "path": "/"})
