"""Which rules apply to a request, and which counters they ask."""

import pytest

from tests.rules.corpus import applied, identities, load_text, request, rules
from tests.support.steps import steps

case = pytest.param


GET, POST, HEAD = "GET", "POST", "HEAD"


class TestMatch:
    @pytest.mark.parametrize(
        ("match", "matching", "others"),
        [
            case({"path": "/login"}, [{"path": "/login"}], [{"path": "/logins"}, {"path": "/Login"}], id="path"),
            case(
                {"path": ["/a", "/b/*"]},
                [{"path": "/a"}, {"path": "/b"}, {"path": "/b/c/d"}],
                [{"path": "/bc"}],
                id="paths",
            ),
            case({"methods": "POST"}, [{"method": POST}], [{"method": GET}, {"method": HEAD}], id="method"),
            case({"methods": ["get", "PUT"]}, [{"method": GET}, {"method": "PUT"}], [{"method": POST}], id="methods"),
            case({"methods": "GET"}, [{"method": HEAD}], [], id="HEAD goes with GET"),
            case(
                {"methods": "POST"},
                [],
                [{"headers": {"x-http-method-override": POST}}],
                id="a method override is no method",
            ),
            case({"methods": "PURGE"}, [{"method": "PURGE"}], [{"method": GET}], id="a method of one's own"),
            case({"ip": "192.0.2.1"}, [{}], [{"ip": "192.0.2.2"}, {"ip": None}, {"ip": "::1"}], id="an address"),
            case(
                {"ip": ["10.0.0.0/8", "10.1.0.0/16", "2001:db8::/32"]},
                [{"ip": "10.1.2.3"}, {"ip": "::ffff:10.1.2.3"}, {"ip": "2001:db8:1::2"}],
                [{"ip": "11.0.0.1"}, {"ip": "2001:db9::1"}],
                id="networks, some within others",
            ),
            case(
                {"ip": "2001:db8::7"}, [{"ip": "2001:db8::7"}], [{"ip": "2001:db8::8"}], id="an IPv6 address of a /64"
            ),
            case({"ip": "::ffff:10.0.0.0/104"}, [{"ip": "10.1.2.3"}], [{"ip": "11.1.2.3"}], id="a mapped network"),
            case({"ip": "0.0.0.0/0"}, [{"ip": "10.1.2.3"}], [{"ip": "::1"}], id="all of IPv4"),
            case(
                {"host": "API.example.com."},
                [{"headers": {"host": "api.example.com"}}, {"headers": {"host": "api.EXAMPLE.com:8000"}}],
                [{"headers": {"host": "example.com"}}, {}],
                id="host",
            ),
            case({"tier": "gold"}, [{"headers": {"x-tier": "gold"}}], [{"headers": {"x-tier": "GOLD"}}, {}], id="tier"),
            case(
                {"user": ["ann", "bob"]},
                [{"headers": {"x-user": "bob"}}],
                [{"headers": {"x-user": "eve"}}, {}],
                id="users",
            ),
            case(
                {"header:X-Kind": "a"}, [{"headers": {"x-kind": "a"}}], [{"headers": {"x-kind": "b"}}, {}], id="header"
            ),
            case({"cookie:kind": "a"}, [{"headers": {"cookie": "kind=a"}}], [{}], id="cookie"),
            case({"query:kind": 7}, [{"query_string": b"kind=7"}], [{"query_string": b"kind=07"}], id="query"),
            case({"shard": "eu"}, [{"headers": {"x-shard": "eu"}}], [{"headers": {"x-shard": "us"}}], id="custom"),
            case(
                {"tier": "gold", "user": "ann", "ip": "192.0.2.0/24", "methods": "GET"},
                [{"headers": {"x-tier": "gold", "x-user": "ann"}}],
                [
                    {"headers": {"x-tier": "gold"}},
                    {"headers": {"x-user": "ann"}},
                    {"headers": {"x-tier": "gold", "x-user": "ann"}, "ip": "10.0.0.1"},
                    {"headers": {"x-tier": "gold", "x-user": "ann"}, "method": POST},
                ],
                id="all keys have to match",
            ),
        ],
    )
    @pytest.mark.parametrize("exempt", [False, True], ids=["rule", "exempt"])
    def test_matches_this_and_not_that(self, match, matching, others, exempt):
        more = {"client": {"tier": "header:x-tier", "user": "header:x-user"}, "attributes": {"shard": "header:x-shard"}}
        rule_set = rules({}, exempt=[match], **more) if exempt else rules({"match": match}, **more)
        assert [applied(rule_set, **one) for one in matching] == [[] if exempt else ["r0"]] * len(matching)
        assert [applied(rule_set, **one) for one in others] == [["r0"] if exempt else []] * len(others)

    def test_every_rule_that_matches_counts_in_the_order_of_the_file(self):
        rule_set = rules(
            {"match": {"path": "/{a}"}},
            {},
            {"match": {"path": "/x"}},
            {"match": {"ip": "192.0.2.0/24"}},
            {"match": {"path": "/{rest:path}"}},
            {"match": {"header:h": ["1", "2"]}},
            {"match": {"methods": "GET"}},
            {"match": {"path": "/y"}},
        )
        assert applied(rule_set, "/x", headers={"h": "1"}) == ["r0", "r1", "r2", "r3", "r4", "r5", "r6"]

    def test_a_path_that_several_templates_of_a_rule_match_counts_once_by_the_first(self):
        rule_set = rules({"match": {"path": ["/{a}/*", "/x/{b}", "/x/y"]}, "by": ["route", "path:a", "path:b"]})
        assert identities(rule_set, "/x/y")[0] == "route=/%7Ba%7D/%2A"
        assert len(identities(rule_set, "/x/y")) == 2

    def test_what_check_is_not_given_matches_no_match(self):
        rule_set = rules(
            {"match": {"path": "/*"}}, {"match": {"methods": "GET"}}, {"match": {"ip": "::/0"}}, {"by": "global"}
        )
        for attributes, expected in [
            ({}, ["r3"]),
            ({"path": "/"}, ["r0", "r3"]),
            ({"method": "head", "remote_address": "::1"}, ["r1", "r2", "r3"]),
        ]:
            planned = rule_set.plan(rule_set.attributes.request_from(attributes))
            assert [charge.rule.name for charge in planned] == expected


class TestBy:
    @pytest.mark.parametrize(
        ("by", "anonymous", "known"),
        [
            case("ip", ["ip="], ["ip="], id="ip"),
            case("user", [], ["user="], id="a counter without its attribute is left out"),
            case(["ip", "user"], ["ip="], ["ip=", "user="], id="a list is one counter each"),
            case("ip+user", [], ["ip=+user="], id="a pair"),
            case("user|ip", ["ip="], ["user="], id="the first that is there"),
            case(["user|ip", "ip"], ["ip="], ["user=", "ip="], id="one identity is one counter"),
            case("global", ["*"], ["*"], id="global"),
        ],
    )
    def test_counters_of(self, by, anonymous, known):
        rule_set = rules({"by": by}, client={"user": "header:x-user"})

        def kinds(**headers):
            found = identities(rule_set, headers=headers)
            return [
                "+".join(part.partition("=")[0] + part.partition("=")[1] for part in one.split("+")) for one in found
            ]

        assert kinds() == anonymous
        assert kinds(**{"x-user": "ann"}) == known

    def test_all_unknown_addresses_share_one_counter(self):
        assert identities(rules({}), ip=None) == identities(rules({}), ip="")

    def test_a_websocket_handshake_is_a_get(self):
        rule_set = rules({"match": {"methods": "GET"}, "by": "method"})
        socket = request()
        handshake = type(socket)({"type": "websocket", "path": "/", "headers": [], "client": None})
        assert rule_set.plan(handshake) == rule_set.plan(request())

    def test_head_buys_no_new_budget(self):
        rule_set = rules({"by": "method"})
        assert identities(rule_set, method="HEAD") == identities(rule_set, method="GET")

    @pytest.mark.parametrize(
        ("template", "path", "same", "other"),
        [
            case("/items/{id:int}", "/items/7", "/items/007", "/items/70", id="zeros before a number"),
            case("/items/{id:float}", "/items/1.5", "/items/01.50", "/items/1.05", id="zeros around a number"),
            case("/items/{id:float}", "/items/0", "/items/000.0", "/items/10", id="zeros"),
            case(
                "/items/{id:uuid}",
                "/items/0e0cbbd4-1a6d-4f23-9c5e-2f8f10a1b2c3",
                "/items/0E0CBBD41A6D4F239C5E2F8F10A1B2C3",
                "/items/1e0cbbd4-1a6d-4f23-9c5e-2f8f10a1b2c3",
                id="a UUID",
            ),
            case("/f/{id:path}", "/f/a/b", "/f//a/./b/", "/f/a", id="a disguised path"),
        ],
    )
    def test_one_parameter_has_one_counter_however_it_is_spelled(self, template, path, same, other):
        rule_set = rules({"match": {"path": template}, "by": "path:id"})
        assert identities(rule_set, path) == identities(rule_set, same) != identities(rule_set, other)


class TestReplaces:
    RULES = ({}, {"match": {"path": "/login"}, "replaces": ["r0"]})

    def test_where_a_rule_matches_what_it_replaces_does_not_apply(self):
        assert applied(rules(*self.RULES), "/login") == ["r1"]
        assert applied(rules(*self.RULES), "/other") == ["r0"]

    @pytest.mark.parametrize("path", ["//login", "/login/", "/x/../login", "/./login", "/login\n"])
    def test_a_disguise_of_the_path_replaces_nothing(self, path):
        assert applied(rules(*self.RULES), path) == ["r0", "r1"]

    @pytest.mark.parametrize(
        ("rule", "expected"),
        [
            case({"limit": "unlimited"}, [], id="unlimited replaces like any limit"),
            case({"limit": {"default": "unlimited", "free": "1/s"}}, [], id="so does an unlimited tier"),
            case({"shadow": True}, ["r0", "r1"], id="a shadow rule replaces no rule that is enforced"),
            case({"by": "user"}, ["r0"], id="a rule without a counter replaces nothing"),
            case({"by": "user", "limit": "unlimited"}, ["r0"], id="even an unlimited one"),
            case({"by": ["user", "ip"]}, ["r1"], id="one counter is enough"),
            case({"match": {"methods": "POST"}}, ["r0"], id="a rule that does not match replaces nothing"),
            case({"match": {"user": "ann"}}, ["r0"], id="nor one that is looked up"),
        ],
    )
    def test_replacing_takes_a_rule_that_applies(self, rule, expected):
        assert applied(rules({}, {"replaces": "r0", **rule}, client={"user": "header:x-user"})) == expected

    def test_a_shadow_rule_replaces_shadow_rules(self):
        shadows = ({"shadow": True}, {}, {"shadow": True, "match": {"path": "/login"}, "replaces": ["r0", "r1"]})
        assert applied(rules(*shadows), "/login") == ["r1", "r2"]
        assert applied(rules(*shadows), "/other") == ["r0", "r1"]

    def test_a_rule_that_is_replaced_still_replaces(self):
        chain = ({}, {"replaces": "r0", "match": {"path": "/a/*"}}, {"replaces": "r1", "match": {"path": "/a/b"}})
        assert applied(rules(*chain), "/a/b") == ["r2"]
        assert applied(rules(*chain), "/a/c") == ["r1"]


class TestExempt:
    def test_one_entry_that_matches_is_enough_and_all_its_keys_have_to(self):
        rule_set = rules(
            {}, exempt=[{"path": "/health"}, {"ip": "10.0.0.0/8", "methods": "GET"}, {"methods": "DELETE"}]
        )
        assert applied(rule_set, "/health") == []
        assert applied(rule_set, ip="10.0.0.1") == []
        assert applied(rule_set, ip="10.0.0.1", method=POST) == ["r0"]
        assert applied(rule_set, method="DELETE") == []
        assert applied(rule_set) == ["r0"]

    @pytest.mark.parametrize(
        "path",
        [
            "/static/../login",
            "/static/%2e%2e/../../login",
            "//static",
            "/login/../static/x",
            "/static/a\nb",
            "/static\n",
        ],
    )
    def test_a_disguise_of_the_path_is_not_exempt(self, path):
        assert applied(rules({}, exempt=[{"path": "/static/*"}]), path) == ["r0"]

    @pytest.mark.parametrize("path", ["/static", "/static/", "/static/a/b.css", "/static/.well-known/x", "/static/..a"])
    def test_an_honest_path_is(self, path):
        assert applied(rules({}, exempt=[{"path": ["/static/*", "/static/"]}]), path) == []


def test_shadow_and_on_error_go_with_the_charge():
    rule_set = rules({"shadow": True, "on_error": "deny"}, {}, storage={"on_error": "local"})
    first, second = rule_set.plan(request())
    assert (first.rule.shadow, first.ask.shadow, first.rule.on_error) == (True, True, "deny")
    assert (second.rule.shadow, second.ask.shadow, second.rule.on_error) == (False, False, "local")


def test_many_rules_are_found_and_not_searched():
    def made(count):
        numbers = range(count)
        return load_text(
            "domain: d\nrules:\n"
            + "".join(f"  - {{name: p{n}, limit: 5/s, match: {{path: '/api/r{n}/{{id}}'}}}}\n" for n in numbers)
            + "".join(f"  - {{name: h{n}, limit: 5/s, match: {{'header:t': t{n}}}}}\n" for n in numbers)
            + "".join(f"  - {{name: i{n}, limit: 5/s, match: {{ip: 10.0.{n // 250}.{n % 250}}}}}\n" for n in numbers)
        )

    def asked(rule_set):
        assert applied(rule_set, "/api/r7/1", headers={"t": "t8"}, ip="10.0.0.9") == ["p7", "h8", "i9"]

    few, many = made(10), made(1_000)
    for rule_set in (few, many):
        asked(rule_set)  # what is made at the first request
    assert steps(lambda: asked(many)) < 1.1 * steps(lambda: asked(few))
