"""What holds of the memory store beyond the contract: its bound, and what it drops."""

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ratelimit_mw import ManualClock
from ratelimit_mw.model import SECOND, Ask, Quota
from ratelimit_mw.stores.memory import MemoryStore
from tests.stores.contract import ALL, MINUTE, quota

HOUR = 3_600 * SECOND


def one(key, limit=5, name="fixed_window", period=HOUR, cost=1):
    return [Ask(key, quota(limit, name, period), cost)]


@pytest.fixture
def clock():
    return ManualClock(1_700_000_040)


@pytest.mark.parametrize("most", [1, 2, 7, 100, 2_048, 4_095, 10_000])
def test_a_flood_of_identities_stays_within_the_bound(clock, most):
    store = MemoryStore(max_counters=most, clock=clock)
    for number in range(3 * most + 100):
        assert store.decide(one(f"d:r:{{{number}}}")).outcomes[0].allowed
        assert len(store) <= most
    assert len(store) >= 0.9 * most


@pytest.mark.parametrize("most", [0, -1])
def test_no_room_at_all_is_refused(most):
    with pytest.raises(ValueError, match="room for one counter"):
        MemoryStore(max_counters=most)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("most", [50, 5_000])
def test_nobody_evicts_its_own_exhausted_counter_by_a_flood(clock, name, most):
    store = MemoryStore(max_counters=most, clock=clock)
    exhausted = one("d:login:{me}", 5, name)
    for _ in range(5):
        assert store.decide(exhausted).admits(exhausted)
    for number in range(4 * most):
        store.decide(one(f"d:login:{{bogus {number}}}", 5, name))
        if number % 97 == 0:
            clock.advance(0.001)
            assert not store.decide(exhausted).admits(exhausted)
    assert not store.decide(exhausted).admits(exhausted)


def test_denied_requests_take_no_room(clock):
    store = MemoryStore(max_counters=100, clock=clock)
    for number in range(50):
        store.decide([*one(f"d:r:{{{number}}}"), *one("d:never:{x}", 0)])
    assert len(store) == 0


def test_a_look_takes_no_room(clock):
    store = MemoryStore(clock=clock)
    store.decide(one("d:r:{x}"), commit=False)
    assert len(store) == 0


def test_what_has_expired_goes_as_new_ones_come(clock):
    store = MemoryStore(max_counters=1_000_000, clock=clock)
    for number in range(20_000):
        store.decide(one(f"d:r:{{a{number}}}", period=MINUTE))
    clock.advance(61)
    for number in range(20_000):
        store.decide(one(f"d:r:{{b{number}}}", period=MINUTE))
    assert len(store) <= 21_000


def test_what_has_expired_goes_before_what_counts_mostly(clock):
    store = MemoryStore(max_counters=100, clock=clock)
    for number in range(50):
        store.decide(one(f"d:r:{{short {number}}}", period=SECOND, cost=5))
    for number in range(50):
        store.decide(one(f"d:r:{{long {number}}}"))
    clock.advance(2)
    for number in range(50):
        store.decide(one(f"d:r:{{new {number}}}"))
    kept = sum(
        store.decide(one(f"d:r:{{long {number}}}"), commit=False).outcomes[0].remaining == 4 for number in range(50)
    )
    assert kept >= 40  # of a sample: seldom one that counts


def test_one_request_never_does_the_work_of_many(clock, monkeypatch):
    """No pause: however many have expired or wait to be dropped, a request looks at a handful of counters."""
    from ratelimit_mw.stores import memory

    looked = 0
    stamp = memory._STAMP

    class Counting:
        pack = staticmethod(stamp.pack)

        @staticmethod
        def unpack_from(value):
            nonlocal looked
            looked += 1
            return stamp.unpack_from(value)

    store = MemoryStore(max_counters=20_000, clock=clock)
    for number in range(20_000):
        store.decide(one(f"d:r:{{{number}}}", period=MINUTE))
    monkeypatch.setattr(memory, "_STAMP", Counting)
    worst = 0
    for number in range(2_000):
        clock.advance(0.1)
        before = looked
        store.decide(one(f"d:r:{{new {number}}}", period=MINUTE))
        worst = max(worst, looked - before)
    assert 0 < worst <= 10
    assert max(map(len, store._segments)) <= 4_096  # a dict that grows copies itself: small ones, no pause


def test_threads_that_add_drop_and_forget_at_once_break_nothing(clock):
    store, gate = MemoryStore(max_counters=300, clock=clock), threading.Barrier(16)

    def work(seed):
        rng = random.Random(seed)
        gate.wait()
        for _ in range(1_500):
            key = f"d:r:{{{rng.randrange(900)}}}"
            if rng.random() < 0.1:
                store.forget([key])
            else:
                store.decide(one(key, rng.randrange(5), rng.choice(ALL)))
        return True

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(work, range(16)))
    assert len(store) <= 300


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_while_the_lock_is_held_hangs_nobody(clock):
    store = MemoryStore(clock=clock)
    store.decide(one("d:r:{x}"))
    with store._lock:  # as another thread of the parent would
        pid = os.fork()
        if pid == 0:
            os._exit(store.decide(one("d:r:{x}")).outcomes[0].remaining)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert store.decide(one("d:r:{x}")).outcomes[0].remaining == 3


def test_an_expired_counter_is_as_if_unused_even_while_it_is_still_there(clock):
    bucket = [Ask("d:r:{x}", Quota("token_bucket", 5, MINUTE, 5))]
    store = MemoryStore(clock=clock)
    for _ in range(5):
        store.decide(bucket)
    clock.advance(60)
    assert len(store) == 1
    assert store.decide(bucket).outcomes[0].remaining == 4
