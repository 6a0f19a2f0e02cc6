"""A request with several values behind a name: what it is counted under, and what it is spared."""

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.deferral.queue import of_asgi, unpacked
from ratelimit_mw.identity.fields import TOO_MANY
from ratelimit_mw.identity.http_request import WsgiRequest
from ratelimit_mw.rules.compiled import NamedRule
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
    for lines in (["probe=1; probe=2"], ["probe=2; probe=1"], ["probe=1", "probe=2"]):
        assert len(found.plan(asgi([("cookie", line) for line in lines]))) == 1


def test_a_rule_is_replaced_where_all_values_are_equal():
    found = rules({"name": "all", "by": "ip"}, {**BY_USER, "replaces": ["all"]}, client=USER)
    assert [charge.rule.name for charge in found.plan(asgi([("cookie", "sid=1")]))] == ["own"]
    assert [charge.rule.name for charge in found.plan(asgi([("cookie", "sid=1; sid=1")]))] == ["own"]
    assert [charge.rule.name for charge in found.plan(asgi([("cookie", "sid=1; sid=2")]))] == ["all", "own", "own"]


def test_of_several_tiers_the_strictest_limit_applies():
    limit = {"default": "30 per minute", "premium": "300 per minute", "free": "3 per minute"}
    found = rules({"by": "global", "limit": limit}, client={"tier": "cookie:plan"})
    for line, expected in (
        ("plan=premium", 300),
        ("plan=premium; plan=free", 3),
        ("plan=free; plan=premium", 3),
        ("plan=premium; plan=x", 30),
        (";".join(f"plan={tier}" for tier in ("premium", "a", "b", "c", "d")), 3),
    ):
        assert {charge.ask.quota.limit for charge in found.plan(asgi([("cookie", line)]))} == {expected}, line
        assert len(charged(found, asgi([("cookie", line)]))) == 1


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


def test_too_many_values_are_counted_by_each_descriptor_of_their_key():
    descriptors = [
        {"key": "kind", "value": value, "rate_limit": {"unit": "day", "requests_per_unit": 1}} for value in "ab"
    ]
    found = rules(descriptors=descriptors, attributes={"kind": "header:x-kind"})
    one, many = asgi([("x-kind", "a")]), asgi([("x-kind", value) for value in "avwxyz"])
    assert charged(found, one) < charged(found, many)


def test_a_rule_that_is_asked_for_by_name_is_asked_in_each_reading():
    found = rules({**BY_USER, "on_demand": True}, client=USER)
    assert len(found.plan_rule(NamedRule("own"), asgi([("cookie", "sid=1; sid=2")]))) == 2
    assert len(found.plan_rule(NamedRule("own"), asgi([("cookie", "sid=1")]))) == 1


def test_the_highest_cost_is_charged():
    found = rules({"by": "global", "cost": "header:X-Cost", "limit": "9 per minute"})
    for costs in (["1", "5"], ["5", "1"]):
        assert {charge.ask.cost for charge in found.plan(asgi([("x-cost", cost) for cost in costs]))} == {5}
    many = [("x-cost", str(cost)) for cost in range(5)]
    assert all(charge.ask.cost > 10**9 for charge in found.plan(asgi(many)))


def test_a_preflight_is_counted_in_each_reading():
    found = rules({"match": {"host": "api.example.com"}, "by": "global"})
    headers = [("origin", "https://a.example"), ("access-control-request-method", "POST")]
    request = asgi([*headers, ("host", "api.example.com:x")], method="OPTIONS")
    assert len(found.plan(request)) == 1


@pytest.mark.parametrize("make", [asgi, wsgi])
@pytest.mark.parametrize("cookie", ["sid=1", "sid=1; sid=2", 'sid="1;2"', "sid=a\xe9; sid=b", "sid=1;" * 40])
@pytest.mark.parametrize("query", ["", "plan=gold", "plan=gold&plan=free", "&".join(f"plan={n}" for n in range(4))])
def test_an_exception_that_holds_for_another_client_changes_nothing(make, cookie, query):
    limit = {"default": "3 per minute", "gold": "5 per minute"}
    listed = [{**BY_USER, "limit": limit}, {"match": {"cookie:sid": "2"}, "by": "query:plan"}]
    client = {**USER, "tier": "query:plan"}
    plain, excepting = rules(*listed, client=client), rules(*listed, client=client, exempt=[{"ip": "203.0.113.99"}])
    lines = [("cookie", cookie)]
    assert plain.plan(make(lines, query=query)) == excepting.plan(make(lines, query=query))


@pytest.mark.parametrize("exempt", [[], [{"ip": "203.0.113.99"}]])
def test_what_one_reading_alone_asks_for_is_read_in_all_ways(exempt):
    found = rules({"match": {"cookie:a": "2"}, "by": "query:q"}, exempt=exempt)
    assert len(found.plan(asgi([("cookie", "a=1; a=2")], query="q=x&q=y"))) == 2


def test_a_function_is_asked_once_for_all_readings():
    source = {"user": "cookie:sid", "tier": "python:tests.rules.test_doubts:counting"}
    found = rules({**BY_USER, "limit": {"default": "3 per minute", "gold": "5 per minute"}}, client=source)
    ASKED.clear()
    assert len(found.plan(asgi([("cookie", "sid=1; sid=2; sid=3")]))) == 3
    assert len(ASKED) == 1


ASKED = []


def counting(context):
    ASKED.append(context)
    return "gold"


@pytest.mark.parametrize("lines", DISGUISES.values())
def test_a_replay_of_a_deferred_request_is_counted_in_each_way_that_the_request_was_read(lines):
    found = rules(BY_USER, client=USER)
    request, replay = asgi(lines), asgi([])
    charges = found.plan(request)
    unpacked(of_asgi(request, ()).packed()).restore(replay)
    assert {charge.ask.key for charge in found.plan(replay)} == {charge.ask.key for charge in charges}


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


def test_a_remembered_plan_belongs_to_one_spelling_of_a_header():
    config = {"domain": "d", "client": {"user": "header:X-Key"}, "rules": [BY_USER]}
    limiter = RateLimiter(config, clock=ManualClock(0))
    planner, found = limiter.engine.planner, limiter.rules

    def keys(*headers):
        for _ in range(3):  # a plan is kept when it is made again
            asks = planner.plan(found, asgi(list(headers))).asks
        return [ask.key for ask in asks]

    assert keys() == []
    assert keys(("x_key", "REAL")) == keys(("x-key", "REAL")) != []
    assert keys(("x_key", "OTHER")) not in ([], keys(("x_key", "REAL")))
    assert len(keys(("x-key", "REAL"), ("x_key", "OTHER"))) == 3
    assert len(keys(("x-key", "RE"), ("x-key", "OTHER"), ("x-key", "AL"))) == 4
    assert len(keys(("x-key", "RE"), ("x_key", "OTHER"), ("x-key", "AL"))) == 5  # and under "RE,AL"
    assert len(keys(*[("x-key", str(n)) for n in range(70)])) == 2
    limiter.close()


def test_a_remembered_plan_belongs_to_one_address_and_to_one_server():
    client = {"trusted_proxies": ["192.0.2.9"], "user": "header:X-Forwarded-For"}
    limiter = RateLimiter({"domain": "d", "client": client, "rules": [{**BY_USER, "by": ["ip", "user", "host"]}]})
    planner, found = limiter.engine.planner, limiter.rules

    def keys(headers, server):
        for _ in range(3):
            asks = planner.plan(found, asgi(headers, server=(server, 80))).asks
        return [ask.key for ask in asks]

    forwarded, forged = [("x-forwarded-for", "203.0.113.1")], [("x_forwarded_for", "203.0.113.1")]
    assert keys(forwarded, "a")[0] != keys(forged, "a")[0]
    assert keys(forged, "a")[1:2] == keys(forwarded, "a")[1:2]
    assert keys(forwarded, "a")[2] != keys(forwarded, "b")[2]
    limiter.close()


def five(name="sid"):
    return [("cookie", "; ".join(f"{name}={n}" for n in range(5)))]


@pytest.mark.parametrize("make", [asgi, wsgi])
def test_four_values_are_counted_under_each_and_more_under_one_identity_and_the_address(make):
    found = rules(BY_USER, client=USER)
    four = charged(found, make([("cookie", "sid=1; sid=2; sid=3; sid=4")]))
    assert four == {key for n in range(1, 5) for key in charged(found, make([("cookie", f"sid={n}")]))}
    shared, here = charged(found, make(five())), charged(rules({**BY_USER, "by": "ip"}), make())
    assert len(shared) == 2
    assert here < shared
    elsewhere = charged(found, make([("cookie", "; ".join(f"sid=x{n}" for n in range(9)))], peer="192.0.2.77"))
    assert shared & elsewhere == shared - here


def test_four_lines_of_a_header_are_counted_under_each():
    found = rules({**BY_USER}, client={"user": "header:X-User"})
    four = charged(found, asgi([("x-user", str(n)) for n in range(4)]))
    assert four > {key for n in range(4) for key in charged(found, asgi([("x-user", str(n))]))}
    assert len(charged(found, asgi([("x-user", str(n)) for n in range(5)]))) == 2
    assert len(charged(found, asgi([("x-user", "1")] * 4))) == 2  # and under "1,1,1,1", as Django reads it


def test_a_text_beyond_64_kib_is_counted_under_the_shared_identity():
    found = rules(BY_USER, client=USER)
    shared = charged(found, asgi(five()))
    for lines in ([f"sid=1; a={'x' * 65536}"], ["sid=1"] + ["a=b"] * 64):
        assert charged(found, asgi([("cookie", line) for line in lines])) == shared
    assert len(charged(found, asgi([("cookie", f"sid=1; a={'x' * 65000}")]))) == 1


def test_too_many_values_satisfy_each_match_but_no_exemption_and_no_replacement():
    named = [{"name": f"m{n}", "match": {"cookie:plan": f"p{n}"}} for n in range(3)]
    also = {"name": "path", "match": {"path": "/", "cookie:plan": "other"}}
    free = {"exempt": [{"cookie:plan": "p0"}]}
    found = rules({"name": "all"}, *named, also, {**named[0], "name": "r", "replaces": ["all"]}, **free)
    names = {charge.rule.name for charge in found.plan(asgi(five("plan")))}
    assert names == {"all", "m0", "m1", "m2", "path", "r"}


def test_a_block_of_a_user_holds_for_too_many_values():
    found = rules({"by": "ip"}, client=USER, overrides=[{"client": {"user": REAL}, "block": True}])
    (charge,) = found.plan(asgi(five()))
    assert charge.rule.name == "block"
    assert found.plan(asgi([("cookie", "sid=1; sid=2")]))[0].rule.name != "block"


def test_too_many_combinations_are_too_many_values():
    client = {"user": "cookie:sid", "tier": "header:X-Plan"}
    found = rules({"by": "user+tier+query:q"}, client=client)
    headers = [("cookie", "sid=1; sid=2; sid=3"), ("x-plan", "1"), ("x-plan", "2")]
    assert len(charged(found, asgi(headers, query="q=1"))) == 9
    assert len(charged(found, asgi(headers, query="q=1&q=2"))) == len(TOO_MANY)


def test_a_name_in_the_path_of_a_rule_is_read_only_there():
    found = rules({"match": {"path": "/a"}, "by": "cookie:sid"})
    request = asgi([("cookie", "sid=1; sid=2")], path="/b")
    assert found.plan(request) == ()
    assert not request.values.keys() & {"cookie:sid"}


def test_an_explanation_shows_a_rule_that_another_reading_matches():
    limiter = RateLimiter({"domain": "d", "client": USER, "rules": [{**BY_USER, "match": {"cookie:sid": REAL}}]})
    explained = limiter.explain(asgi([("cookie", "sid=REAL; sid=2")]))
    assert [(rule.status, len(rule.keys)) for rule in explained.rules] == [("applies", 2)]
    limiter.close()
