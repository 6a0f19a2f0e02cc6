"""The live page on a cluster and behind Sentinels."""

import pytest

from ratelimit_mw import RateLimiter
from ratelimit_mw.operations.live import live_of
from tests.support.patience import eventually

RULES = {
    "domain": "shop",
    "storage": {"timeout": "5s"},
    "rules": [{"name": "login", "by": "ip", "limit": "1 per 10 years", "algorithm": "fixed_window"}],
}


def seen(live):
    """The state as soon as it has the three denials."""
    state = live.state()
    return [client["denials"] for client in state["limited"]] == [3] and state


@pytest.mark.parametrize("servers", ["cluster", "sentinels"])
def test_reports_are_shared(request, servers):
    url = request.getfixturevalue(servers).url
    with RateLimiter(RULES, storage=url) as one, RateLimiter(RULES, storage=url) as other:
        live = live_of(one)
        for each in (live, live_of(other)):
            each.begin(1)
        for _ in range(4):
            other.check({"ip": "192.0.2.1"})
        state = eventually(lambda: seen(live))
        assert state["shared"]
        assert state["store"]["up"]
        assert state["limited"][0]["client"] == "ip=192.0.2.1"
