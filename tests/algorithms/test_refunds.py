"""What is given back is as if it had never been charged, as long as its time has not passed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.algorithms import ALGORITHMS, DECIDE_ALL, for_rules
from ratelimit_mw.model import SECOND, Quota
from tests.algorithms.histories import START, histories, jumps, quotas

MINUTE = 60 * SECOND
WINDOWS = tuple(name for name, algorithm in for_rules().items() if not algorithm.has_burst)


def quota(name, limit=100, period=MINUTE):
    return Quota(name, limit, period, limit, longest_wait=period)


class Counter:
    def __init__(self, quota):
        self.quota, self.state = quota, b""

    def take(self, cost, now):
        outcome, state = DECIDE_ALL[self.quota.algorithm](self.state, self.quota, cost, now)
        self.state = self.state if state is None else state
        return outcome

    def give_back(self, cost, charged_at, now):
        state = ALGORITHMS[self.quota.algorithm].refund(self.state, self.quota, cost, charged_at, now)
        self.state = self.state if state is None else state

    def look(self, now):
        return DECIDE_ALL[self.quota.algorithm](self.state, self.quota, 0, now)[0]


@given(histories())
def test_what_is_given_back_at_once_was_never_taken(history):
    quota, steps = history
    counter, now = Counter(quota), START
    for jump, cost in steps:
        now += jump
        before = counter.look(now)
        if counter.take(cost, now).allowed:
            counter.give_back(cost, now, now)
            after = counter.look(now)
            assert after.remaining == before.remaining
            assert after == before or quota.algorithm == "leaky_bucket"  # a turn is never given twice
            counter.take(cost, now)


@st.composite
def _refunded(draw):
    """(quota with room for all, [(jump, cost, steps until it is given back)])."""
    quota = draw(st.sampled_from(WINDOWS).flatmap(lambda name: quotas(name, buckets=draw(st.sampled_from((60, 1, 7))))))
    quota = Quota(quota.algorithm, 10_000, quota.period, 10_000, quota.buckets)
    step = st.tuples(jumps(quota, back=False), st.integers(1, 3), st.one_of(st.none(), st.integers(0, 5)))
    return quota, draw(st.lists(step, min_size=1, max_size=30))


@given(_refunded())
def test_a_window_is_as_if_what_was_given_back_later_had_never_come(history):
    quota, steps = history
    counter, other, now, due = Counter(quota), Counter(quota), START, {}
    for number, (jump, cost, wait) in enumerate(steps):
        now += jump
        counter.take(cost, now)
        if wait is None:
            other.take(cost, now)
        else:
            due.setdefault(number + wait, []).append((cost, now))
        for refund in due.pop(number, ()):
            counter.give_back(*refund, now)
        if not due:
            assert counter.look(now).remaining == other.look(now).remaining


@pytest.mark.parametrize("name", list(for_rules()))
def test_never_below_zero(name):
    counter = Counter(quota(name))
    counter.take(5, START)
    counter.give_back(10**15, START, START)
    assert counter.look(START).remaining == 100


@pytest.mark.parametrize("name", WINDOWS)
def test_what_another_window_charged_stays(name):
    counter = Counter(quota(name))
    counter.take(5, START)
    counter.give_back(5, START - 2 * MINUTE, START)
    counter.give_back(5, START + 2 * MINUTE, START)
    assert counter.look(START).remaining == 95


def test_a_bucket_gets_its_tokens_back_and_is_never_more_than_full():
    counter = Counter(quota("token_bucket", 60))  # one token a second
    counter.take(10, START)
    counter.give_back(4, START, START + 3 * SECOND)
    assert counter.look(START + 3 * SECOND).remaining == 57
    counter.give_back(4, START, START + 3 * SECOND)
    assert counter.look(START + 3 * SECOND) == Counter(quota("token_bucket", 60)).look(START)


QUEUE = Quota("leaky_bucket", 1, SECOND, 10, longest_wait=20 * SECOND)


def test_a_queue_gets_its_places_back_and_no_turn_is_given_twice():
    counter = Counter(QUEUE)
    assert [counter.take(1, START).delay for _ in range(3)] == [0, SECOND, 2 * SECOND]
    counter.give_back(2, START, START)
    assert counter.look(START).remaining == 9
    assert counter.take(1, START).delay == 3 * SECOND


def test_hits_that_are_given_back_later_than_any_charge_free_their_turns():
    """As those of Envoy, whose time is not known."""
    counter, later = Counter(QUEUE), START + SECOND
    for _ in range(20):
        counter.take(5, later)
        later += 1
        counter.give_back(2, later, later)
        counter.give_back(3, later, later)
        assert counter.look(later) == Counter(QUEUE).look(later)
    counter.take(3, later)
    counter.give_back(1, later + 1, later + 1)
    assert counter.take(1, later + 1).delay == 2 * SECOND - 1


def test_what_a_queue_is_charged_afterwards_delays_whoever_comes_next():
    counter = Counter(QUEUE)
    counter.take(1, START)
    counter.give_back(-4, START, START)
    assert counter.take(1, START).delay == 5 * SECOND
    assert counter.look(START).remaining == 4


def test_the_previous_window_gets_it_back_where_it_was_charged_there():
    counter = Counter(quota("sliding_window"))
    start = START - START % MINUTE
    counter.take(30, start)
    counter.take(1, start + MINUTE)
    counter.give_back(10, start, start + MINUTE)
    assert counter.look(start + MINUTE).remaining == 79


@pytest.mark.parametrize("name", list(for_rules()))
@pytest.mark.parametrize(
    "state",
    [
        pytest.param(b"", id="an unused counter"),
        pytest.param(b"x", id="what can't be read"),
        pytest.param(bytes([255]) * 16, id="poisoned, 16 bytes"),
        pytest.param(bytes([255]) * 24, id="poisoned, 24 bytes"),
    ],
)
def test_nothing_is_made_of_what_is_no_count(name, state):
    after = ALGORITHMS[name].refund(state, quota(name), 1, START, START)
    assert after is None or len(after) == len(state)


@pytest.mark.parametrize(("name", "size"), [("token_bucket", 16), ("leaky_bucket", 24)])
def test_no_bucket_without_a_limit(name, size):
    assert ALGORITHMS[name].refund(bytes([1]) * size, quota(name, 0), 1, START, START) is None
