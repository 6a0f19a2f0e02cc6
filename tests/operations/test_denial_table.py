"""The table of denied clients: what it counts, how long, and that it is bounded."""

import threading

import pytest

from ratelimit_mw import RateLimiter
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.operations.live import live_of
from ratelimit_mw.operations.observer import MOST, DenialTable
from tests.support.patience import eventually

MINUTE = 60.0
NONE_PASSES = {"domain": "d", "client": {"secret": "s"}, "rules": [{"name": "a", "by": "ip", "limit": "0 per day"}]}


@pytest.fixture
def started(clock):
    """A function that makes a limiter and its started `Live` on `clock`."""
    made = []

    def make(*rules, **file):
        config = {"domain": "shop", "client": {"secret": "s"}, "rules": list(rules), **file}
        limiter = RateLimiter(config, clock=clock)
        live = live_of(limiter)
        live.begin(1)
        made.append(limiter)
        return limiter, live

    yield make
    for limiter in made:
        limiter.close()


def limited(live):
    return [(each["client"], each["rule"], each["reason"], each["denials"]) for each in live.state()["limited"]]


def test_the_most_denied_client_is_the_first(started):
    limiter, live = started({"name": "all", "by": "ip", "limit": "1 per hour"})
    for number, checks in ((1, 3), (2, 5), (3, 1)):
        for _ in range(checks):
            limiter.check({"ip": f"192.0.2.{number}"})
    assert limited(live) == [("ip=192.0.2.2", "all", "limited", 4), ("ip=192.0.2.1", "all", "limited", 2)]


def test_a_client_is_shown_until_its_limit_opens_and_counts_on_for_a_minute(started, clock):
    limiter, live = started({"name": "all", "by": "ip", "limit": "1 per 10 seconds", "algorithm": "fixed_window"})
    deny(limiter, 3)
    assert limited(live) == [("ip=192.0.2.1", "all", "limited", 2)]
    clock.advance(10)
    assert limited(live) == []
    deny(limiter, 2)
    assert limited(live) == [("ip=192.0.2.1", "all", "limited", 3)]
    clock.advance(10 + MINUTE)
    assert limited(live) == []
    deny(limiter, 2)
    (client,) = live.state()["limited"]
    assert (client["denials"], client["since"]) == (1, clock.now() / 1e6)


def deny(limiter, checks):
    for _ in range(checks):
        limiter.check({"ip": "192.0.2.1"})


def test_a_client_is_forgotten_when_the_clock_is_set_back(started, clock):
    limiter, live = started({"name": "all", "by": "ip", "limit": "1 per minute", "algorithm": "fixed_window"})
    deny(limiter, 3)
    clock.advance(-2 * 60 * MINUTE)
    assert limited(live) == []
    deny(limiter, 2)
    (client,) = live.state()["limited"]
    assert (client["denials"], client["since"]) == (1, clock.now() / 1e6)


def test_a_client_of_a_limit_that_never_opens_is_shown_for_a_minute(started, clock):
    limiter, live = started({"name": "none", "by": "ip", "limit": "0 per hour"})
    deny(limiter, 1)
    (client,) = live.state()["limited"]
    assert client["until"] is None
    clock.advance(MINUTE - 1)
    assert len(live.state()["limited"]) == 1
    clock.advance(1)
    assert live.state()["limited"] == []


def test_a_client_that_a_shadow_rule_would_deny_is_an_entry_that_is_marked(started):
    limiter, live = started({"name": "trial", "by": "ip", "limit": "1 per hour", "shadow": True})
    assert all(limiter.check({"ip": "192.0.2.1"}).allowed for _ in range(3))
    (client,) = live.state()["limited"]
    assert (client["client"], client["rule"], client["denials"], client["shadow"]) == ("ip=192.0.2.1", "trial", 2, True)


def test_blocks_and_looks_are_no_entries(started):
    limiter, live = started(
        {"name": "path", "by": "path", "match": {"path": "/x"}, "limit": "0 per hour"},
    )
    limiter.overrides.set({"ip": "192.0.2.9"}, block=True)
    assert limiter.check({"ip": "192.0.2.1"}).allowed
    assert limiter.check({"ip": "192.0.2.9"}).reason == "blocked"
    assert not limiter.peek({"ip": "192.0.2.1", "path": "/x"}).allowed
    state = live.state()
    assert state["limited"] == []
    assert state["rates"]["denials"] == 1.0


def test_a_ban_and_a_denial_of_the_cache_are_entries(started, any_server):
    ban = {"after": "2 denials in 1 hour", "for": "2 hours"}
    rule = {"name": "login", "by": "ip", "limit": "1 per hour", "algorithm": "fixed_window", "ban": ban}
    limiter, live = started(rule, storage={"url": any_server.url, "timeout": "5s"})
    deny(limiter, 9)
    assert limited(live) == [("ip=192.0.2.1", "login", "banned", 8)]
    assert limiter.tally.snapshot().local_denials > 0
    (shown,) = live.state()["rules"]
    assert shown["bans"] == 1


@pytest.mark.parametrize(("identity", "client"), [("key", "ip=192.0.2.1"), ("none", "(hidden)"), ("hashed", None)])
def test_a_client_is_named_as_the_rules_say(started, identity, client):
    rule = {"name": "all", "by": "ip", "limit": "0 per hour"}
    limiter, live = started(rule, observe={"identity": identity})
    deny(limiter, 2)
    ((shown, *rest),) = limited(live)
    assert rest == ["all", "limited", 2]
    assert shown == (client or limiter.rules.attributes.digest("ip=192.0.2.1"))


def test_a_long_client_is_cut(started):
    limiter, live = started({"name": "all", "by": "path+header:a+header:b+header:c+header:d", "limit": "0 per hour"})
    limiter.check({"path": "/", **{f"header:{name}": "v" for name in "abcd"}})
    ((shown, *_),) = limited(live)
    assert len(shown) == 100
    assert shown.endswith("…")


def test_a_full_table_keeps_the_half_with_the_most_denials(clock):
    with RateLimiter(
        {"domain": "d", "rules": [{"name": "a", "by": "ip", "limit": "0 per day"}]}, clock=clock
    ) as limiter:
        table = DenialTable()
        limiter.engine.on_denial = table.add
        for number in range(MOST):
            for _ in range(1 + number % 2):
                limiter.check({"ip": f"10.0.{number // 256}.{number % 256}"})
        assert len(table.entries) == MOST
        limiter.check({"ip": "10.9.9.9"})
        assert len(table.entries) == MOST // 2 + 1
        assert sorted(each.count for each in table.entries.values()) == [1] + [2] * (MOST // 2)
        for number in range(3 * MOST):
            limiter.check({"ip": f"10.1.{number // 256}.{number % 256}"})
        assert len(table.entries) <= MOST


def test_a_denial_without_a_counter_is_no_entry():
    table = DenialTable()
    table.add(Verdict((), None, denied="shed"), -1, "shed", shadow=False)
    assert table.entries == {}


def test_a_process_without_a_live_has_no_table(clock):
    with RateLimiter(
        {"domain": "d", "rules": [{"name": "a", "by": "ip", "limit": "0 per day"}]}, clock=clock
    ) as limiter:
        assert limiter.engine.on_denial is None
        live = live_of(limiter)
        assert limiter.engine.on_denial is None
        live.begin(1)
        assert limiter.engine.on_denial is not None
        live.end(1)
        live.end(1)
        assert limiter.engine.on_denial is None


def test_the_thread_begins_with_the_first_request_and_ends_with_the_limiter(clock):
    before = set(threading.enumerate())

    def begun():
        return [each for each in threading.enumerate() if each.name == "ratelimit_mw live" and each not in before]

    with RateLimiter(
        {"domain": "d", "rules": [{"name": "a", "by": "ip", "limit": "0 per day"}]}, clock=clock
    ) as limiter:
        live_of(limiter).begin(1)
        assert begun() == []
        limiter.check({"ip": "192.0.2.1"})
        assert len(begun()) == 1
    eventually(lambda: begun() == [])


def test_a_limiter_that_is_dropped_ends_its_thread(clock):
    limiter, before = RateLimiter(NONE_PASSES, clock=clock), set(threading.enumerate())
    live_of(limiter).begin(1)
    limiter.check({"ip": "192.0.2.1"})
    (thread,) = [each for each in threading.enumerate() if each.name == "ratelimit_mw live" and each not in before]
    del limiter
    eventually(lambda: not thread.is_alive())
