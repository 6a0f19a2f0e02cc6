"""Each algorithm against its meaning in exact rationals."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.algorithms import DECIDE_ALL, with_overdraft
from ratelimit_mw.model import NEVER
from tests.algorithms.histories import START, histories
from tests.algorithms.model import MODELS

pytestmark = pytest.mark.timeout(3_600)  # for the thorough profile


class Counter:
    """A counter as a store keeps it: it may forget a state once `reset_after` has passed."""

    def __init__(self, quota, *, forgetful):
        self.quota, self.forgetful = quota, forgetful
        self.state, self.expires = b"", 0

    def ask(self, cost, now, *, overdraft=False):
        if self.forgetful and self.expires <= now:
            self.state = b""
        quota = with_overdraft(self.quota) if overdraft else self.quota
        outcome, state = DECIDE_ALL[quota.decided_by](self.state, quota, cost, now)
        if state is not None:
            self.state, self.expires = state, now + outcome.reset_after
        return outcome

    def would_admit(self, cost, now):
        state = b"" if self.forgetful and self.expires <= now else self.state
        return DECIDE_ALL[self.quota.algorithm](state, self.quota, cost, now)[0].allowed


@given(histories(), st.booleans())
def test_every_outcome_is_what_the_algorithm_means(history, forgetful):
    quota, steps = history
    model, counter, now = MODELS[quota.algorithm](quota), Counter(quota, forgetful=forgetful), START
    for jump, cost in steps:
        now += jump
        fits, delay = model.fits(cost, now), model.delay(cost, now)
        outcome = counter.ask(cost, now)
        assert outcome.allowed == fits
        if fits:
            model.admit(cost, now)
            assert outcome.retry_after == 0
        elif outcome.retry_after == NEVER:
            assert cost > model.holds or quota.limit == 0
        else:
            wait = outcome.retry_after
            assert wait > 0
            assert model.fits(cost, now + wait)
            assert not model.fits(cost, now + wait - 1)
            assert counter.would_admit(cost, now + wait)
            assert not counter.would_admit(cost, now + wait - 1)
        assert outcome.remaining == model.remaining(now)
        assert now + outcome.reset_after == model.reset_at(now)
        assert outcome.delay == (delay if fits else 0)


@given(histories(), st.booleans(), st.data())
def test_a_late_cost_is_taken_in_full_unless_the_counter_is_in_debt(history, forgetful, data):
    quota, steps = history
    quota = replace(quota, longest_wait=quota.longest_wait if quota.algorithm == "leaky_bucket" else 0)
    model, counter, now = MODELS[quota.algorithm](quota), Counter(quota, forgetful=forgetful), START
    for jump, cost in steps:
        now += jump
        late = data.draw(st.booleans())
        cost = min(cost, model.holds)  # noqa: PLW2901  a debt has its own bound
        fits, free = model.fits(cost, now), model.fits(0, now)
        if late and cost:
            fits = free and cost <= model.remaining(now)
        outcome = counter.ask(cost, now, overdraft=late)
        assert outcome.allowed == fits
        if fits or (late and free):
            model.admit(cost, now)
        if fits:
            assert outcome.retry_after == 0
        elif late and quota.limit:
            assert model.fits(0, now + outcome.retry_after)
            assert not model.fits(0, now + outcome.retry_after - 1)
        assert outcome.remaining == model.remaining(now)
        assert now + outcome.reset_after == model.reset_at(now)


@given(histories())
def test_no_span_of_time_holds_one_too_many(history):
    quota, steps = history
    counter, now, taken = Counter(quota, forgetful=True), START, []
    for jump, cost in steps:
        now += jump
        if counter.ask(cost, now).allowed:
            taken.append((now, cost))
        if quota.algorithm in ("sliding_log", "bucketed_window"):
            assert sum(cost for time, cost in taken if now - quota.period < time) <= quota.limit
        elif quota.algorithm == "fixed_window":
            assert sum(c for time, c in taken if time // quota.period == now // quota.period) <= quota.limit
        elif quota.algorithm == "token_bucket":
            for first, _ in taken:
                most = quota.burst + (now + quota.longest_wait - first) * quota.limit // quota.period
                assert sum(cost for time, cost in taken if time >= first) <= most


@given(histories(("leaky_bucket",)))
def test_starts_from_a_leaky_bucket_are_spaced_evenly_and_in_order(history):
    quota, steps = history
    interval = -(-quota.period // max(quota.limit, 1))
    counter, now, free_from = Counter(quota, forgetful=True), START, START
    for jump, cost in steps:
        now += jump
        outcome = counter.ask(cost, now)
        if outcome.allowed and cost:
            assert now + outcome.delay == max(now, free_from)
            free_from = now + outcome.delay + cost * interval
