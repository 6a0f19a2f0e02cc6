"""Hostile test 39: a clock that is set forward or back by an hour costs one limit at most, and locks out no client."""

import pytest

from ratelimit_mw import ManualClock, RateLimiter

START = 1_700_000_040.0  # on the minute
NAMES = ["fixed_window", "sliding_log", "sliding_window", "bucketed_window", "token_bucket", "leaky_bucket"]
LIMIT = 6
CLIENT = {"ip": "192.0.2.1"}


WAYS = [
    *(("memory", name, "strict") for name in NAMES),
    ("redis", "sliding_window", "strict"),
    *(("redis", "fixed_window", kept) for kept in ("lease", "write_back")),
]


@pytest.mark.parametrize(("kind", "name", "consistency"), WAYS)
@pytest.mark.parametrize("jumps", [(3_600,), (-3_600,), (3_600, -3_600), (-3_600, 3_600), (0.5, -0.5)], ids=str)
def test_a_clock_that_is_set_by_an_hour(request, kind, name, consistency, jumps):
    url = "memory://" if kind == "memory" else request.getfixturevalue("any_server").url
    rule = {"name": "a", "by": "ip", "limit": f"{LIMIT} per minute", "algorithm": name, "consistency": consistency}
    if name in ("token_bucket", "leaky_bucket"):
        rule["burst"] = LIMIT
    clock = ManualClock(START)
    rules = {"domain": "d", "storage": {"url": url, "timeout": "5s"}, "rules": [rule]}
    with RateLimiter(rules, clock=clock) as limiter:

        def admitted():
            return sum(limiter.check(CLIENT).allowed for _ in range(4 * LIMIT))

        first = admitted()
        assert 1 <= first <= LIMIT + 1
        for jump in jumps:
            clock.advance(jump)
            assert admitted() <= first + 1
        waited = 0
        while not limiter.check(CLIENT).allowed:  # at most two windows, wherever the clock was before
            clock.advance(10)
            waited += 10
            assert waited <= 120
