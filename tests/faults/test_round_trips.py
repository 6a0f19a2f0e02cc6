"""Requests that wait for a reply hold no other request up: what the server has been sent while no reply has arrived.

`tests/load/test_late_replies.py` and `tests/load/test_round_trips.py` have round trips that take most of the timeout.
"""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ratelimit_mw.stores.base import DECIDE
from ratelimit_mw.stores.redis.store import RedisStore
from tests.faults.faults import ASKS, attempt
from tests.support.patience import WITHIN, aeventually, eventually
from tests.support.proxy import Proxy


@pytest.fixture
def proxy(any_server):
    with Proxy(any_server.port) as proxy:
        yield proxy


def decided(server):
    """How many decisions the server has counted."""
    return int(server.calls("evalsha")) + int(server.calls("eval"))


def test_tasks_send_while_no_reply_has_arrived(any_server, proxy):
    async def main():
        store = RedisStore(proxy.url, timeout=WITHIN)
        await store.aask((ASKS, DECIDE))
        before = decided(any_server)
        proxy.delay(0, 3_600)
        waiting = []
        for number in range(1, 6):
            waiting.append(asyncio.create_task(store.aask((ASKS, DECIDE))))
            await aeventually(lambda number=number: decided(any_server) == before + number)
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await store.aclose()
        assert proxy.connections == 1

    asyncio.run(main())


def test_the_reply_to_a_request_that_was_cancelled_disturbs_no_other(any_server, proxy, caplog):
    async def main():
        store = RedisStore(proxy.url, timeout=WITHIN)
        await store.aask((ASKS, DECIDE))
        before = decided(any_server)
        proxy.delay(0, 0.5)
        cancelled = asyncio.create_task(store.aask((ASKS, DECIDE)))
        await aeventually(lambda: decided(any_server) == before + 1)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        reply = await store.aask((ASKS, DECIDE))
        await store.aclose()
        return reply.outcomes[0].remaining

    assert asyncio.run(main()) == 999_997
    assert caplog.records == []


def test_threads_get_a_connection_each_once_the_server_is_known_to_be_far_away(proxy):
    """Two round trips do not fit into the timeout, so none may wait for another's."""
    proxy.delay(0.6)
    store = RedisStore(proxy.url, timeout=2)
    eventually(lambda: attempt(store))
    before = proxy.connections
    start = threading.Barrier(5)

    def ask(_):
        start.wait(WITHIN)
        attempt(store)

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(ask, range(5)))
    assert proxy.connections >= 5
    assert proxy.connections < before + 20  # one for each thread, a spare one, and those that came too late
    store.close()
