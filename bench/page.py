"""The live page: what its data cost, and what its viewers cost the server of the storage."""

import asyncio
import time
from collections.abc import Iterator

from bench.measure import OURS, Effort, Figure, Remote, Run, alone, in_turn
from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.operations.page import Page
from tests.support.servers import BINARIES, Server

TOKEN = "the token of the benchmark"
RULES = 20
CLIENTS = 60  # more than are shown
STEPS = 90  # of 10 seconds: the 15 minutes that are shown
PROCESSES = 4
REQUESTS = 100
ROUNDS = 11
VIEWERS = 20
EXCHANGES = 5  # of the process with the server, one a second


def state_json(effort: Effort) -> Iterator[Figure]:
    """`/state.json` of four processes that share a server: 20 rules over 15 minutes, and 50 limited clients."""
    names = [OURS, *(f"process {each}" for each in range(1, PROCESSES))]
    with Server(BINARIES[0]) as server:
        serve = serving, server.url, effort.part(REQUESTS)
        took = in_turn(dict.fromkeys(names, serve), effort.rounds(ROUNDS))
    yield alone("`/state.json`: CPU of a request", took[OURS], "ms", at_most=5)


def viewers(_effort: Effort) -> Iterator[Figure]:
    """The commands of the page that a server gets in a second, while many viewers ask without a pause."""
    with Server(BINARIES[0]) as server:
        remote = Remote(watched, server.url)
        try:
            before, after = remote()
        finally:
            remote.close()
    commands = after[0] - before[0]
    yield alone(f"Redis commands for {VIEWERS} viewers", [round(commands / (after[1] - before[1]), 1)], "/s", at_most=2)


def serving(url: str, requests: int) -> Run:
    """A function that returns the milliseconds of the processor for one request of the data."""
    clock = ManualClock()
    limiter, page = _made(url, clock)
    for _ in range(STEPS):
        for each in range(RULES):
            for _ in range(2):
                limiter.check({"ip": f"192.0.2.{each}", "path": f"/{each}"})
        clock.advance(10)
        asyncio.run(_ask(page))
    for each in range(CLIENTS):
        for _ in range(2):
            limiter.check({"ip": f"198.51.100.{each}", "path": "/0"})

    async def ask() -> None:
        for _ in range(requests):
            await _ask(page)

    def run() -> float:
        start = time.process_time()
        asyncio.run(ask())
        return (time.process_time() - start) / requests * 1e3

    return run


def watched(url: str) -> Run:
    """A function that lets viewers ask, and returns the number of commands and the time after two exchanges."""
    import redis

    _, page = _made(url, None)
    client = redis.Redis.from_url(url)

    def commands() -> int:
        calls = client.info("commandstats")
        return sum(calls.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("mget", "set"))

    async def next_exchange() -> tuple[int, float]:
        """Wait until the number of commands has changed."""
        before = now = commands()
        while now == before:
            await asyncio.sleep(0.002)
            now = commands()
        await asyncio.sleep(0.1)  # both commands of an exchange
        return commands(), time.perf_counter()

    async def ask() -> None:
        while True:
            await _ask(page)
            await asyncio.sleep(0.01)

    async def watch() -> tuple[tuple[int, float], tuple[int, float]]:
        tasks = [asyncio.create_task(ask()) for _ in range(VIEWERS)]
        for _ in range(3):  # the first ones look for a place
            first = await next_exchange()
        for _ in range(EXCHANGES):
            last = await next_exchange()
        for task in tasks:
            task.cancel()
        return first, last

    return lambda: asyncio.run(watch())


def _made(url: str, clock: ManualClock | None) -> tuple[RateLimiter, Page]:
    rules = [
        {"name": f"rule-{each}", "match": {"path": f"/{each}"}, "by": "ip", "limit": "1 per day"}
        for each in range(RULES)
    ]
    limiter = RateLimiter({"domain": "bench", "storage": {"url": url, "timeout": "5s"}, "rules": rules}, clock=clock)
    return limiter, Page(limiter, token=TOKEN)


async def _ask(page: Page) -> None:
    """Ask for the data, as a server does that mounts the page."""
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/_limits/state.json",
        "root_path": "/_limits",
        "scheme": "http",
        "headers": [(b"authorization", f"Bearer {TOKEN}".encode())],
        "client": ("192.0.2.1", 40000),
    }
    sent = []

    async def receive() -> dict:
        return {"type": "http.request", "body": b""}

    async def send(message: dict) -> None:
        sent.append(message)

    await page(scope, receive, send)
    assert sent[0]["status"] == 200
    assert b'"up":true' in sent[1]["body"]
