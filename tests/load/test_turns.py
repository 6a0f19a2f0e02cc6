"""Requests that wait for their turn start when it comes: not before, as the suite shows, and not late either.

A start may be late by 20 ms, which is ten times what it usually is on a machine that has nothing else to do.
"""

import asyncio
import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from tests.shells.asking import exchange, http_scope
from tests.shells.turns import ask, config, serve

LATE = 0.02


def evenly(starts, turn):
    gaps = [later - earlier for earlier, later in itertools.pairwise(sorted(starts))]
    assert all(abs(gap - turn) <= LATE for gap in gaps), f"gaps of {gaps}, not {turn}"


@pytest.mark.parametrize("storage", ["memory", "Redis"])
def test_starts_within_one_process_are_evenly_spaced_whatever_the_work_takes(any_server, storage):
    async def main():
        starts = []

        async def app(scope, receive, send):
            starts.append(time.monotonic())
            await asyncio.sleep(0.3)

        async with RateLimiter(config(), storage="memory://" if storage == "memory" else any_server.url) as engine:
            await engine.acheck({"ip": "192.0.2.1"})  # connected
            limited = Asgi(app, limiter=engine)
            await asyncio.gather(*(exchange(limited, http_scope()) for _ in range(8)))
        return starts

    starts = asyncio.run(main())
    assert len(starts) == 8
    evenly(starts, 0.05)


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_departures_from_two_processes_are_evenly_spaced_and_in_order(tmp_path, any_server, kind):
    rule = {"limit": "10 per second", "burst": 12, "max_waiting": 20} if kind == "wsgi" else {"limit": "10 per second"}
    with serve(tmp_path, kind, any_server, **rule) as running:
        processes = {ask(running.url, 0).json()["process"] for _ in range(12)}
        time.sleep(0.2)  # until the bucket has run dry
        with ThreadPoolExecutor(10) as pool:
            answers = list(pool.map(lambda number: ask(running.url, number, after=0.02 * number), range(10)))
        assert [answer.status_code for answer in answers] == [200] * 10
        seen = in_order(answers)
    evenly([found["start"] for found in seen], 0.1)
    assert len(processes | {found["process"] for found in seen}) == 2


def test_a_client_that_hangs_up_gives_no_wrong_turn_to_others(tmp_path, any_server):
    with serve(tmp_path, "asgi", any_server, limit="10 per second") as running:
        ask(running.url, 0)
        time.sleep(0.2)
        with ThreadPoolExecutor(6) as pool:

            def one(number):
                time.sleep(number * 0.03)
                if number != 2:
                    return ask(running.url, number)
                with pytest.raises(httpx.ReadTimeout):
                    ask(running.url, number, timeout=0.05)
                return None

            answers = [answer for answer in pool.map(one, range(6)) if answer is not None]
    seen = in_order(answers)
    began = seen[0]["start"]
    assert {found["number"] for found in seen} == {0, 1, 3, 4, 5}
    assert [found["start"] - began for found in seen] == pytest.approx([0, 0.1, 0.3, 0.4, 0.5], abs=LATE)


def in_order(answers):
    """What the app saw, by its starts; those that came clearly before others also started before them."""
    seen = sorted((answer.json() for answer in answers), key=lambda found: found["start"])
    for first, second in itertools.pairwise(seen):
        assert first["came"] < second["came"] + 0.03  # while the one was asking Redis, the next may have overtaken it
    return seen
