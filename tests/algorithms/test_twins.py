"""Python and Lua, memory and Redis: the same history has the same outcomes, to the last microsecond."""

import itertools
import time

import pytest
from hypothesis import HealthCheck, example, given, settings

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.model import SECOND, Ask, Outcome, Quota, Reply
from ratelimit_mw.stores.base import Intent, complete
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.stores.redis.codec import converse
from ratelimit_mw.stores.redis.endpoint import Blocking
from tests.algorithms.histories import START, HistoryClock, conversations

_examples = itertools.count()
pytestmark = pytest.mark.timeout(3_600)  # for the thorough profile


class Keeping(MemoryStore):
    """Keeps what has expired, as Redis does under a clock that is moved by hand; else a step back would tell."""

    def _make_room(self, number, now):
        pass


class Taking(Keeping):
    """Takes each decision in one step, and asks again with the same place, as the engine does with a plan."""

    def __init__(self, **options):
        super().__init__(**options)
        self.plans = {}

    def decide(self, asks, *, commit=True):
        if not commit or any(ALGORITHMS[ask.quota.algorithm].count_denial for ask in asks):
            return super().decide(asks, commit=commit)
        if tuple(asks) not in self.plans:
            take, place = self.decider(asks)
            self.plans[tuple(asks)] = take, place(asks)
        take, held = self.plans[tuple(asks)]
        now, rows, only = take(held)
        return Reply(now, [Outcome(*row) for row in rows], only)


def values(store):
    return {key: store.load(key) for key in store.keys("")}


@pytest.fixture(scope="module")
def known(connection):
    """The scripts that the server has."""
    return set()


@pytest.fixture(scope="module")
def connection(each_server):
    connection = Blocking(each_server.url)
    connection.connect()
    yield connection
    connection.close()


LOG = [Ask("p:0:sliding_log:{x}", Quota("sliding_log", 11, SECOND))]
TIMES = (*range(2, 9), *range(SECOND, SECOND + 10), SECOND - 990)
LOG_WHOSE_OLD_TIMES_COUNT_AGAIN = [(START + time, [(LOG, Intent())]) for time in TIMES]
"""The clock steps back to a moment at which times count that had left the window."""


@example(LOG_WHOSE_OLD_TIMES_COUNT_AGAIN)
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(conversations())
def test_any_history_has_the_same_outcomes_in_memory_and_on_redis(connection, known, steps):
    clock = HistoryClock()
    memory, at_once = Keeping(clock=clock), Taking(clock=clock)
    prefix = f"{next(_examples)}:"
    for now, requests in steps:
        clock.time = now
        asked = [([ask._replace(key=prefix + ask.key) for ask in asks], intent) for asks, intent in requests]
        expected = [done(memory, *request) for request in asked]
        assert [done(at_once, *request) for request in asked] == expected
        assert values(at_once) == values(memory)
        replies = connection.carry(converse(asked, now, known), time.monotonic() + 5)
        said = [_listed(reply) for reply, (_, intent) in zip(replies, asked, strict=True) if not intent.insist]
        assert said == [reply for reply in expected if reply is not None]


def done(memory, asks, intent):
    if intent.insist:
        memory.charge(asks, instead_of=intent.charged_at)
        return None
    if intent.charged_at is not None:
        memory.refund(asks, intent.charged_at)
        asks, intent = [ask._replace(cost=0) for ask in asks], Intent(commit=False)
    return _listed(memory.decide(asks, commit=intent.commit))


def _listed(fields):
    reply = complete(fields)
    return Reply(reply.now, list(reply.outcomes))
