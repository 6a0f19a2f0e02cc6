"""The places of threads that wait for their turn: exactly so many, and none where the server has one thread."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.decision.waiting import Waiting, WaitingPlace
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.identity.http_request import WsgiRequest
from ratelimit_mw.process_local import lazy
from ratelimit_mw.rules.compiled import NamedRule
from ratelimit_mw.stores.memory import MemoryStore
from tests.support.counts import shadow_denials
from tests.support.patience import WITHIN, eventually
from tests.support.processes import in_child

QUEUE = {"name": "queue", "limit": "100 per second", "algorithm": "leaky_bucket", "burst": 10, "max_waiting": 1}
IDLE, BUSY = "192.0.2.1", "192.0.2.2"  # who need not wait, who has to


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as made:
        yield made


class Owner:
    waiting = lazy(Waiting)  # as the engine has it


@pytest.fixture
def owner():
    return Owner()


@pytest.fixture
def waiting(owner):
    return owner.waiting


def places(number):
    return [WaitingPlace() for _ in range(number)]


def test_so_many_threads_have_a_place_and_each_goes_by_the_number_of_its_own_rule(waiting):
    first, second, third, fourth = places(4)
    assert [waiting.enter(first, 2), waiting.enter(second, 2), waiting.enter(third, 2)] == [True, True, False]
    assert not waiting.enter(third, 1)
    assert waiting.enter(third, 3)
    waiting.leave(first)
    waiting.leave(second)
    assert not waiting.enter(fourth, 1)
    assert waiting.enter(fourth, 2)


def test_threads_that_come_at_once_do_not_take_more_places_than_there_are(waiting, pool):
    everyone = threading.Barrier(8)

    def enter(place):
        everyone.wait(WITHIN)
        return waiting.enter(place, 3)

    coming = places(8)
    for _ in range(100):
        assert sum(pool.map(enter, coming)) == 3
        for place in coming:
            waiting.leave(place)


def test_a_place_ends_with_the_request_that_had_it(waiting):
    first, second = places(2)
    assert waiting.enter(first, 1)
    del first  # its thread was interrupted before it gave the place back
    assert waiting.enter(second, 1)


def test_a_child_of_a_fork_has_all_its_places(owner, waiting):
    first, second, third = places(3)
    assert waiting.enter(first, 1)
    with waiting._lock:  # as another thread may, at the moment of the fork
        assert in_child(lambda: [owner.waiting.enter(second, 1), owner.waiting.enter(third, 1)]) == [True, False]
    assert not waiting.enter(second, 1)


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
        gates = self.gates.get(client)
        if gates and (gate := gates.pop(0)):
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

            def turn(ip):
                verdict = limiter.engine.decide_in_turn(request := request_from({"ip": ip}))
                if not verdict.simple:
                    limiter.engine.report(verdict, limiter.rules, request)
                return verdict

            limiter.turn = partial(pool.submit, turn)
            return limiter

        yield made


def begun(store, engine, ip, asked=1):
    """A request whose answer to the first or second question the store holds back until the gate is opened."""
    gate = threading.Event()
    store.gates[ip] = [None, gate] if asked == 2 else [gate]
    before = len(store.asked)
    verdict = engine.turn(ip)
    eventually(lambda: len(store.asked) == before + asked, every=0.001)
    return gate, verdict


def test_a_request_that_need_not_wait_takes_no_place_from_others(store, engine):
    made = engine()
    assert made.check({"ip": BUSY}).allowed
    gate, idle = begun(store, made, IDLE)
    assert made.turn(BUSY).result(WITHIN).delay == 10_000
    gate.set()
    assert idle.result(WITHIN).delay == 0


def test_the_next_that_would_have_to_wait_is_denied(store, engine):
    made = engine(limit="1 per second")
    assert all(made.check({"ip": ip}).allowed for ip in (BUSY, IDLE))
    gate, first = begun(store, made, BUSY, asked=2)
    assert made.turn(IDLE).result(WITHIN).allowed is False
    assert store.asked[2:] == [BUSY, BUSY, IDLE]  # a denial that stands isn't asked for twice
    gate.set()
    assert first.result(WITHIN).delay == 1_000_000


def test_one_thread_waits_if_the_file_does_not_say_more(engine):
    made = engine({"name": "other", "limit": "9 per second", "algorithm": "leaky_bucket"}, max_waiting=2)
    request = made.rules.attributes.request_from({"ip": BUSY})
    plan = made.engine.planner.plan(made.rules, request)
    assert {rule.name: rule.max_waiting for rule, _ in plan.charges} == {"queue": 2, "other": 1}


@pytest.mark.parametrize(("threads", "allowed"), [(True, True), (False, False), (None, True)])
def test_the_only_thread_of_a_server_never_waits(engine, threads, allowed):
    made = engine(max_waiting=8)
    environ = {"REMOTE_ADDR": BUSY} if threads is None else {"REMOTE_ADDR": BUSY, "wsgi.multithread": threads}
    verdicts = [made.engine.decide_in_turn(WsgiRequest(environ)) for _ in range(2)]
    assert [verdict.allowed for verdict in verdicts] == [True, allowed]
    assert verdicts[1].delay == (10_000 if allowed else 0)


def test_the_denial_of_a_request_that_may_not_wait_says_when_the_bucket_is_idle(engine):
    made = engine(limit="1 per second")
    assert made.check({"ip": BUSY}).allowed
    request = WsgiRequest({"REMOTE_ADDR": BUSY, "wsgi.multithread": False})
    assert made.engine.decide_in_turn(request).decision.retry_after == 1


def test_requests_that_need_no_turn_do_not_delay_others(store, pool, engine):
    made, all_there = engine(by="header:X"), threading.Barrier(8)
    store.gates[None] = [all_there] * 8  # opens once all are asking at the same time
    request_from = made.rules.attributes.request_from
    verdicts = pool.map(lambda n: made.engine.decide_in_turn(request_from({"header:X": str(n)})), range(8))
    assert [verdict.allowed for verdict in verdicts] == [True] * 8
    assert store.asked == [None] * 8


def test_what_another_rule_denies_is_not_asked_for_twice(store, engine):
    closed = {"name": "closed", "limit": "1 per hour", "ban": {"after": "3 denials in 1 hour", "for": "1 hour"}}
    made = engine(closed)
    assert made.check({"ip": BUSY}).allowed
    denied = [made.turn(BUSY).result(WITHIN) for _ in range(3)]
    assert [each.reason for each in denied] == ["limited", "limited", "banned"]
    assert store.asked[1:] == [BUSY] * 3


def test_what_a_shadow_rule_would_have_denied_is_counted_once(engine):
    made = engine({"name": "shadow", "by": "ip", "limit": "1 per hour", "shadow": True})
    assert made.check({"ip": BUSY}).allowed
    assert made.turn(BUSY).result(WITHIN).delay == 10_000
    assert shadow_denials(made) == {"shadow": 1}


def test_a_shadow_rule_that_would_make_wait_is_asked_as_ever_when_no_thread_may(engine):
    shadow = {**QUEUE, "name": "shadow", "by": "ip", "limit": "100 per hour", "shadow": True}
    made = engine(shadow, limit="100 per second", max_waiting=0)
    made.engine.decide(made.rules.attributes.request_from({"ip": BUSY}), rule=NamedRule("shadow"))
    assert made.turn(BUSY).result(WITHIN).allowed
    assert shadow_denials(made) == {}


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
    gate, request = begun(store, made, BUSY, asked=2)
    store.fault = fault
    gate.set()
    error = request.exception(WITHIN)
    assert error is None if seen is None else isinstance(error, seen)
    store.fault = None
    assert made.turn(BUSY).result(WITHIN).delay == 10_000  # there is a place to wait in
