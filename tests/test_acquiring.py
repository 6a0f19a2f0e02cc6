"""`acquire` waits for a place, and `limited` puts a block of code under a rule."""

import asyncio
import logging
import math
import threading
from contextlib import ExitStack

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.clock import machine_clock_is
from ratelimit_mw.errors import LimitExceeded
from tests.shells.asking import START, limiter
from tests.support.patience import aeventually, eventually

CLIENT = {"ip": "192.0.2.1"}


def blocking(engine, *arguments, **options):
    return engine.acquire(*arguments, **options)


def awaited(engine, *arguments, **options):
    return asyncio.run(engine.aacquire(*arguments, **options))


def with_block(engine, *arguments, **options):
    with engine.limited(*arguments, **options) as decision:
        return decision


def async_with_block(engine, *arguments, **options):
    async def main():
        async with engine.limited(*arguments, **options) as decision:
            return decision

    return asyncio.run(main())


EACH = pytest.mark.parametrize("acquire", [blocking, awaited])
EACH_BLOCK = pytest.mark.parametrize("enter", [with_block, async_with_block])


def one(limit="1 per minute", **rule):
    return [{"name": "one", "by": "ip", "limit": limit, "algorithm": "fixed_window", **rule}]


@EACH
def test_a_request_waits_until_its_limit_allows_it(acquire, clock, storage):
    with limiter(rules=one(), clock=clock, storage=storage) as engine:
        assert acquire(engine, CLIENT, timeout=0).allowed
        decision = acquire(engine, CLIENT, timeout=60)
        assert (decision.allowed, decision.used, clock.now()) == (True, 1, (START + 40) * 1_000_000)


@EACH
def test_a_denial_that_lasts_beyond_the_timeout_is_returned_at_once(acquire, clock):
    engine = limiter(rules=one(), clock=clock)
    assert acquire(engine, CLIENT, timeout=2.0).allowed
    decision = acquire(engine, CLIENT, timeout=39.9)
    assert (decision.allowed, decision.retry_after, decision.rule) == (False, 40, "one")
    assert clock.now() == START * 1_000_000


@EACH
def test_a_denial_for_ever_is_returned_at_once_even_without_a_timeout(acquire, clock):
    assert acquire(limiter(rules=one("0 per minute"), clock=clock), CLIENT, timeout=math.inf).retry_after == math.inf


@EACH
def test_a_limit_that_may_open_earlier_is_tried_again_at_the_timeout(acquire, clock):
    engine = limiter(rules=one(count={"status": [401]}), clock=clock)
    assert acquire(engine, CLIENT, timeout=0).allowed
    assert not acquire(engine, CLIENT, timeout=5).allowed
    assert clock.now() == (START + 5) * 1_000_000


@EACH
def test_a_request_waits_for_its_turn_at_a_bucket(acquire, clock):
    engine = limiter(rules=one("1 per second", algorithm="leaky_bucket", burst=5), clock=clock)
    delays = [acquire(engine, CLIENT, timeout=10).delay for _ in range(3)]
    assert (delays, clock.now()) == ([0.0, 1.0, 1.0], (START + 2) * 1_000_000)


@EACH
def test_a_turn_that_comes_after_the_timeout_is_returned(acquire, clock):
    engine = limiter(rules=one("1 per minute", algorithm="leaky_bucket", burst=5), clock=clock)
    assert acquire(engine, CLIENT, timeout=0).allowed
    for _ in range(10):  # the bucket would be full if turns were kept
        decision = acquire(engine, CLIENT, timeout=2.0)
        assert (decision.allowed, decision.reason, decision.retry_after) == (False, "limited", 58)
    assert acquire(engine, CLIENT, timeout=60).delay == 60


@EACH
def test_only_the_last_denial_is_logged(acquire, clock, caplog):
    caplog.set_level(logging.INFO, "ratelimit_mw.denials")
    engine = limiter(rules=one(count={"status": [401]}), clock=clock)
    for _ in range(2):
        acquire(engine, CLIENT, timeout=5)
    assert len(caplog.records) == 1


@EACH
def test_a_store_that_is_unavailable_is_asked_until_the_timeout(acquire, clock):
    with limiter(rules=one(on_error="deny"), clock=clock, storage="redis://127.0.0.1:9/0") as engine:
        assert acquire(engine, CLIENT, timeout=2.5).reason == "unavailable"
    assert clock.now() == START * 1_000_000 + 2_500_000


@EACH_BLOCK
def test_a_block_does_not_wait_unless_it_is_told_to(enter, clock):
    engine = limiter(rules=one("1 per second", algorithm="leaky_bucket", burst=5), clock=clock)
    assert enter(engine, "one", CLIENT).allowed
    with pytest.raises(LimitExceeded):
        enter(engine, "one", CLIENT)
    assert clock.now() == START * 1_000_000


@pytest.mark.parametrize("timeout", [-1, math.nan])
def test_a_timeout_below_zero_is_refused(timeout):
    engine = limiter()
    with pytest.raises(ValueError, match="timeout is"):
        engine.acquire(CLIENT, timeout=timeout)
    with pytest.raises(ValueError, match="timeout is"):
        engine.limited("everybody", CLIENT, timeout=timeout)


def test_a_clock_that_stands_in_for_the_machine_is_moved():
    clock = ManualClock(START)
    with machine_clock_is(clock), RateLimiter({"domain": "d", "rules": one()}) as engine:
        assert [engine.acquire(CLIENT, timeout=60).allowed for _ in range(2)] == [True, True]
    assert clock.now() == (START + 40) * 1_000_000


@EACH_BLOCK
def test_a_concurrent_rule_on_demand_holds_a_place_for_each_key(enter, clock, storage):
    with limiter(
        rules=one("1 concurrent", algorithm="concurrency", on_demand=True), clock=clock, storage=storage
    ) as engine:
        for _ in range(2):
            with engine.limited("one", {}, key="ann"):
                enter(engine, "one", {}, key="bob")
                with pytest.raises(LimitExceeded):
                    enter(engine, "one", {}, key="ann")
        with engine.limited("one", {}, key="ann", limit="unlimited"), engine.limited("one", {}, key="ann"):
            pass


@EACH_BLOCK
def test_a_timeout_that_is_no_whole_number_of_microseconds_ends(enter, clock):
    engine = limiter(rules=one("1 concurrent", algorithm="concurrency"), clock=clock)
    with engine.limited("one", CLIENT):
        with pytest.raises(LimitExceeded):
            enter(engine, "one", CLIENT, timeout=1 / 3)
        assert clock.now() == START * 1_000_000 + 333_333


@EACH_BLOCK
def test_a_place_that_comes_free_is_taken_within_a_tenth_of_a_second(enter):
    held = ExitStack()

    class UntilItMoves(ManualClock):
        def advance(self, seconds):
            super().advance(seconds)
            held.close()

    clock = UntilItMoves(START)
    engine = limiter(rules=one("1 concurrent", algorithm="concurrency"), clock=clock)
    held.enter_context(engine.limited("one", CLIENT))
    assert enter(engine, "one", CLIENT, timeout=30).allowed
    assert clock.now() == START * 1_000_000 + 100_000


@EACH
def test_by_the_clock_of_the_machine_it_sleeps(acquire):
    with RateLimiter({"domain": "d", "rules": one("1 per second", algorithm="token_bucket")}) as engine:
        assert [acquire(engine, CLIENT, timeout=30).allowed for _ in range(2)] == [True, True]


# ------------------------------------------------------------------------------------------- limited


@EACH_BLOCK
def test_a_block_runs_as_often_as_its_rule_allows(enter, clock, storage, caplog):
    caplog.set_level(logging.INFO, "ratelimit_mw.denials")
    with limiter(rules=one(on_demand=True), clock=clock, storage=storage) as engine:
        assert enter(engine, "one", CLIENT).allowed
        with pytest.raises(LimitExceeded, match=r"^denied by the rule 'one'; retry after 40 s$") as caught:
            enter(engine, "one", CLIENT)
        assert (caught.value.decision.limit, len(caplog.records)) == (1, 1)
        assert enter(engine, "one", CLIENT, timeout=40).allowed


@EACH_BLOCK
def test_an_unknown_rule_is_an_error_of_the_block(enter):
    with pytest.raises(LookupError, match="did you mean 'everybody'"):
        enter(limiter(), "everbody", CLIENT)


@EACH_BLOCK
def test_what_a_block_raises_passes(enter, clock):
    engine = limiter(rules=one(), clock=clock)
    with pytest.raises(KeyError, match="inside"), engine.limited("one", CLIENT):
        raise KeyError("inside")


def test_a_place_in_flight_is_held_until_the_block_ends(storage, caplog):
    with limiter(rules=one("1 concurrent", algorithm="concurrency"), storage=storage) as engine:
        for _ in range(3):
            with engine.limited("one", CLIENT):
                with pytest.raises(LimitExceeded), engine.limited("one", CLIENT):
                    raise AssertionError("there is one place")
                with engine.limited("one", {"ip": "192.0.2.2"}):
                    pass
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_place_in_flight_is_returned_by_a_task_that_is_cancelled(storage):
    async def main(engine):
        block = engine.limited("one", CLIENT)
        for _ in range(3):
            entered = asyncio.Event()

            async def work(entered=entered):
                async with block:
                    entered.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await asyncio.wait_for(entered.wait(), 30)
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
        async with block:
            pass

    with limiter(rules=one("1 concurrent", algorithm="concurrency"), storage=storage) as engine:
        asyncio.run(main(engine))


def test_a_place_in_flight_is_returned_by_a_task_that_is_cancelled_while_it_waits_for_its_turn(storage):
    limits = {"default": ["1 concurrent", "1 per hour"], "probe": "1 concurrent"}  # the tiers share the place in flight
    rule = {"name": "one", "by": "ip", "limit": limits, "algorithm": "leaky_bucket", "burst": 5}

    def has_a_place(engine):
        try:
            with engine.limited("one", {**CLIENT, "tier": "probe"}):
                return True
        except LimitExceeded:
            return False

    async def main(engine):
        async with engine.limited("one", CLIENT):
            pass

        async def wait():
            async with engine.limited("one", CLIENT, timeout=math.inf):
                raise AssertionError("its turn comes later")

        task = asyncio.create_task(wait())
        await aeventually(lambda: len(engine.engine.storage.in_flight) == 1)
        assert not has_a_place(engine)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await aeventually(lambda: has_a_place(engine))

    client = {"tier": "header:X-Tier"}
    rules = {"domain": "d", "storage": {"timeout": "5s"}, "client": client, "rules": [rule]}
    with RateLimiter(rules, storage=storage) as engine:  # by the clock of the machine, so that it really waits
        asyncio.run(main(engine))


def test_a_thread_waits_until_another_thread_leaves_its_block():
    rules = {"domain": "d", "storage": {"timeout": "5s"}, "rules": one("1 concurrent", algorithm="concurrency")}
    order = []

    def wait(engine):
        with engine.limited("one", CLIENT, timeout=60):
            order.append("second")

    with RateLimiter(rules) as engine:
        thread = threading.Thread(target=wait, args=(engine,))
        with engine.limited("one", CLIENT):
            thread.start()
            eventually(thread.is_alive)
            order.append("first")
        thread.join(60)
    assert order == ["first", "second"]
