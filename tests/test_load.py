"""The pure core of elastic limits: signals to a load, a load to an opening."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.decision.load import (
    CLOSES_IN,
    FULL_LAG,
    FULL_QUEUE,
    OPENS_IN,
    Opening,
    first_opening,
    load_of,
    opening_after,
    smoothed,
)

LOADS = st.floats(0, 1)
SPANS = st.floats(0, 20)


@pytest.mark.parametrize(
    ("signals", "load"),
    [
        pytest.param({}, 0.0, id="nothing to see"),
        pytest.param({"lag": FULL_LAG / 2}, 0.5, id="the loop is half as late as it may be"),
        pytest.param({"queued": FULL_QUEUE}, 1.0, id="requests queue"),
        pytest.param({"busy": 0.3, "cpu": 0.8}, 0.8, id="the scarcest counts"),
        pytest.param({"lag": 9, "busy": 7}, 1.0, id="never above one"),
        pytest.param({"lag": -1, "cpu": -0.1}, 0.0, id="never below none"),
    ],
)
def test_signals_to_a_load(signals, load):
    assert load_of(**signals) == pytest.approx(load)


@given(LOADS, LOADS, SPANS, SPANS)
def test_an_average_moves_towards_the_value_and_at_the_same_pace_in_one_step_or_two(average, value, first, second):
    once = smoothed(average, value, first + second)
    assert min(average, value) - 1e-9 <= once <= max(average, value) + 1e-9
    assert once == pytest.approx(smoothed(smoothed(average, value, first), value, second), abs=1e-9)
    assert smoothed(average, value, 30) == pytest.approx(value, abs=1e-9)


@given(st.lists(st.tuples(SPANS, LOADS), max_size=30), LOADS, st.floats(0.01, 1))
def test_an_opening_stays_within_bounds_and_its_speed_is_limited(history, first, below):
    now = 100.0
    opening = first_opening(first, below, now)
    assert opening.share == (1.0 if first < below else 0.0)
    for span, load in history:
        now += span
        after = opening_after(opening, load, below, now)
        assert 0.0 <= after.share <= 1.0
        assert -span / CLOSES_IN - 1e-6 <= after.share - opening.share <= span / OPENS_IN + 1e-6
        if load >= below:
            assert after.share <= opening.share
        if load < below * 0.9:
            assert after.share >= opening.share
        opening = after


@given(st.floats(0.1, 1), st.lists(st.tuples(SPANS, st.floats(0.9, 0.999)), max_size=20))
def test_a_load_that_hovers_just_under_the_mark_moves_nothing_either_way(below, history):
    """Hysteresis: what is open stays open, what is closed stays closed."""
    now, opened, closed = 0.0, first_opening(0, below, 0), first_opening(1, below, 0)
    for span, part in history:
        now += span
        opened, closed = (
            opening_after(opened, below * part, below, now),
            opening_after(closed, below * part, below, now),
        )
        assert (opened.share, closed.share) == (1.0, 0.0)


@given(st.builds(Opening, LOADS, st.booleans(), st.just(0.0)), st.floats(0.01, 1), LOADS, SPANS, SPANS)
def test_one_step_or_two_under_the_same_load_are_the_same(opening, below, load, first, second):
    once = opening_after(opening, load, below, first + second)
    twice = opening_after(opening_after(opening, load, below, first), load, below, first + second)
    assert once.share == pytest.approx(twice.share, abs=1e-9)


def test_it_opens_slowly_and_closes_quickly_and_all_the_way():
    opening = first_opening(1.0, 0.7, 0.0)
    assert opening_after(opening, 0.0, 0.7, OPENS_IN / 2).share == pytest.approx(0.5)
    opening = opening_after(opening, 0.0, 0.7, OPENS_IN)
    assert opening.share == 1.0
    assert opening_after(opening, 0.8, 0.7, OPENS_IN + CLOSES_IN / 4).share == pytest.approx(0.75)
    assert opening_after(opening, 0.8, 0.7, OPENS_IN + CLOSES_IN).share == 0.0


def test_a_clock_that_stands_still_or_steps_back_moves_nothing():
    opening = first_opening(1.0, 0.7, 10.0)
    assert opening_after(opening, 0.0, 0.7, 3.0) == opening._replace(rising=True)
