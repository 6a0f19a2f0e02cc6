"""Real exceptions from another thread, a hundred in a second: an interrupted request costs its own batch at most."""

import gc
import itertools
import random
import sys
import threading
import time
from functools import partial
from queue import SimpleQueue

import pytest

from ratelimit_mw.errors import Late, StoreUnavailable
from ratelimit_mw.model import Ask, Quota
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.stores.redis.store import RedisStore
from tests.support.apps import LONG
from tests.support.interrupts import Interrupted, interrupt

SECONDS = 20
CATCHING = object()


def own(number):
    """An ask whose reply tells whose it is."""
    return [Ask(f"d:r:{{{number}}}", Quota("fixed_window", 1_000 + number, LONG))]


class Storm:
    """Some threads are interrupted again and again. Others are not, and lose no decision but by such a batch.

    There is one exception at a time. The next one comes when a thread is back where it catches them, however long the
    machine takes for it: an exception anywhere else would end the thread, or come while the store still cleans up.
    """

    def __init__(self, store):
        self.store, self.done, self.numbers = store, False, itertools.count()
        self.answered, self.wrong, self.interrupted, self.lost = [], [], 0, 0
        self.events = SimpleQueue()  # CATCHING, or what Python reports instead of raising it

    def calm(self):
        while not self.done:
            self.decide()

    def stormed(self):
        while not self.done:
            try:
                self.events.put(CATCHING)
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
        for _ in stormed:
            self.await_catching(again=lambda: None)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end or self.interrupted <= 100 or len(self.answered) <= 1_000:
            time.sleep(0.01)  # so that it comes at any moment
            raise_there = partial(interrupt, random.choice(stormed))
            raise_there()
            self.await_catching(again=raise_there)
        self.done = True
        for thread in (*calm, *stormed):
            thread.join(60)
            assert not thread.is_alive()

    def await_catching(self, again):
        """Python can only report what comes while a finalizer runs, so it comes once more."""
        while (event := self.events.get()) is not CATCHING:
            if event.exc_type is Interrupted:
                again()
            else:
                self.wrong.append(repr(event))


@pytest.fixture
def no_gc_callbacks():
    """What others run at garbage collections, as hypothesis does, can't raise: Python would only report it."""
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    yield
    gc.callbacks[:] = callbacks


@pytest.mark.usefixtures("no_gc_callbacks")
@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_a_storm_of_exceptions(any_server, kind, monkeypatch):
    store = MemoryStore() if kind == "memory" else RedisStore(any_server.url, timeout=20)
    storm = Storm(store)
    monkeypatch.setattr(sys, "unraisablehook", storm.events.put)  # it runs no line that could be interrupted
    storm.run()
    monkeypatch.undo()
    assert storm.wrong == []
    assert storm.events.empty()
    assert storm.lost < (1 if kind == "memory" else 6 * storm.interrupted)  # a batch has a request of each thread
    left = 1_000 + next(storm.numbers)
    for spent in (1, 2, 3):
        assert store.decide(own(left - 1_000))[1][0].remaining == left - spent
    store.close()
