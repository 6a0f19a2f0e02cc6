"""Round trips that take much of the timeout, before and after stalls. `test_round_trips.py` tries more shares of it.

A round trip takes 60 % of two seconds: more than half, so that a connection that has to be made first, or a batch that
has to come back first, would cost the request. Nearly a second is left for a busy machine.
"""

import asyncio
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Ask, Quota
from ratelimit_mw.stores.base import DECIDE
from ratelimit_mw.stores.redis.store import RedisStore
from tests.support.apps import LONG
from tests.support.patience import eventually
from tests.support.proxy import Proxy

ASKS = [Ask("d:r:{x}", Quota("fixed_window", 1_000_000, LONG))]
TIMEOUT = 2.0
EACH_WAY = 0.6


@pytest.fixture
def proxy(fresh_server):
    with Proxy(fresh_server.port) as proxy:
        proxy.delay(EACH_WAY)
        yield proxy


async def attempt(store):
    try:
        return await store.aask((ASKS, DECIDE))
    except StoreUnavailable as error:
        return str(error)


async def overlapping(store, number=30, every=0.05):
    """What so many requests get of which each begins before the one before is answered."""
    tasks = []
    for _ in range(number):
        tasks.append(asyncio.create_task(attempt(store)))
        await asyncio.sleep(every)
    return [result if isinstance(result, str) else "decided" for result in await asyncio.gather(*tasks)]


async def until_decided(store):
    while isinstance(await attempt(store), str):  # noqa: ASYNC110  nothing tells when a server is back
        await asyncio.sleep(0.01)


def lines(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("database", [0, 1])
def test_requests_that_overlap_are_all_served_in_time(proxy, caplog, database):
    """To select another database than the first takes a round trip of its own as the connection is made."""

    async def main():
        store = RedisStore(proxy.url.replace("/0", f"/{database}"), timeout=TIMEOUT)
        await store.aconnect("d")
        results = await overlapping(store)
        await store.aclose()
        return results

    assert asyncio.run(main()) == ["decided"] * 30
    assert proxy.connections == 2  # that of the decision at start, and that of the loop
    assert lines(caplog) == []


def test_a_script_that_the_server_has_not_seen_takes_no_second_round_trip(proxy, caplog):
    async def main():
        store = RedisStore(proxy.url, timeout=TIMEOUT)
        await store.aconnect("d")
        other = [Ask("d:s:{x}", Quota("token_bucket", 5, 60_000_000, burst=5))]
        replies = [await store.aask((asks, DECIDE)) for asks in (ASKS, other, [*ASKS, *other])]
        await store.aclose()
        return [reply.outcomes[0].allowed for reply in replies]

    assert asyncio.run(main()) == [True] * 3
    assert lines(caplog) == []


def test_a_connection_that_comes_later_than_requests_wait_serves_the_next_ones(proxy, caplog):
    """The deadline of a request that found no connection is not that of the connection."""

    async def main():
        store = RedisStore(proxy.url.replace("/0", "/1"), timeout=TIMEOUT)
        store._reached = True  # a later connection of the process, for which requests do not wait longer
        first = await attempt(store)
        await until_decided(store)
        results = await overlapping(store)
        await store.aclose()
        return first, results

    first, results = asyncio.run(main())
    assert "within the deadline" in first
    assert results == ["decided"] * 30
    assert not any("is away" in line for line in lines(caplog))  # the store had less than its time to answer


def test_a_handshake_longer_than_the_deadline_ends_all_the_same(client_of, proxy):
    """Half a second to select the database, and half a second for a decision: the first request is too early."""
    proxy.delay(0.25)
    client = client_of(proxy.url.replace("/0", "/1"), timeout=0.7)
    client.store._reached = True  # a later connection of the process, for which requests do not wait
    assert client.one() is None
    eventually(client.one)
    assert None not in [client.one() for _ in range(5)]


@pytest.mark.parametrize("way", ["threads", "tasks"])
def test_the_very_first_connection_of_a_process_may_take_a_second(fresh_server, way):
    """To select the database takes 0.7 s, and so does the decision: together more than the timeout."""
    with Proxy(fresh_server.port) as proxy:
        proxy.delay(0.35)
        store = RedisStore(proxy.url.replace("/0", "/1"), timeout=1.2)
        if way == "threads":
            reply = store.decide(ASKS)
            store.close()
        else:
            reply = asyncio.run(attempt(store))
    assert reply.outcomes[0].allowed


def test_threads_that_overlap_are_all_served_in_time(proxy, caplog):
    """Two round trips do not fit into the timeout, so none may wait for another's."""
    store = RedisStore(proxy.url, timeout=TIMEOUT)
    store.connect("d")
    store.decide(ASKS)  # from which it is known how far away the server is

    def ask(number):
        time.sleep(number * 0.05)
        return store.decide(ASKS).outcomes[0].allowed

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(ask, range(40))) == [True] * 40
    store.close()
    assert lines(caplog) == []


@pytest.mark.parametrize("stall", ["SIGSTOP", "a black hole"])
def test_after_a_stall_all_are_served_again(fresh_server, proxy, stall):
    async def main():
        store = RedisStore(proxy.url, timeout=TIMEOUT)
        await store.aconnect("d")
        before = await overlapping(store, 5)
        if stall == "SIGSTOP":
            fresh_server.pause()
        else:
            proxy.black_hole()
        during = await overlapping(store, 4, every=1)
        fresh_server.resume()
        proxy.delay(EACH_WAY)
        async with asyncio.timeout(60):
            await until_decided(store)
        await asyncio.sleep(TIMEOUT)  # what was on its way during the stall has come or is lost
        after = await overlapping(store)
        await store.aclose()
        return before, during, after

    before, during, after = asyncio.run(main())
    assert before == ["decided"] * 5
    assert after == ["decided"] * 30
    assert "decided" not in during
    assert during[-1] == "the store is away"  # which costs a request no time


def test_two_loops_each_recover_from_a_stall(fresh_server, proxy):
    async def served(store, stalled, ended):
        before = await overlapping(store, 3)
        stalled.set()
        await asyncio.to_thread(ended.wait)
        async with asyncio.timeout(60):
            await until_decided(store)
        await asyncio.sleep(2 * TIMEOUT)
        after = await overlapping(store, 10)
        await store.aclose()
        return before + after

    store, ended = RedisStore(proxy.url, timeout=TIMEOUT), threading.Event()
    stalled = [threading.Event() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        loops = [pool.submit(asyncio.run, served(store, each, ended)) for each in stalled]
        for each in stalled:
            each.wait()
        fresh_server.pause()
        asyncio.run(attempt(store))
        fresh_server.resume()
        ended.set()
        assert [loop.result() for loop in loops] == [["decided"] * 13] * 2


def test_a_request_that_the_loop_itself_holds_up_says_nothing_of_the_store(proxy, caplog):
    """It is sent too late to be answered in time; others are served."""

    async def main():
        store = RedisStore(proxy.url, timeout=TIMEOUT)
        await store.aconnect("d")
        await store.aask((ASKS, DECIDE))
        late = [asyncio.create_task(attempt(store)) for _ in range(3)]
        await asyncio.sleep(0)
        time.sleep(TIMEOUT)  # noqa: ASYNC251  the app holds the loop up
        await asyncio.wait(late)
        after = await overlapping(store, 10)
        await store.aclose()
        return after

    after = asyncio.run(main())
    assert after == ["decided"] * 10
    assert not any("is away" in line for line in lines(caplog))
