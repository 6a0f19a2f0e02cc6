"""Leases and write-back: what a process decides by itself, and what the store hears of it."""

import asyncio
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from ratelimit_mw.algorithms import with_overdraft
from ratelimit_mw.algorithms.ban import BanQuota
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import SECOND, Ask, Penalty, Quota, Reply
from ratelimit_mw.stores.base import DECIDE, Intent, Store, forget_request
from ratelimit_mw.stores.lease import HOT, LONGEST_WAIT, PART
from ratelimit_mw.stores.lease_store import Leases
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.stores.redis.store import RedisStore
from tests.stores.contract import KINDS, Awaited, Contract
from tests.support.apps import LONG
from tests.support.bounds import worst_over_admission, worst_under_admission
from tests.support.patience import eventually
from tests.support.processes import Forked

MINUTE = 60 * SECOND
START = 1_700_000_040  # on the minute


def quota(limit, consistency="lease", name="fixed_window", period=MINUTE):
    return Quota(name, limit, period, consistency=consistency)


class Counted(Store):
    """A memory store that counts what it is asked, and may be away."""

    def __init__(self, clock):
        self.store = MemoryStore(clock=clock)
        self.decided = self.settled = 0
        self.away = False
        self.late = lambda: None  # is called before each reply

    def ask(self, request):
        if self.away:
            raise StoreUnavailable("away")
        self.decided += request[1].decides
        self.settled += not request[1].decides
        assert self.decided + self.settled < 100_000
        reply = self.store.ask(request)
        self.late()
        return reply

    async def aask(self, request):
        return self.ask(request)

    def keys(self, prefix):
        return self.store.keys(prefix)

    def taken(self, ask):
        quota = replace(ask.quota, limit=10**9)
        return 10**9 - self.store.decide([Ask(ask.key, quota, 0)], commit=False).outcomes[0].remaining


@pytest.fixture
def store(clock):
    return Counted(clock)


@pytest.fixture
def leases(store, clock):
    return Leases(store, clock)


def admitted(leases, ask, times):
    return sum(leases.decide([ask]).admits([ask]) for _ in range(times))


def finished(steps, store, result):
    """Continue the steps of a request with the result of its last call, to its end. Returns the reply."""
    try:
        while True:
            call = steps.send(result)
            result = store.ask(call) if isinstance(call, tuple) else call.result(0)
    except StopIteration as end:
        return end.value


class _Local(Contract):
    """The contract of every store, with each rule kept locally that can be."""

    consistency = "lease"

    def decide(self, store, asks, *, commit=True):
        return store.decide([self._kept(ask) for ask in asks], commit=commit)

    def _kept(self, ask):
        fits = ask.quota.algorithm in KINDS[self.consistency]
        return ask._replace(quota=replace(ask.quota, consistency=self.consistency)) if fits else ask


class TestLeasesOnMemory(_Local):
    @pytest.fixture
    def make(self):
        return lambda *, clock=None, timeout=None: Leases(MemoryStore(clock=clock), clock)


class TestWriteBackOnMemory(_Local):
    consistency = "write_back"

    @pytest.fixture
    def make(self):
        return lambda *, clock=None, timeout=None: Leases(MemoryStore(clock=clock), clock)


class TestLeasesAwaited(Awaited, _Local):
    @pytest.fixture
    def make(self, any_server):
        return lambda *, clock=None, timeout=10: Leases(RedisStore(any_server.url, timeout=timeout, clock=clock), clock)

    def decide(self, store, asks, *, commit=True):
        return super().decide(store, [self._kept(ask) for ask in asks], commit=commit)

    def admitted(self, store, ask, times):
        return super().admitted(store, self._kept(ask), times)


# --------------------------------------------------------------------------------- what is decided here


@pytest.mark.parametrize("name", sorted(KINDS["lease"]))
def test_one_process_admits_exactly_the_limit_with_a_few_calls(leases, store, name):
    ask = Ask("d:r:{x}", quota(10_000, name=name))
    assert admitted(leases, ask, 10_010) == 10_000
    assert store.decided < 120


def test_leases_grow_while_they_are_used_up_and_take_an_eighth_at_most(leases, store):
    ask, taken = Ask("d:r:{x}", quota(1_000)), []
    for _ in range(200):
        before = store.taken(ask)
        leases.decide([ask])
        if store.taken(ask) > before:
            taken.append(store.taken(ask) - before)
            assert taken[-1] <= (1_000 - before) / PART + 1
    assert taken[: HOT + 3] == [1] * HOT + [HOT + 1, 2 * HOT + 2, 109]


def test_a_quiet_counter_is_asked_for_each_time(leases, store, clock):
    ask = Ask("d:r:{x}", quota(1_000))
    for _ in range(5):
        leases.decide([ask])
        clock.advance(1.5)
    assert store.decided == store.taken(ask) == 5
    assert store.settled == 0


def test_a_counter_that_is_not_hot_is_asked_as_a_strict_one_is(leases, clock):
    ask = Ask("d:r:{x}", quota(1_000))
    for _ in range(3):
        for _ in range(HOT - 1):
            request = [ask], DECIDE
            assert leases.asked(request) == (request, None)
        clock.advance(1)
    assert leases.ledger.leases == {}


@pytest.mark.parametrize("per_second", [1, 20, HOT - 1, HOT, HOT + 1, HOT + 9, 300])
def test_leases_cost_no_more_calls_than_strict_counters(leases, store, clock, per_second):
    for number in range(10 * per_second):
        clock.set(START + number / per_second)
        assert leases.decide([Ask("d:r:{x}", quota(1_000_000))]).outcomes[0].allowed
    leases.settle()
    assert store.decided + store.settled <= 10 * per_second


def test_the_size_follows_the_traffic(leases, store, clock):
    ask = Ask("d:r:{x}", quota(1_000_000))
    for rate in (400, 40, 40, 40):
        asked = store.decided
        for _ in range(rate * 3):
            assert leases.decide([ask]).admits([ask])
            clock.advance(1 / rate)
        assert store.decided - asked < 16 + HOT
    leases.decide([ask])
    assert store.taken(ask) < 400 * 3 + 40 * 9 + 1 + 2 * 40  # what is held besides fits to the rate of now


def test_what_is_said_of_a_counter_counts_what_was_spent_here(leases, clock):
    ask = Ask("d:r:{x}", quota(100))
    replies = []
    for _ in range(60):
        replies.append(leases.decide([ask]))
        clock.advance(0.1)
    assert [reply.outcomes[0].remaining for reply in replies] == list(range(99, 39, -1))
    assert {reply.now + reply.outcomes[0].reset_after for reply in replies} == {(START + 60) * SECOND}
    assert [reply.now for reply in replies] == [START * SECOND + n * SECOND // 10 for n in range(60)]


@pytest.mark.parametrize("consistency", ["lease", "write_back"])
def test_an_exhausted_counter_says_when_it_opens(leases, clock, consistency):
    ask = Ask("d:r:{x}", quota(10, consistency))
    assert admitted(leases, ask, 10) == 10
    clock.advance(20)
    outcome = leases.decide([ask]).outcomes[0]
    assert outcome == (False, 0, 40 * SECOND, 40 * SECOND, 0)
    clock.advance(40)
    assert leases.decide([ask]).admits([ask])


@pytest.mark.parametrize(("name", "lives"), [("fixed_window", 3), ("sliding_window", 3), ("bucketed_window", 0.5)])
def test_a_share_ends_with_its_window_or_slice(leases, store, clock, name, lives):
    clock.set(START + 57)
    ask = Ask("d:r:{x}", Quota(name, 1_000, MINUTE, buckets=120, consistency="lease"))
    while leases.ledger.leases.get(ask.key) is None or leases.ledger.leases[ask.key].room < 5:
        leases.decide([ask])
    asked = store.decided
    clock.advance(min(lives, 1) - 0.000_001)
    leases.decide([ask])
    assert store.decided == asked
    clock.advance(0.000_001)
    leases.decide([ask])
    assert store.decided == asked + 1


@pytest.mark.parametrize("name", ["sliding_window", "bucketed_window"])
def test_what_is_left_of_a_lease_goes_back_when_it_ends(leases, store, clock, name):
    ask, other = Ask("d:r:{x}", quota(1_000, name=name)), Ask("d:o:{x}", quota(1_000))
    admitted(leases, ask, HOT + 12)
    assert store.taken(ask) > HOT + 12
    clock.advance(1)
    leases.decide([other])
    assert store.taken(ask) == HOT + 12


@pytest.mark.parametrize("consistency", ["lease", "write_back"])
def test_closing_settles(leases, store, consistency):
    ask = Ask("d:r:{x}", quota(1_000, consistency))
    admitted(leases, ask, HOT + 2)
    assert store.taken(ask) == (2 * HOT + 1 if consistency == "lease" else 1)
    leases.close()
    assert store.taken(ask) == HOT + 2


@pytest.mark.parametrize("consistency", ["lease", "write_back"])
def test_closing_settles_awaited(leases, store, consistency):
    ask = Ask("d:r:{x}", quota(1_000, consistency))

    async def run():
        for _ in range(HOT + 2):
            await leases.aask(([ask], DECIDE))
        await leases.aclose()

    asyncio.run(run())
    assert store.taken(ask) == HOT + 2


def test_a_second_process_gets_what_the_first_gave_back(store, clock):
    one, other = Leases(store, clock), Leases(store, clock)
    ask = Ask("d:r:{x}", quota(100, name="sliding_window"))
    assert admitted(one, ask, 40) == 40
    held = store.taken(ask) - 40
    assert held > 0
    assert admitted(other, ask, 100) == 60 - held
    later = 0
    for _ in range(5):
        clock.advance(1)
        later += admitted(one, ask, 1) + admitted(other, ask, 100)
    assert later == held


def test_own_shares_deny_nobody(leases, store):
    """What is held here of a counter goes back before a request is denied for its sake."""
    big = Ask("d:r:{x}", quota(100), 56)
    assert admitted(leases, big._replace(cost=1), 42) == 42
    assert store.taken(big) > 100 - 56
    assert leases.decide([big]).admits([big])
    assert admitted(leases, big._replace(cost=1), 10) == 2


# -------------------------------------------------------------------------------------- several counters


def test_several_counters_are_decided_here_where_all_can_be(leases, store):
    asks = [Ask("d:a:{x}", quota(1_000)), Ask("d:b:{x}", quota(5_000))]
    for _ in range(HOT + 12):
        leases.decide(asks)
    asked = store.decided
    reply = leases.decide(asks)
    assert store.decided == asked
    assert [outcome.remaining for outcome in reply.outcomes] == [1_000 - HOT - 13, 5_000 - HOT - 13]


def test_what_one_denies_is_taken_from_no_share(leases, store):
    local, strict = Ask("d:a:{x}", quota(1_000)), Ask("d:b:{x}", quota(5, "strict"))
    admitted(leases, local, 40)
    for _ in range(20):
        reply = leases.decide([local, strict])
    assert [outcome.allowed for outcome in reply.outcomes] == [True, False]
    assert [outcome.remaining for outcome in reply.outcomes] == [955, 0]
    leases.close()
    assert (store.taken(local), store.taken(strict)) == (45, 5)


def test_a_share_that_ended_meanwhile_gives_back_what_a_denied_request_had_of_it(leases, store, clock):
    local, strict = Ask("d:a:{x}", quota(1_000, name="sliding_window")), Ask("d:b:{x}", quota(5, "strict"), 6)
    admitted(leases, local, 40)
    steps = leases.asked(([local._replace(cost=10), strict], DECIDE))
    call = next(steps)
    clock.advance(90)  # a slow answer: the window ends on the way, and the next is half over
    admitted(leases, local, 1)
    with pytest.raises(StopIteration):
        steps.send(store.ask(call))
    leases.close()
    assert store.taken(local) == 40 / 2 + 1


def test_what_a_denied_request_puts_back_while_the_lease_is_filled_is_not_lost(leases, store):
    local, strict = Ask("d:a:{x}", quota(1_000)), Ask("d:b:{x}", quota(5, "strict"), 6)
    admitted(leases, local, HOT + 1)
    mixed = leases.asked(([local._replace(cost=HOT), strict], DECIDE))
    call = next(mixed)  # takes all that is left of the lease
    filling = leases.asked(([local], DECIDE))
    reply = store.ask(next(filling))
    assert not finished(mixed, store, store.ask(call)).admits([local, strict])
    assert finished(filling, store, reply).admits([local])
    leases.close()
    assert store.taken(local) == HOT + 2


def test_what_denied_requests_put_back_in_a_later_interval_makes_no_cost_smaller(leases, store, clock):
    local, strict = Ask("d:a:{x}", quota(1_000)), Ask("d:b:{x}", quota(5, "strict"), 6)
    admitted(leases, local, HOT + 1)
    mixed = [leases.asked(([local, strict], DECIDE)) for _ in range(2)]
    calls = [next(steps) for steps in mixed]
    for steps, call in zip(mixed, calls, strict=True):
        clock.advance(1)
        leases.decide([strict])  # settles
        assert not finished(steps, store, store.ask(call)).admits([local, strict])
    leases.settle()
    call = next(leases.asked(([local], DECIDE)))
    assert call[0][0].cost == 1


def test_a_shadow_takes_part_and_never_denies(leases, store):
    asks = [Ask("d:a:{x}", quota(1_000)), Ask("d:s:{x}", quota(30), 1, shadow=True)]
    replies = [leases.decide(asks) for _ in range(50)]
    assert all(reply.admits(asks) for reply in replies)
    assert [reply.outcomes[1].allowed for reply in replies] == [True] * 30 + [False] * 20
    leases.close()
    assert (store.taken(asks[0]), store.taken(asks[1])) == (50, 30)


def test_the_same_counter_twice_in_a_request_is_not_overdrawn(leases, store):
    ask = Ask("d:r:{x}", quota(1_000))
    admitted(leases, ask, 30)
    room = store.taken(ask) - 30
    leases.decide([ask._replace(cost=room), ask._replace(cost=room)])
    leases.close()
    assert store.taken(ask) == 30 + 2 * room


@pytest.mark.parametrize("costs", [(1, 1), (5, 1), (1, 5), (3, 3, 3)])
@pytest.mark.parametrize("consistency", ["lease", "write_back"])
def test_the_same_counter_twice_in_a_request_does_not_fill_its_lease_for_ever(leases, store, consistency, costs):
    asks = [Ask("d:r:{x}", quota(2 * HOT, consistency), cost) for cost in costs]
    for _ in range(2 * HOT):
        before = store.decided + store.settled
        leases.decide(asks)
        assert store.decided + store.settled <= before + 4
    leases.close()
    assert 2 * HOT - sum(costs) < store.taken(asks[0]) <= 2 * HOT


@pytest.mark.parametrize("consistency", ["lease", "write_back"])
def test_a_window_that_ends_before_each_reply_does_not_fill_a_lease_for_ever(leases, store, clock, consistency):
    ask = Ask("d:r:{x}", quota(1_000, consistency, period=SECOND // 100))
    store.late = lambda: clock.advance(0.02)
    for _ in range(3 * HOT):
        before = store.decided + store.settled
        assert leases.decide([ask]).admits([ask])
        assert store.decided + store.settled <= before + 3
    assert store.decided + store.settled < 2 * 3 * HOT  # most requests do not try to fill it


@pytest.mark.parametrize("consistency", ["lease", "write_back"])
def test_what_costs_nothing_and_what_cannot_be_kept_is_asked_of_the_store(leases, store, consistency):
    free = Ask("d:r:{x}", quota(10, consistency), 0)
    penalty = Penalty("d:b:ban:{", BanQuota("ban", 5, MINUTE, lasts=MINUTE, longest=MINUTE))
    banning = Ask("d:b:{x}", replace(quota(100, consistency), penalty=penalty))
    for ask in (free, banning):
        for _ in range(HOT + 3):
            assert leases.decide([ask]).admits([ask])
    assert store.decided == 2 * (HOT + 3)
    assert leases.ledger.leases == {}


# ------------------------------------------------------------------------------------------ looks, resets


@pytest.mark.parametrize("consistency", ["lease", "write_back"])
def test_a_look_says_what_a_request_would_hear(leases, consistency):
    ask = Ask("d:r:{x}", quota(50, consistency))
    for left in range(50, 0, -1):
        looked = leases.decide([ask], commit=False)
        assert (looked.outcomes[0].allowed, looked.outcomes[0].remaining) == (True, left)
        assert leases.decide([ask]).outcomes[0].remaining == left - 1
    assert not leases.decide([ask], commit=False).admits([ask])
    assert not leases.decide([ask]).admits([ask])


@pytest.mark.parametrize("consistency", ["lease", "write_back"])
def test_a_reset_drops_shares_and_what_is_owed(leases, store, consistency):
    ask = Ask("d:r:{x}", quota(100, consistency))
    admitted(leases, ask, 60)
    leases.forget([ask.key])
    assert store.taken(ask) == 0
    assert admitted(leases, ask, 200) == 100


def test_a_lease_that_arrives_after_a_reset_is_not_kept(leases, store):
    ask = Ask("d:r:{x}", quota(100))
    admitted(leases, ask, HOT)  # the next takes more than one
    steps = leases.asked(([ask], DECIDE))
    call = next(steps)
    result = store.ask(call)
    leases.forget([ask.key])
    assert finished(steps, store, result).admits([ask])
    assert admitted(leases, ask, 200) == 99


def test_a_denied_request_gives_nothing_back_to_a_counter_that_was_reset(leases, store):
    local, strict = Ask("d:a:{x}", quota(1_000)), Ask("d:b:{x}", quota(5, "strict"), 6)
    admitted(leases, local, 40)
    steps = leases.asked(([local._replace(cost=10), strict], DECIDE))
    call = next(steps)
    leases.forget([local.key])
    store.decide([local._replace(cost=20)])  # another process
    with pytest.raises(StopIteration):
        steps.send(store.ask(call))
    leases.close()
    assert store.taken(local) == 20


def test_a_lease_of_another_tier_goes_back(leases, store):
    small, great = Ask("d:r:{x}", quota(100)), Ask("d:r:{x}", quota(1_000))
    admitted(leases, great, HOT)
    steps = leases.asked(([great], DECIDE))  # takes a lease, too
    said = store.ask(next(steps))
    assert store.taken(great) > HOT + 1
    admitted(leases, small, 1)  # waits for the reply in vain
    assert finished(steps, store, said).admits([great])
    leases.close()
    assert store.taken(great) == HOT + 2


def test_refunds_reach_the_store(leases, store):
    ask = Ask("d:r:{x}", quota(100), 5)
    now = leases.decide([ask]).now
    leases.refund([ask], now)
    assert store.taken(ask) == 0
    asyncio.run(leases.aask(([ask], Intent(charged_at=now))))
    asyncio.run(leases.aask(forget_request([ask.key])))
    assert store.taken(ask) == 0


def test_another_tier_has_a_share_of_its_own(leases, store):
    small, great = Ask("d:r:{x}", quota(50)), Ask("d:r:{x}", quota(1_000))
    assert admitted(leases, great, 45) == 45
    assert admitted(leases, small, 10) == 5
    assert admitted(leases, great, 950) == 950
    leases.close()
    assert store.taken(small) == 1_000


def test_a_clock_that_steps_back_ends_the_shares(leases, store, clock):
    ask = Ask("d:r:{x}", quota(100))
    clock.advance(30)
    admitted(leases, ask, 20)
    clock.advance(-1)
    asked = store.decided
    leases.decide([ask])
    assert store.decided == asked + 1
    assert admitted(leases, ask, 100) == 79


def test_beyond_the_most_counters_are_asked_strictly(store, clock):
    leases = Leases(store, clock, most=3)
    for _ in range(HOT + 1):
        for number in range(5):
            leases.decide([Ask(f"d:r:{{{number}}}", quota(100))])
    assert store.taken(Ask("d:r:{4}", quota(100))) == HOT + 1
    assert store.taken(Ask("d:r:{0}", quota(100))) > HOT + 1


def test_counters_that_nobody_asks_any_more_are_dropped(leases, clock):
    for number in range(50):
        for consistency in ("lease", "write_back"):
            admitted(leases, Ask(f"d:{consistency}:{{{number}}}", quota(100, consistency)), number % 5 + HOT)
    assert len(leases.ledger.leases) == 100
    for _ in range(4):
        clock.advance(1)
        leases.decide([Ask("d:o:{x}", quota(100))])
    assert leases.ledger.leases == {}


# --------------------------------------------------------------------------------------------- write-back


def test_write_back_asks_at_first_sight_and_charges_in_the_background(leases, store, clock):
    ask = Ask("d:r:{x}", quota(1_000, "write_back"))
    assert admitted(leases, ask, 100) == 100
    assert (store.decided, store.settled, store.taken(ask)) == (1, 0, 1)
    clock.advance(1)
    assert admitted(leases, ask, 1) == 1
    assert (store.decided, store.settled, store.taken(ask)) == (2, 1, 101)  # and it asks again


def test_write_back_hears_of_the_others_within_an_interval(store, clock):
    one, other = Leases(store, clock), Leases(store, clock)
    ask = Ask("d:r:{x}", quota(100, "write_back"))
    assert admitted(one, ask, 60) == 60
    assert admitted(other, ask, 30) == 30
    clock.advance(1)
    admitted(one, ask, 1)
    assert admitted(other, ask, 1) == 1  # charges its 30, and hears of the 60 before
    assert leases_left(other, ask) == 100 - 60 - 30 - 2


def leases_left(leases, ask):
    return leases.decide([ask], commit=False).outcomes[0].remaining


def test_the_worst_that_write_back_can_do(store, clock):
    processes = [Leases(store, clock) for _ in range(4)]
    ask = Ask("d:r:{x}", quota(50, "write_back"))
    for process in processes:
        admitted(process, ask, 1)
    total = 4 + sum(admitted(process, ask, 100) for process in processes[::-1])
    assert 50 < total <= 50 + worst_over_admission(4, 50)
    assert store.taken(ask) == total
    assert sum(admitted(process, ask, 100) for process in processes) == 0


@pytest.mark.parametrize(
    ("arguments", "bound"),
    [
        pytest.param((1, 100), 0, id="one process is exact"),
        pytest.param((10, 100), 900, id="each can spend the whole limit"),
        pytest.param((10, 100_000, 50), 1_100, id="within two intervals, and two calls, of the moment it is reached"),
        pytest.param((1, 100_000, 50), 0, id="one process is exact, however fast"),
    ],
)
def test_the_bound_of_write_back(arguments, bound):
    processes, limit, *rate = arguments
    assert worst_over_admission(processes, limit, rate=rate[0] if rate else None) == bound


@pytest.mark.parametrize("name", sorted(KINDS["write_back"]))
@pytest.mark.parametrize(("processes", "rate", "limit"), [(2, 50, 1_000), (10, 20, 2_000), (30, 7, 500), (5, 200, 300)])
def test_write_back_keeps_to_its_bound_at_a_known_rate(clock, processes, rate, limit, name):
    store, dice = MemoryStore(clock=clock), random.Random(rate)
    ask = Ask("d:r:{x}", quota(limit, "write_back", name))
    deciders = [Leases(store, clock) for _ in range(processes)]
    moments = [((n + dice.random()) / rate, process) for n in range(min(20 * rate, 1_000)) for process in deciders]
    total = 0
    for moment, process in sorted(moments, key=lambda pair: pair[0]):
        clock.set(START + moment)
        total += admitted(process, ask, 1)
    # There is no thread here: what is due is settled with the next request.
    bound = worst_over_admission(processes, limit, rate=rate, delay=2 / rate)
    assert limit < total <= limit + bound


@pytest.mark.parametrize("name", sorted(KINDS["lease"]))
@pytest.mark.parametrize(("processes", "rate", "limit"), [(2, 50, 1_000), (10, 20, 2_000), (30, 7, 500), (5, 200, 300)])
def test_leases_deny_too_early_within_their_bound(clock, processes, rate, limit, name):
    store, dice = MemoryStore(clock=clock), random.Random(rate)
    ask = Ask("d:r:{x}", quota(limit, name=name, period=30 * SECOND))
    deciders = [Leases(store, clock) for _ in range(processes)]
    moments = [((n + dice.random()) / rate, process) for n in range(min(20 * rate, 1_000)) for process in deciders]
    total, denied_at = 0, []
    for moment, process in sorted(moments, key=lambda pair: pair[0]):
        clock.set(START + moment)
        if admitted(process, ask, 1):
            total += 1
        else:
            denied_at.append(total)
    assert total == limit
    assert denied_at[0] >= limit - worst_under_admission(processes, limit, rate=rate)


@pytest.mark.parametrize(
    ("arguments", "options", "bound"),
    [
        pytest.param((1, 100), {}, 0, id="one process denies nobody too early"),
        pytest.param((5, 100), {}, 100, id="nothing is known of the traffic"),
        pytest.param((5, 100_000), {"rate": 20}, 164, id="what the four others hold"),
        pytest.param((5, 100_000), {"rate": 20, "cost": 3}, 174, id="a greater cost needs more at once"),
        pytest.param((5, 100), {"rate": 20}, 100, id="never more than all"),
    ],
)
def test_the_bound_of_leases(arguments, options, bound):
    assert worst_under_admission(*arguments, **options) == bound


@pytest.mark.parametrize("consistency", ["lease", "write_back"])
def test_who_comes_while_the_store_is_asked_waits_for_its_reply(leases, store, consistency):
    ask = Ask("d:r:{x}", quota(1_000, consistency))
    admitted(leases, ask, HOT if consistency == "lease" else 0)
    asked, first, second = store.decided, leases.asked(([ask], DECIDE)), leases.asked(([ask], DECIDE))
    call, waits = next(first), next(second)
    assert not waits.done()
    assert finished(first, store, store.ask(call)).admits([ask])
    assert waits.result() is None
    assert finished(second, store, None).admits([ask])
    assert store.decided == asked + 1


def test_who_comes_while_what_was_spent_is_charged_waits_for_that(leases, store, clock):
    """A reply from before the charge says that more remains than does."""
    ask = Ask("d:r:{x}", quota(20, "write_back"))
    assert admitted(leases, ask, 10) == 10
    clock.advance(1)
    settling = leases._settle_due()
    charge = next(settling)
    assert charge[0][0].cost == -9
    request = leases.asked(([ask], DECIDE))
    waits = next(request)
    finished(settling, store, store.ask(charge))
    assert waits.result() is None
    assert finished(request, store, None).outcomes[0].remaining == 9
    assert admitted(leases, ask, 20) == 9


def test_what_was_spent_is_charged_before_the_store_denies(leases, store):
    ask = Ask("d:r:{x}", quota(100, "write_back"))
    admitted(leases, ask, 40)
    big = ask._replace(cost=70)
    steps = leases.asked(([big], DECIDE))
    call = next(steps)
    assert call[0][0].cost == -39
    small = leases.asked(([ask], DECIDE))
    waits = next(small)
    assert not finished(steps, store, store.ask(call)).admits([big])
    assert waits.result() is None
    assert finished(small, store, None).admits([ask])
    assert admitted(leases, ask, 100) == 59


def test_a_blocking_call_in_an_event_loop_waits_for_no_task(leases, store):
    ask = Ask("d:r:{x}", quota(1_000))
    admitted(leases, ask, HOT)
    steps = leases.asked(([ask], DECIDE))
    said = store.ask(next(steps))

    async def block():
        return admitted(leases, ask, 3)

    before = time.monotonic()
    assert asyncio.run(block()) == 3
    assert time.monotonic() - before < LONGEST_WAIT
    assert finished(steps, store, said).admits([ask])
    leases.close()
    assert store.taken(ask) == HOT + 4


# ------------------------------------------------------------------------------------- a store that is away


@pytest.mark.parametrize("consistency", ["lease", "write_back"])
def test_shares_are_spent_while_the_store_is_away_and_no_longer(leases, store, clock, consistency):
    ask = Ask("d:r:{x}", quota(100, consistency))
    admitted(leases, ask, HOT + 2)
    store.away = True
    assert leases.decide([ask]).admits([ask])
    clock.advance(2)
    with pytest.raises(StoreUnavailable):
        leases.decide([ask])
    store.away = False
    assert leases.decide([ask]).admits([ask])
    assert store.taken(ask) >= HOT + 4


def test_what_could_not_be_charged_is_charged_later(leases, store, clock):
    ask = Ask("d:r:{x}", quota(100, "write_back"))
    admitted(leases, ask, 20)
    store.away = True
    for _ in range(3):
        clock.advance(1)
        with pytest.raises(StoreUnavailable):
            leases.decide([Ask("d:o:{x}", quota(100))])
    leases.settle()
    store.away = False
    leases.settle()
    assert store.taken(ask) == 20


LOST = "a cost of 21 on 2 counters could not be charged at shutdown: away"


@pytest.mark.parametrize("way", ["close", "aclose"])
@pytest.mark.parametrize("away", [True, False])
def test_what_can_not_be_charged_at_the_end_is_logged(leases, store, caplog, way, away):
    for key, cost in (("d:r:{x}", 1), ("d:r:{y}", 2)):
        ask = Ask(key, quota(100, "write_back"), cost)
        leases.decide([ask])
        admitted(leases, ask, 7)
    store.away = away
    if way == "close":
        leases.close()
    else:
        asyncio.run(leases.aclose())
    assert [LOST in record.getMessage() for record in caplog.records] == [True] * away
    leases.close()
    assert len(caplog.records) == away


def test_what_can_not_be_charged_at_the_end_is_logged_of_more_counters_than_one_call_takes(leases, store, caplog):
    for number in range(250):
        leases.decide([Ask(f"d:r:{number}", quota(100, "write_back"))])
        admitted(leases, Ask(f"d:r:{number}", quota(100, "write_back")), 2)
    store.away = True
    leases.close()
    assert ["a cost of 500 on 250 counters" in record.getMessage() for record in caplog.records] == [True]


def test_what_goes_back_of_a_lease_is_no_loss(leases, store, caplog):
    admitted(leases, Ask("d:r:{x}", quota(100)), 20)
    store.away = True
    leases.close()
    assert caplog.records == []


AT_EXIT = """
import logging, os, signal, sys
from ratelimit_mw import RateLimiter
logging.basicConfig(format="%(levelname)s %(message)s")
rules = {"domain": "d", "storage": {"url": sys.argv[1], "timeout": "5s"},
         "rules": [{"name": "api", "by": "ip", "limit": "100 per hour", "consistency": "write_back"}]}
limiter = RateLimiter(rules)
assert all(limiter.check({"ip": "192.0.2.1"}).allowed for _ in range(10))
os.kill(int(sys.argv[2]), signal.SIGKILL)
"""


def test_what_can_not_be_charged_is_logged_at_the_end_of_a_process_that_closes_nothing(fresh_server):
    command = [sys.executable, "-c", AT_EXIT, fresh_server.url, str(fresh_server.pid)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "WARNING write_back: a cost of" in ended.stderr
    assert "on 1 counters could not be charged at shutdown: " in ended.stderr
    assert "Traceback" not in ended.stderr


def test_what_could_not_be_charged_is_forgotten_when_it_matters_no_more(leases, store, clock):
    ask = Ask("d:r:{x}", quota(100, "write_back"))
    admitted(leases, ask, 20)
    store.away = True
    leases.settle()
    assert leases.ledger.leases[ask.key].owed
    clock.advance(62)
    leases.settle()
    assert not leases.ledger.leases[ask.key].owed


def test_what_goes_back_is_never_sent_twice(leases, store):
    ask = Ask("d:r:{x}", quota(100))
    admitted(leases, ask, HOT + 2)
    charged = store.taken(ask)
    assert charged > HOT + 2
    store.away = True
    leases.settle()
    store.away = False
    leases.settle()
    assert store.taken(ask) == charged


@pytest.mark.parametrize("consistency", ["lease", "write_back"])
def test_an_ask_that_fails_takes_nothing_from_shares(leases, store, consistency):
    local, strict = Ask("d:a:{x}", quota(1_000, consistency)), Ask("d:b:{x}", quota(5, "strict"))
    admitted(leases, local, 40)
    store.away = True
    for _ in range(10):
        with pytest.raises(StoreUnavailable):
            leases.decide([local, strict])
    store.away = False
    leases.close()
    assert store.taken(local) == 40


def test_a_cancelled_request_gives_back_and_lets_others_ask(leases, store):
    local, strict, new = Ask("d:a:{x}", quota(1_000)), Ask("d:b:{x}", quota(5, "strict")), Ask("d:c:{x}", quota(1_000))
    admitted(leases, local, 40)
    admitted(leases, new, HOT)
    steps = leases.asked(([local, strict, new], DECIDE))
    next(steps)
    steps.close()
    assert admitted(leases, new, 40) == 40
    leases.close()
    assert (store.taken(local), store.taken(new)) == (40, 40 + HOT)


def test_one_lease_at_a_time_is_asked_for(leases, store):
    """A hundred requests that find nothing left do not take a hundred leases."""
    ask = Ask("d:r:{x}", quota(10_000))
    admitted(leases, ask, HOT)  # and nothing is left
    under_way = [leases.asked(([ask], DECIDE)) for _ in range(100)]
    calls = [next(steps) for steps in under_way]
    assert [call[0][0].cost for call in calls if isinstance(call, tuple)] == [1 + HOT]


@pytest.mark.parametrize("name", sorted(KINDS["lease"]))
def test_requests_of_one_process_under_way_together_are_never_denied_too_early(store, clock, name):
    """Calls arrive and replies are taken up in any order, and another may have the lease that a request lacks."""
    for seed in range(30):
        chance = random.Random(seed)
        leases, ask = Leases(store, clock), Ask(f"d:r{seed}:{{x}}", quota(40, name=name))
        total = admitted(leases, ask, HOT + chance.randrange(5))
        requests, to_send, sent = 60, [], []
        likely = [chance.random() for _ in range(3)]
        while requests or to_send or sent:
            (step,) = chance.choices(["ask", "send", "take up"], likely)
            if step == "ask" and requests:
                requests -= 1
                steps = leases.asked(([ask], DECIDE))
                if isinstance(steps, Reply):
                    total += steps.admits([ask])
                else:
                    to_send.append((steps, next(steps)))
            elif step == "send" and to_send:
                steps, call = to_send.pop(chance.randrange(len(to_send)))
                sent.append((steps, store.ask(call) if isinstance(call, tuple) else call))
            elif step == "take up" and sent:
                steps, reply = sent.pop(chance.randrange(len(sent)))
                if not isinstance(reply, Reply) and not reply.done():
                    sent.append((steps, reply))
                    continue
                try:
                    to_send.append((steps, steps.send(reply if isinstance(reply, Reply) else None)))
                except StopIteration as end:
                    total += end.value.admits([ask])
        assert total == 40, seed


# ----------------------------------------------------------------------------- threads, loops, real time


@pytest.mark.parametrize("consistency", ["lease", "write_back"])
def test_200_threads_of_one_process_on_redis_are_exact(any_server, consistency):
    leases = Leases(RedisStore(any_server.url, timeout=10), interval=0.05)
    gate = threading.Barrier(200)
    ask = Ask("d:r:{x}", quota(1_000, consistency, period=LONG))

    def request(_):
        gate.wait()
        return admitted(leases, ask, 20)

    with ThreadPoolExecutor(200) as pool:
        assert sum(pool.map(request, range(200))) == 1_000
    leases.close()


@pytest.mark.parametrize("consistency", ["lease", "write_back"])
def test_500_tasks_of_one_process_on_redis_are_exact(any_server, consistency):
    async def run():
        leases = Leases(RedisStore(any_server.url, timeout=10), interval=0.05)
        ask = Ask("d:r:{x}", quota(1_000, consistency, period=LONG))

        async def client():
            return sum([(await leases.aask(([ask], DECIDE))).admits([ask]) for _ in range(5)])

        total = sum(await asyncio.gather(*(client() for _ in range(500))))
        await leases.aclose()
        return total

    assert asyncio.run(run()) == 1_000


@pytest.mark.parametrize("consistency", ["lease", "write_back"])
def test_a_thread_settles_and_ends(any_server, consistency):
    store = RedisStore(any_server.url, timeout=5)
    leases = Leases(store, interval=0.5)
    ask = Ask("d:r:{x}", quota(1_000, consistency, "sliding_window", LONG))
    assert admitted(leases, ask, 10 * HOT) == 10 * HOT
    eventually(lambda: not leases.settling.alive)
    assert 1_000 - store.decide([ask._replace(cost=0)], commit=False).outcomes[0].remaining == 10 * HOT
    assert admitted(leases, ask, 1) == 1
    leases.close()


@pytest.mark.parametrize("consistency", ["lease", "write_back"])
def test_a_child_of_a_fork_has_no_shares(any_server, consistency):
    store = RedisStore(any_server.url, timeout=5)
    leases = Leases(store)
    ask = Ask("d:r:{x}", quota(100, consistency, period=LONG))
    admitted(leases, ask, 40)

    def work():
        total = admitted(leases, ask, 200)
        leases.close()
        return total

    child = Forked(work)
    own = admitted(leases, ask, 10)
    in_the_child = child.result()
    total = 40 + own + in_the_child + admitted(leases, ask, 200)
    assert total == 100 if consistency == "lease" else 100 <= total <= 100 + worst_over_admission(2, 100)
    leases.close()


_PROCESS = """
import sys
from ratelimit_mw.model import Ask, Quota
from ratelimit_mw.stores.lease_store import Leases
from ratelimit_mw.stores.redis.store import RedisStore

kept = []
for case in sys.argv[2:]:
    name, consistency = case.split(":")
    kept.append(leases := Leases(RedisStore(sys.argv[1], timeout=10)))
    ask = Ask(f"d:{name}-{consistency}:{{x}}", Quota(name, 2_500, 3_650 * 86_400_000_000, consistency=consistency))
    print("ready", flush=True)
    sys.stdin.readline()
    print(sum(leases.decide([ask]).admits([ask]) for _ in range(2_000)), flush=True)
"""


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param([(min(names), consistency) for consistency, names in KINDS.items()], id="one algorithm each"),
        pytest.param(
            [(name, consistency) for consistency, names in KINDS.items() for name in sorted(names)],
            id="all algorithms",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_four_processes_on_redis(any_server, cases):
    command = [sys.executable, "-c", _PROCESS, any_server.url, *map(":".join, cases)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    totals = []
    for _ in cases:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        totals.append(sum(int(process.stdout.readline()) for process in processes))
    for process in processes:
        process.communicate(timeout=60)
    assert [process.returncode for process in processes] == [0] * 4
    store = RedisStore(any_server.url, timeout=5)
    for (name, consistency), total in zip(cases, totals, strict=True):
        asked = Ask(f"d:{name}-{consistency}:{{x}}", Quota(name, 10**9, LONG, consistency="strict"), 0)
        taken = 10**9 - store.decide([asked], commit=False).outcomes[0].remaining
        assert taken == total  # each settled when it ended, closed or not
        if consistency == "lease":
            assert 2_500 - worst_under_admission(4, 2_500) <= total <= 2_500
            assert total > 2_000
        else:
            assert 2_500 <= total <= 2_500 + worst_over_admission(4, 2_500)
    store.close()


@pytest.mark.parametrize("consistency", ["lease", "write_back"])
def test_a_late_cost_is_taken_by_the_store_after_what_was_spent_here(leases, store, clock, consistency):
    ask = Ask("d:r:{x}", quota(100, consistency))
    late = Ask(ask.key, with_overdraft(ask.quota), 60)
    assert admitted(leases, ask, 50) == 50
    assert leases.decide([late]).outcomes[0][:2] == (False, 0)
    assert store.taken(ask) == 110
    for denied in (late, late._replace(cost=0), ask, ask._replace(cost=0)):
        assert not leases.decide([denied]).outcomes[0].allowed
    assert store.taken(ask) == 110
    clock.advance(60)
    assert leases.decide([late, Ask("d:s:{x}", quota(5, consistency))]).outcomes[0][:2] == (True, 40)
    leases.close()
    assert store.taken(ask) == 60
