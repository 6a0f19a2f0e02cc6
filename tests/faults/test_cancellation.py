"""Requests that are cancelled at any moment: nobody gets another's reply, and nothing is left over."""

import asyncio
import itertools
import random
import threading

import pytest

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Ask, Quota
from ratelimit_mw.stores.base import DECIDE
from ratelimit_mw.stores.redis.store import RedisStore
from tests.support.apps import LONG
from tests.support.patience import aeventually
from tests.support.proxy import Proxy


@pytest.fixture
def proxy(any_server):
    with Proxy(any_server.port) as proxy:
        yield proxy


def own(number):
    """An ask whose reply tells whose it is."""
    return [Ask(f"d:r:{{{number}}}", Quota("fixed_window", 1_000 + number, LONG))]


def test_ten_thousand_random_cancellations_cross_no_reply(proxy):
    proxy.delay(0.002)
    rng = random.Random(0)

    async def request(store, number, counts):
        reply = await store.aask((own(number), DECIDE))
        counts["answered"] += 1
        assert reply.outcomes[0].remaining == 1_000 + number - 1

    async def main():
        store = RedisStore(proxy.url, timeout=20)
        await store.aask((own(0), DECIDE))
        counts = {"answered": 0, "cancelled": 0}
        numbers = itertools.count(1)  # how many are answered before they are cancelled depends on the machine
        while counts["cancelled"] < 10_000:
            tasks = [asyncio.create_task(request(store, next(numbers), counts)) for _ in range(100)]
            for task in tasks:
                if rng.random() < 0.85:
                    asyncio.get_running_loop().call_later(rng.random() * 0.009, task.cancel)
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
            counts["cancelled"] += sum(result is not None for result in results)
        assert counts["answered"] > 1_000
        assert proxy.connections == 1
        await store.aclose()

    asyncio.run(main())


class Asking:
    """Asks one distinguishable request after the other until `done`, blocking or awaiting."""

    def __init__(self, store):
        self.store, self.done = store, threading.Event()
        self.answered = self.failed = 0

    def _check(self, number, reply):
        assert reply.outcomes[0].remaining == 1_000 + number - 1
        self.answered += 1

    def thread(self, numbers):
        for number in itertools.takewhile(lambda _: not self.done.is_set(), numbers):
            try:
                self._check(number, self.store.decide(own(number)))
            except StoreUnavailable:
                self.failed += 1
                self.done.wait(0.01)

    async def task(self, numbers):
        for number in itertools.takewhile(lambda _: not self.done.is_set(), numbers):
            try:
                self._check(number, await self.store.aask((own(number), DECIDE)))
            except StoreUnavailable:
                self.failed += 1
                await asyncio.sleep(0.01)


def test_nobody_gets_anothers_reply_while_replies_get_lost(proxy):
    """Deadlines that pass, connections that break, threads and tasks at once: late replies go to nobody."""
    store = RedisStore(proxy.url, timeout=0.3)
    asking = Asking(store)

    async def trouble():
        for fault in (proxy.drop_reply, proxy.half_reply, lambda _: proxy.delay(0.2)) * 2:
            fault(1)
            await asyncio.sleep(0.5)
            proxy.heal()
            healed = asking.answered
            await aeventually(lambda: asking.answered > healed + 100)  # noqa: B023  it is awaited here
        asking.done.set()

    async def main():
        async with asyncio.TaskGroup() as group:
            group.create_task(trouble())
            for place in range(1, 9):
                group.create_task(asyncio.to_thread(asking.thread, itertools.count(place * 1_000_000)))
                group.create_task(asking.task(itertools.count((place + 10) * 1_000_000)))
        await store.aclose()

    asyncio.run(main())
    assert asking.failed > 0


def test_closed_while_requests_wait_they_are_told_so(proxy):
    async def main():
        store = RedisStore(proxy.url, timeout=20)
        await store.aask((own(1), DECIDE))
        proxy.black_hole()
        waiting = [asyncio.create_task(store.aask((own(2), DECIDE))) for _ in range(3)]
        await asyncio.sleep(0.05)
        waiting += [asyncio.create_task(store.aask((own(2), DECIDE)))]
        await asyncio.sleep(0)
        await store.aclose()
        results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 10)
        assert [type(result) for result in results] == [StoreUnavailable] * 4

    asyncio.run(main())


def test_closed_in_the_same_moment_as_a_request_begins_nothing_hangs(proxy):
    async def main():
        store = RedisStore(proxy.url, timeout=20)
        for _ in range(2):
            waiting = asyncio.create_task(store.aask((own(1), DECIDE)))
            await asyncio.sleep(0)
            await store.aclose()
            result = await asyncio.wait_for(asyncio.gather(waiting, return_exceptions=True), 10)
            assert isinstance(result[0], StoreUnavailable)

    asyncio.run(main())
