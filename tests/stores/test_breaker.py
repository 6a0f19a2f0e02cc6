"""The circuit breaker by itself: what opens it, what closes it, and what it logs."""

import logging
import threading

import pytest

from ratelimit_mw.errors import PermanentFault
from ratelimit_mw.stores.breaker import Breaker
from tests.support.patience import WITHIN, eventually


@pytest.fixture
def breaker():
    made = Breaker("the test's")
    yield made
    made.stop()
    eventually(lambda: not made.open)


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
    eventually(lambda: not breaker.open)
    assert breaker.closings == 1
    assert [record.getMessage() for record in caplog.records] == [
        "store the test's is away (a test): each rule's on_error applies until it is back",
        "store the test's is back: limits hold again",
    ]


def test_a_failure_of_a_request_from_before_the_store_came_back_does_not_open_it(breaker):
    period = breaker.period
    breaker.trip("first", unavailable, period.closings)
    breaker.close()
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


def test_a_closed_breaker_does_not_count_answers(breaker):
    breaker.close()
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
