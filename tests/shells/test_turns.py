"""Requests that wait for their turn at a bucket: under both middlewares, and under servers of several processes."""

import asyncio
import itertools
import math
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from tests.shells.asking import IP, ask_asgi, ask_wsgi, exchange, http_scope
from tests.support.apps import gunicorn, uvicorn
from tests.support.patience import WITHIN, at_most, three_tries

QUEUE = {"name": "queue", "limit": "20 per second", "algorithm": "leaky_bucket", "burst": 10}
TURN = 0.05
SLOW = {"limit": "2 per second"}  # for what is asked within a turn, on a machine that may be busy
SLOW_TURN = 0.5


def config(*rules, **rule):
    return {"domain": "d", "storage": {"timeout": "5s"}, "rules": [{**QUEUE, **rule}, *rules]}


CONTEXT = ssl.create_default_context()  # to make one takes a client longer than to ask


def evenly(experiment, turn=TURN):
    """What came of an experiment whose starts are spaced as the contract wants it: within 20 ms or 5 %."""

    @three_tries
    def tried():
        starts, found = experiment()
        gaps = [later - earlier for earlier, later in itertools.pairwise(sorted(starts))]
        assert all(abs(gap - turn) <= max(0.02, turn * 0.05) for gap in gaps), f"gaps of {gaps}, not {turn}"
        return found

    return tried()


async def starts_of(engine, number):
    """When the app saw each of so many requests that came at once, by their number."""
    seen = {}

    async def app(scope, receive, send):
        seen[scope["number"]] = time.monotonic()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    limited = Asgi(app, limiter=engine)
    answers = await asyncio.gather(*(exchange(limited, http_scope(number=n)) for n in range(number)))
    return seen, [answer[0]["status"] for answer in answers]


def test_under_asgi_requests_start_one_by_one_in_order(storage):
    async def main():
        async with RateLimiter(config(), storage=storage) as engine:
            await engine.acheck({"ip": "192.0.2.1"})  # connected
            before = threading.active_count()
            seen, statuses = await starts_of(engine, 12)
            await engine.areset({"ip": IP})
            return seen.values(), (list(seen), statuses, threading.active_count() - before)

    order, statuses, threads = evenly(lambda: asyncio.run(main()))
    assert statuses == [200] * 10 + [429] * 2
    assert order == list(range(10))
    assert threads <= 0  # one of an earlier test may have ended meanwhile


def test_check_never_sleeps_and_says_how_long_to(storage):
    with RateLimiter(config(**SLOW), storage=storage) as engine, at_most(4 * SLOW_TURN):
        said = [engine.check({"ip": IP}) for _ in range(5)]
    assert said[0].delay == 0.0
    assert [round(decision.delay / SLOW_TURN) for decision in said] == [0, 1, 2, 3, 4]


def test_of_several_delays_the_longest_holds_and_a_shadow_delays_nobody():
    slow = {**QUEUE, "name": "slow", "limit": "1 per second"}
    shadow = {**QUEUE, "name": "shadow", "limit": "1 per hour", "shadow": True}
    with RateLimiter(config(slow, shadow, **SLOW), storage="memory://") as engine:
        engine.check({"ip": IP})
        said = engine.check({"ip": IP})
    assert said.delay == pytest.approx(1, abs=0.3)
    assert [policy.delay for policy in said.policies] == pytest.approx([0.5, 1, 3600], abs=0.3)


def test_a_denied_request_waits_for_nothing():
    closed = {"name": "closed", "limit": "2 per hour", "algorithm": "fixed_window"}
    with RateLimiter(config(closed, limit="1 per minute"), storage="memory://") as engine:
        said = [engine.check({"ip": IP}) for _ in range(3)]
    assert [decision.allowed for decision in said] == [True, True, False]
    assert (said[2].rule, said[2].delay) == ("closed", 0.0)


@three_tries
def test_whoever_leaves_the_queue_gives_nobody_a_wrong_turn():
    async def main():
        async with RateLimiter(config(), storage="memory://") as engine:
            starts = []

            async def app(scope, receive, send):
                starts.append((scope["number"], time.monotonic()))

            limited = Asgi(app, limiter=engine)
            waiting = [asyncio.create_task(exchange(limited, http_scope(number=n))) for n in range(6)]
            await asyncio.sleep(TURN / 2)
            waiting[2].cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            return starts

    starts = asyncio.run(main())
    assert [number for number, _ in starts] == [0, 1, 3, 4, 5]
    began = starts[0][1]
    assert [(at - began) / TURN for _, at in starts] == pytest.approx([0, 1, 3, 4, 5], abs=0.4)


def test_slow_work_does_not_hold_the_leak_up():
    async def main():
        async with RateLimiter(config(), storage="memory://") as engine:
            starts = []

            async def app(scope, receive, send):
                starts.append(time.monotonic())
                await asyncio.sleep(0.3)

            limited = Asgi(app, limiter=engine)
            await asyncio.gather(*(exchange(limited, http_scope()) for _ in range(4)))
            return starts, len(starts)

    assert evenly(lambda: asyncio.run(main())) == 4


def test_max_wait_is_how_long_the_queue_gets(storage):
    with RateLimiter(config(max_wait="1100ms", **SLOW), storage=storage) as engine:
        said = [engine.check({"ip": IP}) for _ in range(4)]
    assert [decision.allowed for decision in said] == [True, True, True, False]
    assert 0 < said[3].retry_after <= 2 * SLOW_TURN


def test_a_token_bucket_waits_for_its_token_instead_of_denying(storage):
    rule = {"algorithm": "token_bucket", "burst": 2, "max_wait": "1100ms", **SLOW}
    with RateLimiter(config(**rule), storage=storage) as engine:
        began = time.monotonic()
        answered = [ask_asgi(engine).status for _ in range(2)]
        assert time.monotonic() - began < SLOW_TURN
        answered.append(ask_wsgi(engine).status)
        assert SLOW_TURN * 0.5 < time.monotonic() - began < SLOW_TURN * 2
        said = [engine.check({"ip": IP}) for _ in range(4)]
    assert answered == [200] * 3
    assert [decision.allowed for decision in said] == [True, True, False, False]


@pytest.mark.parametrize(("most", "pass_"), [(None, 5), (2, 3), (0, 1)])
def test_under_wsgi_so_many_threads_wait_and_the_rest_is_denied(storage, most, pass_):
    rule = SLOW if most is None else {"max_waiting": most, **SLOW}
    with RateLimiter(config(**rule), storage=storage) as engine, ThreadPoolExecutor(8) as pool:

        @three_tries  # a thread that comes a turn late finds a place that another has left
        def at_once():
            engine.reset({"ip": IP})
            start = threading.Barrier(8)

            def one(_):
                start.wait(WITHIN)
                return ask_wsgi(engine)

            answers = list(pool.map(one, range(8)))
            assert [answer.status for answer in answers].count(200) == pass_
            return answers

        for answer in at_once():
            assert answer.status == 200 or 1 <= int(answer.headers["retry-after"]) <= math.ceil(pass_ * SLOW_TURN)
        time.sleep(SLOW_TURN)
        assert ask_wsgi(engine).status == 200  # nobody waits any more, and nobody was charged for nothing


SERVED = """
import json, os, time
from ratelimit_mw.{kind} import RateLimitMiddleware

CONFIG = {config}

def report(number, came):
    found = {{"came": came, "start": time.time(), "number": int(number), "process": os.getpid()}}
    return json.dumps(found).encode()

async def asgi(scope, receive, send):
    body = report(scope["query_string"].decode(), scope["came"])
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    await send({{"type": "http.response.body", "body": body}})

def wsgi(environ, start_response):
    body = report(environ["QUERY_STRING"], environ["came"])
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]

limited = RateLimitMiddleware({kind}, CONFIG)

async def asgi_app(scope, receive, send):
    await limited({{**scope, "came": time.time()}}, receive, send)

def wsgi_app(environ, start_response):
    return limited({{**environ, "came": time.time()}}, start_response)
"""


def serve(tmp_path, kind, server, **rule):
    written = {**config(**rule), "storage": {"url": server.url, "timeout": "5s"}}
    (tmp_path / "served.py").write_text(SERVED.format(kind=kind, config=written))
    if kind == "asgi":
        return uvicorn("served:asgi_app", workers=2, cwd=tmp_path)
    return gunicorn("served:wsgi_app", workers=2, cwd=tmp_path, args=["--threads", "12"])


def ask(url, number, timeout=10.0, after=0.0):
    time.sleep(after)
    return httpx.get(f"{url}/?{number}", timeout=timeout, verify=CONTEXT)


def in_order(answers):
    """What the app saw, by its starts; those that came clearly before others also started before them."""
    seen = sorted((answer.json() for answer in answers), key=lambda found: found["start"])
    for first, second in itertools.pairwise(seen):
        assert first["came"] < second["came"] + 0.03  # while the one was asking Redis, the next may have overtaken it
    return seen


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_departures_from_two_processes_are_evenly_spaced_and_in_order(tmp_path, any_server, kind):
    rule = {"limit": "10 per second", "burst": 12, "max_waiting": 20} if kind == "wsgi" else {"limit": "10 per second"}
    with serve(tmp_path, kind, any_server, **rule) as running:
        processes = {ask(running.url, 0).json()["process"] for _ in range(12)}

        def experiment():
            time.sleep(0.2)  # until the bucket has run dry
            with ThreadPoolExecutor(10) as pool:
                answers = list(pool.map(lambda number: ask(running.url, number, after=0.02 * number), range(10)))
            assert [answer.status_code for answer in answers] == [200] * 10
            seen = in_order(answers)
            return [found["start"] for found in seen], {found["process"] for found in seen}

        processes |= evenly(experiment, 0.1)
    assert len(processes) == 2


@three_tries
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
    assert [(found["start"] - began) / 0.1 for found in seen] == pytest.approx([0, 1, 3, 4, 5], abs=0.2)
