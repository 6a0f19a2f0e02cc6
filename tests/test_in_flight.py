"""Leases of what is in flight: renewed while they last, ended once, and left to expire where nobody knows."""

import gc
import os
import threading

import pytest

from ratelimit_mw.decision.storage import InFlight
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import SECOND, Ask, Quota
from ratelimit_mw.stores.memory import MemoryStore
from tests.support.patience import eventually
from tests.support.processes import in_child

QUOTA = Quota("concurrency", 10, 10 * SECOND, buckets=10)
KEY = "d:r:cc10:{x}"


class Store(MemoryStore):
    """Counts what is charged and given back, and fails when told to; `during` runs within a charge."""

    def __init__(self, clock):
        super().__init__(clock=clock)
        self.calls, self.returned = [], 0
        self.away = False
        self.during = None

    def charge(self, asks, *, instead_of=None):
        self.calls.append([ask.cost for ask in asks])
        if self.away == "before":
            raise StoreUnavailable
        at = super().charge(asks, instead_of=instead_of)
        if self.during:
            self.during()
        if self.away == "after":
            raise StoreUnavailable
        return at

    def refund(self, asks, charged_at):
        self.returned += sum(ask.cost for ask in asks)
        super().refund(asks, charged_at)

    def held(self, key=KEY):
        return 10 - self.decide([Ask(key, QUOTA, 0)], commit=False).outcomes[0].remaining


@pytest.fixture
def store(clock):
    return Store(clock)


@pytest.fixture
def in_flight(store, clock):
    made = InFlight(store, clock)
    yield made
    made.stop()


def taken(store, in_flight, key=KEY, cost=1):
    ask = Ask(key, QUOTA, cost)
    reply = store.decide([ask])
    assert reply.admits([ask])
    return in_flight.hold([ask], reply.now)


def end(store, in_flight, lease):
    at = in_flight.end(lease)
    if at is not None:
        store.refund(lease.asks, at)


def test_what_ends_is_given_back_once(store, in_flight):
    lease, other = taken(store, in_flight, cost=3), taken(store, in_flight)
    end(store, in_flight, lease)
    end(store, in_flight, lease)
    assert store.held() == 1
    assert len(in_flight) == 1
    end(store, in_flight, other)
    assert store.held() == 0


def test_what_lasts_is_renewed_and_what_is_young_is_left_alone(store, in_flight, clock):
    old = taken(store, in_flight)
    for _ in range(20):
        clock.advance(4)
        in_flight.renew()
        assert store.held() == 1
    young = taken(store, in_flight)
    store.calls.clear()
    in_flight.renew()
    assert store.calls == []
    clock.advance(3)
    in_flight.renew()
    assert store.calls == []
    end(store, in_flight, old)
    end(store, in_flight, young)
    assert store.held() == 0


def test_what_was_taken_together_is_renewed_together(store, in_flight, clock):
    leases = [taken(store, in_flight, key=f"d:r:cc10:{{{n % 3}}}") for n in range(9)]
    clock.advance(4)
    in_flight.renew()
    assert store.calls == [[3, 3, 3]]
    clock.advance(8)
    assert [store.held(f"d:r:cc10:{{{n}}}") for n in range(3)] == [3, 3, 3]
    for lease in leases:
        end(store, in_flight, lease)
    assert [store.held(f"d:r:cc10:{{{n}}}") for n in range(3)] == [0, 0, 0]


def test_no_call_renews_too_many(store, in_flight, clock):
    leases = [taken(store, in_flight, key=f"d:r:cc10:{{{n}}}") for n in range(250)]
    clock.advance(4)
    in_flight.renew()
    assert [len(call) for call in store.calls] == [100, 100, 50]
    assert len(leases) == len(in_flight)


def test_a_lease_that_nobody_keeps_expires(store, in_flight, clock):
    lease = taken(store, in_flight)
    del lease
    gc.collect()
    assert len(in_flight) == 0
    clock.advance(4)
    in_flight.renew()
    assert store.held() == 1
    clock.advance(7)
    assert store.held() == 0


def test_what_ends_while_it_is_renewed_is_given_back_by_its_new_time(store, in_flight, clock):
    lease, other = taken(store, in_flight), taken(store, in_flight)
    clock.advance(4)
    store.during = lambda: end(store, in_flight, lease)
    in_flight.renew()
    assert store.returned == 1
    assert store.held() == 1
    clock.advance(8)
    assert store.held() == 1
    end(store, in_flight, other)
    assert store.held() == 0


@pytest.mark.parametrize("away", ["before", "after"])
def test_a_renewal_that_may_have_happened_takes_nothing_from_others(store, in_flight, clock, away):
    lease, other = taken(store, in_flight), taken(store, in_flight)
    clock.advance(4)
    store.away = away
    in_flight.renew()
    assert store.held() == 2
    end(store, in_flight, lease)  # nobody knows where it is: it is left to expire
    assert store.returned == 0
    store.away = False
    clock.advance(4)
    in_flight.renew()
    clock.advance(8)
    assert store.held() == 1
    end(store, in_flight, other)
    assert store.held() == 0


def test_what_ends_while_a_renewal_fails_is_left_to_expire(store, in_flight, clock):
    lease = taken(store, in_flight)
    clock.advance(4)
    store.away, store.during = "after", lambda: end(store, in_flight, lease)
    in_flight.renew()
    assert store.returned == 0
    assert store.held() == 1
    clock.advance(12)
    assert store.held() == 0


def test_a_thread_renews_and_lives_only_while_something_is_in_flight(store, clock):
    """The thread looks every 10 ms; the leases of 10 s end by a clock that the test moves."""
    in_flight, before = InFlight(store, every=SECOND // 100), set(threading.enumerate())
    ask = Ask(KEY, QUOTA)

    def renewing():
        return [each for each in threading.enumerate() if each.name == "ratelimit_mw renew" and each not in before]

    lease = in_flight.hold([ask], store.decide([ask]).now)
    for _ in range(3):
        clock.advance(8)
        renewed = len(store.calls)
        eventually(lambda: len(store.calls) >= renewed + 2)  # noqa: B023  the second began after the advance
        assert store.held() == 1
    assert len(renewing()) == 1
    at = in_flight.end(lease)
    if at is not None:  # otherwise it is being renewed, and the thread gives it back
        store.refund(lease.asks, at)
    eventually(lambda: store.held() == 0)
    eventually(lambda: not renewing())
    again = in_flight.hold([ask], store.decide([ask]).now)
    assert len(renewing()) == 1
    in_flight.stop()
    assert in_flight.end(again) is not None


def test_without_a_thread_leases_end_unrenewed(store, in_flight, monkeypatch):
    def no_more_threads(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_more_threads)
    lease = taken(store, in_flight)
    assert in_flight.end(lease) is not None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_renews_and_ends_nothing_of_its_parents(store, in_flight, clock):
    lease = taken(store, in_flight)
    assert in_child(lambda: [len(in_flight), in_flight.end(lease)]) == [0, None]
    assert in_flight.end(lease) is not None
