"""Exceptions from elsewhere at every line of a decision on Redis: the store goes on deciding, and counts exactly."""

import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from ratelimit_mw.errors import Late, StoreUnavailable
from ratelimit_mw.model import Ask, Quota
from ratelimit_mw.stores.redis.store import RedisStore
from ratelimit_mw.stores.redis.threads import _Job
from tests.support.apps import LONG, ROOT
from tests.support.interrupts import Interrupted, at_every_line, interrupted
from tests.support.patience import eventually
from tests.support.proxy import Proxy

LIMIT = 1_000_000
ASKS = [Ask("d:r:{x}", Quota("fixed_window", LIMIT, LONG))]


@pytest.fixture
def store(any_server):
    store = RedisStore(any_server.url, timeout=20)
    assert store.decide(ASKS).outcomes[0].remaining == LIMIT - 1
    yield store
    store.close()


def remaining(store):
    return store.decide(ASKS).outcomes[0].remaining


def connected(store):
    """Nothing has to be prepared: the connection stands."""


def closed(store):
    store.close()


class Exactly:
    """What was decided is counted once, and what was interrupted at most once."""

    def __init__(self, store, interrupted=1):
        self.store, self.interrupted, self.left = store, interrupted, remaining(store)

    def __call__(self, place, replies=0, failed=0):
        left = remaining(self.store)
        lost = self.left - left - 1 - replies
        assert 0 <= lost <= self.interrupted + failed, f"{lost} lost at {place}"
        assert remaining(self.store) == left - 1, place
        assert not self.store.away, place
        self.left = left - 1


@pytest.mark.parametrize("before", [connected, closed])
def test_a_thread_that_is_alone_and_interrupted_leaves_a_store_that_decides(store, before):
    lines = at_every_line(lambda: store.decide(ASKS), Exactly(store), before=lambda: before(store), strict=True)
    assert lines > 50


class Queue:
    """Threads that wait while a job holds the connection, one after the other; then it lets the first of them lead."""

    def __init__(self, store):
        self.store, self.batcher, self.results, self.threads = store, store._threads, [], []
        self.holder = _Job((ASKS, None), time.monotonic() + 60)
        assert self.batcher._become_leader(self.holder)

    def join(self, work):
        thread = threading.Thread(target=work)
        self.threads.append(thread)
        waiting = len(self.batcher._waiting)
        thread.start()
        eventually(lambda: len(self.batcher._waiting) > waiting or not thread.is_alive(), every=0.0002)

    def decide(self):
        try:
            self.results.append(self.store.decide(ASKS).outcomes[0].allowed)
        except StoreUnavailable as error:
            self.results.append(error)

    def go(self):
        self.batcher._release(self.holder)
        self.batcher._wake_next()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.parametrize(("ahead", "most"), [pytest.param(0, 3, id="the leader"), pytest.param(1, 0, id="a follower")])
def test_an_interrupted_leader_costs_its_batch_and_a_follower_costs_no_other(store, ahead, most):
    """The leader, with three followers aboard, or one of the followers."""
    exactly, at, place, seen = Exactly(store), 0, "none yet", set()
    while place:
        at += 1
        place, results = batch_with_one_interrupted(store, ahead, at)
        failed = [result for result in results if result is not True]
        assert all(isinstance(result, Late) for result in failed), (place, failed)
        exactly(place, replies=3 - len(failed), failed=len(failed))
        seen.add(len(failed))
    assert max(seen) == most, seen
    assert at > (60 if ahead == 0 else 10)


def batch_with_one_interrupted(store, ahead, at):
    """Four threads decide together, and the one behind `ahead` others is interrupted at its line number `at`.

    Returns the place, and the results of the others.
    """
    places, queue = [], Queue(store)
    for _ in range(ahead):
        queue.join(queue.decide)
    queue.join(lambda: places.append(interrupted(lambda: store.decide(ASKS), at, strict=True)[1]))
    for _ in range(3 - ahead):
        queue.join(queue.decide)
    queue.go()
    assert len(queue.results) == 3, places
    return places[0], queue.results


@pytest.mark.parametrize("kind", [TimeoutError, OSError, RuntimeError, Interrupted])
def test_what_a_signals_handler_raises_reaches_the_app_and_does_not_trip_the_breaker(any_server, kind):
    def handler(_number, _frame):
        raise kind("from the handler")

    with Proxy(any_server.port) as proxy:
        store = RedisStore(proxy.url, timeout=20)
        exactly = Exactly(store)
        proxy.delay(0, 20)
        calls = any_server.calls("evalsha")

        def send():
            eventually(lambda: any_server.calls("evalsha") > calls)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)  # which waits for the reply

        before = signal.signal(signal.SIGALRM, handler)
        sender = threading.Thread(target=send)
        try:
            sender.start()
            with pytest.raises(kind, match="from the handler"):
                store.decide(ASKS)
        finally:
            sender.join()
            signal.signal(signal.SIGALRM, before)
        proxy.heal()
        exactly("the handler")
        assert proxy.connections == 2  # the reply of the interrupted thread may have come on the first
        store.close()


def test_a_leader_whose_thread_is_gone_is_replaced(store):
    lost = _Job((ASKS, None), time.monotonic() - 60)
    store._threads._leader[None] = lost
    assert remaining(store) == LIMIT - 2
    assert not store._threads._leader


def test_waiting_requests_whose_threads_are_gone_hold_up_no_other(store):
    """An exception may come while their threads still clean up after another one."""
    lost = [_Job((ASKS, None), time.monotonic() - 60) for _ in range(2)]
    store._threads._waiting.extend(lost)
    assert remaining(store) == LIMIT - 2
    assert not store._threads._waiting


def test_a_request_that_waits_behind_one_whose_thread_is_gone_is_woken(store):
    queue = Queue(store)
    store._threads._waiting.append(lost := _Job((ASKS, None), time.monotonic() + 60))
    queue.join(queue.decide)
    store._threads._release(queue.holder)
    lost.deadline -= 120
    assert remaining(store) == LIMIT - 3
    queue.threads[0].join(60)
    assert queue.results == [True]


GREENLETS = """
    from gevent import monkey
    monkey.patch_all()
    import sys
    import gevent
    from ratelimit_mw.errors import Late
    from ratelimit_mw.model import Ask, Quota
    from ratelimit_mw.stores.redis.store import RedisStore

    store = RedisStore(sys.argv[1], timeout=20)
    asks = [Ask("d:r:{x}", Quota("fixed_window", 1_000_000, 3_650 * 86_400_000_000))]
    store.decide(asks)
    given_up = late = 0

    def impatient(seconds):
        global given_up
        try:
            with gevent.Timeout(seconds):
                patient()
        except gevent.Timeout:
            given_up += 1

    def patient():
        global late
        try:
            assert store.decide(asks).outcomes[0].allowed
        except Late:
            late += 1

    for turn in range(20):
        hasty = [gevent.spawn(impatient, 0.005 * place) for place in range(1, 9)]
        calm = [gevent.spawn(patient) for _ in range(8)]
        gevent.joinall(hasty + calm, raise_error=True)
        patient()
    assert given_up > 20, given_up
    assert not store.away
    print(store.decide(asks).outcomes[0].remaining, store.decide(asks).outcomes[0].remaining, given_up, late)
"""


def test_a_timeout_of_gevent_in_a_decision_costs_a_batch_and_no_more(any_server):
    with Proxy(any_server.port) as proxy:
        proxy.delay(0.02)
        command = [sys.executable, "-c", textwrap.dedent(GREENLETS), proxy.url]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        left, then, given_up, late = map(int, done.stdout.split())
        assert then == left - 1
        # The first, seventeen in each of twenty turns, and this one; those that were given up may have been charged.
        assert 0 <= left - (LIMIT - 1 - 340 - 1) <= given_up + late
        assert proxy.connections <= 2 + given_up
