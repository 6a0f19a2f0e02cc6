"""What holds for single clients instead of the rules: limits, exemptions and blocks, in the file and at run time."""

import asyncio
import logging
import subprocess
import sys

import pytest

from ratelimit_mw import ConfigurationError, ManualClock, RateLimiter
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.rules.compiled import BLOCKED
from tests.rules.corpus import request
from tests.rules.living import limit_of
from tests.shells.asking import exchange, http_scope
from tests.support.patience import eventually
from tests.support.rules import load_rules

case = pytest.param

ANN = {"user": "ann"}
RULES = {
    "domain": "d",
    "client": {"user": "header:X-User", "secret": "s"},
    "rules": [
        {"name": "all", "by": "ip", "limit": "5 per hour"},
        {"name": "api", "by": ["ip", "user"], "limit": "3 per hour", "match": {"path": "/api"}},
        {"name": "pair", "by": "user+ip", "limit": "4 per hour", "match": {"path": "/pair"}},
        {"name": "open", "by": "user", "limit": "unlimited", "match": {"path": "/open"}},
    ],
}


@pytest.fixture
def limiter():
    with RateLimiter(RULES, storage="memory://") as limiter:
        yield limiter


def limits(limiter, path="/", ip="192.0.2.1", user="ann"):
    """The limits of every counter that a request asks, by the names of their rules."""
    decision = limiter.peek({"ip": ip, "user": user, "path": path})
    return [(policy.rule, policy.limit) for policy in decision.policies]


def with_overrides(*overrides):
    return load_rules({**RULES, "overrides": list(overrides)}, environ={})


def asked(rules, **about):
    charges = rules.plan(request(**about))
    return "blocked" if charges is BLOCKED else [(charge.rule.name, charge.ask.quota.limit) for charge in charges]


class TestLimit:
    def test_it_is_that_of_one_rule_and_one_client(self, limiter):
        limiter.overrides.set(ANN, rule="api", limit="100 per hour")
        assert limits(limiter, "/api") == [("all", 5), ("api", 3), ("api", 100)]
        assert limits(limiter, "/api", user="bob") == [("all", 5), ("api", 3), ("api", 3)]
        limiter.overrides.set({"ip": "192.0.2.1"}, rule="api", limit="0 per hour")
        assert limits(limiter, "/api") == [("all", 5), ("api", 0), ("api", 100)]
        assert limiter.state.overrides == 2

    def test_what_was_used_stays_used(self, limiter):
        client = {"ip": "192.0.2.1", "user": "ann", "path": "/"}
        assert [limiter.check(client).allowed for _ in range(6)] == [True] * 5 + [False]
        limiter.overrides.set({"ip": "192.0.2.1"}, rule="all", limit="7 per hour")
        assert [limiter.check(client).allowed for _ in range(3)] == [True, True, False]
        limiter.overrides.remove({"ip": "192.0.2.1"}, rule="all")
        assert not limiter.check(client).allowed

    @pytest.mark.parametrize("client", [{"user": "ann", "ip": "192.0.2.1"}, {"remote_address": "192.0.2.1", **ANN}])
    def test_a_pair_in_any_order(self, limiter, client):
        limiter.overrides.set(client, rule="pair", limit="9 per hour")
        assert limits(limiter, "/pair") == [("all", 5), ("pair", 9)]
        assert limits(limiter, "/pair", ip="192.0.2.2") == [("all", 5), ("pair", 4)]

    def test_one_where_there_is_none(self, limiter):
        limiter.overrides.set(ANN, rule="open", limit="2 per hour")
        assert limits(limiter, "/open") == [("all", 5), ("open", 2)]
        assert limits(limiter, "/open", user="bob") == [("all", 5)]

    @pytest.mark.parametrize(
        ("limit", "there"),
        [
            case(["9 per hour", "2 per minute"], [("all", 9), ("all", 2)], id="several"),
            case("unlimited", [], id="none"),
            case({"requests": 8, "per": "hour"}, [("all", 8)], id="spelled out"),
        ],
    )
    def test_in_any_form_that_a_rule_s_may_have(self, limiter, limit, there):
        limiter.overrides.set({"ip": "192.0.2.1"}, rule="all", limit=limit)
        assert limits(limiter) == there

    def test_it_may_lift_a_limit_whose_denials_bring_a_ban(self):
        ban = {"after": "1 denial in 1 hour", "for": "1 hour"}
        rule = {"name": "all", "by": "ip", "limit": "1 per hour", "ban": ban}
        lifted = {"client": {"ip": "192.0.2.2"}, "rule": "all", "limit": "unlimited"}
        with RateLimiter({**RULES, "rules": [rule], "overrides": [lifted]}, storage="memory://") as limiter:
            assert [limiter.check({"ip": "192.0.2.2"}).allowed for _ in range(3)] == [True, True, True]
            assert [limiter.check({"ip": "192.0.2.1"}).banned for _ in range(3)] == [False, True, True]
            limiter.overrides.set({"ip": "192.0.2.1"}, rule="all", limit="unlimited")
            assert limiter.check({"ip": "192.0.2.1"}).allowed

    def test_an_ipv6_client_is_its_network(self, limiter):
        limiter.overrides.set({"ip": "2001:db8::1"}, rule="all", limit="9 per hour")
        assert limits(limiter, ip="2001:db8::2") == [("all", 9)]

    def test_it_ends_by_the_limiter_s_clock(self):
        clock = ManualClock()
        with RateLimiter(RULES, storage="memory://", clock=clock) as limiter:
            limiter.overrides.set({"ip": "192.0.2.1"}, rule="all", limit="9 per hour", duration="2h")
            limiter.overrides.set({"ip": "192.0.2.9"}, block=True, duration=7200)
            clock.advance(7199)
            assert limits(limiter) == [("all", 9)]
            assert not limiter.check({"ip": "192.0.2.9"}).allowed
            clock.advance(1)
            assert limits(limiter) == [("all", 5)]
            assert limiter.check({"ip": "192.0.2.9"}).allowed
            assert limiter.overrides.list() == ()
            limiter.overrides.set(ANN, block=True)
            assert limiter.state.overrides == 1  # with the next that is set, those that have ended go

    def test_a_rule_that_goes_takes_it_along_and_that_is_said_once(self, tmp_path, caplog):
        file = tmp_path / "r.yaml"
        text = "domain: d\nrules:\n  - {name: NAME, by: ip, limit: 5 per hour}\n"
        file.write_text(text.replace("NAME", "old"))
        with RateLimiter(file) as limiter:
            limiter.overrides.set({"ip": "192.0.2.1"}, rule="old", limit="9 per hour")
            for name in ("new", "newer", "old"):
                file.write_text(text.replace("NAME", name))
                limiter.reload()
            assert caplog.text.count("has no effect: there is no rule 'old'") == 2  # other words: the nearest one
            assert limits(limiter) == [("old", 9)]


class TestExempt:
    @pytest.mark.parametrize(
        "client", [ANN, {"ip": "192.0.2.1"}, {"ip": "192.0.2.0/24"}, {"ip": "192.0.2.1", "user": "ann"}]
    )
    def test_nothing_is_counted(self, limiter, client):
        limiter.overrides.set(client, exempt=True)
        assert limits(limiter) == []
        assert limits(limiter, ip="198.51.100.1", user="bob") == [("all", 5)]
        assert limiter.overrides.remove(client)
        assert limits(limiter) == [("all", 5)]
        assert not limiter.overrides.remove(client)

    def test_a_block_wins(self, limiter):
        limiter.overrides.set(ANN, exempt=True)
        limiter.overrides.set({"ip": "192.0.2.0/24"}, block=True)
        assert not limiter.check({"ip": "192.0.2.1", "user": "ann"}).allowed


class TestBlock:
    @pytest.mark.parametrize(
        "client", [ANN, {"ip": "192.0.2.1"}, {"ip": "192.0.2.0/24"}, {"ip": "192.0.2.1", "user": "ann"}]
    )
    def test_nothing_passes(self, limiter, client):
        limiter.overrides.set(client, block=True)
        decision = limiter.check({"ip": "192.0.2.1", "user": "ann"})
        assert (decision.allowed, decision.rule, decision.retry_after) == (False, None, float("inf"))
        assert limiter.check({"ip": "198.51.100.1", "user": "bob"}).allowed

    def test_an_ipv6_network(self, limiter):
        limiter.overrides.set({"ip": "2001:db8::/32"}, block=True)
        assert not limiter.check({"ip": "2001:db8:1::1"}).allowed
        assert limiter.check({"ip": "2001:db9::1"}).allowed
        limiter.overrides.set({"ip": "2001:db9::1"}, block=True)
        assert not limiter.check({"ip": "2001:db9::ffff"}).allowed  # a client is its whole network

    def test_it_costs_no_store_call(self, any_server):
        with RateLimiter(RULES, storage=any_server.url) as limiter:
            limiter.overrides.set({"ip": "192.0.2.1"}, block=True)
            before = any_server.calls("evalsha") + any_server.calls("eval")
            assert not any(limiter.check({"ip": "192.0.2.1"}).allowed for _ in range(50))
            assert any_server.calls("evalsha") + any_server.calls("eval") == before

    def test_reset_forgets_nothing_of_theirs(self, limiter):
        limiter.overrides.set({"ip": "192.0.2.1"}, block=True)
        limiter.reset({"ip": "192.0.2.1"})
        assert not limiter.check({"ip": "192.0.2.1"}).allowed

    @pytest.mark.parametrize(("switch", "allowed"), [("off", True), ("shadow", True), ("on", False)])
    def test_the_kill_switch_lets_them_pass(self, monkeypatch, switch, allowed):
        monkeypatch.setenv("RATELIMIT_MW", switch)
        with RateLimiter(RULES, storage="memory://") as limiter:
            limiter.overrides.set({"ip": "192.0.2.1"}, block=True)
            assert limiter.check({"ip": "192.0.2.1"}).allowed is allowed

    def test_of_a_folder_one_domain_s_block_stops_the_request(self, tmp_path):
        for domain in ("a", "b"):
            (tmp_path / f"{domain}.yaml").write_text(f"domain: {domain}\nrules:\n  - {{name: r, limit: 5/h}}\n")
        with RateLimiter(tmp_path) as limiter:
            with pytest.raises(ValueError, match="pass domain=, one of a, b"):
                limiter.overrides.set({"ip": "192.0.2.1"}, block=True)
            with pytest.raises(ValueError, match=r"no domain 'c', only a, b"):
                limiter.overrides.set({"ip": "192.0.2.1"}, block=True, domain="c")
            limiter.overrides.set({"ip": "192.0.2.1"}, block=True, domain="b")
            assert not limiter.check({"ip": "192.0.2.1"}).allowed
            assert limiter.check({"ip": "192.0.2.1"}, domain="a").allowed
            assert [override.domain for override in limiter.overrides.list()] == ["b"]
            assert limiter.overrides.list(domain="a") == ()


class TestAnswers:
    def test_asgi_answers_403_without_a_word_about_limits(self):
        from ratelimit_mw.asgi import RateLimitMiddleware

        async def app(scope, receive, send):
            raise AssertionError("a blocked client reaches the app")

        with RateLimiter(RULES, storage="memory://") as limiter:
            limiter.overrides.set({"ip": "203.0.113.0/24"}, block=True)
            start, body = asyncio.run(exchange(RateLimitMiddleware(app, limiter=limiter), http_scope()))
        headers = dict(start["headers"])
        assert start["status"] == 403
        assert set(headers) == {b"content-type", b"cache-control", b"content-length"}
        assert body["body"] == b'{"message": "Forbidden"}'

    def test_wsgi_does_too(self):
        from werkzeug.test import Client

        from ratelimit_mw.wsgi import RateLimitMiddleware

        with RateLimiter({**RULES, "response": {"body": "problem"}}, storage="memory://") as limiter:
            limiter.overrides.set({"ip": "127.0.0.1"}, block=True)
            answer = Client(RateLimitMiddleware(lambda *_: [], limiter=limiter)).get(
                "/", environ_base={"REMOTE_ADDR": "127.0.0.1"}
            )
        assert (answer.status, answer.json["status"]) == ("403 Forbidden", 403)
        assert "Retry-After" not in answer.headers


class TestInTheFile:
    def test_each_kind(self):
        rules = with_overrides(
            {"client": {"user": "ann"}, "rule": "api", "limit": "100 per hour"},
            {"client": {"ip": "192.0.2.7"}, "block": True},
            {"client": {"ip": "198.51.100.0/24"}, "exempt": True, "comment": "monitoring"},
        )
        assert asked(rules, path="/api", headers={"X-User": "ann"}) == [("all", 5), ("api", 3), ("api", 100)]
        assert asked(rules, ip="192.0.2.7") == "blocked"
        assert asked(rules, ip="198.51.100.4") == []
        assert asked(rules) == [("all", 5)]

    def test_it_ends(self):
        rules = with_overrides(
            {"client": {"ip": "192.0.2.7"}, "block": True, "until": "2001-01-01"},
            {"client": {"ip": "192.0.2.8"}, "block": True, "until": "9999-01-01T00:00:00+02:00"},
        )
        assert asked(rules, ip="192.0.2.7") == [("all", 5)]
        assert asked(rules, ip="192.0.2.8") == "blocked"

    def test_one_that_comes_at_run_time_wins(self):
        config = {**RULES, "overrides": [{"client": {"ip": "192.0.2.1"}, "rule": "all", "limit": "7/h"}]}
        with RateLimiter(config, storage="memory://") as limiter:
            assert limits(limiter) == [("all", 7)]
            limiter.overrides.set({"ip": "192.0.2.1"}, rule="all", limit="9/h")
            assert limits(limiter) == [("all", 9)]
            limiter.overrides.remove({"ip": "192.0.2.1"}, rule="all")
            assert limits(limiter) == [("all", 7)]

    @pytest.mark.parametrize(
        ("override", "said"),
        [
            case({}, "overrides[0]: the key 'client' is missing", id="nobody"),
            case({"client": {}, "block": True}, "an override needs a client", id="an empty client"),
            case({"client": {"user": "a"}}, "exactly one of limit, block and exempt", id="nothing"),
            case(
                {"client": {"user": "a"}, "block": True, "exempt": True},
                "exactly one of limit, block and exempt",
                id="two things",
            ),
            case(
                {"client": {"user": "a"}, "limit": "1/h"}, "a limit needs the name of its rule", id="a limit of no rule"
            ),
            case({"client": {"user": "a"}, "block": True, "rule": "all"}, "applies to all rules", id="a block's rule"),
            case({"client": {"user": "a"}, "rule": "al", "limit": "1/h"}, "no rule 'al' (did you", id="a rule"),
            case(
                {"client": {"usr": "a"}, "block": True},
                "'usr' does not identify a client (did you",
                id="attribute",
            ),
            case(
                {"client": {"path:id": "1"}, "block": True},
                "'path:id' does not identify a client",
                id="a path parameter",
            ),
            case({"client": {"ip": "x"}, "block": True}, "'x' is not an address", id="no address"),
            case({"client": {"ip": "10.0.0.1/8"}, "block": True}, "not a network", id="no network"),
            case(
                {"client": {"ip": "10.0.0.0/8", "user": "a"}, "block": True},
                "a network can't be combined",
                id="and user",
            ),
            case(
                {"client": {"ip": "10.0.0.0/8"}, "rule": "all", "limit": "1/h"}, "must be a single address", id="limit"
            ),
            case({"client": {"user": ""}, "block": True}, "user is empty", id="an empty value"),
            case(
                {"client": {"user": "a"}, "rule": "all", "limit": {"default": "1/h"}},
                "can't depend on the tier",
                id="tiers",
            ),
            case(
                {"client": {"user": "a"}, "rule": "all", "limit": "1/h"},
                "overrides[0].client: no counter of 'all' is identified by user (it counts by ip)",
                id="of whom there is no counter",
            ),
            case(
                {"client": {"user": "a", "ip": "192.0.2.1"}, "rule": "api", "limit": "1/h"},
                "no counter of 'api' is identified by ip+user (it counts by ip, user)",
                id="a pair of whom there are two counters",
            ),
            case(
                {"client": {"user": "a"}, "rule": "pair", "limit": "1/h"},
                "no counter of 'pair' is identified by user (it counts by user+ip)",
                id="half a pair",
            ),
            case({"client": {"user": "a"}, "rule": "all", "limit": "lots"}, "is not a limit", id="no limit"),
            case({"client": {"user": "a"}, "block": True, "until": "soon"}, "'soon' is not a time", id="no time"),
            case({"client": {"user": "a"}, "blok": True}, "unknown key 'blok' (did you mean 'block'?)", id="a word"),
        ],
    )
    def test_what_can_t_be_is_said(self, override, said):
        with pytest.raises(ConfigurationError) as caught:
            with_overrides(override)
        assert said in str(caught.value)

    @pytest.mark.parametrize("by", ["user|ip", "(user|remote_address)", ["path", "ip"]])
    def test_a_client_may_be_any_choice_of_any_counter(self, by):
        rule = {"name": "all", "by": by, "limit": "5 per hour"}
        override = {"client": {"ip": "192.0.2.1"}, "rule": "all", "limit": "7 per hour"}
        assert ("all", 7) in asked(load_rules({**RULES, "rules": [rule], "overrides": [override]}, environ={}))

    @pytest.mark.parametrize("name", ["header:X-Tenant", "query:a b"])
    def test_the_client_may_be_told_by_any_name(self, name):
        rule = {"name": "all", "by": name, "limit": "5 per hour"}
        override = {"client": {name: "a"}, "rule": "all", "limit": "7 per hour"}
        assert load_rules({**RULES, "rules": [rule], "overrides": [override]}, environ={}).parts[0].overrides

    def test_what_the_rule_counts_by_is_said_once_if_it_is_wrong(self):
        rule = {"name": "all", "by": "ip+", "limit": "5 per hour"}
        override = {"client": {"ip": "192.0.2.1"}, "rule": "all", "limit": "7 per hour"}
        with pytest.raises(ConfigurationError) as caught:
            load_rules({**RULES, "rules": [rule], "overrides": [override]}, environ={})
        assert [problem.message.partition(":")[0] for problem in caught.value.problems] == ["rules[0].by"]


class TestAtRunTime:
    @pytest.mark.parametrize(
        ("client", "options", "said"),
        [
            case(ANN, {}, "one of limit, block and exempt", id="nothing"),
            case(ANN, {"limit": "1/h"}, "a limit needs the name of its rule", id="a limit of no rule"),
            case(ANN, {"rule": "nope", "limit": "1/h"}, "no rule 'nope'", id="a rule that there is not"),
            case(ANN, {"rule": "all", "limit": "1/h"}, "is identified by user", id="of whom there is no counter"),
            case(ANN, {"rule": "all", "limit": "lots"}, "'lots' is not a limit", id="no limit"),
            case(ANN, {"rule": "all", "limit": {"default": "1/h"}}, "can't depend on the tier", id="tiers"),
            case(
                {"ip": "192.0.2.0/24"},
                {"rule": "all", "limit": "1/h"},
                "must be a single address",
                id="a network's limit",
            ),
            case({}, {"block": True}, "needs a client", id="nobody"),
            case(ANN, {"block": True, "duration": "soon"}, "'soon' is not a duration", id="no duration"),
        ],
    )
    def test_what_can_t_be_changes_nothing(self, limiter, client, options, said):
        with pytest.raises(ValueError, match=said):
            limiter.overrides.set(client, **options)
        assert limiter.overrides.list() == ()

    def test_the_list_says_who_set_what_and_why(self, limiter):
        made = limiter.overrides.set(
            {"ip": "192.0.2.1"}, rule="all", limit="9 per hour", author="bob", comment="a fair", duration="1 day"
        )
        (found,) = limiter.overrides.list()
        assert found == made
        assert (found.identity, found.kind, found.rule, found.limit) == ("ip=192.0.2.1", "limit", "all", "9 per hour")
        assert (found.author, found.comment, round(found.until - found.at)) == ("bob", "a fair", 86_400)

    def test_the_twins(self, limiter):
        async def run():
            await limiter.overrides.aset(ANN, block=True, comment="spam")
            listed = await limiter.overrides.alist()
            return listed[0].comment, await limiter.overrides.aremove(ANN), await limiter.overrides.alist()

        assert asyncio.run(run()) == ("spam", True, ())


class TestOnRedis:
    def test_a_user_is_kept_hashed(self, any_server):
        with RateLimiter(RULES, storage=any_server.url) as limiter:
            limiter.overrides.set({"user": "ann@example.com"}, block=True)
            kept = any_server.admin.hgetall("d:overrides")
        assert "ann" not in str(kept)
        assert any_server.admin.ttl("d:overrides") == -1

    def test_other_processes_apply_it(self, any_server):
        rules = {**RULES, "reload": "1h"}
        with RateLimiter(rules, storage=any_server.url) as one, RateLimiter(rules, storage=any_server.url) as other:
            one.check({"ip": "192.0.2.1"})
            other.overrides.set({"ip": "192.0.2.1"}, rule="all", limit="9 per hour")
            eventually(lambda: limit_of(one) == 9)
            other.overrides.remove({"ip": "192.0.2.1"}, rule="all")
            eventually(lambda: limit_of(one) == 5)

    def test_a_process_that_starts_later_has_them(self, any_server):
        with RateLimiter(RULES, storage=any_server.url) as limiter:
            limiter.overrides.set({"ip": "192.0.2.1"}, rule="all", limit="9 per hour")
        code = (
            "import sys, time; from ratelimit_mw import RateLimiter\n"
            f"limiter = RateLimiter({RULES}, storage={any_server.url!r})\n"
            "deadline = time.monotonic() + 60\n"
            "while limiter.peek({'ip': '192.0.2.1'}).limit != 9 and time.monotonic() < deadline: pass\n"
            "print(limiter.peek({'ip': '192.0.2.1'}).limit)\n"
        )
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
        assert out.stdout == "9\n"

    def test_no_remembered_denial_outlives_it(self, any_server):
        client = {"ip": "192.0.2.1"}
        with RateLimiter(RULES, storage=any_server.url) as limiter:
            assert [limiter.check(client).allowed for _ in range(8)] == [True] * 5 + [False] * 3
            limiter.overrides.set(client, rule="all", limit="7 per hour")
            assert [limiter.check(client).allowed for _ in range(3)] == [True, True, False]
            limiter.overrides.set(client, exempt=True)
            assert limiter.check(client).allowed
            limiter.overrides.remove(client)
            limiter.overrides.remove(client, rule="all")
            assert not limiter.check(client).allowed
            limiter.overrides.set(client, block=True)
            limiter.overrides.remove(client)
            limiter.reset(client)
            assert limiter.check(client).allowed

    def test_many_hands_at_once(self, any_server):
        from concurrent.futures import ThreadPoolExecutor

        limiters = [RateLimiter(RULES, storage=any_server.url) for _ in range(4)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: limiters[n % 4].overrides.set({"user": f"u{n}"}, block=True), range(60)))
        assert len(limiters[0].overrides.list()) == 60
        for limiter in limiters:
            limiter.close()

    def test_a_store_that_is_away_is_said_and_what_is_known_holds(self, fresh_server, caplog):
        with RateLimiter({**RULES, "reload": "100ms"}, storage=fresh_server.url) as limiter:
            limiter.overrides.set({"ip": "192.0.2.1"}, block=True)
            limiter.check({"ip": "192.0.2.1"})
            fresh_server.stop()
            with pytest.raises(StoreUnavailable):
                limiter.overrides.set(ANN, block=True)
            with pytest.raises(StoreUnavailable):
                limiter.reload()
            assert not limiter.check({"ip": "192.0.2.1"}).allowed
            assert all(record.levelno < logging.ERROR for record in caplog.records)

    def test_what_others_left_there_harms_nobody(self, any_server):
        kept = {"version": 7, "x": "no json", "y": '{"kind": "dance", "identity": "ip=1"}', "z": '{"wrong": 1}'}
        any_server.admin.hset("d:overrides", mapping=kept)
        with RateLimiter(RULES, storage=any_server.url) as limiter:
            limiter.reload()
            assert limiter.overrides.list() == ()
            assert limiter.check({"ip": "192.0.2.1"}).allowed

    def test_a_store_object_leaves_them_where_the_rules_say(self, any_server):
        from ratelimit_mw.stores.memory import MemoryStore

        with RateLimiter({**RULES, "storage": {"url": any_server.url}}, storage=MemoryStore()) as limiter:
            limiter.overrides.set(ANN, block=True)
            assert any_server.keys() == ["d:overrides"]

    def test_a_reload_that_brings_a_domain_brings_its_overrides(self, tmp_path, any_server):
        file = tmp_path / "r.yaml"
        text = "domain: NAME\nrules:\n  - {name: r, by: ip, limit: 5 per hour}\n"
        file.write_text(text.replace("NAME", "one"))
        two = {"domain": "two", "rules": [{"name": "r", "by": "ip", "limit": "5/h"}]}
        with RateLimiter(file, storage=any_server.url) as limiter, RateLimiter(two, storage=any_server.url) as other:
            other.overrides.set({"ip": "192.0.2.1"}, block=True)
            assert limiter.check({"ip": "192.0.2.1"}).allowed
            file.write_text(text.replace("NAME", "two"))
            limiter.engine.retriever.look_for_rules()
            assert not limiter.check({"ip": "192.0.2.1"}).allowed


def test_without_overrides_there_is_nothing_to_ask():
    (rules,) = load_rules(RULES, environ={}).parts
    assert rules.overrides is None
    assert rules.overridden((), ManualClock()).overrides is None
