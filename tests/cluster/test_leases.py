"""Leases, write-back and shards over the nodes of a cluster."""

from dataclasses import replace

import pytest

from ratelimit_mw.model import SECOND, Ask
from ratelimit_mw.stores.base import time_of
from ratelimit_mw.stores.lease_store import Leases
from ratelimit_mw.stores.redis.cluster import ClusterStore, ClusterTime
from ratelimit_mw.stores.redis.topology import slot_of
from ratelimit_mw.stores.shards import Shards
from tests.cluster.test_cluster import key_of
from tests.stores.contract import quota


@pytest.fixture
def store(cluster):
    store = ClusterStore(cluster.url, timeout=5)
    yield store
    store.close()


@pytest.mark.parametrize("consistency", ["lease", "write_back"])
def test_counters_on_three_masters_are_decided_here_together(store, consistency):
    kept = replace(quota(300), consistency=consistency)
    asks = [Ask(key_of(master), replace(kept, limit=300 + master)) for master in range(3)]
    leases = Leases(store)
    assert sum(leases.decide(asks).admits(asks) for _ in range(400)) == 300
    leases.settle()
    looked = store.decide([ask._replace(cost=0) for ask in asks], commit=False)
    assert [outcome.remaining for outcome in looked.outcomes] == [0, 1, 2]


def test_shards_lie_on_all_masters(store, cluster):
    ask = Ask("d:r:fw3600x16:{x}", replace(quota(160), shards=16))
    shards = Shards(store)
    assert sum(shards.decide([ask]).admits([ask]) for _ in range(200)) == 160
    keys = list(shards.keys("d:r:"))
    assert keys == [ask.key]
    assert {slot_of(key) * 3 // 16_384 for key in store.keys("d:r:")} == {0, 1, 2}
    shards.forget(keys)
    assert shards.decide([ask], commit=False).outcomes[0].remaining == 160


def test_each_counter_goes_by_the_clock_of_its_own_node():
    latest = ClusterTime.latest({slot_of("{a}"): 7 * SECOND, slot_of("{b}"): 9 * SECOND})
    assert [time_of(latest, "{a}"), time_of(latest, "{b}"), time_of(5, "{a}")] == [
        7 * SECOND,
        9 * SECOND,
        5,
    ]
