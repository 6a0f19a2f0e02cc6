"""Policies and their standing as structured fields (RFC 9651), whatever they are called and however they stand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.http.answers import Policies
from ratelimit_mw.identity.http_request import AsgiRequest
from ratelimit_mw.model import NEVER, SECOND, Outcome, Quota, Rule
from tests.shells.asking import START, http_scope, limiter, serve, websocket_scope
from tests.structured_fields import read

NAMES = st.text(st.characters(codec=None), min_size=1, max_size=40)


@given(name=NAMES, limit=st.integers(0, 10**9), remaining=st.integers(0, 10**9), wait=st.integers(0, 10**16))
def test_every_field_that_is_sent_can_be_parsed(name, limit, remaining, wait):
    policy = Policies().of(Rule(name), Quota("sliding_window", limit, 60_000_000))
    standing = policy.limit_item(Outcome(True, remaining, wait))
    ((stated, parameters),) = read(policy.policy_item)
    assert parameters == {"q": limit, "w": 60}
    assert read(standing) == [(stated, {"r": remaining, "t": -(-wait // 1_000_000)})]
    assert stated == policy.name
    assert policy.policy_item.isprintable()


@pytest.mark.parametrize(("algorithm", "name"), [("fixed_window", "a per minute"), ("concurrency", "a concurrent")])
def test_the_limits_of_a_rule_with_several_are_told_apart(algorithm, name):
    assert Policies().of(Rule("a", several=True), Quota(algorithm, 5, 60 * SECOND)).name == name


BUCKET = Quota("token_bucket", 60, 60 * SECOND, burst=10)


@pytest.mark.parametrize(
    ("quota", "outcome", "t"),
    [
        pytest.param(BUCKET, Outcome(True, 10, 0), 0, id="a full bucket"),
        pytest.param(BUCKET, Outcome(True, 7, 2_500_000), 1, id="half a second to the next token, rounded up"),
        pytest.param(BUCKET, Outcome(True, 8, 2_000_000), 1, id="a whole second to it"),
        pytest.param(BUCKET, Outcome(True, 0, 12_000_000), 3, id="past the burst, it has to come back to it first"),
        pytest.param(BUCKET, Outcome(False, 0, 10_000_000, 1_000_000), 1, id="denied, not later than Retry-After"),
        pytest.param(BUCKET, Outcome(False, 0, 10_000_000, NEVER), None, id="never"),
        pytest.param(Quota("sliding_log", 5, SECOND), Outcome(True, 4, SECOND), 1, id="no bucket"),
        pytest.param(Quota("leaky_bucket", 0, SECOND), Outcome(False, 0, 0, NEVER), None, id="a closed bucket"),
    ],
)
def test_when_more_comes_back(quota, outcome, t):
    ((_, parameters),) = read(Policies().of(Rule("a"), quota).limit_item(outcome))
    assert parameters.get("t") == t


def test_limits_that_come_and_go_are_forgotten():
    policies = Policies()
    asked = Rule("a"), Quota("fixed_window", 0, SECOND)
    first = policies.of(*asked)
    assert policies.of(*asked) is first
    for limit in range(2_500):
        assert f"q={limit};" in policies.of(Rule("a"), Quota("fixed_window", limit, SECOND)).policy_item
    assert policies.of(*asked) is not first


@pytest.mark.parametrize("throttle", [{}, {"throttle": {"soft": "10%"}}], ids=["plainly", "among others"])
def test_of_two_limits_with_as_much_left_the_first_of_the_file_binds(throttle):
    rules = [{"name": name, "limit": limit, **throttle} for name, limit in (("a", "9/h"), ("b", "5/h"), ("c", "5/m"))]
    with RateLimiter({"domain": "d", "rules": rules}, clock=ManualClock(START)) as engine:
        decisions = [engine.check({"ip": "192.0.2.1"}) for _ in range(3)]
    assert [(decision.rule, decision.remaining) for decision in decisions] == [("b", 4), ("b", 3), ("b", 2)]


def test_a_websocket_s_handshake_has_them():
    async def app(scope, receive, send):
        await send({"type": "websocket.accept"})

    (accept,) = serve(RateLimitMiddleware(app, limiter=limiter(response={"headers": "ratelimit"})), websocket_scope())
    assert accept["headers"] == [
        (b"ratelimit-policy", b'"everybody";q=2;w=60'),
        (b"ratelimit", b'"everybody";r=1;t=40'),
    ]


WINDOWS = ("fixed_window", "sliding_log", "sliding_window", "bucketed_window", "token_bucket", "leaky_bucket")


@given(
    algorithm=st.sampled_from(WINDOWS),
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3)), min_size=1, max_size=12),
    throttle=st.sampled_from(["hard", {"soft": "50%"}]),
)
def test_after_t_seconds_more_is_left_or_what_was_denied_passes(algorithm, steps, throttle):
    clock = ManualClock(START)
    engine = limiter(
        rules=[{"name": "a", "by": "ip", "limit": "8 per minute", "algorithm": algorithm, "throttle": throttle}],
        clock=clock,
    ).engine
    request = AsgiRequest(http_scope())

    for pause, cost in steps:
        clock.advance(pause)
        verdict = engine.decide(request, cost)
        ((policy, outcome),) = Policies().reported(verdict).values()
        ((_, parameters),) = read(policy.limit_item(outcome))
        clock.advance(parameters["t"])
        later = engine.decide(request, 0 if verdict.allowed else cost, commit=False)
        assert later.outcomes[0].remaining >= min(parameters["r"] + 1, 8) if verdict.allowed else later.allowed
        clock.advance(-parameters["t"])
