"""The reader of a connection continues the tasks whose replies it has read. They notice no difference."""

import asyncio
import sys

import pytest
import uvloop

from ratelimit_mw.model import Ask, Quota
from ratelimit_mw.stores.base import DECIDE
from ratelimit_mw.stores.redis.store import RedisStore
from tests.support.apps import LONG


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def runner(request):
    with asyncio.Runner(loop_factory=request.param) as runner:
        yield runner


@pytest.fixture
def store(server, runner):
    store = RedisStore(server.url, timeout=10)
    runner.run(together(decided(store), decided(store)))  # so that the next ones are sent together, too
    yield store
    runner.run(store.aclose())


def ask():
    return Ask("d:r:{x}", Quota("fixed_window", 1_000, LONG))


async def together(*awaited):
    return await asyncio.gather(*awaited)


async def decided(store):
    return (await store.aask(([ask()], DECIDE))).outcomes[0].remaining


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_a_task_that_ends_the_loop_takes_no_reply_from_the_others(store, runner, end):
    tasks = []

    async def ends():
        await decided(store)
        raise end

    async def goes_on():
        return [await decided(store), await decided(store)]

    async def main():
        tasks.extend(map(asyncio.create_task, (goes_on(), ends(), goes_on())))
        await asyncio.wait(tasks)

    with pytest.raises(end):
        runner.run(main())
    runner.run(asyncio.wait(tasks))
    assert isinstance(tasks[1].exception(), end)
    assert [tasks[0].result()[0], tasks[2].result()[0]] == [997, 995]


def test_what_a_task_raises_has_no_foreign_context(store, runner):
    async def fails():
        await decided(store)
        assert sys.exc_info() == (None, None, None)
        raise LookupError

    with pytest.raises(LookupError) as caught:
        runner.run(fails())
    assert caught.value.__context__ is None


def test_a_task_may_cancel_another_one_whose_reply_has_come(store, runner):
    async def cancels(others):
        await decided(store)
        return others[0].cancel()

    async def main():
        others = []
        first = asyncio.create_task(cancels(others))
        others.extend(asyncio.create_task(decided(store)) for _ in range(2))
        cancelled, last = await asyncio.gather(*others, return_exceptions=True)
        assert await first
        assert isinstance(cancelled, asyncio.CancelledError)
        assert last == 995

    runner.run(main())


def test_several_may_wait_for_one_reply(store, runner):
    async def main():
        future = store.reply_to(([ask()], DECIDE), lambda *_: None)
        gone, *others = [asyncio.shield(future) for _ in range(4)]
        gone.cancel()
        await asyncio.sleep(0)  # so that it no longer waits
        found = await asyncio.wait_for(asyncio.gather(asyncio.wait_for(future, 10), *others), 10)
        assert all(each is found[0] for each in found)

    runner.run(main())


def test_a_task_may_close_the_store_before_the_next_one_has_its_reply(store, runner):
    async def closes():
        await decided(store)
        await store.aclose()

    async def main():
        _, *remaining = await asyncio.gather(closes(), decided(store), decided(store))
        assert remaining == [996, 995]

    runner.run(main())
