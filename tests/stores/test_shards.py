"""Counters spread over several keys."""

import asyncio
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw import ManualClock
from ratelimit_mw.algorithms import with_overdraft
from ratelimit_mw.model import NEVER, SECOND, Ask, Quota
from ratelimit_mw.stores.base import DECIDE, Wrapper
from ratelimit_mw.stores.denials import DenyCache
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.stores.redis.store import RedisStore
from ratelimit_mw.stores.redis.topology import slot_of
from ratelimit_mw.stores.shards import Shards
from tests.stores.contract import Contract
from tests.support.apps import LONG
from tests.support.bounds import worst_unused_of_shards

MINUTE = 60 * SECOND
NAMES = ("fixed_window", "sliding_log", "sliding_window", "bucketed_window", "token_bucket")


def ask(limit, shards=8, cost=1, name="fixed_window", *, shadow=False, rule="r", period=MINUTE):
    burst = limit if name == "token_bucket" else 0
    return Ask(f"d:{rule}:fw60x{shards}:{{x}}", Quota(name, limit, period, burst, shards=shards), cost, shadow)


class Counted(Wrapper):
    """Counts the calls to a memory store."""

    calls = 0

    def asked(self, request):
        self.calls += 1
        return super().asked(request)


@pytest.fixture
def store(clock):
    return Counted(MemoryStore(clock=clock))


@pytest.fixture
def shards(store):
    return Shards(store)


class TestContract(Contract):
    """With counters that are not sharded, it is any store."""

    @pytest.fixture
    def make(self):
        return lambda *, clock=None, timeout=None: Shards(MemoryStore(clock=clock))


def admitted(store, ask, times):
    return sum(store.decide([ask]).admits([ask]) for _ in range(times))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("limit", [8, 100, 101, 107])
def test_a_cost_of_one_uses_the_whole_limit_and_no_more(shards, limit, name):
    assert admitted(shards, ask(limit, name=name), limit + 20) == limit


@given(
    st.sampled_from(NAMES),
    st.integers(2, 9),
    st.integers(0, 200),
    st.integers(1, 5),
    st.integers(0, 2**32),
)
def test_what_stays_unused_is_within_its_bound(name, number, extra, cost, seed):
    limit = number * cost + extra
    clock = ManualClock(1_700_000_040)
    store = Shards(MemoryStore(clock=clock))
    random.seed(seed)
    asked = ask(limit, number, cost, name)
    used = cost * admitted(store, asked, limit // cost + 1)
    assert limit - worst_unused_of_shards(number, cost) <= used <= limit


@given(st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 40_000_000), st.integers(1, 20)), max_size=30))
def test_a_sliding_window_in_shards_never_admits_more_and_wastes_little(seed, steps):
    """Beside a counter that is told what was admitted, whatever its own answer."""
    clock = ManualClock(1_700_000_040)
    store, whole = Shards(MemoryStore(clock=clock)), MemoryStore(clock=clock)
    random.seed(seed)
    asked = ask(50, 5, 1, "sliding_window")
    told = asked._replace(quota=replace(asked.quota, shards=1))
    for jump, times in steps:
        clock.advance(jump / 1_000_000)
        for _ in range(times):
            if store.decide([asked]).admits([asked]):
                assert whole.decide([told]).admits([told])
            else:
                left = whole.decide([told._replace(cost=0)], commit=False).outcomes[0].remaining
                assert left <= worst_unused_of_shards(5, sliding_window=True)


def test_one_call_where_there_is_room_and_two_for_a_denial(shards, store):
    assert admitted(shards, ask(800), 400) == 400
    assert store.calls < 410
    admitted(shards, ask(800), 500)
    calls = store.calls
    assert not shards.decide([ask(800)]).admits([ask(800)])
    assert store.calls == calls + 2


def test_a_denial_speaks_for_all_shards(shards, clock):
    asked = ask(80, cost=3)
    assert admitted(shards, asked, 40) == 24  # ten fit three times into each
    outcome = shards.decide([asked]).outcomes[0]
    assert (outcome.allowed, outcome.remaining, outcome.retry_after) == (False, 8, 60 * SECOND)
    clock.advance(60)
    assert shards.decide([asked]).admits([asked])


def test_what_fits_no_shard_never_passes(shards):
    outcome = shards.decide([ask(80, cost=11)]).outcomes[0]
    assert (outcome.allowed, outcome.retry_after) == (False, NEVER)


def test_the_soonest_shard_says_when_to_come_back(shards, clock):
    asked = ask(16, name="sliding_log")
    admitted(shards, asked, 15)
    clock.advance(10)
    admitted(shards, asked, 1)
    assert shards.decide([asked]).outcomes[0].retry_after == 50 * SECOND


def test_what_remains_is_an_estimate_within_the_limit(shards):
    for _ in range(80):
        outcome = shards.decide([ask(80)]).outcomes[0]
        assert 0 <= outcome.remaining <= 79
    looked = shards.decide([ask(80)], commit=False).outcomes[0]
    assert (looked.allowed, looked.remaining) == (False, 0)


def test_a_look_is_exact_and_charges_nothing(shards):
    admitted(shards, ask(80), 30)
    looks = [shards.decide([ask(80), ask(500, rule="o")], commit=False) for _ in range(3)]
    assert [[outcome.remaining for outcome in look.outcomes] for look in looks] == [[50, 500]] * 3


def test_a_reset_forgets_every_shard(shards):
    other = ask(80, rule="o")
    for asked in (ask(80), other):
        admitted(shards, asked, 80)
    shards.forget([ask(80).key])
    assert admitted(shards, ask(80), 90) == 80
    assert admitted(shards, other, 1) == 0


def test_an_identity_that_looks_like_a_sharded_key_is_one_key(shards, store):
    asked = Ask("d:r:fw60:{x8:{}", Quota("fixed_window", 5, MINUTE))
    assert admitted(shards, asked, 9) == 5
    shards.forget([asked.key])
    assert admitted(shards, asked, 9) == 5


def test_a_refund_is_a_refund_to_the_sum(shards, clock):
    asked = ask(80)
    admitted(shards, asked, 80)
    for _ in range(20):
        shards.refund([asked], clock.now())
    assert admitted(shards, asked, 30) == 20


def test_a_sharded_counter_is_listed_once_under_its_own_key(shards):
    whole = Ask("d:r:fw60:{y}", Quota("fixed_window", 5, MINUTE))
    for asked in (ask(80), whole):
        admitted(shards, asked, 40)
    assert sorted(shards.keys("d:r:")) == ["d:r:fw60:{y}", "d:r:fw60x8:{x}"]


def test_several_counters_all_or_nothing(shards):
    asks = [ask(80), ask(40, rule="s"), Ask("d:u:fw60:{x}", Quota("fixed_window", 20, MINUTE))]
    replies = [shards.decide(asks) for _ in range(30)]
    assert [reply.admits(asks) for reply in replies] == [True] * 20 + [False] * 10
    looked = shards.decide(asks, commit=False)
    assert [outcome.remaining for outcome in looked.outcomes] == [60, 20, 0]


def test_a_shadow_that_moves_to_another_shard_charges_nobody_twice(shards):
    asks = [ask(800), ask(16, rule="s", shadow=True)]
    replies = [shards.decide(asks) for _ in range(40)]
    assert all(reply.admits(asks) for reply in replies)
    assert [reply.outcomes[1].allowed for reply in replies] == [True] * 16 + [False] * 24
    assert [outcome.remaining for outcome in shards.decide(asks, commit=False).outcomes] == [760, 0]


def test_with_the_deny_cache_on_top_denials_cost_nothing(store, clock):
    cached = DenyCache(Shards(store), clock=clock)
    assert admitted(cached, ask(80), 100) == 80
    calls = store.calls
    assert admitted(cached, ask(80), 1_000) == 0
    assert store.calls == calls
    cached.forget([ask(80).key])
    assert admitted(cached, ask(80), 100) == 80


def test_shards_lie_in_different_slots(server):
    store = RedisStore(server.url, timeout=5)
    shards = Shards(store)
    assert admitted(shards, ask(80, period=LONG), 100) == 80
    assert len({slot_of(key) for key in server.admin.scan_iter()}) == 8
    shards.close()


@pytest.mark.parametrize("name", ["fixed_window", "bucketed_window", "token_bucket", "sliding_log"])
def test_200_threads_admit_exactly_the_limit(any_server, name):
    shards, gate = Shards(RedisStore(any_server.url, timeout=10)), threading.Barrier(200)
    asked = ask(100, name=name, period=LONG)

    def request(_):
        gate.wait()
        return admitted(shards, asked, 3)

    with ThreadPoolExecutor(200) as pool:
        assert sum(pool.map(request, range(200))) == 100
    shards.close()


def test_tasks_admit_exactly_the_limit(any_server):
    async def run():
        shards = Shards(RedisStore(any_server.url, timeout=10))
        asked = ask(100, period=LONG)

        async def client():
            return sum([(await shards.aask(([asked], DECIDE))).admits([asked]) for _ in range(3)])

        total = sum(await asyncio.gather(*(client() for _ in range(100))))
        await shards.aclose()
        return total

    assert asyncio.run(run()) == 100


@pytest.mark.parametrize("name", NAMES)
def test_a_late_cost_is_charged_to_a_shard_with_room_until_none_has(shards, name):
    late = Ask(ask(80, name=name).key, with_overdraft(ask(80, name=name).quota), 10)
    assert [shards.decide([late]).outcomes[0].allowed for _ in range(9)] == [True] * 8 + [False]
    denied = shards.decide([late]).outcomes[0]
    assert (denied.allowed, denied.remaining) == (False, 0)
    assert denied.retry_after > 0
    assert admitted(shards, ask(80, name=name), 3) == 0
    assert not shards.decide([late], commit=False).outcomes[0].allowed


def test_a_late_cost_leaves_out_the_shards_that_are_in_debt(shards, store):
    for shard in range(7):
        store.charge([Ask(f"d:r:fw60x8:{{x#{shard}}}", Quota("fixed_window", 10, MINUTE), 11)])
    late = ask(80, cost=4)._replace(quota=with_overdraft(ask(80).quota))
    assert [shards.decide([late]).outcomes[0].allowed for _ in range(3)] == [True, True, False]
    assert admitted(shards, ask(80, cost=0), 3) == 0


def test_a_shadow_with_a_late_cost_is_charged_once(shards, store):
    store.charge([Ask("d:r:fw60x8:{x#0}", Quota("fixed_window", 10, MINUTE), 11)])
    late = ask(80, cost=9, shadow=True)._replace(quota=with_overdraft(ask(80).quota))
    assert shards.decide([late, ask(16, rule="s")]).outcomes[0].allowed
    taken = [
        100 - store.decide([Ask(f"d:r:fw60x8:{{x#{n}}}", Quota("fixed_window", 100, MINUTE), 0)]).outcomes[0].remaining
        for n in range(8)
    ]
    assert sorted(taken) == [0, 0, 0, 0, 0, 0, 9, 11]
