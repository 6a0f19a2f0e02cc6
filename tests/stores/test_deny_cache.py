"""Denials remembered: fewer calls, and never a denial that the store would not make."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw import ManualClock
from ratelimit_mw.model import NEVER, Ask, Quota
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores import Stack, open_store
from ratelimit_mw.stores.base import DECIDE, Intent, forget_request
from ratelimit_mw.stores.denials import LRU, DenyCache
from ratelimit_mw.stores.memory import MemoryStore

SECOND = 1_000_000
NOW = 1_700_000_040 * SECOND  # of the fixture `clock`
WINDOWS = ["fixed_window", "sliding_log", "sliding_window", "bucketed_window", "token_bucket"]


class Counted(MemoryStore):
    """A store that counts how often it is asked."""

    def __init__(self, **options):
        super().__init__(**options)
        self.asked = 0

    def ask(self, request):
        self.asked += 1
        return super().ask(request)


@pytest.fixture
def store(clock):
    return Counted(clock=clock)


@pytest.fixture
def cache(store, clock):
    return DenyCache(store, clock=clock)


def quota(limit=2, algorithm="fixed_window", period=10):
    return Quota(algorithm, limit, period * SECOND, limit if algorithm == "token_bucket" else 0)


def ask(cost=1, *, key="d:r:{x}", shadow=False, **options):
    return Ask(key, quota(**options), cost, shadow)


def exhaust(cache, **options):
    while cache.decide([ask(**options)]).outcomes[0].allowed:
        pass


@pytest.mark.parametrize("algorithm", WINDOWS)
def test_a_hammering_client_is_denied_without_a_call(cache, store, algorithm):
    exhaust(cache, algorithm=algorithm)
    asked = store.asked
    replies = [cache.decide([ask(algorithm=algorithm)]) for _ in range(1000)]
    assert not any(reply.outcomes[0].allowed for reply in replies)
    assert store.asked == asked


def test_awaited_it_answers_alike(cache, store):
    async def main():
        for _ in range(3):
            reply = await cache.aask(([ask()], DECIDE))
        asked = store.asked
        assert (await cache.aask(([ask()], DECIDE))) == reply._replace(only=0, outcomes=tuple(reply.outcomes))
        assert store.asked == asked

    asyncio.run(main())


def test_the_wait_that_is_told_grows_shorter(cache, clock):
    exhaust(cache)
    first = cache.decide([ask()]).outcomes[0]
    clock.advance(1)
    assert cache.decide([ask()]).outcomes[0].retry_after == first.retry_after - SECOND
    assert cache.decide([ask()]).outcomes[0].reset_after == first.reset_after - SECOND


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: [ask(1, limit=3)], id="another quota: another tier, or a rule that changed"),
        pytest.param(lambda: [ask(0)], id="a cost of nothing"),
        pytest.param(lambda: [ask(key="d:r:{y}")], id="another identity"),
        pytest.param(lambda: [ask(shadow=True)], id="a shadow rule"),
    ],
)
def test_what_may_be_allowed_is_asked(cache, store, other):
    exhaust(cache)
    asked = store.asked
    cache.decide(other())
    assert store.asked == asked + 1


def test_a_smaller_cost_than_was_denied_is_asked(cache):
    assert cache.decide([ask(1, limit=5)]).outcomes[0].allowed
    assert not cache.decide([ask(5, limit=5)]).outcomes[0].allowed
    assert not cache.decide([ask(5, limit=5)]).outcomes[0].allowed
    assert cache.decide([ask(4, limit=5)]).outcomes[0].allowed


def test_what_is_left_for_a_smaller_cost_is_remembered(cache, store):
    def denied():
        return tuple(cache.decide([ask(5, limit=5)]).outcomes[0][:2])

    assert cache.decide([ask(1, limit=5)]).outcomes[0].allowed
    assert (denied(), store.asked, denied(), store.asked) == ((False, 4), 2, (False, 4), 2)
    assert cache.decide([ask(3, limit=5)]).outcomes[0].allowed
    assert (denied(), denied(), store.asked) == ((False, 1), (False, 1), 4)


def test_a_look_is_asked(cache, store):
    exhaust(cache)
    asked = store.asked
    cache.decide([ask()], commit=False)
    assert store.asked == asked + 1


def test_a_denial_speaks_of_its_own_counter(cache, store):
    exhaust(cache)
    asks = [ask(key="d:r:{y}"), ask(), ask(key="d:r:{z}")]
    reply = cache.decide(asks)
    assert reply.only == 1
    assert len(reply.outcomes) == 1
    assert not reply.admits(asks)


@pytest.mark.parametrize(
    "undo",
    [
        pytest.param(lambda cache: cache.forget(["d:r:{x}"]), id="forget"),
        pytest.param(lambda cache: asyncio.run(cache.aask(forget_request(["d:r:{x}"]))), id="aforget"),
        pytest.param(lambda cache: cache.refund([ask()], NOW), id="refund"),
        pytest.param(lambda cache: asyncio.run(cache.aask(([ask()], Intent(charged_at=NOW)))), id="arefund"),
    ],
)
def test_what_opens_a_counter_here_shows_at_once(cache, undo):
    exhaust(cache)
    undo(cache)
    assert cache.decide([ask()]).outcomes[0].allowed


def test_what_another_process_resets_shows_within_five_seconds(cache, store, clock):
    clock.set(1_700_000_000)
    exhaust(cache, period=3600)
    store.forget(["d:r:{x}"])
    assert not cache.decide([ask(period=3600)]).outcomes[0].allowed
    clock.advance(5)
    assert cache.decide([ask(period=3600)]).outcomes[0].allowed


def test_what_can_never_pass_stays_so_and_is_asked_now_and_then(cache, store, clock):
    for _ in range(3):
        assert cache.decide([ask(9)]).outcomes[0].retry_after == NEVER
    assert store.asked == 1
    clock.advance(5)
    cache.decide([ask(9)])
    assert store.asked == 2


def test_a_clock_that_steps_back_is_asked(cache, store, clock):
    exhaust(cache)
    asked = store.asked
    clock.advance(-3600)
    cache.decide([ask()])
    assert store.asked == asked + 1


def test_a_flood_of_denied_identities_is_bounded(store, clock):
    cache = DenyCache(store, clock=clock, most=100)
    for number in range(1000):
        exhaust(cache, key=f"d:r:{{{number}}}")
    asked = store.asked
    for number in range(1000):
        cache.decide([ask(key=f"d:r:{{{number}}}")], commit=False)
    assert store.asked - asked >= 900


@given(
    algorithm=st.sampled_from(WINDOWS),
    steps=st.lists(st.tuples(st.integers(0, 4), st.floats(0, 12), st.sampled_from("xy")), max_size=40),
)
def test_it_never_says_another_thing_than_the_store(algorithm, steps):
    clock = ManualClock()
    plain, behind = MemoryStore(clock=clock), MemoryStore(clock=clock)
    cache = DenyCache(behind, clock=clock)
    for cost, wait, name in steps:
        asks = [ask(cost, key=f"d:r:{{{name}}}", algorithm=algorithm, limit=3)]
        said, expected = cache.decide(asks).outcomes[0], plain.decide(asks).outcomes[0]
        assert (said.allowed, said.retry_after) == (expected.allowed, expected.retry_after)
        assert said.remaining <= expected.remaining  # time gives back to other windows while the denial is remembered
        assert said.remaining == expected.remaining or algorithm != "fixed_window"
        clock.advance(wait)


def opened(url):
    return Stack(open_store(StorageSettings(url, timeout=5.0)), None, lambda *said: None, cached=True).wrapped(())


def test_it_stands_before_every_shared_store_by_default(any_server):
    store = opened(any_server.url)
    exhaust(store, period=3600)
    with any_server.client() as client:
        before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
        for _ in range(1000):
            assert not store.decide([ask(period=3600)]).outcomes[0].allowed
        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] - before < 10
    store.close()


def test_a_denial_in_a_batch_of_tasks_is_remembered(any_server):
    hour = {"algorithm": "sliding_log", "period": 3600}
    asks = [ask(limit=1, **hour)], [ask(limit=5, **hour), ask(key="d:s:{x}", limit=1, **hour)]

    async def replies(store, row):
        return await asyncio.gather(*(store.reply_to((row, DECIDE)) for _ in range(3)))

    async def run(row):
        store = opened(any_server.url)
        try:
            await replies(store, row)
            return [reply.only for reply in await replies(store, row)]
        finally:
            await store.aclose()

    any_server.flush()
    assert [asyncio.run(run(row)) for row in asks] == [[0, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_log"])
def test_what_a_response_may_open_is_always_asked(store, cache, algorithm):
    """Another process gives back what this one never hears of."""
    tries = Ask("d:r:{x}", replace(quota(1, algorithm), refundable=True))
    at = cache.decide([tries]).now
    assert [cache.decide([tries]).outcomes[0].allowed for _ in range(3)] == [False] * 3
    assert store.asked == 4
    store.refund([tries], at)
    assert cache.decide([tries]).outcomes[0].allowed


def test_what_is_charged_without_being_asked_passes_through(cache):
    cache.charge([ask(2)])
    assert not cache.decide([ask()]).outcomes[0].allowed
    asyncio.run(cache.aask(([ask(2)], Intent(insist=True))))


def test_of_several_that_deny_the_one_that_denies_longest_is_remembered(cache, store):
    both = [ask(key="d:short:{x}", period=10), ask(key="d:long:{x}", period=60), ask(key="d:none:{x}", limit=0)]
    for asks in (both[:2], both):
        for _ in range(3):
            told = cache.decide(asks)
        counted = store.asked
        known = cache.decide(asks)
        assert store.asked == counted
        far = {outcome.retry_after for outcome in told.outcomes}
        assert {outcome.retry_after for outcome in known.outcomes} == ({NEVER} if NEVER in far else {max(far)})


def test_what_denies_longest_but_may_be_given_back_is_asked_each_time(cache, store):
    refundable = ask(key="d:long:{x}", period=60)._replace(quota=replace(quota(period=60), refundable=True))
    asks = [ask(key="d:short:{x}", period=10), refundable]
    for _ in range(4):
        told = cache.decide(asks)
    assert store.asked == 4
    assert told.outcomes[1].retry_after > told.outcomes[0].retry_after > 0


def test_the_memory_of_a_wrapper_drops_the_oldest_entries():
    entries = LRU(10)
    for n in range(100):
        entries.put(n, str(n))
    assert [entries.get(n) for n in range(100)].count(None) == 90
    assert entries.get(99) == "99"
    entries.put(90, "new")
    entries.put(100, "100")
    assert entries.get(90) == "new"  # put again, so it is no longer the oldest
    assert entries.get(91) is None
    for n in range(101):
        entries.pop(n, None)
    assert {entries.get(n) for n in range(101)} == {None}
