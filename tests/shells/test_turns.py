"""Requests that wait for their turn at a bucket: under both middlewares, and under servers of several processes.

The clock stands still, so each decision's delay is exact. Time is then measured from below only: no request starts
before its turn, however fast or slow the machine. `tests/load/test_turns.py` has the upper bounds.
"""

import asyncio
import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from tests.shells.asking import IP, ask_asgi, ask_wsgi, exchange, http_scope
from tests.shells.turns import QUEUE, ask, config, serve
from tests.support.patience import WITHIN, at_most

TURN = 0.05
SLOW = {"limit": "2 per second"}
SLOW_TURN = 0.5
CLOCKS = 0.005  # by which two clocks of one machine may differ


def limiter(*rules, storage="memory://", **rule):
    return RateLimiter(config(*rules, **rule), storage=storage, clock=ManualClock())


def test_under_asgi_requests_start_one_by_one_in_order(storage):
    async def main():
        seen = {}

        async def app(scope, receive, send):
            seen[scope["number"]] = time.monotonic()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        async with limiter(storage=storage) as engine:
            await engine.acheck({"ip": "192.0.2.1"})  # connected
            before, began = set(threading.enumerate()), time.monotonic()
            limited = Asgi(app, limiter=engine)
            answers = await asyncio.gather(*(exchange(limited, http_scope(number=n)) for n in range(12)))
            assert not set(threading.enumerate()) - before, "waiting takes no thread"
        return [answer[0]["status"] for answer in answers], {n: at - began for n, at in seen.items()}

    statuses, starts = asyncio.run(main())
    assert statuses == [200] * 10 + [429] * 2
    assert list(starts) == list(range(10))
    assert [n for n, after in starts.items() if after < n * TURN - CLOCKS] == [], "none before its turn"


def test_check_never_sleeps_and_says_how_long_to(storage):
    with limiter(storage=storage, limit="1 per minute") as engine, at_most(30):
        said = [engine.check({"ip": IP}) for _ in range(5)]
    assert [decision.delay for decision in said] == [0, 60, 120, 180, 240]


def test_of_several_delays_the_longest_holds_and_a_shadow_delays_none():
    slow = {**QUEUE, "name": "slow", "limit": "1 per second"}
    shadow = {**QUEUE, "name": "shadow", "limit": "1 per hour", "shadow": True}
    with limiter(slow, shadow, **SLOW) as engine:
        engine.check({"ip": IP})
        said = engine.check({"ip": IP})
    assert said.delay == 1
    assert [policy.delay for policy in said.policies] == [0.5, 1, 3600]


def test_a_denied_request_waits_for_nothing():
    closed = {"name": "closed", "limit": "2 per hour", "algorithm": "fixed_window"}
    with limiter(closed, limit="1 per minute") as engine:
        said = [engine.check({"ip": IP}) for _ in range(3)]
    assert [decision.allowed for decision in said] == [True, True, False]
    assert (said[2].rule, said[2].delay) == ("closed", 0.0)


def test_a_request_that_leaves_the_queue_gives_no_other_an_earlier_turn():
    async def main():
        starts, begun = {}, asyncio.Event()

        async def app(scope, receive, send):
            starts[scope["number"]] = time.monotonic()
            begun.set()

        async with limiter() as engine:
            began = time.monotonic()
            limited = Asgi(app, limiter=engine)
            waiting = [asyncio.create_task(exchange(limited, http_scope(number=n))) for n in range(6)]
            await begun.wait()
            waiting[2].cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        return {number: at - began for number, at in starts.items()}

    starts = asyncio.run(main())
    assert list(starts) == [0, 1, 3, 4, 5]
    assert [n for n, after in starts.items() if after < n * TURN - CLOCKS] == [], "none before its turn"


def test_slow_work_does_not_hold_the_leak_up():
    async def main():
        async with limiter() as engine:
            all_started = asyncio.Barrier(4)

            async def app(scope, receive, send):
                await all_started.wait()  # none ends before all have begun

            limited = Asgi(app, limiter=engine)
            async with asyncio.timeout(WITHIN):
                await asyncio.gather(*(exchange(limited, http_scope()) for _ in range(4)))
            return all_started.broken

    assert not asyncio.run(main())


def test_max_wait_is_how_long_the_queue_gets(storage):
    with limiter(storage=storage, max_wait="1100ms", **SLOW) as engine:
        said = [engine.check({"ip": IP}) for _ in range(4)]
    assert [decision.allowed for decision in said] == [True, True, True, False]
    assert said[3].retry_after == pytest.approx(0.4)


def test_a_token_bucket_waits_for_its_token_instead_of_denying(storage):
    rule = {"algorithm": "token_bucket", "burst": 2, "max_wait": "1100ms", **SLOW}
    with limiter(storage=storage, **rule) as engine:
        said = [engine.check({"ip": "192.0.2.1"}) for _ in range(5)]
        assert [decision.allowed for decision in said] == [True, True, True, True, False]
        assert [decision.delay for decision in said] == [0, 0, 0.5, 1, 0]
        began = time.monotonic()
        answered = [ask_asgi(engine).status, ask_asgi(engine).status, ask_wsgi(engine).status]
        assert time.monotonic() - began >= SLOW_TURN - CLOCKS
    assert answered == [200] * 3


@pytest.mark.parametrize(("most", "pass_"), [(2, 3), (0, 1)])
def test_under_wsgi_so_many_threads_wait_and_the_rest_is_denied(storage, most, pass_):
    with limiter(storage=storage, limit="1 per second", max_waiting=most) as engine, ThreadPoolExecutor(8) as pool:
        start = threading.Barrier(8)

        def one(_):
            start.wait(WITHIN)  # a turn is many times longer than it takes eight threads to ask
            return ask_wsgi(engine)

        answers = list(pool.map(one, range(8)))
        assert [answer.status for answer in answers].count(200) == pass_
        assert all(a.status == 200 or 1 <= int(a.headers["retry-after"]) <= math.ceil(pass_) for a in answers)
        engine.reset({"ip": IP})
        assert ask_wsgi(engine).status == 200, "all places are free again"


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_departures_from_two_processes_share_one_queue(tmp_path, any_server, kind):
    rule = {"limit": "10 per second", "burst": 12, "max_waiting": 20}
    with serve(tmp_path, kind, any_server, **rule) as running, ThreadPoolExecutor(10) as pool:
        seen = []
        while len({found["process"] for found in seen}) < 2:  # the kernel chooses the process
            answers = list(pool.map(lambda number: ask(running.url, number), range(10)))
            assert [answer.status_code for answer in answers] == [200] * 10
            seen = [answer.json() for answer in answers]
    came, starts = min(found["came"] for found in seen), sorted(found["start"] for found in seen)
    assert [n for n, at in enumerate(starts) if at - came < n * 0.1 - CLOCKS] == [], "none before its turn"
