"""Requests are put in order of time."""

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.foresight.logs import Order, merged
from ratelimit_mw.foresight.logs.entry import LogEntry
from ratelimit_mw.model import SECOND

START = 1_772_366_400


def entry(second, ip="192.0.2.1"):
    return LogEntry(round((START + second) * SECOND), ip, "GET", "/")


def ordered(seconds, disorder=60, **options):
    order = Order(disorder, **options)
    found = [each for batch in order.ordered([[entry(second) for second in seconds]]) for each in batch]
    return [(each.at - START * SECOND) / SECOND for each in found], order.late


def test_lines_within_the_disorder_are_sorted():
    assert ordered([10, 70, 11, 9.5, 75]) == ([9.5, 10, 11, 70, 75], 0)


def test_a_line_that_is_too_late_is_counted_and_gets_the_time_of_the_line_before():
    assert ordered([10, 20, 90, 12, 91], disorder=60) == ([10, 20, 20, 90, 91], 1)


def test_the_requests_of_a_second_are_spread_over_it():
    assert ordered([1, 1, 2, 1, 1], spread=True)[0] == [1, 1.25, 1.5, 1.75, 2]


def test_requests_with_fractions_of_a_second_are_not_spread():
    assert ordered([1, 1.1, 1], spread=True)[0] == [1, 1, 1.1]


@given(st.lists(st.integers(0, 2400).map(lambda quarters: quarters / 4), max_size=60), st.integers(0, 100))
def test_no_request_is_lost_and_time_never_goes_back(seconds, disorder):
    found, late = ordered(seconds, disorder)
    assert (len(found), found) == (len(seconds), sorted(found))
    if late == 0:
        assert found == sorted(seconds)


def test_several_logs_are_merged_by_time():
    first = iter([[entry(1, "a"), entry(4, "a")], [entry(6, "a")]])
    second = iter([[entry(2, "b")], [entry(5, "b"), entry(9, "b")]])
    assert [each.ip for batch in merged([first, second]) for each in batch] == ["a", "b", "a", "b", "a", "b"]
