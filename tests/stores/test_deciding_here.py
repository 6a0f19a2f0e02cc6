"""`consistency` and `shards` from the rules file on."""

import asyncio
import json
import time

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.stores.redis.store import RedisStore
from tests.support.patience import eventually
from tests.support.processes import in_child

ATTRIBUTES = {"remote_address": "203.0.113.7"}


def config(**rule):
    return {"domain": "shop", "rules": [{"name": "api", "by": "ip", "limit": "1000 per hour", **rule}]}


def calls(server):
    return server.calls("evalsha") + server.calls("eval")


@pytest.mark.parametrize("consistency", ["lease", "write_back"])
def test_a_rule_saves_calls_and_admits_its_limit(any_server, consistency):
    clock = ManualClock()
    with RateLimiter(config(consistency=consistency), storage=any_server.url, clock=clock) as limiter:
        began = time.monotonic()
        assert sum(limiter.check(ATTRIBUTES).allowed for _ in range(1_000)) == 1_000
        made = calls(any_server)
        settlements = time.monotonic() - began  # a thread settles once a second, however slow the machine is
        decision = limiter.check(ATTRIBUTES)
        assert (decision.allowed, decision.remaining, decision.rule) == (False, 0, "api")
        assert made < 84 + 4 * settlements


def test_strict_rules_go_straight_to_the_store(any_server):
    with RateLimiter(config(), storage=any_server.url) as limiter:
        assert isinstance(limiter.engine.storage.store.beneath, RedisStore)


def test_memory_has_nothing_to_save(any_server):
    with RateLimiter(config(consistency="lease"), clock=ManualClock()) as limiter:
        assert sum(limiter.check(ATTRIBUTES).allowed for _ in range(1_010)) == 1_000
        assert isinstance(limiter.engine.storage.store, MemoryStore)


def test_peek_and_reset_of_a_leased_and_of_a_sharded_counter(any_server):
    rules = config(consistency="lease")
    rules["rules"].append({"name": "hot", "by": "global", "limit": "100 per hour", "shards": 4})
    with RateLimiter(rules, storage=any_server.url, clock=ManualClock()) as limiter:
        for _ in range(40):
            limiter.check(ATTRIBUTES)
        assert [policy.remaining for policy in limiter.peek(ATTRIBUTES).policies] == [960, 60]
        limiter.reset(ATTRIBUTES)
        assert [policy.remaining for policy in limiter.peek(ATTRIBUTES).policies] == [1_000, 100]
        assert sum(limiter.check(ATTRIBUTES).allowed for _ in range(110)) == 100


def test_the_keys_of_a_sharded_rule_say_so(any_server):
    with RateLimiter(config(shards=4, by="global"), storage=any_server.url) as limiter:
        for _ in range(60):
            limiter.check(ATTRIBUTES)
        assert set(any_server.admin.scan_iter("shop:*")) == {f"shop:api:sw3600x4:{{*#{n}}}" for n in range(4)}


@pytest.mark.parametrize("storage", ["url", "store"])
def test_closing_settles_even_if_the_caller_owns_the_store(any_server, storage):
    store = RedisStore(any_server.url, timeout=5)
    rules = config(consistency="write_back")
    limiter = RateLimiter(rules, storage=any_server.url if storage == "url" else store)
    for _ in range(20):
        limiter.check(ATTRIBUTES)
    limiter.close()

    async def later():
        limiter = RateLimiter(rules, storage=any_server.url if storage == "url" else store)
        for _ in range(20):
            await limiter.acheck(ATTRIBUTES)
        await limiter.aclose()

    asyncio.run(later())
    with RateLimiter(config(), storage=any_server.url) as other:
        assert other.peek(ATTRIBUTES).remaining == 960
    store.close()


def test_a_reload_may_bring_a_lease(any_server, tmp_path):
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps(config()))
    with RateLimiter(file, storage=any_server.url, clock=ManualClock()) as limiter:
        for _ in range(10):
            limiter.check(ATTRIBUTES)
        changed = tmp_path / "changed.yaml"
        changed.write_text(json.dumps(config(consistency="lease")))
        changed.replace(file)
        limiter.reload()
        before = calls(any_server)
        assert sum(limiter.check(ATTRIBUTES).allowed for _ in range(1_000)) == 990
        assert calls(any_server) - before < 80


def test_an_override_smaller_than_the_shards_is_possible(any_server):
    rules = config(shards=8, by="ip")
    rules["overrides"] = [{"client": {"ip": "203.0.113.7"}, "rule": "api", "limit": "3 per hour"}]
    with RateLimiter(rules, storage=any_server.url, clock=ManualClock()) as limiter:
        assert sum(limiter.check(ATTRIBUTES).allowed for _ in range(10)) == 3


def test_the_interval_is_the_storage_sections(any_server):
    rules = config(consistency="write_back")
    rules["storage"] = {"url": any_server.url, "interval": "20ms", "timeout": "5s"}
    with RateLimiter(rules) as limiter, RateLimiter(config(), storage=any_server.url) as other:
        for _ in range(10):
            limiter.check(ATTRIBUTES)
        eventually(lambda: other.peek(ATTRIBUTES).remaining == 990)


def test_a_child_of_a_fork_settles_for_itself(any_server):
    with RateLimiter(config(consistency="lease"), storage=any_server.url) as limiter:
        for _ in range(100):
            limiter.check(ATTRIBUTES)

        def work():
            admitted = sum(limiter.check(ATTRIBUTES).allowed for _ in range(100))
            limiter.close()
            return admitted

        assert in_child(work) == 100
        limiter.engine.storage.settle()
        with RateLimiter(config(), storage=any_server.url) as other:
            assert other.peek(ATTRIBUTES).remaining == 800
