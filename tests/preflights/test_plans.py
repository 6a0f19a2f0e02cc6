"""What a preflight is, which rules it is held to, and in which counters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.identity.http_request import WsgiRequest
from ratelimit_mw.model import SECOND, Quota
from ratelimit_mw.rules.compiled import NamedRule
from ratelimit_mw.rules.preflights import is_preflight_key, preflight_key
from tests.rules.corpus import request, rules

case = pytest.param
ORIGIN = "https://shop.example"
ASKED = {"origin": ORIGIN, "access-control-request-method": "PUT"}


def preflight(method="PUT", **headers):
    return {"origin": ORIGIN, "access-control-request-method": method, **headers}


def planned(rule_set, path="/", *, method="OPTIONS", headers=None, cost=1, **more):
    return rule_set.plan(request(path, method, preflight() if headers is None else headers, **more), cost)


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


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
@pytest.mark.parametrize("cookie", ["sid=a", "sid=a; sid=b", "sid=a; sid=b; sid=c; sid=d; sid=e"])
def test_only_options_is_a_preflight_however_many_values_a_client_sends(method, cookie):
    rule_set = rules({"by": "user"}, client={"user": "cookie:sid", "secret": "s"})
    asked = keys(rule_set, method=method, headers={**ASKED, "cookie": cookie})
    assert {is_preflight_key(key) for key in asked} == {method == "OPTIONS"}


def test_two_lines_of_a_header_come_from_no_browser():
    sent = request(method="OPTIONS", headers=ASKED)
    for line in ((b"origin", b"x"), (b"access-control-request-method", b"PUT")):
        sent.context["headers"].append(line)
        assert [charge.ask.key for charge in rules({}).plan(sent)] == ["d:r0:sw60:{ip=192.0.2.1}"]
        sent.context["headers"].remove(line)


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


CLIENT = {
    "client": {"user": "header:x-user", "tier": "header:x-tier", "secret": "s"},
    "attributes": {"own": "header:x"},
}
TIERS = {"limit": {"default": "5/m", "gold": "9/m"}}
BAN = {"after": "3 denials in 1 minute", "for": "1 hour"}


def of_app(_scope):
    """A limit that is a function, see the table."""
    return "7 per hour"


def asked(rule_set, **kwargs):
    return [
        (key.removeprefix("d:"), quota.limit, quota.period // SECOND)
        for _, (key, quota, _, _) in planned(rule_set, **kwargs)
    ]


IP = "{ip=192.0.2.1}"
WINDOW = (f"r0:preflight-sw60:{IP}", 50, 60)


@pytest.mark.parametrize(
    ("rule", "headers", "expected"),
    [
        case({}, {}, [WINDOW], id="by address"),
        case({"by": "user"}, {}, [], id="by user: left out"),
        case({"by": "user|ip"}, {}, [WINDOW], id="by user or address: by address"),
        case({"by": ["user", "ip"]}, {}, [WINDOW], id="of several counters: those whose attribute it has"),
        case({"by": ["ip", "global"]}, {}, [WINDOW, ("r0:preflight-sw60:{*}", 50, 60)], id="each counter"),
        case({"match": {"user": "ann"}}, {}, [], id="of a user that it does not name"),
        case({"limit": ["5/m", "20/h"]}, {}, [WINDOW, (f"r0:preflight-sw3600:{IP}", 200, 3600)], id="each limit"),
        case({"limit": "0 per day"}, {}, [(f"r0:preflight-sw86400:{IP}", 0, 86400)], id="ten times nothing"),
        case({"limit": "900000000/m"}, {}, [(WINDOW[0], 2**32 - 1, 60)], id="as a window can count"),
        case({"limit": "unlimited"}, {}, [], id="unlimited"),
        case({"limit": "5 concurrent"}, {}, [], id="requests in flight"),
        case(TIERS, {}, [WINDOW], id="without a tier"),
        case(TIERS, {"x-tier": "gold"}, [(WINDOW[0], 90, 60)], id="with a tier"),
        case(
            {"limit": "python:tests.preflights.test_plans:of_app"},
            {},
            [(f"r0:preflight-sw3600:{IP}", 70, 3600)],
            id="the limit of a function",
        ),
        case({"algorithm": "token_bucket", "burst": 9}, {}, [(f"r0:preflight-tb60:{IP}", 50, 60)], id="a bucket"),
        case({"algorithm": "leaky_bucket"}, {}, [(f"r0:preflight-lb60:{IP}", 50, 60)], id="a queue"),
        case({"throttle": {"soft": "10%"}}, {}, [WINDOW], id="a soft throttle"),
        case({"throttle": {"elastic": {"up_to": "200%", "below": 0.5}}}, {}, [WINDOW], id="an elastic throttle"),
        case({"algorithm": "fixed_window", "shards": 2}, {}, [(f"r0:preflight-fw60x2:{IP}", 50, 60)], id="shards"),
        case({"shadow": True}, {}, [WINDOW], id="in shadow"),
        case({"on_limit": "defer"}, {}, [WINDOW], id="deferred requests"),
        case({"ban": BAN}, {}, [WINDOW], id="bans"),
        case({"cost": "response:x"}, {}, [WINDOW], id="a cost that is known afterwards"),
    ],
)
def test_a_rule_counts_preflights_in_a_window_with_ten_times_its_limit(rule, headers, expected):
    rule_set = rules(rule, **CLIENT)
    assert asked(rule_set, headers=preflight(**headers)) == expected
    for charge in planned(rule_set, headers=preflight(**headers), cost=7):
        (key, quota, cost, shadow), told = charge.ask, charge.rule
        plain = Quota("fixed_window", quota.limit, quota.period, refundable=quota.refundable, penalty=quota.penalty)
        assert (quota, quota.elastic, cost) == (plain, None, 1), key
        assert quota.penalty is None or quota.penalty.quota.limit == 0, "no step towards a ban"
        assert (shadow, told.cost_after, told.defers) == ("shadow" in rule, None, False)


def test_a_cost_of_nothing_charges_nothing():
    assert [charge.ask.cost for charge in planned(rules({"cost": 5}), cost=0)] == [0]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        case({"limit": "9 per minute"}, [("r1", 90)], id="one that counts"),
        case({"limit": "unlimited"}, [], id="an unlimited one"),
        case({"by": "user"}, [("r0", 50)], id="one that lacks its user"),
        case({"limit": "unlimited", "match": {"methods": "GET"}}, [("r0", 50)], id="one that does not match"),
        case({"limit": "9 per minute", "match": {"methods": "PUT"}}, [("r1", 90)], id="one of the method announced"),
        case({"limit": "unlimited", "match": {"methods": "PUT"}}, [("r0", 50)], id="unlimited by what is announced"),
        case({"limit": "9 concurrent"}, [("r0", 50)], id="one that gives preflights no place"),
        case({"limit": "unlimited", "match": {"methods": "OPTIONS"}}, [], id="unlimited for OPTIONS"),
        case({"limit": "9 per minute", "match": {"methods": "OPTIONS"}}, [("r1", 9)], id="one that names OPTIONS"),
    ],
)
def test_a_client_turns_no_rule_off_by_what_it_announces(rule, expected):
    found = planned(rules({}, {"replaces": "r0", **rule}, **CLIENT))
    assert [(charge.rule.name, charge.ask.quota.limit) for charge in found] == expected


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        case({"path": "/"}, [], id="a path"),
        case({"methods": "OPTIONS"}, [], id="OPTIONS"),
        case({"methods": "PUT"}, [WINDOW], id="the method announced, which any client may write"),
    ],
)
def test_what_is_exempt(entry, expected):
    assert asked(rules({}, exempt=[entry])) == expected


def test_a_rule_asked_for_by_its_name_counts_preflights_apart():
    rule_set = rules({"match": {"path": "/p", "methods": "GET"}}, {"match": {"methods": "OPTIONS"}})
    sent = request("/", "OPTIONS", ASKED)
    (apart,), (plain,) = rule_set.plan_rule(NamedRule("r0"), sent, 3), rule_set.plan_rule(NamedRule("r1"), sent, 3)
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
    wanted = [(1, 50) if is_preflight_key(key) else (4, 5) for key in expected]
    assert [(charge.ask.cost, charge.ask.quota.limit) for charge in charges] == wanted


names = st.sampled_from(["origin", "Origin", "access-control-request-method", "upgrade", "x-http-method-override", "x"])
words = st.sampled_from(["", " ", "POST", "options", "null", ORIGIN, "a, b", "websocket", "\t", "\xe9", "(", "GET,"])
lines = st.lists(st.tuples(names, words | st.text(st.characters(max_codepoint=255), max_size=9)), max_size=6)
verbs = st.sampled_from(["OPTIONS", "options", "GET", "head", "TRACE", "CONNECT", "PROPFIND", ""])


@given(method=verbs, headers=lines)
def test_whatever_a_client_writes_one_of_two_counters_is_asked(method, headers):
    encoded = [(name.encode(), text.encode("latin-1")) for name, text in headers]
    environ = {f"HTTP_{name.upper().replace('-', '_')}": text for name, text in headers}
    sent = [
        request(method=method),
        WsgiRequest({"REQUEST_METHOD": method, "REMOTE_ADDR": "192.0.2.1", "PATH_INFO": "/", **environ}),
    ]
    sent[0].context["headers"] = encoded
    for each in sent:
        (charge,) = EVERYBODY.plan(each)
        assert (charge.ask.key, charge.ask.quota.limit) in (
            ("d:r0:sw60:{ip=192.0.2.1}", 5),
            ("d:r0:preflight-sw60:{ip=192.0.2.1}", 50),
        )


EVERYBODY = rules({})
