"""The engine by itself: what `check` and its siblings promise, the error policies, the switch in the environment."""

import asyncio
import logging
import math
import random

import pytest

from ratelimit_mw import ConfigurationError, Decision, ManualClock, RateLimiter
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.stores.memory import MemoryStore
from tests.support.counts import shadow_denials
from tests.support.patience import eventually

START = 1_700_000_040  # as a minute begins
AWAY = "redis://127.0.0.1:1/0"  # a port at which nobody listens
CLIENT = {"remote_address": "203.0.113.7"}
OTHER = {"remote_address": "203.0.113.8"}


def rule(limit="2 per minute", *, name="everything", by="ip", **more):
    return {"name": name, "by": by, "limit": limit, "algorithm": "fixed_window", **more}


def engine(*rules, storage="memory://", clock=None, **sections):
    config = {"domain": "shop", "storage": {"timeout": "5s"}, "rules": list(rules) or [rule()], **sections}
    return RateLimiter(config, storage=storage, clock=clock or ManualClock(START))


@pytest.fixture(params=["blocking", "awaited"])
def call(request):
    """Call a method of a limiter, or its awaitable twin."""
    if request.param == "blocking":
        return lambda limiter, method, *arguments, **options: getattr(limiter, method)(*arguments, **options)
    return lambda limiter, method, *arguments, **options: asyncio.run(
        getattr(limiter, f"a{method}")(*arguments, **options)
    )


class TestCheck:
    def test_says_everything_in_seconds(self, call):
        limiter = engine(clock=ManualClock(START + 20))
        first, second, third = (call(limiter, "check", CLIENT) for _ in range(3))
        assert (first.allowed, first.rule, first.limit, first.remaining) == (True, "everything", 2, 1)
        assert (first.reset_after, first.reset_at, first.retry_after, first.delay) == (40.0, START + 60, 0.0, 0.0)
        assert (second.allowed, second.remaining) == (True, 0)
        assert (third.allowed, third.remaining, third.retry_after, third.over) == (False, 0, 40.0, None)
        assert isinstance(third, Decision)

    def test_waiting_retry_after_succeeds_and_a_microsecond_less_does_not(self, call):
        clock = ManualClock(START + 7.25)
        limiter = engine(rule("1 per minute"), clock=clock)
        call(limiter, "check", CLIENT)
        clock.advance(call(limiter, "check", CLIENT).retry_after - 0.000001)
        assert not call(limiter, "check", CLIENT).allowed
        clock.advance(0.000001)
        assert call(limiter, "check", CLIENT).allowed

    def test_has_a_decision_for_each_counter_and_speaks_of_the_one_that_binds(self, call):
        limiter = engine(rule(name="loose"), rule("5 per minute", name="tight", by=["ip", "user"]))
        said = call(limiter, "check", {**CLIENT, "user": "ann"}, 2)
        assert (said.rule, said.remaining) == ("loose", 0)
        assert [(policy.rule, policy.remaining) for policy in said.policies] == [
            ("loose", 0),
            ("tight", 3),
            ("tight", 3),
        ]

    def test_what_one_rule_denies_is_charged_to_none(self, call):
        limiter = engine(rule("1 per minute", name="tight"), rule("9 per minute", name="loose"))
        for _ in range(3):
            last = call(limiter, "check", CLIENT)
        assert [(policy.rule, policy.allowed, policy.remaining) for policy in last.policies] in (
            [("tight", False, 0), ("loose", True, 8)],
            [("tight", False, 0)],
        )

    @pytest.mark.parametrize(
        "given",
        [
            pytest.param({"ip": "203.0.113.7"}, id="the short name"),
            pytest.param({"remote_address": "::ffff:203.0.113.7"}, id="mapped into IPv6"),
            pytest.param({**CLIENT, "user": "ada", "header:x": "y"}, id="with attributes that no rule uses"),
        ],
    )
    def test_one_client_by_any_name(self, call, given):
        limiter = engine()
        call(limiter, "check", CLIENT)
        assert call(limiter, "check", given).remaining == 0

    def test_where_no_rule_applies_there_is_no_limit(self, call):
        limiter = engine(rule(match={"path": "/login"}))
        decision = call(limiter, "check", CLIENT)
        assert decision == (True, None, None, None, 0.0, 0.0, 0.0, 0.0, None, (), None, None, None)
        assert call(limiter, "check", {**CLIENT, "path": "/login/"}).rule == "everything"

    @pytest.mark.parametrize(
        ("given", "used"),
        [
            pytest.param({}, [1, 2, 3, 3], id="a window"),
            pytest.param({"algorithm": "token_bucket", "burst": 2}, [1, 2, 2, 2], id="a bucket"),
            pytest.param({"throttle": {"soft": "50%"}}, [1, 2, 3, 3], id="above the limit"),
            pytest.param({"cost": 2}, [2, 2, 2, 2], id="a cost that does not fit"),
        ],
    )
    def test_what_is_used_of_the_limit(self, call, given, used):
        limiter = engine(rule("3 per minute", **given))
        assert [call(limiter, "check", CLIENT).used for _ in range(4)] == used
        assert call(limiter, "peek", {"ip": "192.0.2.77"}).used == 0

    @pytest.mark.parametrize("method", ["check", "peek", "acquire"])
    def test_is_true_if_it_allows(self, call, method):
        limiter = engine(
            rule("1 per minute"), descriptors=[{"key": "a", "rate_limit": {"unit": "day", "requests_per_unit": 1}}]
        )
        options = {"timeout": 0} if method == "acquire" else {}
        assert call(limiter, method, CLIENT, **options)
        call(limiter, "check", CLIENT)
        assert not call(limiter, method, CLIENT, **options)
        assert [bool(call(limiter, "check_lists", "shop", [[("a", "b")]])) for _ in range(2)] == [True, False]

    def test_a_denial_for_ever_says_so(self, call):
        assert call(engine(rule("0 per minute")), "check", CLIENT).retry_after == math.inf


class TestCost:
    @pytest.mark.parametrize(
        ("cost", "remaining"), [pytest.param(0, 12, id="nothing"), pytest.param(5, 2, id="times the rule's own")]
    )
    def test_is_charged(self, call, cost, remaining):
        assert call(engine(rule("12 per minute", cost=2)), "check", CLIENT, cost=cost).remaining == remaining

    def test_of_nothing_passes_an_exhausted_counter_but_not_a_limit_of_0(self, call):
        limiter = engine(rule("1 per minute"))
        call(limiter, "check", CLIENT)
        assert call(limiter, "check", CLIENT, cost=0).allowed
        assert not call(engine(rule("0 per minute")), "check", CLIENT, cost=0).allowed

    @pytest.mark.parametrize("cost", [10**9, 10**15, 10**40])
    def test_that_no_limit_holds_is_denied_for_ever(self, call, cost):
        said = call(engine(rule("1000000000 per minute", cost=2)), "check", CLIENT, cost=cost)
        assert (said.allowed, said.retry_after) == (False, math.inf)

    @pytest.mark.parametrize(
        "cost",
        [
            pytest.param(-1, id="negative"),
            pytest.param(1.5, id="a fraction"),
            pytest.param(1.0, id="a float"),
            pytest.param(math.nan, id="not a number"),
            pytest.param("2", id="a text"),
            pytest.param(None, id="nothing"),
        ],
    )
    def test_that_is_no_whole_number_is_refused_before_anything_is_charged(self, call, cost):
        limiter = engine()
        for method in ("check", "peek"):
            with pytest.raises(ValueError, match=r"cost is .*: it must be a whole number of at least 0"):
                call(limiter, method, CLIENT, cost=cost)
        assert call(limiter, "check", CLIENT).remaining == 1


class TestPeek:
    def test_says_what_check_would_and_charges_nothing(self, call):
        limiter = engine()
        looks = [call(limiter, "peek", CLIENT) for _ in range(3)]
        assert [(look.allowed, look.rule, look.remaining) for look in looks] == [(True, "everything", 2)] * 3
        call(limiter, "check", CLIENT)
        assert call(limiter, "peek", CLIENT, cost=2).allowed is False
        assert call(limiter, "check", CLIENT).remaining == 0

    def test_is_no_would_be_denial_of_a_shadow_rule(self, call, caplog):
        limiter = engine(rule("1 per minute", shadow=True))
        call(limiter, "check", CLIENT)
        with caplog.at_level(logging.INFO, "ratelimit_mw"):
            call(limiter, "peek", CLIENT)
        assert (shadow_denials(limiter), caplog.messages) == ({}, [])


class TestReset:
    def test_forgets_the_counters_of_these_attributes_and_no_others(self, call):
        limiter = engine(rule(), rule("3 per minute", name="users", by="user"))
        for client in (CLIENT, OTHER):
            call(limiter, "check", {**client, "user": "ann"})
        call(limiter, "reset", {**CLIENT, "user": "ann"})
        said = call(limiter, "check", {**CLIENT, "user": "ann"})
        assert [policy.remaining for policy in said.policies] == [1, 2]
        assert call(limiter, "peek", OTHER).remaining == 1

    def test_where_nothing_counts_there_is_nothing_to_forget(self, call):
        limiter = engine(rule(match={"path": "/login"}))
        call(limiter, "check", {**CLIENT, "path": "/login"})
        call(limiter, "reset", CLIENT)
        assert call(limiter, "peek", {**CLIENT, "path": "/login"}).remaining == 1

    def test_says_so_where_the_store_is_away(self, call):
        with engine(storage=AWAY) as limiter, pytest.raises(StoreUnavailable):
            call(limiter, "reset", CLIENT)


class TestTheStoreIsAway:
    @pytest.fixture
    def away(self):
        made = []

        def make(*rules, **sections):
            options = {"storage": AWAY, "clock": ManualClock(START)}
            made.append(RateLimiter({"domain": "shop", "rules": list(rules), **sections}, **options))
            return made[-1]

        yield make
        for limiter in made:
            limiter.close()

    def test_allow_lets_pass_and_speaks_of_no_rule(self, call, away):
        assert call(away(rule("1 per minute")), "check", CLIENT) == Decision(True)

    def test_deny_denies(self, call, away):
        said = call(away(rule(on_error="deny")), "check", CLIENT)
        assert (said.allowed, said.rule, said.limit) == (False, None, None)

    def test_local_counts_in_the_process(self, call, away):
        limiter = away(rule("1 per minute", on_error="local"), rule(name="other"))
        first, second = (call(limiter, "check", CLIENT) for _ in range(2))
        assert (first.allowed, first.rule, [policy.rule for policy in first.policies]) == (
            True,
            "everything",
            ["everything"],
        )
        assert (second.allowed, second.retry_after) == (False, 60.0)

    @pytest.mark.parametrize("order", range(6))
    def test_of_several_rules_deny_wins(self, call, away, order):
        rules = [rule(name=word, on_error=word) for word in ("allow", "deny", "local")]
        random.Random(order).shuffle(rules)
        assert not call(away(*rules), "check", CLIENT).allowed

    def test_the_file_s_policy_is_every_rule_s_that_has_none(self, call, away):
        limiter = away(
            rule(), rule(name="mild", on_error="allow", match={"path": "/mild"}), storage={"on_error": "deny"}
        )
        assert not call(limiter, "check", CLIENT).allowed

    def test_a_shadow_rule_denies_nobody(self, call, away):
        assert call(away(rule(on_error="deny", shadow=True)), "check", CLIENT).allowed

    def test_what_is_exempt_never_asks_it(self, call, away, caplog):
        limiter = away(rule(on_error="deny"), exempt=[{"path": "/health"}])
        assert call(limiter, "check", {**CLIENT, "path": "/health"}) == Decision(True)
        assert caplog.messages == [], "not even a connection was tried"
        assert not call(limiter, "check", {**CLIENT, "path": "/"}).allowed
        assert caplog.messages, "now it was"


class TestShadow:
    def test_would_be_denials_are_counted(self, call):
        limiter = engine(rule("1 per minute", name="new", shadow=True), rule("9 per minute"))
        for expected in (8, 7, 6):
            said = call(limiter, "check", CLIENT)
            assert (said.allowed, said.rule, said.remaining) == (True, "everything", expected)
        assert shadow_denials(limiter) == {"new": 2}

    def test_a_request_that_two_counters_of_a_rule_would_deny_counts_once(self, call):
        limiter = engine(rule("0 per minute", name="new", by=["ip", "global"], shadow=True))
        assert call(limiter, "check", CLIENT).allowed
        assert shadow_denials(limiter) == {"new": 1}


class TestTheSwitchInTheEnvironment:
    def test_off_lets_everything_pass_uncounted(self, call, monkeypatch):
        monkeypatch.setenv("RATELIMIT_MW", "off")
        limiter = engine(rule("0 per minute", on_error="deny"), storage=AWAY)
        assert call(limiter, "check", CLIENT) == Decision(True)

    def test_shadow_counts_and_denies_nobody(self, call, monkeypatch):
        monkeypatch.setenv("RATELIMIT_MW", " Shadow ")
        limiter = engine(rule("1 per minute"))
        assert [call(limiter, "check", CLIENT).allowed for _ in range(3)] == [True] * 3
        assert shadow_denials(limiter) == {"everything": 2}

    @pytest.mark.parametrize("word", ["", "on", "ON"])
    def test_on_is_as_if_it_were_not_there(self, call, monkeypatch, word):
        monkeypatch.setenv("RATELIMIT_MW", word)
        assert not call(engine(rule("0 per minute")), "check", CLIENT).allowed

    def test_another_word_stops_the_start(self, monkeypatch):
        monkeypatch.setenv("RATELIMIT_MW", "shadwo")
        with pytest.raises(ConfigurationError) as error:
            engine()
        assert (
            str(error.value)
            == "RATELIMIT_MW='shadwo' in the environment is not on, off or shadow (did you mean 'shadow'?)"
        )


class TestStorage:
    def test_given_it_wins_over_the_file_s(self):
        assert engine().check(CLIENT).rule == "everything"
        config = {"domain": "shop", "storage": {"url": AWAY, "on_error": "deny"}, "rules": [rule()]}
        assert RateLimiter(config, storage="memory://", clock=ManualClock()).check(CLIENT).allowed

    @pytest.mark.parametrize("storage", ["localhost:6379", "mysql://localhost", "redis://:pa:ss@h:99999/0"])
    def test_a_url_of_no_store_is_refused_and_its_password_not_shown(self, storage):
        with pytest.raises(ConfigurationError, match=r"\Astorage: ") as refused:
            engine(storage=storage)
        assert "pa:ss" not in str(refused.value)

    @pytest.mark.parametrize("storage", [5, {"url": "memory://"}, b"memory://"])
    def test_what_is_neither_a_url_nor_a_store_is_refused(self, storage):
        with pytest.raises(TypeError, match="storage takes a URL or a store, not "):
            engine(storage=storage)

    def test_memory_says_that_each_process_counts_for_itself(self, caplog):
        config = {"domain": "shop", "rules": [rule()]}
        RateLimiter(config)
        (message,) = caplog.messages
        assert message == (
            "storage is memory://: each process has its own counters, and a restart resets them; to share them, set "
            "storage.url in the rules, or storage= in code: lmdb:// for the workers of one machine, "
            "redis://HOST:6379/0 for several machines"
        )

    def test_memory_is_an_error_if_the_command_line_says_that_there_are_several_workers(self, caplog, monkeypatch):
        monkeypatch.setattr("sys.argv", ["/usr/bin/gunicorn", "-w", "4", "main:app"])
        RateLimiter({"domain": "shop", "rules": [rule()]})
        (record,) = caplog.records
        assert record.levelname == "ERROR"
        assert "each process has its own counters, and clients get up to 4 times their limits" in record.getMessage()

    @pytest.mark.parametrize(
        "call_close", [lambda limiter: limiter.close(), lambda limiter: asyncio.run(limiter.aclose())]
    )
    def test_a_store_that_was_handed_in_is_its_owner_s_to_close(self, call_close):
        closed = []

        class Watched(MemoryStore):
            def close(self):
                closed.append("close")

            async def aclose(self):
                closed.append("aclose")

        store = Watched(max_counters=10)
        first, second = engine(storage=store), engine(storage=store)
        first.check(CLIENT)
        call_close(first)
        assert closed == []
        assert second.check(CLIENT).remaining == 0, "two engines on one store share its counters"

    def test_with_closes_what_it_opened(self, fresh_server):  # a shared one may have clients of other tests
        def connections():
            return int(fresh_server.admin.info("clients")["connected_clients"])

        before = connections()
        with engine(storage=fresh_server.url) as limiter:
            limiter.check(CLIENT)
            assert connections() > before
        eventually(lambda: connections() == before)  # the server hears of it a moment later


class TestManualClock:
    def test_moves_by_hand_alone(self):
        clock = ManualClock(10)
        assert clock.now() == 10_000_000
        clock.advance(1.5)
        clock.advance(-0.5)
        assert clock.now() == 11_000_000
        clock.set(3.000001)
        assert clock.now() == 3_000_001


@pytest.mark.parametrize("method", ["check", "peek", "acquire"])
def test_a_blocking_call_in_a_running_event_loop_is_logged_once(any_server, caplog, method):
    options = {"timeout": 0} if method == "acquire" else {}

    async def main(limiter):
        for _ in range(3):
            getattr(limiter, method)(CLIENT, **options)
            await getattr(limiter, f"a{method}")(CLIENT, **options)

    for url, expected in ((any_server.url, 1), ("memory://", 0)):
        with engine(rule("9 per minute"), storage=url) as limiter:
            getattr(limiter, method)(CLIENT, **options)
            assert not _said(caplog)
            asyncio.run(main(limiter))
            assert [f"await limiter.a{method}(…)" in line for line in _said(caplog)] == [True] * expected
            caplog.clear()


def _said(caplog):
    return [message for message in caplog.messages if "running event loop" in message]


class TestARuleByName:
    MAIL = rule("1 per minute", name="mail", by="user", on_demand=True)
    PATHS = rule("1 per minute", name="paths", by="path:id", match={"path": "/items/{id}", "methods": ["POST"]})

    def test_is_asked_alone_whether_or_not_its_match_holds(self, call):
        limiter = engine(rule("9 per minute"), self.MAIL, self.PATHS)
        given = {**CLIENT, "user": "ann", "path": "/items/7", "method": "GET"}
        said = [call(limiter, "check", given, rule=name) for name in ("mail", "mail", "paths", "paths")]
        assert [(each.allowed, [policy.rule for policy in each.policies]) for each in said] == [
            (True, ["mail"]),
            (False, ["mail"]),
            (True, ["paths"]),
            (False, ["paths"]),
        ]
        assert call(limiter, "peek", given).remaining == 9

    def test_counts_by_a_key_and_with_a_limit_of_the_app(self, call):
        limiter = engine(self.MAIL)
        assert [call(limiter, "check", {}, rule="mail", key=key).allowed for key in ("a", "a", "b", None, "")] == [
            True,
            False,
            True,
            True,
            True,
        ]
        assert call(limiter, "check", {"user": "ann"}, rule="mail", limit="5 per hour").remaining == 4

    def test_has_the_counters_that_it_has_in_an_app(self, call):
        limiter = engine(self.MAIL)
        with limiter.limited("mail", {}, key=7):
            assert not call(limiter, "check", {}, rule="mail", key="7")

    def test_is_looked_at_waited_for_explained_and_reset_by_itself(self, call):
        limiter = engine(rule("1 per minute"), self.MAIL)
        named = {"rule": "mail", "key": "ann"}
        assert call(limiter, "peek", {}, **named)
        assert call(limiter, "acquire", {}, timeout=0, **named)
        assert not call(limiter, "peek", {}, **named)
        explained = call(limiter, "explain", {}, **named)
        assert [(each.name, each.status, each.allowed) for each in explained.rules] == [("mail", "applies", False)]
        assert "60 s pass without another request" in explained.changes
        call(limiter, "reset", {}, **named)
        assert call(limiter, "acquire", {}, timeout=0, **named)
        assert call(limiter, "acquire", {}, timeout=60, **named)

    @pytest.mark.parametrize(
        ("given", "named", "status", "why"),
        [
            pytest.param({}, {}, "no counter", "nothing to count by: the request has no user", id="no user"),
            pytest.param({}, {"key": ""}, "no counter", "nothing to count by: its key is empty", id="no key"),
            pytest.param({"path": "/free"}, {"key": "a"}, "exempt", "exempt[0]", id="exempt"),
            pytest.param({}, {"key": "a", "limit": "unlimited"}, "unlimited", "is unlimited", id="unlimited"),
        ],
    )
    def test_that_does_not_apply_says_why(self, call, given, named, status, why):
        limiter = engine(self.MAIL, exempt=[{"path": "/free"}])
        (reason,) = call(limiter, "explain", given, rule="mail", **named).rules
        assert (reason.name, reason.status) == ("mail", status)
        assert why in reason.why

    @pytest.mark.parametrize("method", ["check", "peek", "explain", "reset"])
    def test_that_does_not_exist_is_a_lookup_error(self, call, method):
        with pytest.raises(LookupError, match=r"the rule 'mial', which does not exist \(did you mean 'mail'"):
            call(engine(self.MAIL), method, {}, rule="mial")

    @pytest.mark.parametrize(
        ("named", "message"),
        [
            pytest.param({"key": "a"}, "rule takes the name of a rule, which key and limit belong to", id="no rule"),
            pytest.param({"rule": "mail", "key": 1.5}, "key takes a string, a whole number or a UUID", id="a key"),
            pytest.param({"rule": "mail", "limit": 5}, "limit takes a string such as '5 per minute'", id="a limit"),
            pytest.param({"rul": "mail"}, "unexpected keyword argument 'rul'", id="a typing mistake"),
        ],
    )
    def test_with_arguments_of_another_type_is_a_type_error(self, call, named, message):
        with pytest.raises(TypeError, match=message):
            call(engine(self.MAIL), "check", {}, **named)

    def test_of_the_first_of_two_domains_is_asked(self, call, tmp_path):
        for domain, limit in (("one", 1), ("two", 2)):
            rules = f"rules: [{{name: mail, by: user, limit: {limit} per hour}}]"
            (tmp_path / f"{domain}.yaml").write_text(f"domain: {domain}\n{rules}\n")
        limiter = RateLimiter(tmp_path, storage="memory://", clock=ManualClock(START))
        given = {"user": "ann"}
        assert call(limiter, "check", given, rule="mail").limit == 1
        assert call(limiter, "check", given, rule="mail", domain="two").limit == 2
        assert [each.name for each in call(limiter, "explain", given, rule="mail").rules] == ["mail"]


def test_what_begins_with_the_first_request_begins_at_once_if_requests_have_come():
    begun = []
    with engine() as limiter:
        limiter.at_first_request(lambda: begun.append("with it"))
        assert begun == []
        for _ in range(2):
            limiter.check(CLIENT)
        assert begun == ["with it"]
        limiter.at_first_request(lambda: begun.append("after it"))
        assert begun == ["with it", "after it"]
