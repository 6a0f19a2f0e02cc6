"""A store whose replies come later than the timeout: no request waits for it, and a late reply brings nothing back."""

import asyncio
import logging
import time

from ratelimit_mw import ManualClock
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.stores.base import DECIDE
from ratelimit_mw.stores.breaker import AWAY
from ratelimit_mw.stores.redis.store import RedisStore
from tests.faults.faults import ASKS, Tasks, aattempt, attempt, hold_again, lines
from tests.support.patience import aeventually, eventually

TIMEOUT = 0.5


def failure(client):
    """Why one decision is not made."""
    try:
        return client.run(client.store.aask((ASKS, DECIDE))) if isinstance(client, Tasks) else client.store.decide(ASKS)
    except StoreUnavailable as error:
        return str(error)


def test_a_store_slower_than_the_timeout_leaves_once_and_costs_no_request_any_time(client_of, proxy, caplog):
    client = client_of(proxy.url, timeout=TIMEOUT)
    eventually(client.one)
    caplog.clear()
    proxy.delay(TIMEOUT)  # each way
    while failure(client) != AWAY:
        pass
    seen = set()
    for _ in range(150):  # for six round trips, in which many replies come late
        seen.add(failure(client))
        time.sleep(6 * 2 * TIMEOUT / 150)
    assert seen == {AWAY}
    (line,) = lines(caplog)
    assert "is away (no answer within the deadline)" in line
    proxy.heal()
    hold_again(client)
    assert None not in client.many()
    assert [("is away" in line, "is back:" in line) for line in lines(caplog)] == [(True, False), (False, True)]


def test_requests_that_were_late_while_others_were_served_leave_one_line(proxy, caplog):
    """The app itself holds the loop up, so these three are sent when their time is over."""

    async def main():
        store = RedisStore(proxy.url, timeout=4 * TIMEOUT)
        while None in await asyncio.gather(aattempt(store), aattempt(store)):  # however slowly the machine connects
            pass
        caplog.clear()
        proxy.delay(TIMEOUT)
        late = [asyncio.create_task(aattempt(store)) for _ in range(3)]
        await asyncio.sleep(0)
        time.sleep(4 * TIMEOUT)  # noqa: ASYNC251  the app holds the loop up
        assert await asyncio.gather(*late) == [None] * 3
        assert (store.away, store.late_requests) == (False, 3)
        assert await aattempt(store) is not None
        await aeventually(lambda: lines(caplog))
        await store.aclose()

    asyncio.run(main())
    (line,) = lines(caplog)
    assert "answered others, but not 3 requests in time: on_error applied to them" in line
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_loop_that_the_app_blocks_does_not_make_the_store_silent(proxy, caplog):
    """The requests are sent when their time is over. When their grace ends, the app blocks the loop once more."""

    async def main():
        store = RedisStore(proxy.url, timeout=TIMEOUT)
        while await aattempt(store) is None:  # however slowly the machine connects
            pass
        caplog.clear()
        proxy.delay(0.4 * TIMEOUT)
        tasks = [asyncio.create_task(aattempt(store)) for _ in range(3)]
        await asyncio.sleep(0)
        for pause in (2 * TIMEOUT, 0, 0, 0.1 * TIMEOUT, 2 * TIMEOUT):
            time.sleep(pause)  # noqa: ASYNC251  the app blocks the loop
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert not store.away
        assert await aattempt(store) is not None
        await store.aclose()

    asyncio.run(main())
    assert [line for line in lines(caplog) if "is away" in line] == []


def test_a_loop_that_the_app_blocks_while_connecting_does_not_make_the_store_silent(fresh_server, proxy, caplog):
    """Connecting takes a round trip for the number of the database, and the app leaves no time for it."""

    async def main():
        store = RedisStore(proxy.url.replace("/0", "/1"), timeout=TIMEOUT)
        while await aattempt(store) is None:
            pass
        caplog.clear()
        fresh_server.admin.client_kill_filter(_type="normal", skipme=True)
        await asyncio.sleep(TIMEOUT)  # the last answer is long ago, and the end of the connection is read
        proxy.delay(0.1 * TIMEOUT)
        task = asyncio.create_task(aattempt(store))
        for pause in (0, 0, 1.5 * TIMEOUT):
            time.sleep(pause)  # noqa: ASYNC251  the app blocks the loop
            await asyncio.sleep(0)
        await task
        assert not store.away
        await asyncio.sleep(TIMEOUT)
        assert await aattempt(store) is not None
        await store.aclose()

    asyncio.run(main())
    assert [line for line in lines(caplog) if "is away" in line] == []


class HeldUp(ManualClock):
    """The clock of an app that is sometimes held up for `seconds`, just before a request is sent."""

    seconds = 0.0

    def now(self):
        time.sleep(self.seconds)
        return super().now()


def test_a_thread_that_the_app_holds_up_does_not_make_the_store_silent(proxy, caplog):
    """The request is sent when its time is over, so the store has no time to answer."""
    clock = HeldUp(0)
    store = RedisStore(proxy.url, timeout=TIMEOUT, clock=clock)
    eventually(lambda: attempt(store))
    caplog.clear()
    proxy.delay(0.1 * TIMEOUT)
    clock.seconds = 2 * TIMEOUT
    assert attempt(store) is None
    clock.seconds = 0.0
    assert not store.away
    eventually(lambda: attempt(store))
    store.close()
    assert [line for line in lines(caplog) if "is away" in line] == []


def test_a_probe_whose_answer_is_read_late_does_not_bring_the_store_back(proxy):
    """This process is held up, so it does not know whether the answer came in time."""

    def after_probes(number):
        before = proxy.connections
        eventually(lambda: proxy.connections >= before + number)

    clock = HeldUp(0)
    store = RedisStore(proxy.url, timeout=TIMEOUT, clock=clock)
    eventually(lambda: attempt(store))
    proxy.black_hole()
    eventually(lambda: attempt(store) is None and store.away)
    clock.seconds = 2 * TIMEOUT
    after_probes(3)
    proxy.heal()
    after_probes(6)
    assert store.away
    clock.seconds = 0.0
    eventually(lambda: attempt(store))
    store.close()
