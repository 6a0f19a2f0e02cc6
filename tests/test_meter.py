"""The load as a process measures it."""

import asyncio
import time

import pytest

from ratelimit_mw.decision.load import Meter, Processor, load_of, time_in_queue
from ratelimit_mw.identity.http_request import WsgiRequest
from ratelimit_mw.model import Ask, Charge, Elastic, Quota, Rule
from ratelimit_mw.settings import LoadSettings
from tests.shells.loads import Idle
from tests.support.processes import in_child


class Time:
    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


class Loop:
    """An event loop that the test wakes up."""

    def call_later(self, wait, call, *arguments):
        self.wait = wait
        self.wake = lambda: call(*arguments)


def meter(time, **settings):
    made = Meter(LoadSettings(**settings), time)
    made.processor = Idle()
    return made


def after(meter, time, seconds=10.0):
    time.now += seconds
    return meter.load()


def test_what_asks_alone_is_no_load():
    time = Time()
    idle = meter(time, capacity=4)
    assert idle.load() == 0.0
    idle.arrived(100, object())
    assert after(idle, time) == pytest.approx(0.0, abs=1e-3)


def test_requests_in_flight_are_a_load_by_the_capacity():
    time = Time()
    busy = meter(time, capacity=4)
    for number in range(3):
        busy.arrived(100, number)
    assert after(busy, time) == pytest.approx(0.5, abs=1e-3)
    busy.left(0)
    busy.left(1)
    assert after(busy, time) == pytest.approx(0.0, abs=1e-3)


def test_the_shell_says_what_is_usual_where_the_rules_do_not():
    time = Time()
    busy = meter(time)
    for _ in range(3):
        busy.arrived(8, object())
    assert after(busy, time) == pytest.approx(0.25, abs=1e-3)


def test_a_queue_before_the_threads_is_a_load_until_it_is_gone():
    time = Time()
    threads = meter(time)
    threads.queued(0.08)
    assert after(threads, time) == pytest.approx(0.8, abs=1e-3)
    assert after(threads, time) == pytest.approx(0.0, abs=1e-3)


def test_between_two_looks_the_load_is_remembered():
    time = Time()
    busy = meter(time, capacity=1)
    assert busy.load() == 0.0
    busy.arrived(1, object())
    busy.arrived(1, object())
    assert after(busy, time, 0.05) == 0.0
    assert 0.0 < after(busy, time, 0.06) < 1.0


def test_pressure_is_felt_before_the_load_is_sure_and_is_left_slowly():
    time = Time()
    busy = meter(time, capacity=1)
    assert busy.pressure() == 0.0
    for number in range(9):
        busy.arrived(1, number)
    time.now += 0.5
    assert 0.7 < busy.pressure() < 1.0
    assert busy.load() < 0.5
    time.now += 5
    full = busy.pressure()
    for number in range(9):
        busy.left(number)
    time.now += 10
    assert busy.pressure() == pytest.approx(full - 0.2)
    assert busy.load() == pytest.approx(0.0, abs=1e-3)


def test_a_loop_that_is_held_up_is_a_load():
    async def main():
        hours, loop = Time(), Loop()
        lagging = meter(hours)
        lagging.arrived(100, object())
        lagging.watch(loop)
        lagging.watch(loop)
        for _ in range(3):
            hours.now += loop.wait  # it wakes up in time
            loop.wake()
        before = lagging.load()
        for _ in range(3):
            hours.now += 0.3  # the app holds it up
            loop.wake()
        return before, lagging.load()

    before, held_up = asyncio.run(main())
    assert before == pytest.approx(0.0, abs=1e-3)
    assert held_up > 0.3


def test_nobody_looks_at_a_loop_to_which_no_requests_come():
    async def main():
        hours = Time()
        idle, loop = meter(hours), Loop()
        idle.arrived(100, object())
        idle.watch(loop)
        hours.now += 60
        wake, loop.wake = loop.wake, None
        wake()
        assert loop.wake is None
        assert after(idle, hours) == pytest.approx(0.0, abs=1e-3)

    asyncio.run(main())


class TestASourceOfOnesOwn:
    @pytest.mark.parametrize(
        ("value", "load"),
        [
            pytest.param(0.25, 0.25, id="as it says"),
            pytest.param(1, 1.0, id="a whole number"),
            pytest.param(1.5, 1.0, id="more than all"),
            pytest.param(-3, 0.0, id="less than nothing"),
            pytest.param(float("nan"), 1.0, id="not a number"),
            pytest.param("much", 1.0, id="a word"),
            pytest.param(None, 1.0, id="nothing"),
        ],
    )
    def test_its_value_is_the_load(self, value, load):
        assert Meter(LoadSettings(lambda: value, "python:mine:load")).load() == load

    def test_what_it_raises_is_a_full_load_and_said_once(self, caplog):
        time = Time()
        failing = Meter(LoadSettings(lambda: 1 / 0, "python:mine:load"), time)
        assert [failing.load(), after(failing, time)] == [1.0, 1.0]
        assert [record.getMessage() for record in caplog.records] == [
            "load: python:mine:load: ZeroDivisionError (logged once)"
        ]


def test_quotas_are_as_far_open_as_the_load_lets_them_be():
    time, said = Time(), [0.1]
    quotas = tuple(Quota("fixed_window", n, 1) for n in (100, 150, 200))
    plain = Charge(Rule("b"), Ask("k", Quota("fixed_window", 5, 1)))
    elastic = Charge(Rule("a"), Ask("k", Quota("fixed_window", 100, 1, elastic=Elastic(0.7, quotas))))
    stretching = Meter(LoadSettings(lambda: said[0]), time)

    def limits():
        return [charge.ask.quota.limit for charge in stretching.stretched([elastic, plain])]

    assert limits() == [200, 5]
    said[0] = 0.9
    time.now += 0.5
    assert limits() == [150, 5]
    time.now += 1
    assert limits() == [100, 5]
    said[0] = 0.1
    time.now += 6
    assert limits() == [200, 5]


def from_proxy(request):
    return request.peer == "10.0.0.1"


@pytest.mark.parametrize(
    ("text", "peer", "least", "most"),
    [
        pytest.param("t={s:.3f}", "10.0.0.1", 0.4, 5, id="nginx's seconds"),
        pytest.param("{ms:.0f}", "10.0.0.1", 0.4, 5, id="Heroku's milliseconds"),
        pytest.param("t={us:.0f}", "10.0.0.1", 0.4, 5, id="Apache's microseconds"),
        pytest.param("t={s:.3f}", "192.0.2.1", 0, 0, id="a client's word counts for nothing"),
        pytest.param("", "10.0.0.1", 0, 0, id="empty"),
        pytest.param("soon", "10.0.0.1", 0, 0, id="no time"),
        pytest.param("t=1700000000", "10.0.0.1", 0, 0, id="years ago"),
        pytest.param("t=9999999999", "10.0.0.1", 0, 0, id="in the future"),
        pytest.param("t=" + "9" * 400, "10.0.0.1", 0, 0, id="a number without end"),
    ],
)
def test_how_long_a_request_has_waited_before_it_came(text, peer, least, most):
    started = time.time() - 0.5
    written = text.format(s=started, ms=started * 1e3, us=started * 1e6)
    request = WsgiRequest({"HTTP_X_REQUEST_START": written, "REMOTE_ADDR": peer})
    assert least <= time_in_queue(request, from_proxy) <= most


def test_the_processor_s_share_is_that_of_a_core_or_of_the_control_group_s_quota(tmp_path):
    stat, quota = tmp_path / "cpu.stat", tmp_path / "cpu.max"
    stat.write_text("usage_usec 1000000\nuser_usec 1\n")
    quota.write_text("400000 100000\n")  # four cores
    start = time.monotonic()
    processor = Processor(tmp_path)
    assert processor.share(start) == 0.0
    stat.write_text("usage_usec 30001000000\nuser_usec 1\n")
    assert processor.share(start + 10_000) == pytest.approx(0.75, abs=0.01)
    quota.write_text("max 100000\n")
    stat.write_text("usage_usec 90001000000\nuser_usec 1\n")
    assert processor.share(start + 20_000) < 0.1


def test_where_there_are_no_control_groups_the_process_s_own_time_tells(tmp_path):
    processor = Processor(tmp_path / "nowhere")
    start = time.monotonic()
    spent = time.process_time() + 0.2
    while time.process_time() < spent:
        pass
    assert processor.share(start + 0.5) > 0.3
    assert Processor().share(time.monotonic()) == 0.0


def test_a_child_of_a_fork_has_no_requests_in_flight():
    parent = meter(Time(), capacity=1)
    for _ in range(5):
        parent.arrived(1, object())

    def work():
        parent.arrived(1, object())
        return parent.in_flight

    assert in_child(work) == 1
    assert load_of(busy=parent.in_flight) == 1.0
