"""A request over several slots, and what a cluster does to its clients: slots that move, masters that die."""

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ratelimit_mw import ManualClock
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Ask
from ratelimit_mw.stores.base import DECIDE, Wrapper
from ratelimit_mw.stores.redis.cluster import ClusterStore
from tests.cluster.nodes import keys_in
from tests.stores.contract import ALL, MINUTE, quota
from tests.support.patience import at_most, eventually
from tests.support.processes import in_child

TIMEOUT = 2.0  # seconds; a living node answers many times sooner, however busy the machine is
SHARES = ((0, 5_461), (5_462, 10_923), (10_924, 16_383))


def key_of(master):
    """A key that lies on the first, second or third master, as long as no slot has moved."""
    low, high = SHARES[master]
    return keys_in(1, lambda slot: low <= slot <= high)[0]


class InTasks(Wrapper):
    """Has each request answered in an event loop of its own."""

    def ask(self, request):
        return asyncio.run(self.beneath.aask(request))


def asking(way, store):
    return store if way == "threads" else InTasks(store)


@pytest.fixture(params=["threads", "tasks"])
def way(request):
    return request.param


@pytest.fixture
def store(cluster, way):
    store = ClusterStore(cluster.url, timeout=10)
    yield asking(way, store)
    store.close()


@pytest.fixture
def keys():
    return [key_of(master) for master in range(3)]


def taken(store, keys, name="fixed_window", limit=100):
    asks = [Ask(key, quota(limit, name), 0) for key in keys]
    return [limit - outcome.remaining for outcome in store.decide(asks, commit=False).outcomes]


class TestARequestOverSeveralSlots:
    @pytest.mark.parametrize("name", ALL)
    def test_is_charged_to_all_or_to_none(self, store, keys, name):
        asks = [Ask(keys[0], quota(100, name), 3), Ask(keys[1], quota(1, name)), Ask(keys[2], quota(100, name), 5)]
        assert store.decide(asks).admits(asks)
        for _ in range(3):
            reply = store.decide(asks)
            assert [outcome.allowed for outcome in reply.outcomes] == [True, False, True]
            assert [outcome.remaining for outcome in reply.outcomes] == [97, 0, 95]
        assert taken(store, keys[::2], name) == [3, 5]

    def test_has_its_outcomes_in_the_order_of_its_asks(self, store, keys):
        asks = [
            Ask(key, quota(limit))
            for key, limit in zip([*keys, *(f"{key}x" for key in keys)], range(1, 7), strict=True)
        ]
        assert [outcome.remaining for outcome in store.decide(asks).outcomes] == [0, 1, 2, 3, 4, 5]

    def test_a_shadow_denies_nothing_and_is_not_charged_for_what_it_would_have_denied(self, store, keys):
        asks = [Ask(keys[0], quota(1), 2, shadow=True), Ask(keys[1], quota(100))]
        reply = store.decide(asks)
        assert reply.admits(asks)
        assert [outcome.allowed for outcome in reply.outcomes] == [False, True]
        assert taken(store, keys[:2]) == [0, 1]

    def test_a_shadow_is_not_charged_for_what_another_denied(self, store, keys):
        asks = [
            Ask(keys[0], quota(100), 1, shadow=True),
            Ask(f"{keys[0]}x", quota(1), 2, shadow=True),
            Ask(keys[1], quota(0)),
        ]
        reply = store.decide(asks)
        assert [outcome.allowed for outcome in reply.outcomes] == [True, False, False]
        assert taken(store, [keys[0], f"{keys[0]}x"]) == [0, 0]

    def test_a_look_charges_nothing(self, store, keys):
        asks = [Ask(key, quota(2)) for key in keys]
        assert store.decide(asks, commit=False).admits(asks)
        denied = [*asks[:2], Ask(keys[2], quota(0))]
        assert not store.decide(denied, commit=False).admits(denied)
        assert taken(store, keys, limit=2) == [0, 0, 0]

    @pytest.mark.parametrize("name", ALL)
    def test_gives_back_to_each_by_the_clock_that_charged_it(self, store, keys, name):
        asks = [Ask(key, quota(100, name), 3) for key in keys]
        reply = store.decide(asks)
        store.refund(asks, reply.now)
        assert taken(store, keys, name) == [0, 0, 0]

    def test_forgets_them_all(self, store, keys):
        store.decide([Ask(key, quota(100)) for key in keys])
        store.forget(keys)
        assert taken(store, keys) == [0, 0, 0]

    def test_costs_one_call_a_slot_and_an_identity_one_in_all(self, store, cluster, keys):
        for key in keys:
            store.decide([Ask(key, quota(100))])
        before = cluster.calls()
        store.decide([Ask(key, quota(100)) for key in keys])
        assert cluster.calls() - before == 3
        store.decide([Ask(f"d:r{number}:{{me}}", quota(100)) for number in range(5)])
        assert cluster.calls() - before <= 5  # and one that was redirected

    def test_of_300_at_once_exactly_the_limit_is_admitted_and_the_rest_is_returned(self, cluster, keys):
        store = ClusterStore(cluster.url, timeout=10)
        asks = [Ask(keys[0], quota(1_000)), Ask(keys[1], quota(50)), Ask(keys[2], quota(1_000))]
        with ThreadPoolExecutor(20) as pool:
            admitted = sum(pool.map(lambda _: store.decide(asks).admits(asks), range(300)))
        # A request may meet another that is about to be returned, but never one too many.
        assert admitted == 50
        assert taken(store, keys, limit=1_000)[::2] == [50, 50]
        store.close()


def test_tasks_over_many_slots_share_a_write(cluster):
    store = ClusterStore(cluster.url, timeout=5)
    asks = [Ask(f"d:r:{{{number}}}", quota(5)) for number in range(300)]

    async def main():
        for _ in range(5):
            replies = await asyncio.gather(*(store.aask(([ask], DECIDE)) for ask in asks))
            assert all(reply.outcomes[0].allowed for reply in replies)
        denied = await asyncio.gather(*(store.aask(([ask], DECIDE)) for ask in asks))
        assert not any(reply.outcomes[0].allowed for reply in denied)
        await store.aclose()

    asyncio.run(main())


def test_a_forgotten_script_is_sent_again(cluster, store):
    asks = [Ask(f"d:r:{{{number}}}", quota(5)) for number in range(20)]
    for ask in asks:
        store.decide([ask])
    for node in cluster.nodes:
        node.admin.script_flush()
    assert {store.decide([ask]).outcomes[0].remaining for ask in asks} == {3}


def test_missing_seeds_do_not_prevent_a_decision(cluster, way):
    store = asking(way, ClusterStore(f"redis+cluster://127.0.0.1:1,{cluster.url.partition('://')[2]}", timeout=10))
    ask = Ask("d:r:{x}", quota(5))
    eventually(lambda: _decided(store, ask))
    assert store.decide([ask]).outcomes[0].remaining == 3
    store.close()


def test_a_server_that_is_no_cluster_is_away(any_server):
    store = ClusterStore(any_server.url.replace("redis", "redis+cluster"), timeout=10)
    asks = [Ask(key_of(0), quota(5)), Ask(key_of(1), quota(5))]
    assert store.decide(asks).admits(asks)  # it decides nevertheless
    store.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_fork_goes_on_with_connections_of_its_own(cluster, keys):
    store = ClusterStore(cluster.url, timeout=10)
    asks = [Ask(key, quota(100)) for key in keys]
    store.decide(asks)
    assert in_child(lambda: [outcome.remaining for outcome in store.decide(asks).outcomes]) == [98, 98, 98]
    assert taken(store, keys) == [2, 2, 2]
    store.close()


def test_a_clock_moved_by_hand_moves_all_nodes(cluster, way, keys):
    clock = ManualClock()
    store = asking(way, ClusterStore(cluster.url, timeout=10, clock=clock))
    asks = [Ask(key, quota(1, period=MINUTE)) for key in keys]
    assert store.decide(asks).now == clock.now()
    assert not store.decide(asks).admits(asks)
    clock.advance(3_600)
    assert store.decide(asks).admits(asks)
    store.close()


class Load:
    """Asks all the time, by threads and from a loop, and keeps what came of it."""

    def __init__(self, url, requests, *, timeout=1.0):
        self._stores = [ClusterStore(url, timeout=timeout) for _ in range(2)]
        self._requests = requests
        self._ends = threading.Event()
        self.admitted = dict.fromkeys(range(len(requests)), 0)
        self.failures = []
        self.slowest = 0.0
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(self._stores[0],)) for _ in range(3)]
        self._threads.append(threading.Thread(target=lambda: asyncio.run(self._await(self._stores[1]))))

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info):
        self._ends.set()
        for thread in self._threads:
            thread.join()
        for store in self._stores:
            store.close()

    def _ask(self, store):
        while not self._ends.is_set():
            for number, asks in enumerate(self._requests):
                began = time.monotonic()
                try:
                    reply = store.decide(asks)
                except StoreUnavailable as error:
                    self._note(number, error, began)
                else:
                    self._note(number, reply.admits(asks), began)

    async def _await(self, store):
        async def ask(number, asks):
            began = time.monotonic()
            try:
                reply = await store.aask((asks, DECIDE))
            except StoreUnavailable as error:
                self._note(number, error, began)
            else:
                self._note(number, reply.admits(asks), began)

        while not self._ends.is_set():
            await asyncio.gather(*(ask(number, asks) for number, asks in enumerate(self._requests)))
        await store.aclose()

    def _note(self, number, result, began):
        with self._lock:
            self.slowest = max(self.slowest, time.monotonic() - began)
            if isinstance(result, StoreUnavailable):
                self.failures.append((time.monotonic(), number, result))
            else:
                self.admitted[number] += result


def test_a_slot_that_moves_under_load_fails_no_request_and_loses_no_count(cluster):
    key = key_of(0)
    tag = key.partition("{")[2]
    source = cluster.master_of(_slot(key))
    target = cluster.master_of(SHARES[1][0] + 5)
    # Two counters in each request: while the slot moves, one of them may be on either side.
    requests = [[Ask(f"d:{name}{n}:{{{tag}", quota(400)) for n in range(2)] for name in "abcdef"]
    with Load(cluster.url, requests, timeout=5) as load:
        for here, there in ((source, target), (target, source)):
            time.sleep(0.2)
            cluster.begin_moving(_slot(key), here, there)
            time.sleep(0.05)
            cluster.move_keys(_slot(key), here, there, pause=0.003)
            time.sleep(0.05)
            cluster.end_moving(_slot(key), here, there)
        eventually(lambda: sum(load.admitted.values()) >= 400 * len(requests))
    assert load.failures == []
    assert set(load.admitted.values()) == {400}


def test_a_request_that_comes_first_while_its_slot_moves_is_counted_where_it_goes(cluster, way):
    key = key_of(0)
    source, target = cluster.master_of(_slot(key)), cluster.master_of(SHARES[1][0] + 5)
    store = asking(way, ClusterStore(cluster.url, timeout=5))
    store.decide([Ask(key, quota(5))])
    source.admin.delete(key)
    cluster.begin_moving(_slot(key), source, target)
    try:
        assert [store.decide([Ask(key, quota(5))]).outcomes[0].remaining for _ in range(3)] == [4, 3, 2]
    finally:
        cluster.move_keys(_slot(key), source, target)
        cluster.end_moving(_slot(key), source, target)
    assert store.decide([Ask(key, quota(5))]).outcomes[0].remaining == 1
    cluster.begin_moving(_slot(key), target, source)
    cluster.move_keys(_slot(key), target, source)
    cluster.end_moving(_slot(key), target, source)
    assert store.decide([Ask(key, quota(5))]).outcomes[0].remaining == 0
    store.close()


class TestFailover:
    """On a cluster of their own: a killed master stays dead."""

    def test_a_dead_shard_takes_no_limit_off_the_others(self, fresh_cluster, caplog):
        dead, alive = key_of(0), key_of(1)
        store = ClusterStore(fresh_cluster.url, timeout=TIMEOUT)
        asks = [Ask(dead, quota(5)), Ask(alive, quota(2))]
        for ask in asks:  # however slowly the machine connects
            eventually(lambda ask=ask: _decided(store, ask))
        caplog.clear()
        fresh_cluster.nodes[3].kill()
        fresh_cluster.nodes[0].kill()
        with pytest.raises(StoreUnavailable):
            store.decide(asks)  # the living shard allows, and the dead one's on_error says what becomes of it
        _none_waits_for(store, asks[0])
        for _ in range(5):
            reply = store.decide(asks)
            assert not reply.admits(asks), "what the living shard denies is denied"
            assert [outcome.allowed for outcome in reply.outcomes] == [True, False]
            reply = asyncio.run(store.aask((asks, DECIDE)))
            assert not reply.admits(asks)
        assert not store.decide(asks[1:]).admits(asks[1:])
        fresh_cluster.nodes[0].start(*fresh_cluster.nodes[0].arguments)
        eventually(lambda: _decided(store, asks[0]))
        store.close()
        assert [record.message.split()[3] for record in caplog.records] == ["away", "back:"]

    def test_a_node_that_hangs_holds_up_its_own_requests_alone(self, fresh_cluster):
        store = ClusterStore(fresh_cluster.url, timeout=TIMEOUT)
        stuck, fine = Ask(key_of(2), quota(1_000)), Ask(key_of(1), quota(1_000))
        for ask in (stuck, fine):  # however slowly the machine connects
            eventually(lambda ask=ask: _decided(store, ask))
        fresh_cluster.nodes[5].kill()
        fresh_cluster.nodes[2].pause()
        try:
            with at_most(2 * TIMEOUT):
                assert not _decided(store, stuck)
            with at_most(5 * TIMEOUT):
                for _ in range(100):
                    assert _decided(store, fine)
                    assert not _decided(store, stuck)
        finally:
            fresh_cluster.nodes[2].resume()
        eventually(lambda: _decided(store, stuck))
        store.close()

    def test_a_master_that_steps_down_is_followed(self, fresh_cluster, way):
        store = asking(way, ClusterStore(fresh_cluster.url, timeout=5))
        asks = [[Ask(key, quota(10))] for key in keys_on(0, 5)]
        for ask in asks:
            store.decide(ask)
        fresh_cluster.nodes[3].admin.execute_command("CLUSTER", "FAILOVER")
        eventually(lambda: fresh_cluster.nodes[0].admin.info("replication")["role"] == "slave")
        assert [store.decide(ask).outcomes[0].remaining for ask in asks] == [8] * 5
        store.close()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        pytest.param("redis+cluster://localhost:7000/3", "database 0", id="a database"),
        pytest.param("redis+cluster://localhost:7000,", "host", id="an empty host"),
        pytest.param("redis+cluster://", "host", id="none at all"),
        pytest.param("redis+cluster://localhost:port", "port", id="a port that is none"),
        pytest.param("redis+cluster://localhost?no_such_option=1", "no_such_option", id="an unknown option"),
    ],
)
def test_a_url_that_cannot_be_read_is_refused_at_start(url, words):
    with pytest.raises(ValueError, match=words):
        ClusterStore(url)


def test_a_cluster_that_was_never_there_is_away():
    store = ClusterStore("redis+cluster://127.0.0.1:1")
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            store.decide([Ask(key_of(0), quota(5)), Ask(key_of(1), quota(5))])
        with pytest.raises(StoreUnavailable):
            store.forget(["d:r:{x}"])
    store.close()


def _none_waits_for(store, ask):
    """While its shard is away: if one of them waited, it would take the whole timeout."""
    with at_most(TIMEOUT):
        assert not any(_decided(store, ask) for _ in range(20))


def _decided(store, ask):
    try:
        store.decide([ask])
    except StoreUnavailable:
        return False
    return True


def keys_on(master, count):
    low, high = SHARES[master]
    return keys_in(count, lambda slot: low <= slot <= high)


def _slot(key):
    from redis.crc import key_slot

    return key_slot(key.encode())
