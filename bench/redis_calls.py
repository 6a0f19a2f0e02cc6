"""How often Redis is called: for a request that five rules match, and for clients that keep sending after a denial."""

import asyncio
import time
from collections.abc import Iterator
from itertools import islice

from bench.apps import FIVE, IN_FLIGHT, Statuses, config, empty_asgi, receive
from bench.measure import Effort, Figure, alone, beside
from bench.traffic import Request, known, zipf
from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware
from tests.support.servers import BINARIES, Server

SENDERS = 20
EACH = 2_000
BAN = {"after": "10 denials in 1 minute", "for": "10 minutes"}


def round_trips(effort: Effort) -> Iterator[Figure]:
    """Redis calls for a request that five rules match."""
    number = effort.part(2_000)
    with Server(BINARIES[0]) as server:
        asyncio.run(_serve(server.url, {**config(), "rules": FIVE}, list(islice(zipf(), number))))
        counters = len(server.keys())
        yield alone("calls per request", [_calls(server) / number], "", at_most=1, note=f"{counters} counters")


def denied(effort: Effort) -> Iterator[Figure]:
    """Denied clients that keep sending requests rapidly: Redis calls, and time of the processor, per denied request."""
    senders = effort.part(SENDERS)
    for what, rule, asks in (
        ("denied", {}, "the first denial of a client asks Redis"),
        ("banned", {"ban": BAN}, "the ten denials of a client before its ban ask Redis"),
    ):
        requests = [Request(client, f"/items/{number}") for number in range(EACH) for client in range(senders)]
        with Server(BINARIES[0]) as server:
            statuses, took = asyncio.run(_serve(server.url, config("10 per hour", **rule), requests))
            admitted, refused = statuses[200], statuses[429]
            calls = _calls(server) - admitted
        note = f"{senders} clients, {EACH} requests each; {asks}"
        yield alone(f"{what} clients: calls per denied request", [calls / refused], "", at_most=0.01, note=note)
        yield alone(f"{what} clients: CPU of a whole request", [took * 1e6], "us")


DECISIONS = 5_000
ROUNDS = 5


def server_cpu(effort: Effort) -> Iterator[Figure]:
    """Microseconds of the processor of Redis for a decision beside a bare INCR in a script, each called by itself."""
    number, one = effort.part(DECISIONS), config()
    cases = (
        (f"{IN_FLIGHT} in flight", one, IN_FLIGHT, 2 / 1.9, _used),
        ("one at a time, in the script", one, 1, 4.5 / 1.4, _in_script),
        (f"five rules, {IN_FLIGHT} in flight", {**config(), "rules": FIVE}, IN_FLIGHT, 12 / 1.9, _used),
    )
    for what, rules, in_flight, most, spent in cases:
        took: list[float] = []
        bare: list[float] = []
        with Server(BINARIES[0]) as server:
            coming = known()
            for _ in range(effort.rounds(ROUNDS)):
                requests = list(islice(coming, number))
                before = spent(server)
                asyncio.run(_decide(server.url, rules, requests, in_flight))
                between = spent(server)
                _count(server, requests, in_flight)
                bare.append(1e6 * (spent(server) - between) / number)
                took.append(1e6 * (between - before) / number)
        yield beside(what, took, "bare INCR in a script", bare, "us", at_most=most)


async def _decide(url: str, rules: dict[str, object], requests: list[Request], in_flight: int) -> None:
    asked = [
        request.attributes()
        | {"header:authorization": f"Bearer {request.client}", "cookie:session": f"of {request.client}"}
        for request in requests
    ]

    async def client() -> None:
        while asked:
            await limiter.acheck(asked.pop())

    async with RateLimiter(rules, storage=url) as limiter:
        await asyncio.gather(*(client() for _ in range(in_flight)))


def _count(server: Server, requests: list[Request], in_flight: int) -> None:
    """Count each request with a script that does nothing but INCR, `in_flight` of them sent together."""
    script = server.admin.register_script("return redis.call('INCR', KEYS[1])")
    for first in range(0, len(requests), in_flight):
        with server.admin.pipeline(transaction=False) as pipeline:
            for request in requests[first : first + in_flight]:
                script([f"bare:{{{request.address}}}"], client=pipeline)
            pipeline.execute()


def _used(server: Server) -> float:
    """The seconds that the processor has worked for the server."""
    found = server.admin.info("cpu")
    return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])


def _in_script(server: Server) -> float:
    """The seconds that the server has spent in scripts which it knew."""
    stats = server.admin.info("commandstats")
    return sum(float(stats[name]["usec"]) / 1e6 for name in ("cmdstat_evalsha", "cmdstat_fcall") if name in stats)


def _calls(server: Server) -> int:
    """The decisions that the server has made: the first one of a connection may bring the script along."""
    return server.calls("evalsha") + server.calls("eval")


async def _serve(url: str, rules: dict[str, object], requests: list[Request]) -> tuple[dict[int, int], float]:
    """Serve the requests one after the other. Returns the statuses, and the processor's seconds for each request."""
    send = Statuses()
    async with RateLimiter(rules, storage=url) as limiter:
        app = RateLimitMiddleware(empty_asgi, limiter=limiter)
        spent = 0.0
        for request in requests:
            scope = request.scope()
            start = time.process_time()
            await app(scope, receive, send)
            spent += time.process_time() - start
    return send.seen, spent / len(requests)
