"""The last 15 minutes of a process, and several processes together."""

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.operations.activity import (
    MOST_LIMITED,
    NO_COUNTS,
    STEPS,
    Activity,
    LimitedClient,
    ProcessReport,
    Recorder,
    RuleActivity,
    decode_report,
    encode_report,
    together,
)
from ratelimit_mw.operations.live import live_of
from tests.support.patience import eventually
from tests.support.rules import load_rules

LOGIN = {"name": "login", "by": "ip", "limit": "0 per hour"}
RULE = ("shop", "login")
RULES = load_rules({"domain": "shop", "client": {"secret": "s"}, "rules": [LOGIN]})


def history(clock, *rules):
    limiter = RateLimiter({"domain": "shop", "client": {"secret": "s"}, "rules": list(rules or [LOGIN])}, clock=clock)
    return limiter, Recorder(limiter.engine.tally, clock.now(), NO_COUNTS)


def ask(limiter, number=1, path="/"):
    for _ in range(number):
        limiter.check({"ip": "192.0.2.1", "path": path})


def test_rates_are_those_of_the_last_ten_seconds(clock):
    limiter, found = history(clock)
    for second in range(30):
        ask(limiter, 5 if second < 15 else 1)
        clock.advance(1)
        found.sample(clock.now())
    report = found.activity((), None)
    assert (report.requests, report.denials) == (1.0, 1.0)
    assert report.rules[RULE].rates == (0.0, 0.0, 0.0, 1.0, 0.0)


def test_a_series_ends_after_fifteen_minutes(clock):
    limiter, found = history(clock)
    for _ in range(2 * STEPS):
        ask(limiter, 3)
        found.sample(clock.now())
        clock.advance(10)
    found.sample(clock.now())
    report = found.activity((), None)
    assert len(report.steps[1]) == STEPS
    assert set(report.steps[1].values()) == {3}
    assert report.steps[0] == report.steps[1]
    clock.advance(3_600)
    found.sample(clock.now())
    assert found.activity((), None).steps == ({}, {})
    assert found.activity((), None).rules == {}


def test_a_clock_that_is_set_back_begins_again(clock):
    limiter, found = history(clock)
    ask(limiter, 4)
    found.sample(clock.now())
    clock.advance(-100)
    ask(limiter, 2)
    found.sample(clock.now())
    assert found.activity((), None).steps == ({}, {})
    ask(limiter)
    clock.advance(1)
    found.sample(clock.now())
    assert found.activity((), None).denials == 1.0


def test_counts_that_a_test_has_reset_begin_again(clock):
    limiter, found = history(clock)
    ask(limiter, 4)
    found.sample(clock.now())
    limiter.engine.forget_reports()
    ask(limiter)
    clock.advance(1)
    found.sample(clock.now())
    assert found.activity((), None).requests == 0.0


def client(name, denials, since, until):
    return LimitedClient(name, "shop", "login", "limited", denials, since, until)


def test_several_processes_are_added_up():
    one = Activity(2.0, 1.0, ({1: 2, 2: 3}, {1: 1}), {RULE: RuleActivity((1.0, 0, 0, 1.0, 0), 2)}, (), 0.2)
    other = Activity(
        1.0,
        0.5,
        ({2: 4}, {3: 7}),
        {
            RULE: RuleActivity((0.5, 1, 2, 3, 4), 1),
            ("shop", "api"): RuleActivity((1.0, 0, 0, 0, 0), 0),
        },
        (),
        0.7,
    )
    assert together([one, other]) == Activity(
        3.0,
        1.5,
        ({1: 2, 2: 7}, {1: 1, 3: 7}),
        {
            RULE: RuleActivity((1.5, 1, 2, 4.0, 4), 3),
            ("shop", "api"): RuleActivity((1.0, 0, 0, 0, 0), 0),
        },
        (),
        0.7,
    )
    assert one.rules[RULE].bans == 2  # neither is changed


def test_a_client_of_several_processes_is_one_with_the_latest_end():
    empty = Activity(0.0, 0.0, ({}, {}), {}, (), None)
    one = empty._replace(limited=(client("a", 3, 10.0, 50.0), client("b", 9, 1.0, 2.0)))
    other = empty._replace(limited=(client("a", 4, 7.0, 60.0), client("c", 1, 1.0, None)))
    report = together([one, other])
    assert report.limited == (client("b", 9, 1.0, 2.0), client("a", 7, 7.0, 60.0), client("c", 1, 1.0, None))
    assert report.load is None
    many = empty._replace(limited=tuple(client(str(n), n, 1.0, 2.0) for n in range(MOST_LIMITED + 5)))
    assert [each.denials for each in together([many, one]).limited][-1] == 6


def report():
    steps = ({100: 5, 103: 1}, {101: 2})
    rules = {
        RULE: RuleActivity((1.5, 0.0, 0.25, 3.0, 0.001), 2),
        ("shop", "x"): RuleActivity((0.0,) * 5, 0),
    }
    activity = Activity(2.5, 0.125, steps, rules, (client("ip=192.0.2.1", 3, 10.5, None),), 0.5)
    return ProcessReport("p", "v", "on", activity)


def test_a_text_has_all_of_a_report():
    assert decode_report(encode_report(report())) == report()


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "[" * 9_000, "\xff", '{"form": 1}'),
        encode_report(report()).replace('"rates"', '"speeds"'),
        encode_report(report()).replace("1500", "9" * 400),
    ],
)
def test_a_text_of_another_release_or_program_is_left_out(text):
    assert decode_report(text) is None


def test_many_rules_are_shown_from_a_state_that_the_thread_makes():
    clock = ManualClock()
    rules = [{**LOGIN, "name": f"r{n}", "match": {"path": f"/{n}"}} for n in range(150)]
    with RateLimiter({"domain": "shop", "client": {"secret": "s"}, "rules": rules}, clock=clock) as limiter:
        live = live_of(limiter)
        live.begin(1)
        for number in range(150):
            ask(limiter, 1, f"/{number}")
        state = live.state()
        assert sum(rule["rates"]["denied"] for rule in state["rules"]) == 150.0
        assert live.state() is state
        eventually(lambda: live.state() is not state)


def test_a_rule_that_the_file_no_longer_has_is_the_last(tmp_path):
    path = tmp_path / "ratelimits.yaml"
    path.write_text("domain: shop\nreload: 1h\nrules: [{name: old, by: ip, limit: 0 per hour}]\n", "utf-8")
    with RateLimiter(path) as limiter:
        live = live_of(limiter)
        live.begin(1)
        ask(limiter)
        path.write_text("domain: shop\nreload: 1h\nrules: [{name: new, by: ip, limit: 'unlimited'}]\n", "utf-8")
        limiter.reload()
        rules = live.state()["rules"]
    assert [(rule["name"], rule["limits"]) for rule in rules] == [("new", []), ("old", [])]
    assert rules[1]["rates"]["denied"] == 1.0
