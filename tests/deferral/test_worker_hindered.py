"""What may come between a worker and its work: others that were faster, a Redis that is away, an operator's block."""

import asyncio
import logging

import pytest

from tests.deferral.asking import REPORTS, in_process, limiter
from tests.deferral.test_worker import Site, fates, put_off, until, working
from tests.shells.asking import IP
from tests.support.proxy import Proxy

STREAM = "{shop:deferred}:stream"


class Meanwhile:
    """A target. `meanwhile` is awaited before each request is sent: its attempt has begun by then."""

    def __init__(self, target, meanwhile):
        self.target, self.meanwhile = target, meanwhile

    async def send(self, *arguments):
        await self.meanwhile()
        return await self.target.send(*arguments)

    async def close(self):
        await self.target.close()


async def _work(engine, site, holds, **options):
    async with working(engine, in_process(site.asgi), **options):
        await until(holds)


def test_its_own_request_is_no_dead_worker_s_however_long_it_takes(any_server, clock):
    with limiter(any_server, clock=clock) as engine, any_server.client() as redis:
        (location,) = put_off(engine, "a")
        clock.advance(60)

        def handed_out():
            ((entry),) = redis.xpending_range(STREAM, "workers", "-", "+", 10)
            return entry

        async def slow():
            entry = handed_out()
            worker, number = entry["consumer"], entry["message_id"]
            redis.xclaim(STREAM, "workers", worker, 0, [number], idle=3_600_000, retrycount=1)
            await until(lambda: handed_out()["times_delivered"] > 1)  # it has looked for what the dead left

        async def scenario():
            async with working(engine, Meanwhile(in_process(site.asgi), slow), timeout=10.0):
                await until(lambda: fates(engine, [location]) == ["done"])

        site = Site(engine)
        asyncio.run(scenario())
        assert site.bodies == ["a"]


@pytest.mark.parametrize("outcome", ["done", "parked"])
def test_an_entry_that_stands_for_nothing_any_more_is_dropped(any_server, clock, outcome):
    with limiter(any_server, clock=clock, max_attempts=1) as engine, any_server.client() as redis:
        site = Site(engine, 200 if outcome == "done" else 500)
        (location,) = put_off(engine, "a")
        clock.advance(60)
        asyncio.run(_work(engine, site, lambda: fates(engine, [location]) == [outcome]))
        redis.xadd(STREAM, {"id": location.rpartition("/")[2], "lane": "any"})
        asyncio.run(_work(engine, site, lambda: redis.xlen(STREAM) == 0))
        assert (site.bodies, fates(engine, [location])) == (["a"], [outcome])


def test_a_client_that_an_operator_blocks_is_looked_at_again_later(any_server, clock):
    with limiter(any_server, clock=clock) as engine, any_server.client() as redis:
        site = Site(engine)
        (location,) = put_off(engine, "a")
        engine.overrides.set({"ip": IP}, block=True)
        clock.advance(60)

        async def scenario():
            async with working(engine, in_process(site.asgi)):
                await until(lambda: redis.zcard("{shop:deferred}:waiting"))
                assert site.seen == []
                engine.overrides.remove({"ip": IP})
                clock.advance(298)
                looks = any_server.calls("eval")
                await until(lambda: any_server.calls("eval") > looks + 4)
                assert fates(engine, [location]) == ["queued"]
                await until(lambda: fates(engine, [location]) == ["done"], clock)

        asyncio.run(scenario())
        assert site.bodies == ["a"]


def test_a_rule_that_will_not_do_without_its_counter_has_the_request_wait_for_it(any_server, clock):
    rule = {**REPORTS, "on_error": "deny"}
    with limiter(any_server, rule, clock=clock) as engine, any_server.client() as redis:
        site = Site(engine)
        (location,) = put_off(engine, "a")
        (counter,) = redis.keys("shop:reports:*")
        redis.delete(counter)
        redis.lpush(counter, "spoilt")
        clock.advance(60)

        async def scenario():
            async with working(engine, in_process(site.asgi)):
                await until(lambda: redis.zcard("{shop:deferred}:waiting"))
                assert site.seen == []
                redis.delete(counter)
                await until(lambda: fates(engine, [location]) == ["done"], clock)

        asyncio.run(scenario())
        assert site.bodies == ["a"]


def test_a_redis_that_does_not_begin_an_attempt_delays_it(any_server, clock):
    with limiter(any_server, clock=clock) as engine, any_server.client() as redis:
        site = Site(engine)
        (location,) = put_off(engine, "a")
        record = f"{{shop:deferred}}:request:{location.rpartition('/')[2]}"
        redis.hset(record, "attempts", 2**63 - 1)  # Redis refuses to add one
        clock.advance(60)

        async def scenario():
            async with working(engine, in_process(site.asgi)):
                await until(lambda: redis.zcard("{shop:deferred}:waiting"))
                assert site.seen == []
                redis.hset(record, "attempts", 0)
                await until(lambda: fates(engine, [location]) == ["done"], clock)

        asyncio.run(scenario())
        assert site.bodies == ["a"]


def test_a_redis_that_stays_away_longer_than_a_worker_insists_leaves_the_result_unknown(any_server, clock, caplog):
    with limiter(any_server, clock=clock) as engine, Proxy(any_server.port) as proxy:
        site = Site(engine)
        (location,) = put_off(engine, "a")
        clock.advance(60)

        async def cut():
            proxy.reset()

        async def scenario(behind):
            async with working(behind, Meanwhile(in_process(site.asgi), cut), timeout=1.0):
                await until(lambda: "a worker will claim it again" in caplog.text)
                proxy.heal()
                await until(lambda: fates(engine, [location]) == ["unknown"])

        with limiter(proxy, clock=clock) as behind:
            asyncio.run(scenario(behind))
        assert site.bodies == ["a"]


def test_a_worker_that_can_not_take_its_leave_goes_all_the_same(fresh_server, clock, caplog):
    caplog.set_level(logging.DEBUG, "ratelimit_mw")
    with limiter(fresh_server, clock=clock) as engine, fresh_server.client() as redis:
        site = Site(engine)
        (location,) = put_off(engine, "a")
        clock.advance(60)

        async def scenario():
            async with working(engine, in_process(site.asgi)):
                await until(lambda: fates(engine, [location]) == ["done"])
                redis.execute_command("ACL", "SETUSER", "default", "-xgroup")

        asyncio.run(scenario())
        assert "could not leave the consumer group" in caplog.text
        assert site.bodies == ["a"]


def test_a_worker_that_stops_while_its_redis_is_away_goes_all_the_same(fresh_server, clock, caplog):
    with limiter(fresh_server, clock=clock) as engine:

        async def scenario():
            async with working(engine, in_process(Site(engine).asgi)):
                fresh_server.kill()
                await until(lambda: "the queue is away" in caplog.text)

        asyncio.run(scenario())
        assert caplog.text.count("the queue is away") == 1
