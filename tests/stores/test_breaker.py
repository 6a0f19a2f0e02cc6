"""The circuit breaker by itself: what opens it, what closes it, and what it logs."""

import itertools
import logging
import threading

import pytest

from ratelimit_mw.errors import PermanentFault
from ratelimit_mw.stores.breaker import Breaker, Period, silent
from tests.support.interrupts import at_every_line
from tests.support.patience import WITHIN, eventually


@pytest.fixture
def breaker():
    made = Breaker("the test's")
    yield made
    made.stop()
    eventually(lambda: not made.open)


def messages(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def unavailable():
    raise OSError("away")


def test_a_failure_opens_it_until_a_probe_succeeds(breaker, caplog):
    available = threading.Event()

    def probe():
        if not available.is_set():
            raise OSError("away")

    for _ in range(3):
        breaker.trip("a test", probe, breaker.closings)
    assert breaker.open
    available.set()
    eventually(lambda: not breaker.open and len(caplog.records) == 2)  # it is closed a little before it says so
    assert breaker.closings == 1
    assert [record.getMessage() for record in caplog.records] == [
        "store the test's is away (a test): each rule's on_error applies until it is back",
        "store the test's is back: limits apply again",
    ]


def test_a_failure_of_a_request_from_before_the_store_came_back_does_not_open_it(breaker):
    period = breaker.period
    breaker.trip("first", unavailable, period.closings)
    breaker.close(breaker.closings)
    breaker.trip("of the same time", unavailable, period.closings)
    assert not breaker.open
    breaker.trip("second", unavailable, breaker.closings)
    assert breaker.open


def test_an_answer_from_before_the_last_closing_does_not_close_it(breaker):
    breaker.trip("first", unavailable, 0)
    breaker.close(0)
    assert not breaker.open
    breaker.trip("second", unavailable, 1)
    breaker.close(0)
    assert breaker.open
    breaker.close(1)
    assert (breaker.open, breaker.closings) == (False, 2)


def test_it_closes_also_if_what_closes_it_is_interrupted():
    breakers = []

    def trip():
        breakers.append(Breaker("the test's"))
        breakers[-1].trip("a test", lambda: None, 0)

    assert at_every_line(lambda: breakers[-1].close(0), lambda _: None, before=trip) >= 5
    eventually(lambda: not any(breaker.open for breaker in breakers))


def test_a_closed_breaker_does_not_count_answers(breaker):
    breaker.close(breaker.closings)
    assert breaker.closings == 0


def test_a_stopped_breaker_does_not_open(breaker, caplog):
    breaker.stop()
    breaker.trip("a test", unavailable, 0)
    assert not breaker.watching
    assert caplog.records == []


def test_a_stopped_breaker_no_longer_probes(breaker):
    probes = []
    breaker.trip("a test", lambda: probes.append(None), 0)
    breaker.stop()
    eventually(lambda: not breaker.open)
    assert probes == []


def test_a_probe_that_hangs_does_not_delay_the_next(breaker):
    ended, second = threading.Event(), threading.Event()

    def probe():
        if second.is_set():
            return
        second.set()
        assert ended.wait(WITHIN)
        raise OSError("away")

    breaker.trip("a test", probe, 0)
    try:
        eventually(lambda: not breaker.open)
    finally:
        ended.set()


def test_a_failed_probe_is_logged_for_debugging_only(breaker, caplog):
    with caplog.at_level(logging.DEBUG, "ratelimit_mw"):
        breaker.trip("a test", unavailable, 0)
        eventually(lambda: "store the test's is still away: away" in caplog.messages)
    assert [record.levelname for record in caplog.records][:2] == ["WARNING", "DEBUG"]


def test_a_fault_that_waiting_cannot_heal_is_an_error_with_its_remedy(breaker, caplog):
    fault = PermanentFault("WRONGPASS", "set the right password in storage.url")
    breaker.trip(fault, unavailable, 0)
    (record,) = caplog.records
    away = "store the test's is away (WRONGPASS): each rule's on_error applies until it is back"
    assert (record.levelname, record.getMessage()) == ("ERROR", f"{away}. Waiting does not help: {fault.remedy}")


def test_a_fault_that_waiting_cannot_heal_is_an_error_again_each_minute(caplog):
    fault, times = PermanentFault("WRONGPASS", "set the right password"), [0.0]
    probed = itertools.count()

    def probe():
        next(probed)
        raise fault

    breaker = Breaker("the test's", lambda: times[0])
    breaker.trip(fault, probe, 0)
    for now, expected in ((59.9, 1), (60.0, 2), (119.9, 2), (120.0, 3)):
        times[0], before = now, repr(probed)
        eventually(lambda before=before: repr(probed) != before)  # a probe at this time has failed …
        eventually(lambda expected=expected: len(messages(caplog)) >= expected)
        before = repr(probed)
        eventually(lambda before=before: repr(probed) != before)  # … and has logged what it logs
        assert len(messages(caplog)) == expected, now
    breaker.stop()
    eventually(lambda: not breaker.open)
    assert len(set(messages(caplog))) == 1


@pytest.mark.parametrize(
    ("stays", "relapses", "least", "most"),
    [
        pytest.param([], 0, 0.25, 0.4, id="the first time"),
        pytest.param([10.0], 0, 0.25, 0.4, id="after a store that stayed for 10 s"),
        pytest.param([9.9], 1, 0.5, 0.8, id="a relapse doubles the pause"),
        pytest.param([9.9, 0.0], 2, 1.0, 1.6, id="each relapse doubles it again"),
        pytest.param([1.0] * 5, 5, 5.0, 5.0, id="up to 5 s"),
        pytest.param([1.0] * 5 + [10.0], 0, 0.25, 0.4, id="a long stay ends the relapses"),
        pytest.param([1.0] * 10_000, 10_000, 5.0, 5.0, id="however many relapses"),
    ],
)
def test_a_relapse_within_10_seconds_doubles_the_pause_between_probes(breaker, stays, relapses, least, most):
    period, now = Period(breaker).left(0.0), 0.0
    for stay in stays:
        period = period.back(now)
        now += stay
        period = period.left(now)
    assert period.relapses == relapses
    assert [period.pause(0, chance) for chance in (0.0, 1.0)] == pytest.approx([least, most])


def test_probes_that_hang_lengthen_the_pause_to_a_second_at_most(breaker):
    assert [Period(breaker).pause(unfinished, 1.0) for unfinished in (4, 8, 100)] == pytest.approx([0.4, 0.8, 1.0])


def test_the_number_of_relapses_is_that_of_the_breaker(breaker):
    for relapses in range(3):
        breaker.trip("a test", unavailable, breaker.closings)
        assert breaker.period.relapses == relapses
        breaker.close(breaker.closings)


def test_a_store_is_away_if_it_decided_nothing_for_a_timeout():
    assert [silent(now, 100.0, 0.1) for now in (100.05, 100.1, 105.0)] == [False, True, True]


def test_late_requests_are_counted_and_logged_in_one_line(breaker, caplog):
    for _ in range(400):
        breaker.late()
    eventually(lambda: caplog.records)
    for _ in range(100):
        breaker.late()
    line = "store the test's answered others, but not 400 requests in time: on_error applied to them"
    assert messages(caplog) == [line]  # the next ones have their line after a minute
    breaker.stop()
    eventually(lambda: len(caplog.records) == 2)
    assert messages(caplog) == [line, line.replace("400", "100")]
    assert not breaker.open
