"""Hostile test 40: a server under load and faults keeps its descriptors, connections, threads, tasks and memory flat.

The soak takes about a minute, or as many seconds as SOAK_SECONDS says. Its verdict is no duration: it compares what
the process holds after the first round of faults with what it holds after the last one, at rest each time.
"""

import asyncio
import itertools
import os
import time

import httpx
import pytest

from tests.support.apps import uvicorn
from tests.support.patience import eventually
from tests.support.proxy import Proxy
from tests.support.servers import BINARIES, Server

SECONDS = float(os.environ.get("SOAK_SECONDS", "60"))

pytestmark = pytest.mark.timeout(SECONDS * 10 + 300)

# What it holds, by the app's own account: descriptors, threads, tasks, objects, and resident kilobytes.
APP = """
import asyncio, gc, os, threading
from ratelimit_mw.asgi import RateLimitMiddleware

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        for word in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{word}.complete"})
        return
    body = b"hello"
    if scope["path"] == "/held":
        gc.collect()
        held = len(os.listdir("/proc/self/fd")), threading.active_count(), len(asyncio.all_tasks())
        body = " ".join(map(str, (*held, len(gc.get_objects()), resident()))).encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})

app = RateLimitMiddleware(app, "rules.yaml")
"""

RULES = """
domain: d
storage: {{url: "{url}", timeout: 200ms}}
reload: 200ms
client: {{user: "header:X-User", secret: s}}
exempt: [{{path: /held}}]
rules:
  - {{name: all, by: user, limit: {limit} per minute}}
  - {{name: log, match: {{path: /log}}, by: user, limit: 20 per second, algorithm: sliding_log}}
  - {{name: held, match: {{path: /concurrent}}, limit: 20 concurrent}}
  - {{name: lease, match: {{path: /lease}}, by: user, limit: 1000 per minute, consistency: lease}}
  - {{name: back, match: {{path: /back}}, by: user, limit: 1000 per minute, consistency: write_back}}
  - {{name: failed, match: {{path: /failed}}, by: user, limit: 50 per minute, count: {{status: [401]}}}}
"""
PATHS = ("/", "/log", "/concurrent", "/lease", "/back", "/failed")
USERS = 50


def faults(proxy, server):
    """One after the other, for ever. Each begins a fault, and ends it when it is gone on with."""
    while True:
        for fault in (
            proxy.black_hole,
            proxy.reset,
            proxy.half_reply,
            proxy.drop_reply,
            lambda: proxy.drop_reply(close=False),
            lambda: proxy.delay(0.3),
            lambda: proxy.drip(1, 0.02),
            lambda: proxy.reply_with(b"$3\r\nabc\r\n"),
            lambda: proxy.reply_with(b"*1000000000\r\n"),
        ):
            yield fault, proxy.heal
        yield server.pause, server.resume
        yield server.kill, server.start
        yield server.admin.script_flush, proxy.heal


async def ask(client, url, number, statuses):
    headers = {"X-User": f"user-{number % USERS}"}
    try:
        answer = await client.get(url + PATHS[number % len(PATHS)], headers=headers)
        statuses.add(answer.status_code)
    except httpx.TimeoutException:  # the client leaves in the middle of its request: so do clients
        statuses.add("left")


async def load(url, seconds, statuses):
    """Ask at 200 a second at most; one client in ten does not wait for its answer."""
    limits = httpx.Limits(max_connections=20)
    ends = time.monotonic() + seconds
    async with (
        httpx.AsyncClient(limits=limits, timeout=60) as patient,
        httpx.AsyncClient(limits=limits, timeout=0.05) as hasty,
    ):
        numbers = itertools.count()
        while time.monotonic() < ends:
            batch = [next(numbers) for _ in range(20)]
            await asyncio.gather(*(ask(hasty if each % 10 == 9 else patient, url, each, statuses) for each in batch))
            await asyncio.sleep(0.1)


def held(url):
    """What the server holds at rest: the least of several looks, for the last connections close a little later."""
    looks = []
    for _ in range(20):
        looks.append([int(number) for number in httpx.get(f"{url}/held").text.split()])
        time.sleep(0.2)
    return [min(each) for each in zip(*looks, strict=True)]


def test_nothing_grows_under_faults(tmp_path):
    (tmp_path / "soaked.py").write_text(APP)
    rules = tmp_path / "rules.yaml"
    with Server(BINARIES[0]) as server, Proxy(server.port) as proxy:
        rules.write_text(RULES.format(url=proxy.url, limit=100))
        with uvicorn("soaked:app", cwd=tmp_path) as app:
            statuses, rounds = set(), []
            each = faults(proxy, server)
            ends = time.monotonic() + SECONDS
            while len(rounds) < 2 or time.monotonic() < ends:
                for turn in range(12):
                    begin, end = next(each)
                    begin()
                    broken = RULES.format(url=proxy.url, limit=100 + turn) if turn % 3 else "domain: [never closed"
                    rules.write_text(broken)
                    asyncio.run(load(app.url, 0.5, statuses))
                    end()
                    asyncio.run(load(app.url, 0.5, statuses))
                proxy.heal()
                # Limits apply again: one client alone is denied in the end.
                rules.write_text(RULES.format(url=proxy.url, limit=5))
                lone = {"X-User": f"lone-{len(rounds)}"}
                eventually(lambda lone=lone: httpx.get(app.url, headers=lone).status_code == 429)
                rounds.append(held(app.url))
                connections = proxy.open
            assert statuses <= {200, 429, "left"}
            assert connections <= 10
            first, last = rounds[0], rounds[-1]
            names = ("descriptors", "threads", "tasks")
            assert dict(zip(names, last, strict=False)) == pytest.approx(dict(zip(names, first, strict=False)), abs=3)
            assert last[3] < first[3] * 1.2 + 5_000, (first, last)  # objects
            assert last[4] < first[4] * 1.2 + 20_000, (first, last)  # kilobytes
            log = app.log
    assert "Traceback" not in log
    assert "never retrieved" not in log
    assert "Task was destroyed" not in log
