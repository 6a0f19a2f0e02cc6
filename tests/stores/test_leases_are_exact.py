"""Any number of processes over one store, in any order and however slow the calls: what was admitted, held against
the exact model of the algorithm.

A process's own clock starts anywhere and never steps back; the store has another. Each request is taken step by
step, so that others come between its asking, the store's deciding and its hearing of it.
"""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw import ManualClock
from ratelimit_mw.model import SECOND, Ask, Quota, Reply
from ratelimit_mw.stores.base import DECIDE
from ratelimit_mw.stores.lease_store import Leases
from ratelimit_mw.stores.memory import MemoryStore
from tests.algorithms.model import MODELS
from tests.stores.contract import KINDS
from tests.support.bounds import worst_over_admission

START = 1_700_000_040 * SECOND
PERIOD = 6 * SECOND
PROCESSES = 3
LONGEST_CALL = SECOND // 10


class LocalClock:
    """What a process reads: as the store's, from another start."""

    def __init__(self, clock, skew):
        self.clock, self.skew = clock, skew

    def now(self):
        return self.clock.now() + self.skew


class Request:
    """A request under way in a process; `advance` takes it one step further."""

    def __init__(self, world, plan, ask):
        self.world, self.ask = world, ask
        self.steps = unchanged(plan) if isinstance(plan, tuple) else plan
        self.result, self.decided_at = None, None
        self.executed = False
        self.call = None
        self._resume(lambda: next(self.steps))

    def advance(self):
        if not self.executed:
            is_request = isinstance(self.call, tuple)
            self.result = self.world.store.ask(self.call) if is_request else self.call.result()
            if is_request and self.call[1] is DECIDE:
                self.decided_at = self.result.now
            self.executed = True
        else:
            self.executed = False
            self._resume(lambda: self.steps.send(self.result))

    def _resume(self, step):
        try:
            self.call = step()
        except StopIteration as end:
            self.call = None
            if end.value.admits([self.ask]):
                at = self.world.clock.now() if self.decided_at is None else self.decided_at
                self.world.admitted.append((at, self.ask.cost))


def unchanged(plan):
    """The steps of a request that goes to the store as it is."""
    request, note = plan
    assert note is None
    return (yield request)


class World:
    def __init__(self, quota, skews):
        self.quota = quota
        self.clock = ManualClock(START / SECOND)
        self.store = MemoryStore(clock=self.clock)
        self.processes = [Leases(self.store, LocalClock(self.clock, skew)) for skew in skews]
        self.under_way = []
        self.admitted = []

    def request(self, number, cost):
        process, ask = self.processes[number % PROCESSES], Ask("d:r:{x}", self.quota, cost)
        reply = process.asked(([ask], DECIDE))
        if isinstance(reply, Reply):
            assert reply.admits([ask])
            assert 0 <= reply.outcomes[0].remaining <= self.quota.limit - cost
            self.admitted.append((self.clock.now(), cost))
            return
        self._keep(Request(self, reply, ask))

    def advance(self, number):
        if self.under_way:
            request = self.under_way.pop(number % len(self.under_way))
            if self._blocked(request):
                self.under_way.append(request)
            else:
                request.advance()
                self._keep(request)

    def _keep(self, request):
        if request.call is not None:
            self.under_way.append(request)

    @staticmethod
    def _blocked(request):
        """Is it waiting for another's charge to arrive?"""
        return not request.executed and not isinstance(request.call, tuple) and not request.call.done()

    def end_calls(self):
        while self.under_way:
            self.advance(0)

    def finish(self):
        self.end_calls()
        for process in self.processes:
            process.settle()

    def model(self):
        model = MODELS[self.quota.algorithm](self.quota)
        for at, cost in sorted(self.admitted, key=lambda admission: admission[0]):
            yield model, at, cost
            model.admit(cost, at)

    def level_in_the_store(self):
        quota = replace(self.quota, limit=10**9)
        return 10**9 - self.store.decide([Ask("d:r:{x}", quota, 0)], commit=False).outcomes[0].remaining


def history(seed, consistency):
    """(quota, the processes' clocks, what happens): busy, and often around the ends of windows, slices and shares."""
    dice = random.Random(seed)
    name = dice.choice(sorted(KINDS[consistency]))
    quota = Quota(name, dice.choice((1, 2, 5, 20, 60, 150)), PERIOD, consistency=consistency)
    skews = [dice.randrange(-(10**15), 10**15) for _ in range(PROCESSES)]
    costs = dice.choice(((1,), (1,), (1, 1, 2, 3), (1, 7)))
    weights = dice.choice(((5, 3, 4, 4, 1), (5, 6, 6, 3, 2), (8, 0, 0, 4, 0)))
    busy = dice.choice((10, 40, 2 * quota.limit))
    events, now = [], 0
    for _ in range(dice.randint(5, 80)):
        kind = dice.choices(("requests", "request", "advance", "jump", "cross"), weights)[0]
        if kind == "cross":  # an end comes while calls are under way
            jump = PERIOD // 60 - now % (PERIOD // 60) + dice.choice((0, 0, PERIOD - PERIOD // 60))
            jump = max(jump - 3_000, 1)
            now += jump + 6_000
            calls = [(dice.choice(("request", "advance")), dice.randrange(9), 3, dice.choice(costs)) for _ in range(8)]
            events += [("jump", jump, 1, 0), *calls[:6], ("jump", 6_000, 1, 0), *calls[6:]]
        elif kind == "jump":
            edge = dice.choice((PERIOD, PERIOD, PERIOD // 60, SECOND))
            to_edge = edge - now % edge + dice.choice((-2000, -2, -1, 0, 1, 2000))
            jump = max(dice.choice((dice.randrange(1_000, 50_000), to_edge, dice.randrange(2 * SECOND))), 1)
            now += jump
            events.append((kind, jump, 1, 0))
        else:
            times = {"requests": dice.randint(1, busy), "request": dice.randint(1, 4), "advance": dice.randint(1, 15)}
            events.append((kind, dice.randrange(PROCESSES), times[kind], dice.choice(costs)))
    return quota, skews, events


def histories(consistency):
    return st.integers(0, 2**63).map(lambda seed: history(seed, consistency))


def lived(history):
    quota, skews, events = history
    world = World(quota, skews)
    for kind, which, times, cost in events:
        for _ in range(times):
            if kind == "jump":
                if which > LONGEST_CALL:
                    world.end_calls()
                world.clock.advance(which / 1_000_000)
            elif kind == "advance":
                world.advance(which)
            else:
                world.request(which, cost)
                if kind == "requests":  # one after the other, each to its end unless another's charge is waited for
                    for _ in range(12):
                        world.advance(-1)
    world.finish()
    return world


def settled_exactly(world):
    """Whether the store has what was admitted, no more and no less."""
    model = None
    for model, _, _ in world.model():  # noqa: B007
        pass
    return model is None or world.level_in_the_store() == -(-model.level(world.clock.now()) // 1)


@given(histories("lease"))
def test_leases_never_admit_one_too_many_and_settle_exactly(history):
    world = lived(history)
    for model, at, cost in world.model():
        assert model.fits(cost, at)
    assert settled_exactly(world)


@given(histories("write_back"))
def test_write_back_admits_too_many_within_its_bound_and_settles_exactly(history):
    world = lived(history)
    bound = worst_over_admission(PROCESSES, world.quota.limit)
    for model, at, cost in world.model():
        assert model.level(at) + cost <= world.quota.limit + bound
    assert settled_exactly(world)


def of_one_process(history):
    quota, skews, events = history
    return quota, skews, [(kind, which if kind in ("jump", "advance") else 0, *rest) for kind, which, *rest in events]


@given(histories("write_back"))
def test_write_back_of_one_process_is_exact(history):
    world = lived(of_one_process(history))
    for model, at, cost in world.model():
        assert model.fits(cost, at)


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(3625, id="a look while another charge is owed"),
        pytest.param(2861, id="a call into the next sliding window, while a charge of the last is owed"),
        pytest.param(16215, id="the same, with a third of the limit owed"),
    ],
)
def test_what_remains_is_not_spent_while_charges_are_to_arrive(seed):
    world = lived(of_one_process(history(seed, "write_back")))
    for model, at, cost in world.model():
        assert model.fits(cost, at)
