"""What a store says where a rule bans: counters and their ban decided together, on every server, cached or not."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from ratelimit_mw.algorithms.ban import BanQuota
from ratelimit_mw.model import NEVER, SECOND, Ask, Banned, Penalty, Quota
from ratelimit_mw.stores.base import DECIDE, Intent, forget_request
from ratelimit_mw.stores.denials import Bans, DenyCache, key_of_ban
from ratelimit_mw.stores.lease_store import Leases
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.stores.redis.store import RedisStore
from ratelimit_mw.stores.shards import Shards
from tests.algorithms.histories import NAMES
from tests.support.servers import EACH_BINARY

MINUTE = 60 * SECOND
BAN = Penalty("d:r:ban:{", BanQuota("ban", 3, MINUTE, lasts=600 * SECOND, longest=600 * SECOND))


class Counted(MemoryStore):
    """A store that counts how often it is asked."""

    asked = 0

    def ask(self, request):
        self.asked += 1
        return super().ask(request)


@pytest.fixture
def begun():
    return []


@pytest.fixture(params=[*EACH_BINARY, "memory", "cached"])
def store(request, clock, begun, _pool):
    beneath = MemoryStore(clock=clock)
    if request.param != "memory":
        server = request.getfixturevalue("any_server") if request.param == "cached" else _pool.get(request.param)
        server.flush()
        beneath = RedisStore(server.url, timeout=5, clock=clock)
    with_bans = Bans(beneath, lambda *said: begun.append(said))
    if request.param == "cached":
        with_bans = DenyCache(with_bans, clock=clock)
    yield with_bans
    with_bans.close()


@pytest.fixture
def counted(clock):
    return Counted(clock=clock)


@pytest.fixture
def cached(counted, clock):
    return DenyCache(Bans(counted, lambda *said: None), clock=clock)


def quota(limit=1, name="fixed_window", period=3_600 * SECOND, ban=BAN):
    bucket = limit if name in ("token_bucket", "leaky_bucket") else 0
    return Quota(name, limit, period, bucket, buckets=10, penalty=ban)


def ask(limit=1, cost=1, *, who="x", rule="r", shadow=False, **options):
    ban = options.pop("ban", replace(BAN, prefix=f"d:{rule}:ban:{{"))
    return Ask(f"d:{rule}:fw3600:{{{who}}}", quota(limit, ban=ban, **options), cost, shadow)


def said(store, *asks, commit=True):
    return [
        (type(outcome) is Banned, outcome.retry_after // SECOND)
        for outcome in store.decide(asks, commit=commit).outcomes
    ]


FREE, BANNED = (False, 0), (True, 600)


@pytest.mark.parametrize("name", NAMES)
def test_the_last_denial_begins_the_ban_that_ends_on_time(store, clock, begun, name):
    asked = ask(name=name, period=60 * SECOND)
    replies = [store.decide([asked]) for _ in range(6)]
    assert [type(reply.outcomes[0]) is Banned for reply in replies] == [False] * 3 + [True] * 3
    assert [reply.admits([asked]) for reply in replies] == [True] + [False] * 5
    assert [lasts for _, lasts, now in begun] == [600 * SECOND]
    clock.advance(600 - 0.000_001)
    assert not store.decide([asked]).admits([asked])
    clock.advance(0.000_001)
    assert store.decide([asked]).admits([asked])


def test_a_look_counts_nothing_and_sees_the_ban(store):
    asked = ask()
    assert said(store, asked) == [FREE]
    for _ in range(5):
        store.decide([asked], commit=False)
    for _ in range(2):
        assert said(store, asked)[0][0] is False
    assert said(store, asked, commit=False)[0][0] is False
    store.decide([asked])
    assert said(store, asked, commit=False)[0][0] is True


def test_while_it_stands_nothing_is_charged_and_even_what_is_free_is_denied(store, clock):
    exhausted, roomy = ask(0), ask(100)
    for _ in range(3):
        store.decide([exhausted])
    for cost in (0, 1, 100, 101):
        assert said(store, roomy._replace(cost=cost))[0][0] is True
    clock.advance(600)
    assert store.decide([roomy]).outcomes[0].remaining == 99


def test_what_is_banned_by_one_rule_is_charged_to_none(store):
    other = Ask("d:other:fw60:{x}", Quota("fixed_window", 100, MINUTE))
    for _ in range(3):
        store.decide([ask(0)])
    store.decide([other, ask(50)])
    assert store.decide([other._replace(cost=0)]).outcomes[0].remaining == 100


def test_what_another_rule_denies_counts_for_none(store):
    other = Ask("d:other:fw60:{x}", Quota("fixed_window", 0, MINUTE))
    for _ in range(10):
        assert not store.decide([other, ask(100)]).admits([other, ask(100)])
    assert said(store, ask(100)) == [FREE]


def test_who_is_denied_by_several_limits_of_a_rule_has_one_ban(store, begun):
    asks = [ask(0), ask(0)._replace(key="d:r:fw60:{x}")]
    for _ in range(3):
        reply = store.decide(asks)
    assert [type(outcome) for outcome in reply.outcomes] == [Banned, Banned]
    assert len(begun) == 1
    assert begun[0][0].key == "d:r:ban:{x}"


def test_each_identity_of_a_rule_has_a_ban_of_its_own(store):
    asks = [ask(0), ask(100, who="y")]
    for _ in range(3):
        store.decide(asks)
    assert said(store, ask(100, who="y")) == [FREE]
    assert said(store, ask(100))[0][0] is True


def test_two_rules_that_deny_together_count_both(store):
    asks = [ask(0), ask(0, rule="s")]
    for _ in range(3):
        store.decide(asks)
    assert [said(store, ask(100, rule=rule))[0][0] for rule in "rs"] == [True, True]


def test_a_counter_that_opens_later_than_the_ban_has_the_last_word(store, clock):
    asked = ask(1, period=86_400 * SECOND)
    for _ in range(4):
        reply = store.decide([asked])
    assert reply.outcomes[0].retry_after == 86_400 * SECOND - clock.now() % (86_400 * SECOND)
    assert reply.outcomes[0].reset_after == reply.outcomes[0].retry_after


def test_what_can_never_fit_never_comes_to_fit(store):
    for _ in range(3):
        reply = store.decide([ask(5, cost=6)])
    assert reply.outcomes[0].retry_after == NEVER
    assert said(store, ask(5))[0] == BANNED


def test_a_shadow_bans_nobody_and_says_that_it_would_have(store, begun):
    asked = ask(1, shadow=True)
    asks = [asked, ask(100, rule="s", ban=None)]
    replies = [store.decide(asks) for _ in range(6)]
    assert all(reply.admits(asks) for reply in replies)
    assert [type(reply.outcomes[0]) is Banned for reply in replies] == [False] * 3 + [True] * 3
    assert [asked.shadow for asked, *_ in begun] == [True]


def test_what_a_shadow_would_have_banned_is_not_charged(store):
    for _ in range(3):
        store.decide([ask(0, shadow=True)])
    store.decide([ask(10, shadow=True)])
    assert store.decide([ask(10, cost=0, ban=None)], commit=False).outcomes[0].remaining == 10


def test_to_forget_a_counter_lifts_its_ban(store):
    asked = ask()
    for _ in range(5):
        store.decide([asked])
    store.forget([asked.key])
    assert store.decide([asked]).admits([asked])
    asyncio.run(_forget(store, asked))
    assert store.decide([asked]).admits([asked])


async def _forget(store, asked):
    for _ in range(5):
        await store.aask(([asked], DECIDE))
    await store.aask(forget_request([asked.key]))
    await store.aclose()


def test_fifty_at_once_are_one_ban_after_exactly_as_many_denials(store, begun):
    asked = ask(5, period=60 * SECOND)
    with ThreadPoolExecutor(50) as pool:
        replies = list(pool.map(lambda _: store.decide([asked]), range(50)))
    assert sum(reply.admits([asked]) for reply in replies) == 5
    assert sum(type(reply.outcomes[0]) is not Banned for reply in replies) == 5 + 2
    assert len(begun) == 1


def test_fifty_tasks_at_once_too(store, begun):
    async def main():
        asked = ask(5, period=60 * SECOND)
        replies = await asyncio.gather(*(store.aask(([asked], DECIDE)) for _ in range(50)))
        await store.aclose()
        return [type(reply.outcomes[0]) is Banned for reply in replies]

    assert sum(asyncio.run(main())) == 50 - 7
    assert len(begun) == 1


def test_charges_and_refunds_speak_of_counters_alone(store):
    async def main():
        await store.aask(([asked], Intent(charged_at=now)))
        await store.aask(([asked], Intent(insist=True)))
        await store.aclose()

    asked = ask(10)
    now = store.decide([asked]).now
    store.refund([asked], now)
    now = store.charge([asked._replace(cost=3)])
    asyncio.run(main())
    assert store.decide([asked._replace(cost=0)], commit=False).outcomes[0].remaining == 7
    assert list(store.keys("d:r")) == [asked.key]


def test_every_key_has_a_ttl_of_no_more_than_its_state_needs(any_server):
    with_bans = Bans(RedisStore(any_server.url, timeout=5), lambda *said: None)
    redis = any_server.client()
    growing = replace(BAN, quota=replace(BAN.quota, longest=3_600 * SECOND, growth=2))
    try:
        store_key = key_of_ban(ask(0).key)
        with_bans.decide([ask(0, ban=growing)])
        assert 0 < redis.pttl(store_key) <= 61_000
        for _ in range(2):
            with_bans.decide([ask(0, ban=growing)])
        assert 4_190_000 < redis.pttl(store_key) <= 4_201_000
    finally:
        with_bans.close()
        redis.close()


# ------------------------------------------------------------------------------------------------ what is remembered


def test_each_denial_is_put_to_the_store_until_the_ban_stands_and_then_none(cached, counted):
    asked = ask(0)
    for _ in range(3):
        cached.decide([asked])
    assert counted.asked == 3
    replies = [cached.decide([asked._replace(cost=n % 7)]) for n in range(1_000)]
    assert {type(reply.outcomes[0]) for reply in replies} == {Banned}
    assert counted.asked == 3


def test_a_banned_client_costs_less_than_a_call_in_a_hundred_requests(cached, counted, clock):
    for _ in range(3):
        cached.decide([ask(0)])
    before = counted.asked
    for _ in range(10_000):  # twenty-five a second, for 400 s
        assert type(cached.decide([ask(100)]).outcomes[0]) is Banned
        clock.advance(0.04)
    assert counted.asked - before < 100


def test_a_reset_by_another_process_shows_within_five_seconds(cached, counted, clock):
    for _ in range(3):
        cached.decide([ask(0)])
    counted.forget([key_of_ban(ask(0).key)])
    assert said(cached, ask(100))[0][0] is True
    clock.advance(5)
    assert said(cached, ask(100)) == [FREE]


@pytest.mark.parametrize("ban", [None, replace(BAN, prefix="d:r:ban:{", quota=replace(BAN.quota, limit=9))])
def test_a_ban_that_a_reload_removes_or_changes_is_not_remembered(cached, counted, ban):
    for _ in range(3):
        cached.decide([ask(0)])
    assert said(cached, ask(100))[0][0] is True
    asked = counted.asked
    cached.decide([ask(100, ban=ban)])
    assert counted.asked == asked + 1


def test_another_rules_denial_is_no_reason_not_to_count_this_ones(cached, counted):
    """Of a request that both deny, the other's denial is remembered; but this one's has to be counted."""
    other = Ask("d:other:fw60:{x}", Quota("fixed_window", 0, MINUTE))
    for cost in (1, 2, 1):
        cached.decide([other, ask(0, cost=cost)])
    assert counted.asked == 3
    assert said(cached, ask(100))[0][0] is True


def test_a_list_of_asks_may_be_another_next_time(cached, counted):
    asks = [ask(100)]
    cached.decide(asks)
    asks += [ask(100)._replace(key=f"d:r:fw{number}:{{x}}") for number in (1, 2)]
    assert len(cached.decide(asks).outcomes) == 3


def test_what_does_not_deny_is_not_asked_on_a_bans_account(cached, counted):
    other = Ask("d:other:fw60:{x}", Quota("fixed_window", 0, MINUTE))
    for _ in range(100):
        cached.decide([other, ask(100)])
    assert counted.asked == 1


def test_a_counter_that_opens_late_is_asked_although_another_opens_early(cached, counted, clock):
    late, soon = ask(1), ask(1)._replace(key="d:r:fw1:{x}", quota=quota(1, period=SECOND))
    for _ in range(3):
        cached.decide([late, soon])
    clock.advance(1)
    assert said(cached, late, soon)[0][0] is True
    assert counted.asked == 4


def test_a_ban_is_remembered_whatever_else_a_rule_asks(cached, counted):
    other = ask(100)._replace(key="d:r:fw1:{x}", quota=quota(100, period=SECOND))
    for _ in range(3):
        cached.decide([ask(0), other])
    for asks in ([ask(0)], [other], [ask(7), other]):
        assert said(cached, *asks)[0][0] is True
    assert counted.asked == 3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "limits",
    [
        pytest.param([(1, 7_200)], id="a counter that opens after the ban's end"),
        pytest.param([(1, 60)], id="a counter that opens before it"),
        pytest.param([(0, 3_600)], id="a counter that never opens"),
        pytest.param([(5, 60), (1, 7_200), (9, 86_400)], id="the second of three opens last"),
    ],
)
def test_a_banned_request_is_answered_from_memory_as_the_store_would_answer(cached, counted, clock, name, limits):
    plain = Bans(MemoryStore(clock=clock), lambda *said: None)
    asks = [
        ask(limit, name=name, period=period * SECOND)._replace(key=f"d:r:fw{period}:{{x}}") for limit, period in limits
    ]
    for _ in range(120):
        known, reply = cached.decide(asks), plain.decide(asks)
        told, expected = ([_far(outcome) for outcome in said.outcomes] for said in (known, reply))
        assert max(told) == max(expected)
        if known.only is not None:
            assert known.outcomes == (reply.outcomes[known.only],)
            assert known.only == expected.index(max(expected))
        clock.advance(4)
    assert counted.asked < 120


def _far(outcome):
    return float("inf") if outcome.retry_after == NEVER else outcome.retry_after


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(ask(100), id="another quota"),
        pytest.param(ask(0, cost=0), id="another cost"),
    ],
)
def test_another_request_of_a_banned_client_is_answered_with_the_end_of_the_ban(cached, counted, clock, other):
    for _ in range(4):
        reply = cached.decide([ask(0)])
    assert reply.outcomes[0].retry_after == NEVER
    clock.advance(1)
    assert said(cached, other) == [(True, 599)]
    assert counted.asked == 3


def test_a_ban_is_remembered_until_its_end_although_responses_may_open_the_counter(cached, counted, clock):
    asked = ask(0)._replace(quota=replace(quota(0), refundable=True))
    for _ in range(3):
        cached.decide([asked])
    for _ in range(4):
        assert said(cached, asked)[0][0] is True
        clock.advance(1)
    assert counted.asked == 3


def test_another_counter_of_a_banned_client_is_asked_once(cached, counted):
    for _ in range(3):
        cached.decide([ask(0)])
    other = ask(100)._replace(key="d:r:fw60:{x}")
    for _ in range(10):
        assert said(cached, other) == [BANNED]
    assert counted.asked == 4


def test_awaited_it_is_remembered_alike(cached, counted):
    async def main():
        for _ in range(100):
            await cached.aask(([ask(0)], DECIDE))

    asyncio.run(main())
    assert counted.asked == 3
    assert said(cached, ask(100))[0][0] is True


def test_a_shadows_ban_is_never_answered_from_memory(cached, counted):
    for _ in range(10):
        cached.decide([ask(0, shadow=True)])
    assert counted.asked == 10


# ------------------------------------------------------------------------------------------------ beside others


def test_beside_a_leased_rule_no_denial_counts_twice(clock, begun):
    """The share of this process is spent, so it asks for more, is denied, and asks again for less."""
    memory = MemoryStore(clock=clock)
    store = Bans(Leases(Shards(memory), clock), lambda *said: begun.append(said))
    leased = Ask("d:l:fw3600:{x}", Quota("fixed_window", 100, 3_600 * SECOND, consistency="lease"))
    for _ in range(3):
        store.decide([leased])
    left = memory.decide([leased._replace(cost=0)]).outcomes[0].remaining
    memory.decide([leased._replace(cost=left - 1)])
    assert [said(store, leased, ask(0))[1][0] for _ in range(4)] == [False, False, True, True]
    assert len(begun) == 1


def test_beside_a_sharded_rule_no_denial_counts_twice(clock, begun):
    for number in range(20):  # which shard is asked is a matter of luck
        store = Bans(Shards(MemoryStore(clock=clock)), lambda *said: begun.append(said))
        sharded = Ask("d:s:fw3600x4:{x}", Quota("fixed_window", 8, 3_600 * SECOND, shards=4))
        for _ in range(6):
            store.decide([sharded])
        assert [said(store, sharded, ask(0))[1][0] for _ in range(4)] == [False, False, True, True]
        assert len(begun) == number + 1


def test_without_a_ban_the_store_is_asked_as_ever(store):
    asked = ask(1, ban=None)
    assert [store.decide([asked]).admits([asked]) for _ in range(6)] == [True] + [False] * 5
    assert list(store.keys("d:r")) == [asked.key]
