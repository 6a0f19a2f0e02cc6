"""A request that frameworks read differently: what it is counted under, and what it is spared."""

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.deferral.replay import DeferredRequest
from ratelimit_mw.deferral.stored_request import of_asgi, unpacked
from ratelimit_mw.identity.http_request import DjangoRequest, WsgiRequest
from tests.identity.requests import asgi, environ, wsgi
from tests.rules.corpus import rules

USER = {"user": "cookie:sid"}
BY_USER = {"name": "own", "by": "user", "limit": "3 per minute"}

REAL = "REAL"
TWO_LINES = [("cookie", "theme=dark"), ("cookie", "sid=REAL")]
DISGUISES = {
    "two lines": TWO_LINES,
    "a bogus line first": [("cookie", "sid=N"), ("cookie", "sid=REAL")],
    "a bogus line last": [("cookie", "sid=REAL"), ("cookie", "sid=N")],
    "a line that takes the comma": [("cookie", "sid=REAL;x=N"), ("cookie", "sid=N")],
    "a bogus one first": [("cookie", "sid=N; sid=REAL")],
    "a bogus one last": [("cookie", "sid=REAL; sid=N")],
    "a blank of latin-1 before": [("cookie", "\xa0sid=REAL; sid=N")],
    "a line separator before": [("cookie", "\x85sid=REAL")],
    "a blank behind": [("cookie", "sid=REAL\xa0")],
    "a control behind": [("cookie", "sid=REAL\x1f")],
    "quoted": [("cookie", 'sid="REAL"')],
    "escaped": [("cookie", 'sid="\\122EAL"')],
    "a quoted semicolon": [("cookie", 'x="; sid=REAL; y="')],
    "a tab": [("cookie", "sid\t=\tREAL")],
}
UNDER_ASGI_ALONE = {"percent signs": [("cookie", "sid=%52EAL")]}
UNDER_WSGI_ALONE = {
    "a blank of UTF-8 before": [("cookie", "\xc2\xa0sid=REAL")],
    "what SimpleCookie reads no further": [("cookie", "sid=N; sid=REAL; [; sid=N")],
}


def charged(found, request):
    return {charge.ask.key for charge in found.plan(request)}


@pytest.mark.parametrize("lines", [*DISGUISES.values(), *UNDER_ASGI_ALONE.values()])
def test_under_asgi_each_disguise_is_counted_under_the_session(lines):
    found = rules(BY_USER, client=USER)
    assert charged(found, asgi([("cookie", "sid=REAL")])) < charged(found, asgi([*lines, ("x", "y")])) | {"more"}


@pytest.mark.parametrize("lines", [*DISGUISES.values(), *UNDER_WSGI_ALONE.values()])
def test_under_wsgi_each_disguise_is_counted_under_the_session(lines):
    found = rules(BY_USER, client=USER)
    served = charged(found, wsgi([("cookie", "sid=REAL")]))
    if len(lines) > 1:  # which the server joins by commas, before any framework
        lines = [("cookie", "; ".join(line for _, line in lines))]
    assert served < charged(found, wsgi(lines)) | {"more"}


@pytest.mark.parametrize("make", [asgi, wsgi])
def test_every_distinct_value_is_counted_once_and_all_of_them_must_allow(make):
    limiter = RateLimiter({"domain": "d", "client": USER, "rules": [BY_USER]}, clock=ManualClock(0))
    engine = limiter.engine
    for _ in range(3):
        assert engine.decide(make([("cookie", "sid=REAL")])).allowed
    verdicts = [engine.decide(make([("cookie", f"sid=bogus{n}; sid=REAL")])) for n in range(30)]
    assert [verdict.allowed for verdict in verdicts] == [False] * 30
    assert all(len({charge.ask.key for charge in verdict.charges}) == 2 for verdict in verdicts)
    limiter.close()


def test_a_match_holds_if_any_reading_holds():
    found = rules({"match": {"cookie:plan": "free"}}, {"match": {"cookie:plan": "other"}})
    assert [charge.rule.name for charge in found.plan(asgi([("cookie", "plan=x; plan=free")]))] == ["r0"]
    assert [charge.rule.name for charge in found.plan(asgi([("cookie", "plan=free; plan=x")]))] == ["r0"]
    both = found.plan(asgi([("cookie", "plan=other; plan=free")]))
    assert [charge.rule.name for charge in both] == ["r0", "r1"]
    assert found.plan(asgi([("cookie", "plan=x; plan=y")])) == ()


def test_an_exemption_needs_all_readings_to_agree():
    found = rules({"by": "global"}, exempt=[{"cookie:probe": "1"}])
    assert found.plan(asgi([("cookie", "probe=1")])) == ()
    for lines in (["probe=1; probe=2"], ["probe=2; probe=1"], ["a=b", "probe=1"], ["probe=1", "probe=2"]):
        assert len(found.plan(asgi([("cookie", line) for line in lines]))) == 1


def test_a_rule_is_replaced_where_all_readings_agree():
    found = rules({"name": "all", "by": "ip"}, {**BY_USER, "replaces": ["all"]}, client=USER)
    assert [charge.rule.name for charge in found.plan(asgi([("cookie", "sid=1")]))] == ["own"]
    assert [charge.rule.name for charge in found.plan(asgi([("cookie", "sid=1; sid=2")]))] == ["own", "own"]
    assert {charge.rule.name for charge in found.plan(asgi(TWO_LINES))} == {"all", "own"}


def test_a_tier_on_which_readings_differ_is_the_default():
    limit = {"default": "3 per minute", "premium": "300 per minute"}
    found = rules({"by": "global", "limit": limit}, client={"tier": "cookie:plan"})
    assert [charge.ask.quota.limit for charge in found.plan(asgi([("cookie", "plan=premium")]))] == [300]
    for line in ("plan=premium; plan=x", "plan=x; plan=premium"):
        assert [charge.ask.quota.limit for charge in found.plan(asgi([("cookie", line)]))] == [3]
    found = rules({"by": "global", "limit": limit}, client={"tier": "header:X-Plan"})
    assert [charge.ask.quota.limit for charge in found.plan(asgi([("x-plan", "premium"), ("x-plan", "free")]))] == [3]


def test_a_user_of_one_reading_is_not_counted_by_the_address_as_well():
    found = rules({"by": "user|ip"}, client=USER)
    keys = charged(found, asgi(TWO_LINES))
    assert charged(found, asgi([("cookie", "sid=REAL")])) <= keys
    assert not charged(found, asgi()) & keys


def test_a_block_holds_in_any_reading_and_an_exemption_in_all():
    blocked = rules({"by": "ip"}, client=USER, overrides=[{"client": {"user": REAL}, "block": True}])
    free = rules({"by": "ip"}, client=USER, overrides=[{"client": {"user": REAL}, "exempt": True}])
    for line, all_agree in (("sid=REAL", True), ("sid=REAL; sid=2", False), ("sid=2; sid=REAL", False)):
        (charge,) = blocked.plan(asgi([("cookie", line)]))
        assert charge.rule.name == "block"
        assert bool(free.plan(asgi([("cookie", line)]))) is not all_agree


def test_descriptors_are_asked_in_each_reading():
    limit = {"unit": "minute", "requests_per_unit": 3}
    found = rules(
        attributes={"session": "cookie:sid"}, descriptors=[{"key": "session", "rate_limit": limit}], domain="d"
    )
    assert len(charged(found, asgi([("cookie", "sid=1; sid=2")]))) == 2


def test_a_rule_that_is_asked_for_by_name_is_asked_in_each_reading():
    found = rules({**BY_USER, "on_demand": True}, client=USER)
    assert len(found.plan_rule("own", asgi([("cookie", "sid=1; sid=2")]))) == 2
    assert len(found.plan_rule("own", asgi([("cookie", "sid=1")]))) == 1


def test_the_highest_cost_is_charged():
    found = rules({"by": "global", "cost": "header:X-Cost", "limit": "9 per minute"})
    (charge,) = found.plan(asgi([("x-cost", "1"), ("x-cost", "5")]))
    assert charge.ask.cost == 5


def test_a_preflight_is_counted_in_each_reading():
    found = rules({"match": {"host": "api.example.com"}, "by": "global"})
    headers = [("origin", "https://a.example"), ("access-control-request-method", "POST")]
    request = asgi([*headers, ("host", "api.example.com:x")], method="OPTIONS")
    assert len(found.plan(request)) == 1


def test_a_function_is_asked_once_for_all_readings():
    source = {"user": "cookie:sid", "tier": "python:tests.rules.test_doubts:counting"}
    found = rules({**BY_USER, "limit": {"default": "3 per minute", "gold": "5 per minute"}}, client=source)
    ASKED.clear()
    assert len(found.plan(asgi([("cookie", "sid=1; sid=2; sid=3")]))) == 2
    assert len(ASKED) == 1


ASKED = []


def counting(context):
    ASKED.append(context)
    return "gold"


@pytest.mark.parametrize("lines", DISGUISES.values())
def test_a_deferred_request_is_read_again_in_each_way(lines):
    found = rules(BY_USER, client=USER)
    request = asgi(lines)
    charges = found.plan(request)
    again = DeferredRequest(unpacked(of_asgi(request, ()).packed()))
    assert {charge.ask.key for charge in found.plan(again)} == {charge.ask.key for charge in charges}


def test_an_envelope_of_before_has_no_readings():
    packed = of_asgi(asgi(), None).packed().replace(b',"rows":[]', b"")
    assert b"rows" not in packed
    assert unpacked(packed).alternatives == ()


HOSTS = ("api.example.com:x", "api.example.com:80:1", "API.example.com:80", "api.example.com.", "api.example.com.:80")


@pytest.mark.parametrize("host", [*HOSTS, "api.example.com:", "api.example.com:80@evil"])
@pytest.mark.parametrize("make", [asgi, wsgi])
def test_a_host_is_matched_as_any_framework_reads_it(make, host):
    found = rules({"match": {"host": "api.example.com"}, "by": "global"})
    assert len(found.plan(make([("host", host)]))) == 1
    assert found.plan(make([("host", f"evil.{host}")])) == ()


@pytest.mark.parametrize("host", ["api.example.com:x", "api.example.com:80:1", "api.example.com:80@evil"])
def test_a_host_is_exempt_where_all_readings_agree(host):
    found = rules({"by": "global"}, exempt=[{"host": "api.example.com"}])
    assert len(found.plan(asgi([("host", host)]))) == 1
    assert found.plan(asgi([("host", "API.example.com:8000")])) == ()


def test_without_a_host_the_server_is_the_host():
    found = rules({"match": {"host": "127.0.0.1"}, "by": "global"})
    assert len(found.plan(asgi(server=("127.0.0.1", 8000)))) == 1
    assert len(found.plan(WsgiRequest(environ(SERVER_NAME="127.0.0.1")))) == 1
    assert found.plan(asgi(server=None)) == ()


@pytest.mark.parametrize(
    ("name", "headers", "query"),
    [
        pytest.param("header:X-Key", [("x-key", "N"), ("x-key", "REAL")], "", id="the last header"),
        pytest.param("header:X-Key", [("x-key", "REAL"), ("x-key", "N")], "", id="the first header"),
        pytest.param("header:X-Key", [("x_key", "REAL")], "", id="an underscore"),
        pytest.param(
            "header:Authorization", [("authorization", "N"), ("authorization", "Bearer REAL")], "", id="a token"
        ),
        pytest.param("query:key", [], "key=N&key=REAL", id="the last parameter"),
        pytest.param("query:key", [], "key=REAL&key=N", id="the first parameter"),
    ],
)
def test_what_is_sent_twice_is_counted_under_each(name, headers, query):
    found = rules({"by": "user"}, client={"user": name})
    plain = [("authorization", "Bearer REAL")] if "Auth" in name else [("x-key", "REAL")]
    assert charged(found, asgi(plain, query="key=REAL")) <= charged(found, asgi(headers, query=query))


def test_a_semicolon_parts_parameters_for_old_bottle():
    found = rules({"by": "user"}, client={"user": "query:key"})
    assert charged(found, wsgi(query="key=REAL")) <= charged(found, wsgi(query="key=N;key=REAL"))


def test_plans_of_requests_in_doubt_are_not_remembered():
    limiter = RateLimiter({"domain": "d", "client": {"user": "header:X-Key"}, "rules": [BY_USER]}, clock=ManualClock(0))
    planner, found = limiter.engine.planner, limiter.rules
    assert planner.plan(found, asgi([("x_key", "REAL")])).asks
    assert planner.plan(found, asgi()).asks == ()
    assert planner.plan(found, asgi([("x_key", "OTHER")])).asks != planner.plan(found, asgi([("x_key", "REAL")])).asks
    limiter.close()


def test_under_django_a_request_is_read_in_one_way():
    found = rules(BY_USER, client=USER)
    assert len(charged(found, DjangoRequest(environ([("cookie", "\xc2\xa0sid=1; sid=REAL")])))) == 1


def test_an_explanation_shows_a_rule_that_another_reading_matches():
    limiter = RateLimiter({"domain": "d", "client": USER, "rules": [{**BY_USER, "match": {"cookie:sid": REAL}}]})
    explained = limiter.explain(asgi([("cookie", "sid=REAL; sid=2")]))
    assert [(rule.status, len(rule.keys)) for rule in explained.rules] == [("applies", 1)]
    limiter.close()
