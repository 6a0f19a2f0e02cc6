"""Several lists of entries (Envoy descriptors) are one plan and one call to the store."""

import asyncio
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratelimit_mw import EntryList, ManualClock, RateLimiter
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import ListStatus
from ratelimit_mw.stores.base import Wrapper
from ratelimit_mw.stores.memory import MemoryStore
from tests.shells.asking import InSteps
from tests.support.counts import shadow_denials

START = 1_700_006_400  # a day's beginning, UTC
ANN, BOB, FREE = [("user", "ann")], [("user", "bob")], [("tier", "free")]

FILE = {
    "domain": "shop",
    "client": {"secret": "s"},
    "descriptors": [
        {"key": "user", "rate_limit": {"unit": "minute", "requests_per_unit": 5}},
        {"key": "tier", "value": "free", "rate_limit": {"unit": "day", "requests_per_unit": 3, "name": "trial"}},
        {"key": "tier", "value": "gold", "rate_limit": {"unlimited": True}},
        {"key": "dark", "shadow_mode": True, "rate_limit": {"unit": "hour", "requests_per_unit": 1}},
        {"key": "none", "rate_limit": {"unit": "hour", "requests_per_unit": 0}},
        {"key": "vip", "rate_limit": {"unlimited": True, "replaces": [{"name": "trial"}]}},
        {"key": "q1", "quota_mode": True, "rate_limit": {"unit": "hour", "requests_per_unit": 1}},
        {"key": "q2", "quota_mode": True, "rate_limit": {"unit": "hour", "requests_per_unit": 2}},
    ],
}


class Counted(Wrapper):
    """Counts the calls and the asks of a memory store, which may be away."""

    calls = 0
    away = False

    def asked(self, request):
        if self.away:
            raise StoreUnavailable("away")
        self.calls += 1
        self.asks = request[0]
        return super().asked(request)


@pytest.fixture
def clock():
    return ManualClock(START)


@pytest.fixture
def store(clock):
    return Counted(MemoryStore(clock=clock))


@pytest.fixture
def engine(clock, store):
    return lambda changes=None: RateLimiter({**FILE, **(changes or {})}, clock=clock, storage=store)


@pytest.fixture(params=["blocking", "awaited"])
def check(request):
    """Asks a limiter for the domain "shop"."""

    def call(limiter, *lists, **options):
        if request.param == "blocking":
            return limiter.check_lists("shop", lists, **options)
        return asyncio.run(limiter.acheck_lists("shop", lists, **options))

    return call


def late(entries, hits):
    return EntryList(entries, hits=hits)


def remaining(limiter, entries):
    """What remains of the counter of a list, without a charge."""
    return limiter.peek(entries, cost=0, domain="shop").remaining


def test_lists_have_a_status_each_in_order_after_one_call(engine, check, store):
    found = check(engine(), ANN, FREE, [("color", "red")], [("tier", "gold")])
    assert found.allowed
    assert found.statuses == (
        ListStatus(True, "user", None, 5, 60.0, "minute", 4, reset_after=60.0),
        ListStatus(True, "trial", "trial", 3, 86_400.0, "day", 2, reset_after=86_400.0),
        ListStatus(True),
        ListStatus(True, unlimited=True),
    )
    assert tuple(found.statuses[2]) == (True, None, None, None, None, None, None, False, 0.0, 0.0)
    assert store.calls == 1
    assert [policy.rule for policy in found.decision.policies] == ["user", "trial"]


def test_what_one_list_denies_is_charged_to_none(engine, check, clock):
    limiter = engine()
    replies = [check(limiter, FREE, ANN) for _ in range(4)]
    assert [reply.allowed for reply in replies] == [True, True, True, False]
    clock.advance(10)
    denied = check(limiter, FREE, ANN)
    assert [status.allowed for status in denied.statuses] == [False, True]
    assert [status.remaining for status in denied.statuses] == [0, 2]
    assert [status.retry_after for status in denied.statuses] == [86_390.0, 0.0]
    assert (denied.decision.rule, denied.decision.reason) == ("trial", "limited")
    assert remaining(limiter, ANN) == 2


def test_a_limit_of_zero_denies_for_ever(engine, check):
    assert check(engine(), [("none", "x")]).statuses[0].retry_after == math.inf


def test_hits_apply_to_the_lists_without_hits_of_their_own(engine, check):
    limiter = engine()
    statuses = check(limiter, ANN, late(FREE, 2), late(BOB, 0), hits=3).statuses
    assert [status.remaining for status in statuses] == [2, 1, 5]
    assert not check(limiter, ANN, hits=3).allowed  # it does not fit, and is not a list's own
    assert remaining(limiter, ANN) == 2


def test_own_hits_that_do_not_fit_are_denied_and_taken_once(engine, check, clock):
    limiter = engine()
    assert check(limiter, late(ANN, 0)).allowed
    assert check(limiter, late(ANN, 12)).statuses[0] == ListStatus(
        False, "user", None, 5, 60.0, "minute", 0, reset_after=60.0, retry_after=60.0
    )
    clock.advance(15)
    for again in (late(ANN, 12), late(ANN, 0), ANN):
        denied = check(limiter, again)
        assert not denied.allowed
        assert denied.statuses[0].retry_after == 45.0
    clock.advance(45)
    assert check(limiter, late(ANN, 0)).allowed
    assert remaining(limiter, ANN) == 5


def test_own_hits_of_zero_pass_a_full_counter_and_a_counter_in_debt_denies_them(engine, check):
    limiter = engine()
    check(limiter, ANN, hits=5)
    assert check(limiter, late(ANN, 0)).allowed
    assert not check(limiter, ANN).allowed
    assert not check(limiter, late(ANN, 1)).allowed
    assert not check(limiter, late(ANN, 0)).allowed
    assert not check(limiter, late([("none", "x")], 0)).allowed


def test_a_denied_request_charges_the_lists_with_hits_of_their_own_alone(engine, check):
    limiter = engine()
    for left in (2, 0):
        denied = check(limiter, late(ANN, 3 if left else 2), BOB, [("none", "x")])
        assert [status.allowed for status in denied.statuses] == [True, True, False]
        assert (remaining(limiter, ANN), remaining(limiter, BOB)) == (left, 5)


@pytest.fixture(params=["memory", "a shared file", "Redis"])
def storage(request, tmp_path):
    if request.param == "Redis":
        return request.getfixturevalue("any_server").url
    return "memory://" if request.param == "memory" else f"lmdb://{tmp_path}/counters"


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "token_bucket", "leaky_bucket"])
def test_hits_below_0_are_given_back_at_most_what_was_charged(clock, check, algorithm, storage):
    limit = {"unit": "minute", "requests_per_unit": 5, "algorithm": algorithm}
    file = FILE | {"descriptors": [{"key": "user", "rate_limit": limit}], "storage": {"url": storage, "timeout": "5s"}}
    with RateLimiter(file, clock=clock) as limiter:
        for _ in range(3):
            assert check(limiter, ANN, hits=4).statuses[0].remaining == 1
            clock.advance(0.001)
            assert check(limiter, late(ANN, -2)).statuses[0].remaining == 3
            assert not check(limiter, late(ANN, 9)).allowed  # in debt
            clock.advance(0.001)
            assert check(limiter, late(ANN, -100)).statuses == check(limiter, late(BOB, -1)).statuses
            assert remaining(limiter, ANN) == 5


def test_what_one_list_gives_back_is_there_for_another_and_for_the_rules(engine, check):
    limiter = engine({"rules": [{"name": "all", "by": "global", "limit": "6 per day", "algorithm": "fixed_window"}]})
    assert check(limiter, ANN, hits=5).allowed
    found = check(limiter, late(ANN, -5), late(ANN, 1))
    assert [status.remaining for status in found.statuses] == [0, 0]  # of the rule, which was charged the 1
    assert check(limiter, late(ANN, -1)).statuses[0].remaining == 1


@pytest.mark.parametrize("algorithm", ["sliding_log", "bucketed_window"])
def test_hits_are_not_given_back_to_an_algorithm_that_needs_their_time(engine, check, algorithm):
    limit = {"unit": "minute", "requests_per_unit": 5, "algorithm": algorithm}
    limiter = engine({"descriptors": [{"key": "user", "rate_limit": limit}]})
    with pytest.raises(ValueError, match=f"'user': {algorithm} needs their time"):
        check(limiter, late(ANN, -1))


def test_hits_are_not_given_back_while_the_store_is_away(engine, check, store):
    limiter = engine()
    store.away = True
    assert check(limiter, late(ANN, -1)).statuses == (ListStatus(True, "user", None, 5, 60.0, "minute"),)


def test_lists_that_lead_to_one_counter_ask_it_once_with_the_sum(engine, check, store):
    limiter = engine()
    found = check(limiter, ANN, late(ANN, 2), ANN)
    assert [status.remaining for status in found.statuses] == [4, 2, 1]
    assert [(ask.cost, ask.quota.overdraft) for ask in store.asks] == [(4, True)]
    assert not check(limiter, BOB, BOB, BOB, BOB, BOB, BOB).allowed
    assert remaining(limiter, BOB) == 5


def test_a_shadow_never_denies_and_says_what_remains(engine, check):
    limiter = engine()
    replies = [check(limiter, [("dark", "x")], ANN) for _ in range(2)]
    assert [reply.allowed for reply in replies] == [True, True]
    assert [reply.statuses[0][:4] for reply in replies] == [(True, "dark", None, 1)] * 2
    assert shadow_denials(limiter)["dark"] == 1


def test_a_limit_that_is_replaced_is_absent(engine, check):
    limiter = engine()
    for _ in range(5):
        found = check(limiter, FREE, [("vip", "x")])
    assert found.statuses == (ListStatus(True), ListStatus(True, unlimited=True))
    assert remaining(limiter, FREE) == 3


def test_quotas_deny_only_together(engine, check):
    limiter = engine()
    replies = [check(limiter, [("q1", "x")], [("q2", "x")]) for _ in range(3)]
    codes = [[status.allowed for status in reply.statuses] for reply in replies]
    assert [reply.allowed for reply in replies] == [True, True, False]
    assert codes == [[True, True], [True, True], [False, False]]


def test_a_sent_limit_replaces_that_of_the_file(engine, check, clock):
    limiter = engine()
    sent = EntryList(ANN, limit=(2, "HOUR"))
    replies = [check(limiter, sent) for _ in range(3)]
    assert [reply.allowed for reply in replies] == [True, True, False]
    assert replies[0].statuses[0] == ListStatus(True, "user", None, 2, 3_600.0, "hour", 1, reset_after=3_600.0)
    assert replies[2].statuses[0].retry_after == 3_600.0
    assert remaining(limiter, ANN) == 5
    assert check(limiter, EntryList(BOB, limit=(2, "hour"))).allowed
    assert check(limiter, EntryList([*ANN, ("path", "/a")], limit=(2, "hour"))).allowed
    assert not check(limiter, EntryList([("dark", "x")], limit=(0, "second"))).allowed
    clock.advance(3_600)
    assert check(limiter, sent).allowed


def test_of_two_sent_limits_for_one_counter_the_lowest_counts(engine, check):
    limiter = engine()
    lists = [EntryList(ANN, limit=(number, "hour")) for number in (5, 2, 9)]
    found = check(limiter, *lists)
    assert not found.allowed
    assert {status.limit for status in found.statuses} == {2}
    assert [status.allowed for status in check(limiter, *lists[:2]).statuses] == [True, True]


def test_a_sent_limit_needs_no_descriptors(clock, check):
    limiter = RateLimiter({"domain": "shop", "rules": [{"name": "all", "limit": "9 per day"}]}, clock=clock)
    sent = EntryList([("x", "y")], limit=(1, "minute"))
    assert [check(limiter, sent).allowed for _ in range(2)] == [True, False]


def test_shadow_denials_of_sent_limits_are_counted_together(engine, check):
    limiter = engine({"shadow": True})
    for number in range(3):
        check(limiter, EntryList([(f"k{number}", "x")], limit=(0, "hour")))
    check(limiter, [("none", "x")])
    assert shadow_denials(limiter) == {"(sent)": 3, "none": 1}


def test_denials_of_sent_limits_are_ten_records_a_minute_together(engine, check, caplog, clock):
    limiter = engine()
    caplog.set_level("INFO", "ratelimit_mw.denials")
    for number in range(20):
        check(limiter, EntryList([(f"k{number}", "x")], limit=(0, "hour")))
    check(limiter, [("none", "x")])
    clock.advance(60)
    check(limiter, EntryList([("k0", "x")], limit=(0, "hour")))
    records = [record for record in caplog.records if record.name == "ratelimit_mw.denials"]
    assert [record.rule for record in records] == [*["(sent)"] * 10, "none", "(sent)"]
    assert not any("=" in record.identity for record in records[:10])  # it would have a key that a client chose
    assert caplog.messages[-1].endswith("; 10 more denials were not logged")


def test_a_file_in_shadow_does_not_enforce_a_sent_limit(engine, check):
    limiter = engine({"shadow": True})
    assert all(check(limiter, EntryList(ANN, limit=(0, "hour"))).allowed for _ in range(2))


RULES = {
    "attributes": {"plan": "header:X-Plan"},
    "client": {"secret": "s", "tier": "header:X-Tier"},
    "rules": [
        {"name": "tokens", "by": "user", "limit": "10 per minute", "algorithm": "token_bucket", "burst": 10},
        {"name": "tiers", "by": "tier", "limit": {"default": "100 per day", "gold": "5 per 90s"}},
    ],
    "exempt": [{"ip": "192.0.2.7"}],
}


def test_rules_see_the_entries_of_all_lists_as_attributes(engine, check):
    limiter = engine(RULES)
    found = check(limiter, [("tier", "gold"), ("unknown", "x")], [("user", "eve"), ("tier", "free")])
    assert {policy.rule: policy.remaining for policy in found.decision.policies} == {"tokens": 9, "tiers": 4}
    statuses = [(status.rule, status.name, status.unit, status.period) for status in found.statuses]
    assert statuses == [("tiers", "tiers", None, 90.0)] * 2


def test_rules_are_charged_the_most_hits_in_full_if_they_are_a_lists_own(engine, check, clock):
    limiter = engine(RULES)
    tokens = [("user", "eve"), ("model", "m")]
    assert check(limiter, tokens, hits=0).allowed
    assert check(limiter, late(tokens, 25), [("model", "m")]).statuses[0].remaining == 0
    denied = check(limiter, late(tokens, 0))
    assert (denied.allowed, denied.statuses[0].rule) == (False, "tokens")
    assert denied.statuses[0].retry_after == 60.0  # a debt of two windows at most: 20 tokens
    clock.advance(60)
    assert check(limiter, late(tokens, 0)).allowed
    assert not check(limiter, tokens, hits=20).allowed


def test_a_rule_that_is_replaced_is_not_charged_for_lists(engine, check):
    gold = {"name": "gold", "by": "user", "match": {"tier": "gold"}, "limit": "9 per day", "replaces": "tokens"}
    limiter = engine({**RULES, "rules": [RULES["rules"][0], gold]})
    found = check(limiter, [("user", "eve")], [("tier", "gold")])
    assert [policy.rule for policy in found.decision.policies] == ["gold", "user"]


@pytest.mark.parametrize("waits", [("hour", "day"), ("day", "hour")])
def test_of_two_limits_that_deny_a_list_its_status_is_that_of_the_longer_wait(engine, check, waits):
    rules = [{"name": each, "limit": f"1 per {each}", "algorithm": "fixed_window"} for each in waits]
    limiter = engine({"rules": rules})
    assert [check(limiter, [("user", "eve")]).allowed for _ in range(2)] == [True, False]
    denied = check(limiter, [("user", "eve")]).statuses[0]
    assert (denied.rule, denied.retry_after) == ("day", 86_400.0)


def test_a_sum_of_hits_above_every_limit_is_reduced_also_in_the_metrics(engine, check, store):
    limiter = engine()
    assert not check(limiter, late(ANN, 2**64), late(ANN, 2**64)).allowed
    assert [ask.cost for ask in store.asks] == [2**32]
    assert [hits.over_limit for hits in limiter.tally.snapshot().hits] == [2**32]


def test_own_hits_are_taken_in_full_by_the_lower_of_two_sent_limits(engine, check, store):
    limiter = engine()
    high, low = EntryList(ANN, hits=4, limit=(5, "hour")), EntryList(ANN, limit=(3, "hour"))
    assert not check(limiter, high, low).allowed
    assert [(ask.cost, ask.quota.limit, ask.quota.overdraft) for ask in store.asks] == [(5, 3, True)]


def test_an_exempt_client_passes_all_lists(engine, check, store):
    limiter = engine(RULES)
    found = check(limiter, [("none", "x")], [("remote_address", "192.0.2.7")])
    assert found.statuses == (ListStatus(True), ListStatus(True))
    assert store.calls == 0


def test_a_blocked_client_is_denied_in_all_lists(engine, check, store):
    limiter = engine(RULES)
    limiter.overrides.set({"user": "eve"}, block=True)
    found = check(limiter, [("user", "eve")], [("tier", "gold")])
    assert found.decision.reason == "blocked"
    assert found.statuses == (ListStatus(False, retry_after=math.inf),) * 2
    assert store.calls == 0


def test_an_override_raises_the_limit_of_a_client(engine, check):
    limiter = engine(RULES)
    limiter.overrides.set({"tier": "gold"}, rule="tiers", limit="50 per day")
    assert check(limiter, [("tier", "gold"), ("x", "y")], hits=40).allowed


def test_a_ban_counts_the_denials_of_lists(engine, check, clock):
    rule = {
        **RULES["rules"][0],
        "limit": "2 per minute",
        "burst": 2,
        "ban": {"after": "2 denials in 1 minute", "for": "1 hour"},
    }
    limiter = engine({"rules": [rule]})
    eve = [("user", "eve"), ("path", "/")]
    assert [check(limiter, eve).allowed for _ in range(4)] == [True, True, False, False]
    found = check(limiter, late(eve, 0))
    assert found.decision.banned
    assert found.statuses[0].retry_after == 3_600.0


def test_the_kill_switch_lets_all_lists_pass(engine, check, store):
    limiter = engine()
    limiter.switch.set("off")
    found = check(limiter, [("none", "x")])
    assert found.statuses == (ListStatus(True),)
    limiter.switch.set("shadow")
    assert check(limiter, [("none", "x")]).statuses[0].allowed


@pytest.mark.parametrize(("on_error", "allowed"), [("allow", True), ("deny", False), ("local", True)])
def test_without_the_store_on_error_decides(engine, check, store, on_error, allowed):
    limiter = engine({"storage": {"on_error": on_error}})
    store.away = True
    found = check(limiter, ANN, EntryList(BOB, limit=(1, "hour")))
    assert found.allowed == allowed
    assert [status.allowed for status in found.statuses] == [allowed] * 2
    if on_error == "local":
        assert [status.remaining for status in found.statuses] == [4, 0]
        assert not check(limiter, ANN, EntryList(BOB, limit=(1, "hour"))).allowed


def test_an_unknown_domain_is_an_error(engine):
    with pytest.raises(LookupError, match="shoe"):
        engine().check_lists("shoe", [ANN])


@pytest.mark.parametrize(
    ("lists", "options"),
    [
        pytest.param([], {}, id="no lists"),
        pytest.param([late(ANN, "1")], {}, id="hits that are a text"),
        pytest.param([ANN], {"hits": -1}, id="negative hits of the request"),
        pytest.param([["ann"]], {}, id="an entry that is no pair"),
        pytest.param([EntryList(ANN, limit=(-1, "hour"))], {}, id="a negative limit"),
        pytest.param([EntryList(ANN, limit=(2**32, "hour"))], {}, id="too great a limit"),
        pytest.param([EntryList(ANN, limit=(1, "millisecond"))], {}, id="too small a unit"),
        pytest.param([EntryList(ANN, limit=(1, "hours"))], {}, id="no unit"),
    ],
)
def test_what_is_no_list_is_an_error(engine, lists, options):
    with pytest.raises(ValueError):
        engine().check_lists("shop", lists, **options)


def test_huge_hits_are_taken_as_the_largest_debt(engine, check):
    limiter = engine()
    assert not check(limiter, late(ANN, 2**64), late(ANN, 2**64)).allowed
    assert not check(limiter, late(ANN, 0)).allowed


def decisions(server):
    """How many scripts the server has run."""
    stats = server.admin.info("commandstats")
    return sum(each["calls"] for name, each in stats.items() if name in ("cmdstat_eval", "cmdstat_evalsha"))


def test_lists_are_one_call_on_redis(server, check):
    with RateLimiter({**FILE, "storage": {"timeout": "5s"}}, clock=ManualClock(START), storage=server.url) as limiter:
        assert [check(limiter, ANN, late(FREE, 2), BOB).allowed for _ in range(2)] == [True, False]
        assert remaining(limiter, ANN) == 4
        assert decisions(server) == 3


def test_a_denial_that_is_remembered_is_answered_without_the_store(server, check):
    clock = ManualClock(START)
    with RateLimiter({**FILE, "storage": {"timeout": "5s"}}, clock=clock, storage=server.url) as limiter:
        for _ in range(4):
            asked = check(limiter, ANN, FREE)
        before = decisions(server)
        denied = check(limiter, ANN, FREE)
        assert decisions(server) == before
        assert [status.allowed for status in denied.statuses] == [True, False]
        assert denied.statuses[1] == asked.statuses[1]
        assert (denied.statuses[0].limit, denied.statuses[0].remaining) == (5, None)
        for _ in range(2):  # a late cost is another request
            assert not check(limiter, late(FREE, 4)).allowed
        assert decisions(server) == before + 1


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    asked=st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["user", "tier", "dark", "none", "vip", "q1", "q2"]),
                st.sampled_from([None, 0, 1, 4]),
                st.sampled_from([None, (2, "hour")]),
            ),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=12,
    )
)
def test_lists_that_are_decided_in_one_step_leave_the_same_statuses_counters_and_counts_as_in_several(asked):
    clock, found = ManualClock(START), []
    for kind in (MemoryStore, InSteps):
        store = kind(clock=clock)
        with RateLimiter(FILE, storage=store, clock=clock) as limiter:
            statuses = [
                limiter.check_lists("shop", [EntryList([(key, "free")], *options) for key, *options in lists])
                for lists in asked
            ]
            counters = {key: store.load(key) for key in store.keys("")}
            found.append((statuses, counters, limiter.tally.snapshot()._replace(decisions=None)))
    assert found[0] == found[1]


def test_lists_whose_limits_need_no_address_are_not_told_to_lack_one(caplog):
    """The descriptors are matched with the lists alone, and not with the attributes of the request."""
    rules = {
        "domain": "shop",
        "rules": [{"name": "login", "match": {"path": "/login"}, "by": "ip", "limit": "3 per minute"}],
        "descriptors": [
            {"key": key, "rate_limit": {"unit": "minute", "requests_per_unit": 5}}
            for key in ("remote_address", "files")
        ],
    }
    with RateLimiter({**rules, "client": {"secret": "s"}}) as limiter:
        assert limiter.check_lists("shop", [[("files", "a")]]).allowed
    assert [line for line in caplog.messages if "address" in line] == []
