"""The texts of limits and times, and the counters that come of them."""

import pytest

from ratelimit_mw import ConfigurationError, RateLimiter
from ratelimit_mw.config.words.limit import Window, parse_limit, parse_period
from ratelimit_mw.errors import Invalid
from ratelimit_mw.model import Quota
from ratelimit_mw.units import DAY, parse_duration, spell_period
from tests.rules.corpus import request, rules

case = pytest.param


S = 1_000_000


@pytest.mark.parametrize(
    ("text", "limit", "period"),
    [
        case("100 per minute", 100, 60 * S, id="as in the README"),
        case("100/minute", 100, 60 * S, id="a slash"),
        case("100 / minute", 100, 60 * S, id="a slash with spaces"),
        case("10/2s", 10, 2 * S, id="a slash and a short unit"),
        case("10 per 2 seconds", 10, 2 * S, id="a plural"),
        case("1 per 1 hours", 1, 3_600 * S, id="a plural of one"),
        case("5 PER Day", 5, DAY, id="capitals"),
        case("  5   per   3   d  ", 5, 3 * DAY, id="many spaces"),
        case("5/s", 5, S, id="s"),
        case("5/m", 5, 60 * S, id="m is a minute"),
        case("5/h", 5, 3_600 * S, id="h"),
        case("5/d", 5, DAY, id="d"),
        case("5/w", 5, 7 * DAY, id="w"),
        case("5 per week", 5, 7 * DAY, id="a week"),
        case("5 per month", 5, 30 * DAY, id="a month is 30 days"),
        case("5 per year", 5, 365 * DAY, id="a year is 365 days"),
        case("10 per 100ms", 10, S // 10, id="milliseconds"),
        case("10 per 100 milliseconds", 10, S // 10, id="milliseconds in full"),
        case("5/min", 5, 60 * S, id="min"),
        case("5 per hr", 5, 3_600 * S, id="hr"),
        case("5 per 3 hrs", 5, 3 * 3_600 * S, id="a plural of an abbreviation"),
        case("1/ms", 1, S // 1_000, id="ms"),
        case("5/sec;", 5, S, id="a separator at the end"),
        case("0 per day", 0, DAY, id="nothing at all"),
        case("007 per minute", 7, 60 * S, id="zeros before a number within a text are decimal"),
    ],
)
def test_a_limit_is(text, limit, period):
    assert parse_limit(text) == (Window(limit, period),)


@pytest.mark.parametrize("text", ["5/s; 100 per hour", "5/s, 100/h", "5 per second|100 per hour;", "5/s;; 100/h"])
def test_one_text_states_several_limits(text):
    assert parse_limit(text) == (Window(5, S), Window(100, 3_600 * S))


@pytest.mark.parametrize(
    ("rule", "tier"),
    [
        case({"limit": "1 per hour; 10 per day"}, "", id="in a rule"),
        case({"limit": ["1 per hour, 10 per day"]}, "", id="in a list"),
        case({"limit": {"default": "5/s", "gold": "1/hour|10/day"}}, "gold", id="in a tier"),
    ],
)
def test_each_limit_of_one_text_is_a_counter(rule, tier):
    quotas = [quota for _, quota in counters(rule, **{"x-tier": tier})]
    assert quotas == [Quota("sliding_window", 1, 3_600 * S), Quota("sliding_window", 10, DAY)]


def test_unlimited_is_no_window():
    assert parse_limit("unlimited") is None
    assert parse_limit(" Unlimited ") is None


@pytest.mark.parametrize(
    "text", ["", "5", "per minute", "5 minutes", "5 each hour", "\u0665 per hour", "5 per", "5//s"]
)
def test_is_no_limit(text):
    with pytest.raises(Invalid):
        parse_limit(text)


@pytest.mark.parametrize("text", ["", "5", "5 5 s", "minutess", "0s", "1.5 h", "-1 s", "9" * 30 + " s"])
def test_is_no_period(text):
    with pytest.raises(Invalid):
        parse_period(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("100ms", 0.1),
        ("2s", 2),
        ("1m", 60),
        ("1.5s", 1.5),
        (" 250 ms ", 0.25),
        ("2 seconds", 2),
        ("30 sec", 30),
        ("5 mins", 300),
        ("1hr", 3_600),
        ("1 day", 86_400),
        ("minute", 60),
        ("0.0015ms", 2 / S),
    ],
)
def test_a_duration_is(text, seconds):
    assert parse_duration(text) == seconds * S


@pytest.mark.parametrize("text", ["", "100", "-1s", "1e3ms", "1.s", "1 s s", "0s", "0.0 h", "1 fortnight", ".5s"])
def test_is_no_duration(text):
    with pytest.raises(Invalid):
        parse_duration(text)


@pytest.mark.parametrize(
    ("period", "words"),
    [
        (S, "second"),
        (90 * S, "90 seconds"),
        (120 * S, "2 minutes"),
        (7 * DAY, "week"),
        (30 * DAY, "30 days"),
    ],
)
def test_a_period_in_words(period, words):
    assert spell_period(period) == words


def counters(rule, **headers):
    planned = rules(rule, client={"tier": "header:x-tier"}).plan(request(headers=headers))
    return [(charge.ask.key, charge.ask.quota) for charge in planned]


KEY = "d:r0:sw60:{ip=192.0.2.1}"
FIVE = Quota("sliding_window", 5, 60 * S)


@pytest.mark.parametrize(
    ("rule", "key", "quota"),
    [
        case({}, KEY, FIVE, id="by default a sliding window, by ip"),
        case({"limit": {"requests": 5, "per": "minute"}}, KEY, FIVE, id="a mapping"),
        case({"algorithm": "fixed_window"}, "d:r0:fw60:{ip=192.0.2.1}", Quota("fixed_window", 5, 60 * S), id="fixed"),
        case({"algorithm": "sliding_log"}, "d:r0:sl60:{ip=192.0.2.1}", Quota("sliding_log", 5, 60 * S), id="log"),
        case(
            {"algorithm": "bucketed_window"},
            "d:r0:bw60:{ip=192.0.2.1}",
            Quota("bucketed_window", 5, 60 * S),
            id="buckets",
        ),
        case(
            {"algorithm": "bucketed_window", "buckets": 6},
            "d:r0:bw60/6:{ip=192.0.2.1}",
            Quota("bucketed_window", 5, 60 * S, 0, 6),
            id="other buckets are other counters",
        ),
        case(
            {"algorithm": "token_bucket"},
            "d:r0:tb60:{ip=192.0.2.1}",
            Quota("token_bucket", 5, 60 * S, 5),
            id="burst is N",
        ),
        case(
            {"algorithm": "token_bucket", "burst": 9},
            "d:r0:tb60:{ip=192.0.2.1}",
            Quota("token_bucket", 5, 60 * S, 9),
            id="the burst is not in the key",
        ),
        case(
            {"algorithm": "token_bucket", "burst": 9, "limit": {"requests": 5, "per": "m", "burst": 7}},
            "d:r0:tb60:{ip=192.0.2.1}",
            Quota("token_bucket", 5, 60 * S, 7),
            id="a limit's own burst wins",
        ),
        case(
            {"algorithm": "token_bucket", "limit": "0/s", "burst": 9},
            "d:r0:tb1:{ip=192.0.2.1}",
            Quota("token_bucket", 0, S, 0),
            id="a bucket of nothing has no burst",
        ),
        case({"name": "a:b {c}~%/é"}, "d:a%3Ab%20%7Bc%7D%7E%25%2F%C3%A9:sw60:{ip=192.0.2.1}", FIVE, id="escaped"),
    ],
)
def test_a_counter_is(rule, key, quota):
    assert counters(rule) == [(key, quota)]


def test_a_list_is_one_counter_for_each_window():
    listed = counters({"limit": ["5 per minute", "20 per hour"]})
    assert listed == [(KEY, FIVE), ("d:r0:sw3600:{ip=192.0.2.1}", Quota("sliding_window", 20, 3_600 * S))]


class TestTiers:
    RULE = {"limit": {"default": "5 per minute", "premium": ["50 per minute", "100 per hour"], "staff": "unlimited"}}  # noqa: RUF012

    def test_who_has_none_or_one_that_is_not_named_has_the_default(self):
        assert counters(self.RULE) == [(KEY, FIVE)]
        assert counters(self.RULE, **{"x-tier": "gold"}) == [(KEY, FIVE)]

    def test_a_tier_has_its_own_limits_under_the_same_key(self):
        premium = counters(self.RULE, **{"x-tier": "premium"})
        assert premium == [
            (KEY, Quota("sliding_window", 50, 60 * S)),
            ("d:r0:sw3600:{ip=192.0.2.1}", Quota("sliding_window", 100, 3_600 * S)),
        ]

    def test_a_tier_may_be_unlimited(self):
        assert counters(self.RULE, **{"x-tier": "staff"}) == []

    def test_a_tier_may_go_by_a_mapping(self):
        rule = {"limit": {"default": {"requests": 5, "per": "minute"}, "premium": {"requests": 6, "per": "minute"}}}
        assert counters(rule, **{"x-tier": "premium"}) == [(KEY, Quota("sliding_window", 6, 60 * S))]


@pytest.mark.parametrize(
    ("limit", "algorithm", "loads"),
    [
        case("1000000000 per second", "sliding_window", True, id="10^9"),
        case("1000000000 per 10 years", "sliding_window", True, id="10 years"),
        case("10000 per day", "sliding_log", True, id="a log of 10 000"),
        case("1000000 per second", "token_bucket", True, id="a token per microsecond"),
        case("1000001 per second", "token_bucket", False, id="more than a token per microsecond"),
        case("60000001 per minute", "token_bucket", False, id="more than a token per microsecond, on average"),
        case("100000 per 100ms", "token_bucket", True, id="a token per microsecond, within milliseconds"),
        case("100001 per 100ms", "token_bucket", False, id="more than that, within milliseconds"),
        case("3651 per 3651 days", "fixed_window", False, id="10 years and a day"),
    ],
)
def test_caps(limit, algorithm, loads):
    try:
        rules({"limit": limit, "algorithm": algorithm})
    except ConfigurationError:
        assert not loads
    else:
        assert loads


@pytest.mark.parametrize(
    ("own", "asked", "charged"),
    [(1, 1, 1), (2, 1, 2), (2, 3, 6), (0, 3, 0), (2, 0, 0)],
)
def test_the_cost_is_the_requests_times_the_rules(own, asked, charged):
    (charge,) = rules({"cost": own}).plan(request(), asked)
    assert charge.ask.cost == charged


def test_a_limit_of_nothing_takes_any_cost():
    (charge,) = rules({"limit": "0 per minute", "cost": 5}).plan(request())
    assert charge.ask.quota.limit == 0


@pytest.mark.parametrize(
    ("algorithm", "wait"),
    [
        case("fixed_window", 0.1, id="fixed_window: until the window ends"),
        case("sliding_log", 0.1, id="sliding_log: until the first request is 100 ms old"),
        case("sliding_window", 0.11, id="sliding_window: until a tenth of the next window has passed"),
        case("bucketed_window", 0.100263, id="bucketed_window: until the end of the slice is 100 ms old"),
        case("token_bucket", 0.01, id="token_bucket: until one token is refilled"),
        case("leaky_bucket", 0.01, id="leaky_bucket: until one request has drained"),
    ],
)
def test_a_limit_of_milliseconds_admits_and_waits_exactly(algorithm, wait, storage, clock):
    rule = {"name": "a", "limit": "10 per 100ms", "algorithm": algorithm}
    config = {"domain": "d", "storage": {"timeout": "5s"}, "rules": [rule]}
    with RateLimiter(config, storage=storage, clock=clock) as limiter:
        assert [limiter.check({"ip": "192.0.2.1"}).allowed for _ in range(11)] == [True] * 10 + [False]
        assert limiter.check({"ip": "192.0.2.1"}).retry_after == pytest.approx(wait, abs=1e-6)
        clock.advance(wait - 0.0001)
        assert not limiter.check({"ip": "192.0.2.1"}).allowed
        clock.advance(0.0002)
        assert limiter.check({"ip": "192.0.2.1"}).allowed
