"""Real exceptions from another thread, a hundred in a second: an interrupted request costs its own batch at most."""

import gc
import itertools
import random
import threading
import time

import pytest

from ratelimit_mw.errors import Late, StoreUnavailable
from ratelimit_mw.model import Ask, Quota
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.stores.redis.store import RedisStore
from tests.support.apps import LONG
from tests.support.interrupts import Interrupted, interrupt

SECONDS = 20


def own(number):
    """An ask whose reply tells whose it is."""
    return [Ask(f"d:r:{{{number}}}", Quota("fixed_window", 1_000 + number, LONG))]


class Storm:
    """Some threads are interrupted again and again. Others are not, and lose no decision but by such a batch."""

    def __init__(self, store):
        self.store, self.done, self.numbers = store, False, itertools.count()
        self.answered, self.wrong, self.interrupted, self.lost = [], [], 0, 0

    def calm(self):
        while not self.done:
            self.decide()

    def stormed(self):
        while not self.done:
            try:
                while not self.done:
                    self.decide()
            except Interrupted:
                self.interrupted += 1

    def decide(self):
        number = next(self.numbers)
        try:
            reply = self.store.decide(own(number))
        except Late:
            self.lost += 1
        except StoreUnavailable as error:
            self.wrong.append(str(error))
        else:
            self.answered.append(number)
            if reply.outcomes[0].remaining != 1_000 + number - 1:
                self.wrong.append((number, reply))

    def run(self):
        calm, stormed = ([threading.Thread(target=work) for _ in range(3)] for work in (self.calm, self.stormed))
        for thread in (*calm, *stormed):
            thread.start()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(0.01)  # so that each is dealt with before the next one comes to that thread
            interrupt(random.choice(stormed))
        time.sleep(0.5)  # the last ones arrive
        self.done = True
        for thread in (*calm, *stormed):
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def no_gc_callbacks():
    """What others run at garbage collections, as hypothesis does, can't raise: Python would only report it."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks


@pytest.mark.usefixtures("no_gc_callbacks")
@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_a_storm_of_exceptions(any_server, kind):
    store = MemoryStore() if kind == "memory" else RedisStore(any_server.url, timeout=20)
    storm = Storm(store)
    storm.run()
    assert storm.wrong == []
    assert len(storm.answered) > 1_000
    assert storm.interrupted > 100
    assert storm.lost < (1 if kind == "memory" else 6 * storm.interrupted)  # a batch has a request of each thread
    left = 1_000 + next(storm.numbers)
    for spent in (1, 2, 3):
        assert store.decide(own(left - 1_000))[1][0].remaining == left - spent
    store.close()
