"""The places of threads that wait for their turn: exactly so many, whoever asks at the same moment."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.decision.waiting import Waiting, WaitingPlace
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.process_local import _all
from ratelimit_mw.stores.memory import MemoryStore
from tests.support.patience import WITHIN, eventually
from tests.support.processes import in_child

QUEUE = {"name": "queue", "limit": "100 per second", "algorithm": "leaky_bucket", "burst": 10, "max_waiting": 1}
IDLE, BUSY = "192.0.2.1", "192.0.2.2"  # who need not wait, who has to


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as made:
        yield made
        for waiting in [each for each in _all if isinstance(each, Waiting)]:  # a failed test leaves somebody behind
            waiting._begin()


@pytest.fixture
def waiting():
    return Waiting()


def held_up(waiting, number=1):
    eventually(lambda: len(waiting._blocked) == number, every=0.001)


def places(number):
    return [WaitingPlace() for _ in range(number)]


def test_a_thread_that_finds_all_places_taken_by_those_who_ask_hears_of_them_first(waiting, pool):
    first, second, third, fourth = places(4)
    assert [waiting.enter(place, 2) for place in (first, second, third)] == [True, True, False]
    late = pool.submit(waiting.enter_when_free, fourth, 2)
    held_up(waiting)
    waiting.decided(first)
    held_up(waiting)  # the other may yet turn out not to wait
    waiting.leave(second)
    assert late.result(WITHIN)


def test_it_finds_no_place_once_all_belong_to_threads_that_wait(waiting, pool):
    first, second, third, fourth = places(4)
    assert [waiting.enter(place, 2) for place in (first, second)] == [True, True]
    late = pool.submit(waiting.enter_when_free, third, 2)
    held_up(waiting)
    waiting.decided(first)
    waiting.decided(second)
    assert not late.result(WITHIN)
    assert not waiting.enter(fourth, 2)
    waiting.leave(first)
    assert waiting.enter(fourth, 2)


def test_a_thread_gets_no_place_before_one_that_waits_longer(waiting, pool):
    first, second, third = places(3)
    assert waiting.enter(first, 1)
    late = pool.submit(waiting.enter_when_free, second, 1)
    held_up(waiting)
    assert not waiting.enter(third, 10)
    waiting.leave(first)
    assert late.result(WITHIN)
    assert waiting.enter(third, 10)


def test_each_goes_by_the_number_of_places_of_its_own_rule(waiting, pool):
    first, second, third, fourth, fifth = places(5)
    assert [waiting.enter(place, 2) for place in (first, second)] == [True, True]
    few, many = pool.submit(waiting.enter_when_free, third, 1), pool.submit(waiting.enter_when_free, fourth, 3)
    assert many.result(WITHIN)
    held_up(waiting)
    waiting.decided(first)
    assert not few.result(WITHIN)
    assert not waiting.enter(fifth, 0)


def test_all_waiting_threads_are_woken_when_a_place_becomes_free(waiting, pool):
    first, second, *others = places(4)
    assert waiting.enter(first, 2)
    waiting.decided(first)
    assert waiting.enter(second, 2)
    late = [pool.submit(waiting.enter_when_free, place, 2) for place in others]
    held_up(waiting, 2)
    waiting.leave(first)
    eventually(lambda: any(each.done() for each in late), every=0.001)
    held_up(waiting)
    waiting.leave(second)
    assert all(each.result(WITHIN) for each in late)


def test_a_place_ends_with_the_request_that_had_it(waiting, pool):
    first, second = places(2)
    assert waiting.enter(first, 1)
    late = pool.submit(waiting.enter_when_free, second, 1)
    held_up(waiting)
    del first  # its thread was interrupted before it gave the place back
    assert late.result(WITHIN)


def test_a_child_of_a_fork_has_all_its_places(waiting, pool):
    first, second, third, fourth = places(4)
    assert waiting.enter(first, 1)
    late = pool.submit(waiting.enter_when_free, second, 1)
    held_up(waiting)
    with waiting._lock:  # as another thread may, at the moment of the fork
        assert in_child(lambda: [waiting.enter(third, 1), waiting.enter(fourth, 1)]) == [True, False]
    waiting.leave(first)
    assert late.result(WITHIN)


class HeldStore(MemoryStore):
    """Answers some clients only when told to, and counts what each asks; `fault` is raised instead of an answer."""

    def __init__(self):
        super().__init__(clock=ManualClock(1_700_000_000))
        self.asked = []
        self.gates = {}
        self.fault = None

    def ask(self, request):
        asks, _ = request
        client = next((ip for ip in (IDLE, BUSY) if f"ip={ip}" in asks[0].key), None)
        self.asked.append(client)
        if gate := self.gates.get(client):
            gate.wait(WITHIN)
        if self.fault:
            raise self.fault
        return super().ask(request)


@pytest.fixture
def store():
    return HeldStore()


@pytest.fixture
def engine(store, pool):
    """Makes the engine of some rules over the store; `turn` has a thread do what a request's does."""
    with ExitStack() as stack:

        def made(*rules, **rule):
            config = {"domain": "d", "rules": [{**QUEUE, **rule}, *rules]}
            limiter = stack.enter_context(RateLimiter(config, storage=store))
            request_from = limiter.rules.attributes.request_from
            limiter.turn = lambda ip: pool.submit(limiter.engine.decide_in_turn, request_from({"ip": ip}))
            return limiter

        yield made


def begun(store, engine, ip):
    """A request that has its place, and whose answer the store holds back until the gate is opened."""
    store.gates[ip] = gate = threading.Event()
    before = len(store.asked)
    verdict = engine.turn(ip)
    eventually(lambda: len(store.asked) > before, every=0.001)
    return gate, verdict


def test_a_request_that_need_not_wait_takes_no_place_from_others(store, engine):
    made = engine()
    assert made.check({"ip": BUSY}).allowed
    gate, idle = begun(store, made, IDLE)
    busy = made.turn(BUSY)
    held_up(made.engine._waiting)
    gate.set()
    assert (idle.result(WITHIN).delay, busy.result(WITHIN).delay) == (0, 10_000)


def test_who_turns_out_to_wait_has_the_place_and_the_next_is_denied(store, engine):
    made = engine(limit="1 per second")
    assert all(made.check({"ip": ip}).allowed for ip in (BUSY, IDLE))
    gate, first = begun(store, made, BUSY)
    second = made.turn(IDLE)
    held_up(made.engine._waiting)
    gate.set()
    assert second.result(WITHIN).allowed is False
    assert store.asked == [BUSY, IDLE, BUSY, IDLE]  # a denial that stands isn't asked for twice
    assert first.result(WITHIN).delay == 1_000_000


def test_requests_that_need_no_turn_do_not_delay_others(store, pool, engine):
    made, all_there = engine(by="header:X"), threading.Barrier(8)
    store.gates[None] = all_there  # opens once all are asking at the same time
    request_from = made.rules.attributes.request_from
    verdicts = pool.map(lambda n: made.engine.decide_in_turn(request_from({"header:X": str(n)})), range(8))
    assert [verdict.allowed for verdict in verdicts] == [True] * 8
    assert store.asked == [None] * 8


def test_what_another_rule_denies_is_not_asked_for_twice(store, engine):
    closed = {"name": "closed", "limit": "1 per hour", "ban": {"after": "3 denials in 1 hour", "for": "1 hour"}}
    made = engine(closed)
    assert made.check({"ip": BUSY}).allowed
    gate, idle = begun(store, made, IDLE)
    denied = made.turn(BUSY).result(WITHIN)
    assert (denied.allowed, denied.banned) == (False, False)
    gate.set()
    assert idle.result(WITHIN).allowed
    assert not made.turn(BUSY).result(WITHIN).banned, "one denial was counted as two"
    assert made.turn(BUSY).result(WITHIN).banned


def test_what_a_shadow_rule_would_have_denied_is_counted_once(store, engine):
    made = engine({"name": "shadow", "by": "ip", "limit": "1 per hour", "shadow": True})
    assert made.check({"ip": BUSY}).allowed
    gate, idle = begun(store, made, IDLE)
    busy = made.turn(BUSY)
    held_up(made.engine._waiting)
    gate.set()
    assert busy.result(WITHIN).allowed
    assert idle.result(WITHIN).allowed
    assert made.engine.shadows.denials == {"shadow": 1}


def test_a_shadow_rule_that_would_make_wait_is_asked_as_ever_when_no_thread_may(engine):
    shadow = {**QUEUE, "name": "shadow", "by": "ip", "limit": "100 per hour", "shadow": True}
    made = engine(shadow, limit="100 per second", max_waiting=0)
    made.engine.decide(made.rules.attributes.request_from({"ip": BUSY}), rule="shadow")
    assert made.turn(BUSY).result(WITHIN).allowed
    assert made.engine.shadows.denials == {}


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        pytest.param(StoreUnavailable("away"), None, id="the store is away"),
        pytest.param(RuntimeError("a fault"), RuntimeError, id="the store has a fault"),
    ],
)
def test_a_fault_gives_the_place_back(store, engine, fault, seen):
    made = engine()
    assert made.check({"ip": BUSY}).allowed
    gate, first = begun(store, made, IDLE)
    held = made.turn(BUSY)
    held_up(made.engine._waiting)
    store.fault = fault
    gate.set()
    for request in (first, held):
        error = request.exception(WITHIN)
        assert error is None if seen is None else isinstance(error, seen)
    store.fault = None
    assert made.turn(BUSY).result(WITHIN).delay == 10_000  # there is a place to wait in
