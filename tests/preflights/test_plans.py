"""What a preflight is, which rules it is held to, and in which counters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.identity import WsgiRequest
from ratelimit_mw.model import Quota
from ratelimit_mw.rules.preflights import is_preflight_key, preflight_key, preflight_quota
from tests.rules.corpus import request, rules

case = pytest.param
ORIGIN = "https://shop.example"
ASKED = {"origin": ORIGIN, "access-control-request-method": "PUT"}


def preflight(method="PUT", **headers):
    return {"origin": ORIGIN, "access-control-request-method": method, **headers}


def planned(rule_set, path="/", *, method="OPTIONS", headers=None, cost=1, **more):
    asked = request(path, method, preflight() if headers is None else headers, **more)
    return rule_set.plan(asked, cost)


def keys(*args, **kwargs):
    return [charge.ask.key for charge in planned(*args, **kwargs)]


@pytest.mark.parametrize(
    ("method", "headers", "apart"),
    [
        case("OPTIONS", ASKED, True, id="a browser's"),
        case("options", ASKED, True, id="in lower case, as some frameworks read it"),
        case("OPTIONS", preflight("put"), True, id="a method in lower case"),
        case("OPTIONS", preflight("X-OWN"), True, id="a method of one's own"),
        case("OPTIONS", {**ASKED, "origin": "null"}, True, id="of a page without an origin"),
        case("OPTIONS", {}, False, id="a plain OPTIONS"),
        case("OPTIONS", {"origin": ORIGIN}, False, id="without a method"),
        case("OPTIONS", {"access-control-request-method": "PUT"}, False, id="without an origin"),
        case("OPTIONS", {**ASKED, "origin": " "}, False, id="with an empty origin"),
        case("OPTIONS", {**ASKED, "origin": "a, b"}, False, id="with two origins"),
        case("OPTIONS", preflight(""), False, id="with an empty method"),
        case("OPTIONS", preflight("PUT, GET"), False, id="with two methods"),
        case("OPTIONS", preflight("PUT\x0b"), False, id="with a method that is none"),
        case("GET", ASKED, False, id="a GET that looks like one"),
    ],
)
def test_what_no_browser_sends_is_counted_like_any_request(method, headers, apart):
    (key,) = keys(rules({}), method=method, headers=headers)
    assert key == ("d:r0:preflight-sw60:{ip=192.0.2.1}" if apart else "d:r0:sw60:{ip=192.0.2.1}")


def test_two_lines_of_a_header_come_from_no_browser():
    asked = request(method="OPTIONS", headers=ASKED)
    for line in ((b"origin", b"x"), (b"access-control-request-method", b"PUT")):
        asked.context["headers"].append(line)
        assert [charge.ask.key for charge in rules({}).plan(asked)] == ["d:r0:sw60:{ip=192.0.2.1}"]
        asked.context["headers"].remove(line)


@pytest.mark.parametrize(
    ("methods", "expected"),
    [
        case({}, ["d:r0:preflight-sw60:{ip=192.0.2.1}"], id="every method"),
        case({"methods": "PUT"}, ["d:r0:preflight-sw60:{ip=192.0.2.1}"], id="the one announced"),
        case({"methods": ["GET", "DELETE"]}, [], id="others"),
        case({"methods": "OPTIONS"}, ["d:r0:sw60:{ip=192.0.2.1}"], id="OPTIONS"),
        case({"methods": ["PUT", "OPTIONS"]}, ["d:r0:sw60:{ip=192.0.2.1}"], id="both: once, like any request"),
    ],
)
def test_a_preflight_is_held_to_the_rules_of_the_method_that_it_announces(methods, expected):
    assert keys(rules({"match": {**methods, "path": "/*"}} if methods else {})) == expected


def test_a_preflight_for_head_is_held_to_the_rules_of_get():
    rule_set = rules({"match": {"methods": "GET"}, "by": "method"})
    assert keys(rule_set, headers=preflight("HEAD")) == keys(rule_set, headers=preflight("GET")) != []


def test_methods_that_a_client_invents_share_one_counter():
    rule_set = rules({"by": "ip+method"})
    found = {key for n in range(50) for key in keys(rule_set, headers=preflight(f"X{n}"))}
    assert len(found) == 1
    usual = [key for name in ("GET", "PUT", "POST") for key in keys(rule_set, headers=preflight(name))]
    assert len({*usual, *found}) == 4


@pytest.mark.parametrize(
    "text", ["preflight-", "preflight-sw60:", "x:preflight-sw60:{ip=192.0.2.1}", "%3Apreflight-sw60", "d:r0"]
)
def test_no_identity_and_no_name_forges_the_key_of_a_preflight(text):
    by = ["header:x", "path", "host", "ip"]
    named = rules({"name": text, "by": by}, {"by": by})
    requests = keys(named, f"/{text}", method="GET", headers={"x": text, "host": text})
    preflights = keys(named, f"/{text}", headers={**ASKED, "x": text, "host": text})
    assert len({*requests, *preflights}) == len(requests) + len(preflights) > 8
    assert not any(map(is_preflight_key, requests))
    assert all(map(is_preflight_key, preflights))
    assert list(map(preflight_key, requests)) == preflights == list(map(preflight_key, preflights))


USER = {"client": {"user": "header:x-user", "tier": "header:x-tier", "secret": "s"}, "attributes": {"own": "header:x"}}


def limits(rule_set, **kwargs):
    return [(charge.rule.name, charge.ask.quota.limit) for charge in planned(rule_set, **kwargs)]


@pytest.mark.parametrize(
    ("rule", "headers", "expected"),
    [
        case({"by": "ip"}, {}, [5], id="by address"),
        case({"by": "user|ip"}, {}, [50], id="for want of a user"),
        case({"by": "user | remote_address"}, {}, [50], id="spelled otherwise"),
        case({"by": "own|ip"}, {}, [50], id="for want of a header"),
        case({"by": "cookie:sid|header:a+path|ip+path"}, {}, [50], id="of several choices"),
        case({"by": "user|ip"}, {"x-user": "ann"}, [5], id="with a user"),
        case({"by": ["user|ip", "ip"]}, {}, [5], id="where the address has a counter anyway"),
        case({"by": ["user", "ip"]}, {}, [5], id="a counter that is left out"),
        case({"by": "query:q|ip"}, {}, [5], id="what a preflight has is no credential"),
        case({"by": "user|global"}, {}, [5], id="a fallback that is no address"),
        case({"limit": {"default": "5/m", "gold": "9/m"}}, {}, [50], id="for want of a tier"),
        case({"limit": {"default": "5/m", "gold": "9/m"}}, {"x-tier": "gold"}, [9], id="with a tier"),
        case({"limit": {"default": "5/m", "gold": "9/m"}}, {"x-tier": "tin"}, [5], id="with an unknown tier"),
        case({"by": "user|ip", "limit": "0 per day"}, {}, [0], id="ten times nothing"),
        case({"by": "user|ip", "limit": "5000/h", "algorithm": "sliding_log"}, {}, [10_000], id="as a log remembers"),
        case({"by": "user|ip", "limit": "900000000/h"}, {}, [10**9], id="as a limit may be"),
    ],
)
def test_a_preflight_counted_by_address_for_want_of_credentials_has_ten_times_the_limit(rule, headers, expected):
    assert [limit for _, limit in limits(rules(rule, **USER), headers=preflight(**headers))] == expected


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        case({"by": "ip", "limit": "9 per minute"}, [("r1", 9)], id="one that counts"),
        case({"limit": "unlimited"}, [], id="an unlimited one"),
        case({"by": "user"}, [("r0", 50)], id="one that lacks its user: ten times"),
        case({"by": "query:q"}, [("r0", 5)], id="one that lacks what its requests lack, too"),
        case({"limit": "unlimited", "match": {"methods": "PUT"}}, [("r0", 50)], id="unlimited by what is announced"),
        case({"limit": "9 concurrent"}, [("r0", 50)], id="one that gives preflights no place"),
        case({"limit": "unlimited", "match": {"methods": "GET"}}, [("r0", 5)], id="one that does not match"),
        case({"limit": "unlimited", "match": {"methods": "OPTIONS"}}, [], id="unlimited for OPTIONS"),
    ],
)
def test_a_client_turns_no_rule_off_by_what_it_announces(rule, expected):
    assert limits(rules({}, {"replaces": "r0", **rule}, **USER)) == expected


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        case({"path": "/"}, [], id="a path"),
        case({"methods": "OPTIONS"}, [], id="OPTIONS"),
        case({"methods": "PUT"}, [("r0", 50)], id="the method announced: ten times the limit"),
        case({"methods": "GET"}, [("r0", 5)], id="another method"),
    ],
)
def test_what_is_exempt(entry, expected):
    assert limits(rules({}, exempt=[entry])) == expected


def test_its_cost_is_one():
    rule_set = rules({"cost": 5}, {"cost": "header:x"}, {"cost": "response:X-Cost"}, **USER)
    for cost, expected in ((1, 1), (7, 1), (0, 0)):
        charges = planned(rule_set, headers=preflight(x="3"), cost=cost)
        assert [charge.ask.cost for charge in charges] == [expected] * 3
        assert not any(charge.rule.cost_after for charge in charges)


def test_it_takes_no_concurrent_place():
    rule_set = rules({"limit": ["2 concurrent"]}, {"by": "global"})
    assert [charge.rule.name for charge in planned(rule_set)] == ["r1"]


@pytest.mark.parametrize("rule", [{"algorithm": "leaky_bucket"}, {"algorithm": "token_bucket", "max_wait": "9s"}])
def test_it_waits_for_no_turn(rule):
    (charge,) = planned(rules({**rule, "burst": 7}))
    quota = charge.ask.quota
    assert (quota.algorithm, quota.limit, quota.burst, quota.max_wait) == ("token_bucket", 5, 7, 0)


def test_a_throttle_holds_for_preflights_too():
    soft = Quota("sliding_window", 110, 60, spare=10, over="soft")
    wide = preflight_quota(soft, eased=True)
    assert (wide.limit, wide.spare, wide.shown_limit) == (1100, 100, 1000)
    bucket = Quota("token_bucket", 100, 10**8, burst=22, spare=2, over="soft")
    wide = preflight_quota(bucket, eased=True)
    assert (wide.limit, wide.burst, wide.spare) == (1000, 220, 20)
    (charge,) = planned(rules({"throttle": {"elastic": {"up_to": "200%", "below": 0.5}}}))
    open_quotas = charge.ask.quota.elastic.quotas
    assert [open_quotas[0].limit, open_quotas[-1].limit] == [5, 10]


def test_elastic_rules_that_differ_only_in_when_they_open_stay_apart():
    rule_set = rules(*({"throttle": {"elastic": {"up_to": "200%", "below": below}}} for below in (0.5, 0.7)))
    for _ in range(2):
        assert [charge.ask.quota.elastic.below for charge in planned(rule_set)] == [0.5, 0.7]


def test_rules_in_shadow_and_windows_of_one_rule():
    charges = planned(rules({"shadow": True, "limit": ["5 per minute", "20 per hour"], "by": ["ip", "global"]}))
    assert [charge.ask.key for charge in charges] == [
        "d:r0:preflight-sw60:{ip=192.0.2.1}",
        "d:r0:preflight-sw3600:{ip=192.0.2.1}",
        "d:r0:preflight-sw60:{*}",
        "d:r0:preflight-sw3600:{*}",
    ]
    assert all(charge.ask.shadow for charge in charges)


def test_a_rule_asked_for_by_its_name_counts_preflights_apart():
    rule_set = rules({"match": {"path": "/p", "methods": "GET"}}, {"match": {"methods": "OPTIONS"}})
    asked = request("/", "OPTIONS", ASKED)
    (apart,), (plain,) = rule_set.plan_rule("r0", asked, 3), rule_set.plan_rule("r1", asked, 3)
    assert (apart.ask.key, apart.ask.cost) == ("d:r0:preflight-sw60:{ip=192.0.2.1}", 1)
    assert (plain.ask.key, plain.ask.cost) == ("d:r1:sw60:{ip=192.0.2.1}", 3)


def limit_of(unit="minute", **more):
    return {"rate_limit": {"unit": unit, "requests_per_unit": 5}, **more}


@pytest.mark.parametrize(
    ("descriptors", "expected"),
    [
        case([{"key": "method", "value": "PUT", **limit_of()}], ["d:/method=PUT:preflight-fw60:{*}"], id="announced"),
        case([{"key": "method", "value": "OPTIONS", **limit_of()}], ["d:/method=OPTIONS:fw60:{*}"], id="OPTIONS"),
        case([{"key": "method", "value": "GET", **limit_of()}], [], id="another"),
        case(
            [{"key": "method", "value": "OPTIONS", **limit_of()}, {"key": "method", "value": "PUT", **limit_of()}],
            ["d:/method=OPTIONS:fw60:{*}"],
            id="both: once",
        ),
        case([{"key": "method", **limit_of()}], ["d:/method:preflight-fw60:{method=PUT}"], id="every method"),
        case([{"key": "ip", **limit_of()}], ["d:/ip:preflight-fw60:{ip=192.0.2.1}"], id="no method"),
    ],
)
def test_descriptors_count_preflights_apart(descriptors, expected):
    entries = [[descriptors[0]["key"]]]
    rule_set = rules(descriptors=descriptors, entries=entries)
    charges = planned(rule_set, cost=4)
    assert [charge.ask.key for charge in charges] == expected
    assert [charge.ask.cost for charge in charges] == [1 if is_preflight_key(key) else 4 for key in expected]


names = st.sampled_from(["origin", "Origin", "access-control-request-method", "upgrade", "x-http-method-override", "x"])
words = st.sampled_from(["", " ", "POST", "options", "null", ORIGIN, "a, b", "websocket", "\t", "\xe9", "(", "GET,"])
lines = st.lists(st.tuples(names, words | st.text(st.characters(max_codepoint=255), max_size=9)), max_size=6)
verbs = st.sampled_from(["OPTIONS", "options", "GET", "head", "TRACE", "CONNECT", "PROPFIND", ""])


@given(method=verbs, headers=lines)
def test_whatever_a_client_writes_one_of_two_counters_is_asked(method, headers):
    encoded = [(name.encode(), text.encode("latin-1")) for name, text in headers]
    environ = {f"HTTP_{name.upper().replace('-', '_')}": text for name, text in headers}
    asked = [
        request(method=method),
        WsgiRequest({"REQUEST_METHOD": method, "REMOTE_ADDR": "192.0.2.1", "PATH_INFO": "/", **environ}),
    ]
    asked[0].context["headers"] = encoded
    for each in asked:
        (charge,) = EVERYBODY.plan(each)
        assert charge.ask.key in ("d:r0:sw60:{ip=192.0.2.1}", "d:r0:preflight-sw60:{ip=192.0.2.1}")
        assert charge.ask.quota.limit == 5


EVERYBODY = rules({})
