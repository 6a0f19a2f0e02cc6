"""What every store promises: tests that each of them inherits.

A subclass names itself and opens its stores:

    class TestMine(Contract):
        @pytest.fixture
        def make(self): return lambda **options: MyStore(**options)
"""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ratelimit_mw import ManualClock
from ratelimit_mw.algorithms import for_rules, with_overdraft
from ratelimit_mw.model import NEVER, SECOND, Ask, Outcome, Quota
from ratelimit_mw.stores.base import DECIDE, LOOK, Intent, forget_request
from tests.support.apps import LONG

MINUTE = 60 * SECOND
BUCKETS = ("token_bucket", "leaky_bucket")
EXACT = ("fixed_window", "sliding_log", "bucketed_window", *BUCKETS)
ALL = (*EXACT, "sliding_window")
KINDS = {
    "lease": frozenset(name for name, algorithm in for_rules().items() if not algorithm.no_lease),
    "write_back": frozenset(name for name, algorithm in for_rules().items() if not algorithm.no_write_back),
}
"""The algorithms that each consistency takes."""


def quota(limit, name="fixed_window", period=LONG):
    bucket = name in BUCKETS
    return Quota(name, limit, period, limit if bucket else 0, longest_wait=period if name == "leaky_bucket" else 0)


class Decisions:
    """What is promised of decisions, also by a service that decides by rules of its own.

    Asks are made through `self.decide(store, asks, …)`, so that a subclass may ask by other means.
    """

    @pytest.fixture
    def clock(self):
        return ManualClock(1_700_000_040)

    @pytest.fixture
    def store(self, make, clock):
        store = make(clock=clock)
        yield store
        store.close()

    def decide(self, store, asks, *, commit=True):
        return store.decide(asks, commit=commit)

    def admitted(self, store, ask, times):
        """How many of `times` decisions one after the other admit."""
        return sum(self.decide(store, [ask]).admits([ask]) for _ in range(times))

    def taken(self, store, key, limit=100):
        """How much of a counter is used, without touching it."""
        return limit - self.decide(store, [Ask(key, quota(limit), 0)], commit=False).outcomes[0].remaining

    @pytest.mark.parametrize("name", ALL)
    def test_a_limit_holds_and_ends(self, store, clock, name):
        ask = Ask("d:r:{x}", quota(3, name, MINUTE))
        replies = [self.decide(store, [ask]) for _ in range(4)]
        assert [reply.admits([ask]) for reply in replies] == [True, True, True, False]
        assert [reply.outcomes[0].remaining for reply in replies] == [2, 1, 0, 0]
        clock.advance(replies[3].outcomes[0].retry_after / SECOND)
        assert self.decide(store, [ask]).admits([ask])

    def test_the_reply_has_the_time_and_an_outcome_for_each_ask_in_order(self, store, clock):
        asks = [Ask(f"d:r{n}:{{x}}", quota(n)) for n in (5, 3, 9)]
        reply = self.decide(store, asks)
        assert reply.now == clock.now()
        assert [outcome.remaining for outcome in reply.outcomes] == [4, 2, 8]

    def test_no_asks_no_outcomes(self, store):
        assert list(self.decide(store, []).outcomes) == []

    def test_what_one_denies_is_charged_to_none(self, store):
        asks = [Ask("d:a:{x}", quota(100)), Ask("d:b:{x}", quota(1)), Ask("d:c:{x}", quota(100))]
        assert self.decide(store, asks).admits(asks)
        reply = self.decide(store, asks)
        assert [outcome.allowed for outcome in reply.outcomes] == [True, False, True]
        assert [outcome.remaining for outcome in reply.outcomes] == [99, 0, 99]
        assert self.taken(store, "d:a:{x}") == self.taken(store, "d:c:{x}") == 1

    def test_a_shadow_neither_denies_nor_is_charged_for_what_it_would_have_denied(self, store):
        asks = [Ask("d:a:{x}", quota(100)), Ask("d:s:{x}", quota(2), 1, shadow=True)]
        replies = [self.decide(store, asks) for _ in range(4)]
        assert [reply.admits(asks) for reply in replies] == [True] * 4
        assert [reply.outcomes[1].allowed for reply in replies] == [True, True, False, False]
        assert self.taken(store, "d:a:{x}") == 4
        assert self.taken(store, "d:s:{x}", 2) == 2

    def test_a_shadow_is_not_charged_for_what_another_denied(self, store):
        asks = [Ask("d:s:{x}", quota(100), 1, shadow=True), Ask("d:b:{x}", quota(0))]
        assert not self.decide(store, asks).admits(asks)
        assert self.taken(store, "d:s:{x}") == 0

    @pytest.mark.parametrize("name", ALL)
    def test_a_look_charges_nothing_and_says_what_would_be(self, store, name):
        ask = Ask("d:r:{x}", quota(1, name))
        assert [self.decide(store, [ask], commit=False).outcomes[0].remaining for _ in range(3)] == [1, 1, 1]
        assert self.decide(store, [ask]).admits([ask])
        assert not self.decide(store, [ask], commit=False).admits([ask])

    @pytest.mark.parametrize("name", ALL)
    def test_a_limit_of_zero_denies_for_ever_even_what_is_free(self, store, name):
        for cost in (0, 1):
            outcome = self.decide(store, [Ask("d:r:{x}", quota(0, name), cost)]).outcomes[0]
            assert (outcome.allowed, outcome.remaining, outcome.retry_after) == (False, 0, NEVER)

    @pytest.mark.parametrize("name", ALL)
    def test_what_is_free_passes_an_exhausted_counter(self, store, name):
        self.decide(store, [Ask("d:r:{x}", quota(3, name), 3)])
        assert self.decide(store, [Ask("d:r:{x}", quota(3, name), 0)]).outcomes[0].allowed

    @pytest.mark.parametrize("name", ALL)
    def test_a_cost_beyond_the_limit_never_passes(self, store, name):
        outcome = self.decide(store, [Ask("d:r:{x}", quota(3, name), 10**15)]).outcomes[0]
        assert (outcome.allowed, outcome.remaining, outcome.retry_after) == (False, 3, NEVER)

    def test_a_queue_gives_turns_in_order_and_a_look_takes_none(self, store, clock):
        ask = Ask("d:q:{x}", Quota("leaky_bucket", 1, SECOND, 4, longest_wait=4 * SECOND))
        looked = self.decide(store, [ask], commit=False)
        turns = [self.decide(store, [ask]).outcomes[0].delay for _ in range(3)]
        assert [looked.outcomes[0].delay, *turns] == [0, 0, SECOND, 2 * SECOND]
        clock.advance(0.5)
        assert self.decide(store, [ask], commit=False).outcomes[0].delay == 2_500_000
        assert [self.decide(store, [ask]).outcomes[0].delay for _ in range(2)] == [2_500_000, 0]
        assert not self.decide(store, [ask]).admits([ask])

    def test_a_bucket_waits_for_its_token_as_long_as_it_may(self, store):
        ask = Ask("d:t:{x}", Quota("token_bucket", 1, SECOND, 2, longest_wait=2 * SECOND))
        replies = [self.decide(store, [ask]) for _ in range(5)]
        assert [reply.outcomes[0].delay for reply in replies] == [0, 0, SECOND, 2 * SECOND, 0]
        assert not replies[4].admits([ask])
        assert replies[4].outcomes[0].retry_after == SECOND

    def test_a_request_that_another_counter_denies_gets_no_turn(self, store):
        queue, gate = (
            Ask("d:q:{x}", Quota("leaky_bucket", 1, SECOND, 4, longest_wait=4 * SECOND)),
            Ask("d:g:{x}", quota(0)),
        )
        assert not self.decide(store, [queue, gate]).admits([queue, gate])
        assert self.decide(store, [queue]).outcomes[0].delay == 0

    def test_distinct_keys_are_distinct_counters(self, store):
        keys = ["d:r:{a}", "d:r:{b}", "d:r:{a}b", "d:r:{A}", "d:r:{}", "d:r2:{a}", "e:r:{a}", "d:r:{ä}"]
        for number, key in enumerate(keys, 1):
            for _ in range(number):
                self.decide(store, [Ask(key, quota(100))])
        assert [self.taken(store, key) for key in keys] == list(range(1, len(keys) + 1))

    def test_closed_twice_and_used_again(self, make):
        store = make()
        self.decide(store, [Ask("d:r:{x}", quota(100))])
        store.close()
        store.close()
        assert self.decide(store, [Ask("d:r:{x}", quota(100))]).outcomes[0].remaining == 98
        store.close()

    @pytest.mark.parametrize("name", EXACT)
    def test_200_threads_admit_exactly_the_limit(self, make, name):
        store, gate = make(timeout=10), threading.Barrier(200)
        ask = Ask("d:r:{x}", quota(100, name))

        def request(_):
            gate.wait()
            return self.admitted(store, ask, 3)

        with ThreadPoolExecutor(200) as pool:
            assert sum(pool.map(request, range(200))) == 100
        store.close()


class Contract(Decisions):
    """What is promised of counters that are charged, given back, forgotten and listed by their keys."""

    def forget(self, store, keys):
        store.forget(keys)

    def refund(self, store, asks, charged_at):
        store.refund(asks, charged_at)

    def charge(self, store, asks, instead_of=None):
        return store.charge(asks, instead_of=instead_of)

    def remaining(self, store, asks):
        looked = self.decide(store, [ask._replace(cost=0) for ask in asks], commit=False)
        return [outcome.remaining for outcome in looked.outcomes]

    def test_counters_are_found_by_what_their_keys_begin_with(self, store):
        keys = [f"d:r{n}:{{{x}}}" for n in (1, 10) for x in ("a", "b*", "[c]")]
        for key in (*keys, "e:r1:{a}", "d:r*:{a}"):
            self.decide(store, [Ask(key, quota(5))])
        assert sorted(store.keys("d:r1")) == sorted(keys)
        assert sorted(store.keys("d:r1:{")) == sorted(keys[:3])
        assert list(store.keys("d:r*:")) == ["d:r*:{a}"]
        assert list(store.keys("d:r2")) == []

    def test_forgotten_counters_are_as_if_unused_and_the_others_stay(self, store):
        for key in ("d:a:{x}", "d:b:{x}", "d:c:{x}"):
            self.decide(store, [Ask(key, quota(100), 7)])
        self.forget(store, ["d:a:{x}", "d:b:{x}", "d:unknown:{x}"])
        assert [self.taken(store, key) for key in ("d:a:{x}", "d:b:{x}", "d:c:{x}")] == [0, 0, 7]

    @pytest.mark.parametrize("name", ALL)
    def test_what_is_given_back_was_never_charged(self, store, clock, name):
        asks = [Ask(f"d:{n}:{{x}}", quota(100, name), n) for n in (3, 5)]
        kept = self.decide(store, asks)
        clock.advance(1)
        back = self.decide(store, asks)
        assert [outcome.remaining for outcome in back.outcomes] == [94, 90]
        clock.advance(1)
        self.refund(store, asks, back.now)
        looked = self.decide(store, [ask._replace(cost=0) for ask in asks], commit=False)
        assert [outcome.remaining for outcome in looked.outcomes] == [97, 95]
        self.refund(store, asks[:1], kept.now)
        looked = self.decide(store, [ask._replace(cost=0) for ask in asks], commit=False)
        assert [outcome.remaining for outcome in looked.outcomes] == [100, 95]

    @pytest.mark.parametrize("name", ALL)
    def test_what_is_charged_without_being_asked_is_never_denied(self, store, clock, name):
        asks = [Ask(f"d:{n}:{{x}}", quota(10, name), n) for n in (3, 9)]
        at = self.charge(store, asks)
        assert at == clock.now()
        assert self.remaining(store, asks) == [7, 1]
        at = self.charge(store, asks)
        assert self.remaining(store, asks) == [4, 0]
        assert self.decide(store, [asks[1]._replace(cost=1)]).outcomes[0].allowed is False
        self.refund(store, asks, at)
        assert self.remaining(store, asks) == [7, 1]

    @pytest.mark.parametrize("name", ALL)
    def test_a_debt_is_paid_back_within_two_windows(self, store, clock, name):
        ask = Ask("d:r:{x}", quota(10, name, MINUTE), 10**15)
        self.charge(store, [ask])
        self.charge(store, [ask])
        denied = self.decide(store, [ask._replace(cost=1)]).outcomes[0]
        assert not denied.allowed
        assert 0 < denied.retry_after <= 2 * MINUTE
        clock.advance((denied.retry_after - 1) / SECOND)
        assert not self.decide(store, [ask._replace(cost=1)]).outcomes[0].allowed
        clock.advance(1 / SECOND)
        assert self.decide(store, [ask._replace(cost=1)]).outcomes[0].allowed

    @pytest.mark.parametrize("name", ALL)
    def test_a_counter_in_debt_denies_what_is_free_until_the_debt_is_paid_back(self, store, clock, name):
        ask = Ask("d:r:{x}", quota(10, name, MINUTE))
        free, debt = ask._replace(cost=0), ask._replace(cost=5)
        self.charge(store, [debt])
        self.charge(store, [debt])
        assert self.decide(store, [free]).outcomes[0].allowed
        self.charge(store, [debt])
        for commit in (True, False):
            denied = self.decide(store, [free], commit=commit).outcomes[0]
            assert (denied.allowed, denied.remaining) == (False, 0)
            assert 0 < denied.retry_after <= 2 * MINUTE
        clock.advance((denied.retry_after - 1) / SECOND)
        assert not self.decide(store, [free]).outcomes[0].allowed
        clock.advance(1 / SECOND)
        assert self.decide(store, [free]).outcomes[0].allowed

    @pytest.mark.parametrize("name", ALL)
    def test_an_overdraft_that_does_not_fit_is_denied_and_taken_once(self, store, clock, name):
        ask = Ask("d:r:{x}", with_overdraft(quota(10, name, MINUTE)), 7)
        assert self.decide(store, [ask]).outcomes[0][:2] == (True, 3)
        assert self.decide(store, [ask], commit=False).outcomes[0][:2] == (False, 3)
        denied = self.decide(store, [ask]).outcomes[0]
        assert (denied.allowed, denied.remaining) == (False, 0)
        denials = [self.decide(store, [ask._replace(cost=cost)]).outcomes[0] for cost in (1, 7, 10**15, 0)]
        assert [outcome[:2] for outcome in denials] == [(False, 0)] * 4
        assert {outcome.retry_after for outcome in denials} == {denied.retry_after}
        clock.advance((denials[0].retry_after - 1) / SECOND)
        assert not self.decide(store, [ask._replace(cost=0)]).outcomes[0].allowed
        clock.advance(1 / SECOND)
        assert self.decide(store, [ask._replace(cost=0)]).outcomes[0].allowed

    @pytest.mark.parametrize("name", ALL)
    def test_an_overdraft_takes_from_a_full_counter_but_a_usual_cost_does_not(self, store, name):
        ask = Ask("d:r:{x}", quota(10, name), 10)
        late, free = ask._replace(quota=with_overdraft(ask.quota), cost=1), ask._replace(cost=0)
        self.decide(store, [ask])
        assert not self.decide(store, [ask._replace(cost=1)]).outcomes[0].allowed
        assert self.decide(store, [free]).outcomes[0].allowed
        assert not self.decide(store, [late]).outcomes[0].allowed
        assert not self.decide(store, [free]).outcomes[0].allowed

    @pytest.mark.parametrize("name", ALL)
    def test_a_huge_overdraft_is_paid_back_within_two_windows(self, store, clock, name):
        late = Ask("d:r:{x}", with_overdraft(quota(10, name, MINUTE)), 10**15)
        for _ in range(2):
            assert 0 < self.decide(store, [late]).outcomes[0].retry_after <= 2 * MINUTE
        clock.advance(2 * MINUTE / SECOND)
        assert self.decide(store, [late._replace(cost=0)]).outcomes[0].allowed

    @pytest.mark.parametrize("name", ALL)
    def test_a_limit_of_zero_denies_an_overdraft(self, store, name):
        outcome = self.decide(store, [Ask("d:r:{x}", with_overdraft(quota(0, name)), 1)]).outcomes[0]
        assert (outcome.allowed, outcome.remaining, outcome.retry_after) == (False, 0, NEVER)

    def test_an_overdraft_may_go_into_what_requests_wait_for(self, store):
        waits = Quota("token_bucket", 10, MINUTE, 10, longest_wait=MINUTE)
        late, gate = Ask("d:t:{x}", with_overdraft(waits), 7), Ask("d:g:{x}", quota(9), 1)
        replies = [self.decide(store, [late, gate]) for _ in range(3)]
        found = [[outcome[:2] for outcome in reply.outcomes] for reply in replies]
        assert found == [[(True, 3), (True, 8)], [(True, 0), (True, 7)], [(False, 0), (True, 7)]]

    def test_the_end_of_a_queue_that_an_overdraft_has_filled_comes_nearer(self, store, clock):
        late = Ask("d:q:{x}", with_overdraft(Quota("leaky_bucket", 1, SECOND, 1)))
        self.charge(store, [late])
        self.refund(store, [late], clock.now())
        ends = [self.decide(store, [late]).outcomes[0].reset_after for _ in range(2)]
        clock.advance(0.5)
        assert [*ends, self.decide(store, [late]).outcomes[0].reset_after] == [2 * SECOND, 2 * SECOND, 1_500_000]

    def test_an_overdraft_whose_turn_is_too_far_away_is_denied_even_in_a_queue_that_refunds_emptied(self, store, clock):
        late = Ask("d:q:{x}", with_overdraft(Quota("leaky_bucket", 1, SECOND, 1)), 2)
        for _ in range(2):
            self.charge(store, [late])
            self.refund(store, [late], clock.now())
        denied = self.decide(store, [late]).outcomes[0]
        assert (denied.allowed, denied.retry_after) == (False, 2 * SECOND)
        clock.advance(2)
        assert not self.decide(store, [late]).outcomes[0].allowed  # it is charged now, and does not fit
        assert self.decide(store, [late]).outcomes[0].retry_after == SECOND

    def test_only_overdrafts_are_charged_by_a_denied_request(self, store):
        late, gate = Ask("d:t:{x}", with_overdraft(quota(10)), 7), Ask("d:g:{x}", quota(3), 1)
        shadow = Ask("d:s:{x}", with_overdraft(quota(10)), 20, shadow=True)
        replies = [self.decide(store, [gate, late, shadow]) for _ in range(3)]
        assert [reply.admits([gate, late, shadow]) for reply in replies] == [True, False, False]
        found = [[outcome[:2] for outcome in reply.outcomes] for reply in replies[:2]]
        assert found == [[(True, 2), (True, 3), (False, 0)], [(True, 2), (False, 0), (False, 0)]]
        assert [self.taken(store, key, 99) for key in ("d:g:{x}", "d:t:{x}", "d:s:{x}")] == [1, 14, 20]
        assert self.decide(store, [gate._replace(cost=2)]).admits([gate])
        fresh = Ask("d:u:{x}", with_overdraft(quota(10)), 4)
        for left in (6, 2):  # also if the gate is known to deny
            denied = self.decide(store, [fresh, gate])
            assert [outcome[:2] for outcome in denied.outcomes] == [(True, left), (False, 0)]
        assert self.taken(store, fresh.key, 99) == 8

    def test_a_renewed_charge_replaces_the_earlier_one(self, store, clock):
        ask = Ask("d:r:{x}", quota(10, "bucketed_window", MINUTE), 4)
        at = self.decide(store, [ask]).now
        for _ in range(5):
            clock.advance(40)
            at = self.charge(store, [ask], at)
            assert self.remaining(store, [ask]) == [6]
        self.refund(store, [ask], at)
        assert self.remaining(store, [ask]) == [10]

    def test_nothing_is_charged_where_nothing_may_pass(self, store):
        asks = [Ask(f"d:{name}:{{x}}", quota(0, name)) for name in BUCKETS]
        self.charge(store, asks)
        assert self.remaining(store, asks) == [0] * len(BUCKETS)

    def test_to_charge_nothing_is_fine(self, store):
        self.charge(store, [])
        assert self.taken(store, "d:r:{x}") == 0

    def test_to_give_back_to_an_unused_counter_is_fine(self, store, clock):
        self.refund(store, [Ask("d:r:{x}", quota(100))], clock.now())
        assert self.taken(store, "d:r:{x}") == 0

    def test_to_give_nothing_back_is_fine(self, store, clock):
        self.refund(store, [], clock.now())
        assert self.taken(store, "d:r:{x}") == 0

    def test_to_forget_nothing_is_fine(self, store):
        self.decide(store, [Ask("d:r:{x}", quota(100))])
        self.forget(store, [])
        assert self.taken(store, "d:r:{x}") == 1

    def test_an_outcome_is_made_of_whole_numbers(self, store):
        outcome = self.decide(
            store, [Ask("d:r:{x}", quota(10**9, "sliding_window", 3_650 * 86_400 * SECOND))]
        ).outcomes[0]
        assert isinstance(outcome, Outcome)
        assert [type(part) for part in outcome] == [bool, int, int, int, int]
        assert outcome.remaining == 10**9 - 1


class Awaited:
    """Asks from an event loop, a new one each time. It stands before the class whose methods it replaces."""

    def decide(self, store, asks, *, commit=True):
        return asyncio.run(store.aask((asks, DECIDE if commit else LOOK)))

    def admitted(self, store, ask, times):
        async def run():
            return sum([(await store.aask(([ask], DECIDE))).admits([ask]) for _ in range(times)])

        return asyncio.run(run())

    def forget(self, store, keys):
        asyncio.run(store.aask(forget_request(keys)))

    def refund(self, store, asks, charged_at):
        asyncio.run(store.aask((asks, Intent(charged_at=charged_at))))

    def charge(self, store, asks, instead_of=None):
        return asyncio.run(store.aask((asks, Intent(charged_at=instead_of, insist=True)))).now
