"""Bans on a cluster: beside their counters, and what a request over several slots brings."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from ratelimit_mw import RateLimiter
from ratelimit_mw.stores.redis.topology import slot_of

BAN = {"after": "3 denials in 1 minute", "for": "10 minutes"}


@pytest.fixture
def limiter(cluster, clock):
    rules = [
        {"name": "first", "by": "header:X-First", "limit": "100 per minute", "algorithm": "fixed_window"},
        {"name": "second", "by": "header:X-Second", "limit": "0 per day", "ban": BAN},
        {"name": "third", "by": "header:X-Third", "limit": ["2 per minute", "5 per hour"], "ban": BAN},
    ]
    config = {"domain": "d", "rules": rules, "storage": {"timeout": "5s"}}
    with RateLimiter(config, storage=cluster.url, clock=clock) as limiter:
        yield limiter


def test_a_ban_lies_in_the_slot_of_its_counters(limiter):
    for _ in range(3):
        limiter.check({"header:X-Third": "ada"})
    store = limiter.engine.storage.store
    keys = list(store.keys("d:third:"))
    assert len(keys) == 3
    assert len(set(map(slot_of, keys))) == 1


def test_what_one_slot_denies_is_charged_to_no_other_and_counts_once(limiter):
    asked = [{"header:X-First": f"a{number}", "header:X-Second": "ada"} for number in range(6)]
    assert [limiter.check(attributes).banned for attributes in asked] == [False, False, True, True, True, True]
    left = [limiter.peek({"header:X-First": f"a{number}"}, 0).remaining for number in range(6)]
    assert left == [100] * 6


def test_a_denial_by_another_slot_does_not_count_towards_a_ban(limiter):
    for _ in range(5):  # the second rule denies; the third, whose counter lies elsewhere, would not
        limiter.check({"header:X-Second": "ada", "header:X-Third": "bob"})
    assert [limiter.check({"header:X-Third": "bob"}).allowed for _ in range(3)] == [True, True, False]


def test_fifty_at_once_are_one_ban(limiter, caplog):
    with ThreadPoolExecutor(50) as pool:
        decisions = list(pool.map(lambda _: limiter.check({"header:X-Third": "ada"}), range(50)))
    assert sum(decision.allowed for decision in decisions) == 2
    assert sum(decision.banned for decision in decisions) == 46
    assert len([record for record in caplog.records if "bans client" in record.message]) == 1


def test_it_ends_and_is_lifted(limiter, clock):
    async def main():
        banned = [(await limiter.acheck({"header:X-Third": "ada"})).banned for _ in range(5)]
        await limiter.areset({"header:X-Third": "ada"})
        again = [(await limiter.acheck({"header:X-Third": "ada"})).banned for _ in range(5)]
        clock.advance(600)
        allowed = (await limiter.acheck({"header:X-Third": "ada"})).allowed
        await limiter.aclose()
        return banned, again, allowed

    expected = [False] * 4 + [True]
    assert asyncio.run(main()) == (expected, expected, True)
