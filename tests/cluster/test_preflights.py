"""Preflights on a cluster: their counters lie beside those of requests, and one call asks them."""

from ratelimit_mw import RateLimiter
from ratelimit_mw.stores.redis.topology import slot_of

PREFLIGHT = {"method": "OPTIONS", "header:Origin": "https://a.example", "header:Access-Control-Request-Method": "POST"}


def test_the_counters_of_preflights_lie_in_the_slot_of_those_of_requests(cluster):
    rules = [
        {
            "name": "first",
            "by": ["ip", "header:X-First"],
            "limit": ["3 per day", "9 per year"],
            "algorithm": "sliding_log",
        },
        {"name": "second", "by": "ip", "limit": "6 per day", "algorithm": "fixed_window", "shards": 2},
    ]
    client = {"ip": "192.0.2.1", "header:X-First": "ada", "path": "/"}
    config = {"domain": "d", "rules": rules, "storage": {"timeout": "5s"}}
    with RateLimiter(config, storage=cluster.url) as limiter:
        for attributes, admitted in ((PREFLIGHT, 30), ({"method": "POST"}, 3)):
            asked = {**client, **attributes}
            assert [limiter.check(asked).allowed for _ in range(admitted + 2)] == [True] * admitted + [False] * 2
        keys = list(limiter.engine.storage.store.keys("d:first:"))
        assert len(keys) == 8
        assert len(set(map(slot_of, keys))) == 2, "one slot for each identity"
        limiter.reset({**client, "method": "POST"})
        assert list(limiter.engine.storage.store.keys("d:first:")) == []
        assert limiter.check({**client, **PREFLIGHT}).allowed
