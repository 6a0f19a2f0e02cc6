"""The fields RateLimit-Policy and RateLimit, read by somebody else's parser of structured fields (RFC 9651)."""

import json

import pytest

from ratelimit_mw import ManualClock
from tests.shells.asking import EACH_SHELL, START, limiter
from tests.structured_fields import read

pytestmark = EACH_SHELL

BOTH = {"headers": ["x-ratelimit", "ratelimit", "retry-after"]}
DRAFT = {"headers": ["ratelimit", "retry-after"]}
HOUR = 3600 - START % 3600


def fields(answer):
    return read(answer.headers["ratelimit-policy"]), read(answer.headers["ratelimit"])


def rule(name, limit, **more):
    return {"name": name, "by": "ip", "limit": limit, "algorithm": "fixed_window", **more}


def test_they_stand_beside_the_others(ask):
    engine = limiter("5 per minute", response=BOTH)
    answer = ask(engine)
    assert answer.headers == {
        "x-ratelimit-limit": "5",
        "x-ratelimit-remaining": "4",
        "x-ratelimit-reset": str(START + 40),
        "ratelimit-policy": '"everybody";q=5;w=60',
        "ratelimit": '"everybody";r=4;t=40',
    }


def test_a_denial_has_them_too_and_speaks_of_no_later_moment_than_retry_after(ask):
    engine = limiter("1 per minute", response=DRAFT)
    ask(engine)
    denied = ask(engine)
    assert denied.status == 429
    assert fields(denied) == ([("everybody", {"q": 1, "w": 60})], [("everybody", {"r": 0, "t": 40})])
    assert denied.headers["retry-after"] == "40"
    assert "x-ratelimit-limit" not in denied.headers


def test_periods_below_a_second_are_rounded_up_to_whole_seconds(ask):
    answer = ask(limiter("2 per 100ms; 9 per 1500ms", response=BOTH))
    assert answer.headers == {
        "x-ratelimit-limit": "2",
        "x-ratelimit-remaining": "1",
        "x-ratelimit-reset": str(START + 1),
        "ratelimit-policy": '"everybody per 100 milliseconds";q=2;w=1, "everybody per 1500 milliseconds";q=9;w=2',
        "ratelimit": '"everybody per 100 milliseconds";r=1;t=1, "everybody per 1500 milliseconds";r=8;t=1',
    }


def test_every_policy_is_told_in_the_order_of_the_file(ask):
    rules = [rule("wide", "100 per hour"), rule("narrow", "3 per minute"), rule("off", "1 per day", shadow=True)]
    answer = ask(limiter(rules=rules, response=DRAFT))
    assert fields(answer) == (
        [("wide", {"q": 100, "w": 3600}), ("narrow", {"q": 3, "w": 60})],
        [("wide", {"r": 99, "t": HOUR}), ("narrow", {"r": 2, "t": 40})],
    )


def test_several_limits_of_a_rule_are_several_policies(ask):
    engine = limiter(rules=[rule("login", ["3 per minute", "9 per 2 hours"])], response=DRAFT)
    policies, standing = fields(ask(engine))
    assert policies == [("login per minute", {"q": 3, "w": 60}), ("login per 2 hours", {"q": 9, "w": 7200})]
    assert [(name, left["r"]) for name, left in standing] == [("login per minute", 2), ("login per 2 hours", 8)]


def test_of_several_counters_of_a_policy_the_tightest_is_told(ask):
    engine = limiter(rules=[rule("login", "5 per minute", by=["ip", "path"])], response=DRAFT)
    ask(engine, "/a")
    assert fields(ask(engine, "/b")) == ([("login", {"q": 5, "w": 60})], [("login", {"r": 3, "t": 40})])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        pytest.param('say "hello"', 'say "hello"', id="quotes"),
        pytest.param("back\\slash", "back\\slash", id="a backslash"),
        pytest.param("größer", "gr%C3%B6%C3%9Fer", id="not ASCII"),
        pytest.param("gr%C3%B6%C3%9Fer", "gr%25C3%25B6%25C3%259Fer", id="as if it had been written so"),
        pytest.param('a", "b";q=9, "c', 'a", "b";q=9, "c', id="a list within"),
        pytest.param("🦉", "%F0%9F%A6%89", id="an owl"),
    ],
)
def test_a_name_is_a_string_whatever_it_is(ask, name, said):
    answer = ask(limiter(rules=[rule(name, "5 per minute")], response=DRAFT))
    assert fields(answer) == ([(said, {"q": 5, "w": 60})], [(said, {"r": 4, "t": 40})])


def test_what_is_in_flight_has_a_unit_and_no_time(ask):
    engine = limiter(rules=[{"name": "open", "by": "ip", "limit": "3 concurrent"}], response=DRAFT)
    assert fields(ask(engine)) == (
        [("open", {"q": 3, "qu": "concurrent-requests"})],
        [("open", {"r": 2})],
    )


def test_a_bucket_tells_when_its_next_token_comes(ask):
    clock = ManualClock(START)
    bucket = rule("api", "60 per minute", algorithm="token_bucket", burst=10)
    engine = limiter(rules=[bucket], clock=clock, response=DRAFT)
    assert fields(ask(engine)) == ([("api", {"q": 60, "w": 60})], [("api", {"r": 9, "t": 1})])
    for _ in range(9):
        ask(engine)
    denied = ask(engine)
    assert fields(denied)[1] == [("api", {"r": 0, "t": 1})]
    clock.advance(fields(denied)[1][0][1]["t"])
    assert ask(engine).status == 200


def test_what_never_comes_back_has_no_time(ask):
    denied = ask(limiter("0 per minute", response=DRAFT))
    assert fields(denied) == ([("everybody", {"q": 0, "w": 60})], [("everybody", {"r": 0})])


def test_past_a_soft_limit_nothing_is_left(ask):
    engine = limiter(rules=[rule("soft", "2 per minute", throttle={"soft": "100%"})], response=DRAFT)
    assert [fields(ask(engine))[1][0][1]["r"] for _ in range(4)] == [1, 0, 0, 0]
    assert fields(ask(engine))[0] == [("soft", {"q": 2, "w": 60})]


@pytest.mark.parametrize("own", ["RateLimit", "ratelimit-policy", "X-RateLimit-Limit"])
def test_where_the_app_speaks_of_its_own_limit_ours_is_silent(ask, own):
    answer = ask(limiter(response=BOTH), own=[(own, "77")])
    assert answer.fields == [(own.lower(), "77")]


def test_a_hidden_rule_is_spoken_of_nowhere(ask):
    hidden = rule("secret", "2 per minute", response={"hidden": True})
    engine = limiter(
        rules=[hidden, rule("shadow", "3 per minute", shadow=True), rule("open", "9 per minute")],
        response={**BOTH, "body": "problem", "documentation_url": "https://a.example/limits"},
    )
    answer = ask(engine)
    assert answer.rate == ["9", "8", str(START + 40)]
    assert fields(answer) == ([("open", {"q": 9, "w": 60})], [("open", {"r": 8, "t": 40})])
    ask(engine)
    denied = ask(engine)
    assert denied.status == 429
    assert set(denied.headers) == {"content-type", "content-length", "cache-control"}
    assert json.loads(denied.body) == {
        "type": "about:blank",
        "title": "Too Many Requests",
        "status": 429,
        "detail": "Too many requests",
    }


def test_a_hidden_rule_alone_leaves_responses_as_they_are(ask):
    engine = limiter(rules=[rule("secret", "4 per minute", response={"hidden": True})], response=BOTH)
    for _ in range(4):  # most of a rule's requests are decided in fewer steps than the first ones
        assert ask(engine, own=[("X-Own", "1")]).fields == [("x-own", "1")]
