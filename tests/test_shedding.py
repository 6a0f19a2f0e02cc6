"""The pure core of load shedding: a load to a pressure, a pressure to a share, a share to single requests."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.decision.load import (
    BANDS,
    EASES,
    RETURNS_IN,
    pressure_after,
    retry_after_shed,
    share_shed,
    turn,
)

LOADS = st.floats(0, 1)
SPANS = st.floats(0, 30)


@pytest.mark.parametrize(
    ("level", "band", "share"),
    [
        pytest.param(0.0, (0.7, 0.85), 0.0, id="idle"),
        pytest.param(0.7, (0.7, 0.85), 0.0, id="where it begins"),
        pytest.param(0.775, (0.7, 0.85), 0.5, id="halfway"),
        pytest.param(0.85, (0.7, 0.85), 1.0, id="all of it"),
        pytest.param(1.0, (0.95, 1.05), 0.5, id="an end that is never reached"),
        pytest.param(1.0, (inf, inf), 0.0, id="never"),
        pytest.param(0.8, (0.8, 0.8), 0.0, id="a step, at its foot"),
        pytest.param(0.81, (0.8, 0.8), 1.0, id="a step, past it"),
        pytest.param(0.01, (0.0, 1.0), 0.01, id="from the first load on"),
    ],
)
def test_a_band_is_a_share_that_rises_evenly(level, band, share):
    assert share_shed(level, band) == pytest.approx(share)


@given(LOADS)
def test_by_default_what_is_less_important_is_shed_at_least_as_much(level):
    low, normal, critical = (share_shed(level, band) for band in BANDS.values())
    assert low >= normal >= critical
    assert critical <= 0.5


@given(st.lists(st.tuples(SPANS, LOADS), min_size=1, max_size=30))
def test_pressure_rises_with_the_load_and_falls_at_its_own_pace(history):
    before = 0.0
    for span, load in history:
        after = pressure_after(before, load, span)
        assert load <= after <= max(load, before)
        assert after >= before - EASES * span - 1e-9
        before = after


@given(LOADS, LOADS, SPANS, SPANS)
def test_one_step_or_two_under_the_same_load_are_the_same(level, load, first, second):
    once = pressure_after(level, load, first + second)
    assert once == pytest.approx(pressure_after(pressure_after(level, load, first), load, second), abs=1e-9)


def test_a_spike_is_over_in_a_quarter_of_a_minute():
    shares = [share_shed(pressure_after(1.0, 0.1, 2.5 * step), BANDS["low"]) for step in range(8)]
    assert shares == pytest.approx([1, 1, 1, 1, 2 / 3, 1 / 3, 0, 0])


def test_a_clock_that_steps_back_eases_nothing():
    assert pressure_after(0.9, 0.0, -7.0) == 0.9


@given(st.floats(0, 1), st.integers(0, 10**6), st.integers(1, 2_000), st.integers(1, 4))
def test_of_so_many_in_a_row_the_share_is_shed_whoever_takes_turns(share, first, many, clients):
    one_of_them = range(first, first + many * clients, clients)
    assert sum(turn(number) < share for number in one_of_them) == pytest.approx(many * share, abs=4)


@given(st.integers(1, 10**9), st.floats(0.001, 1))
def test_who_is_shed_comes_back_after_five_to_ten_seconds(number, share):
    drawn = turn(number)
    assert 0 <= drawn < 1
    if drawn < share:
        assert RETURNS_IN <= retry_after_shed(drawn, share) < 2 * RETURNS_IN


def test_they_do_not_come_back_together():
    waits = [retry_after_shed(turn(number), 0.5) for number in range(1, 1_001) if turn(number) < 0.5]
    for second in range(5, 10):
        assert sum(second <= wait < second + 1 for wait in waits) == pytest.approx(len(waits) / 5, abs=3)
