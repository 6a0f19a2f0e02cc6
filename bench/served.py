"""A Starlette app under a real uvicorn, asked over 50 connections: the processor time that a limiter adds to a request.

Between two requests, a server leaves the caches of the processor cold, so a limiter costs more here than in a loop of
one process. The user and the system time of all threads of the server count. All clients come through one proxy,
because they have one machine.

`python -m bench.served WHO [URL]` is such a server.
"""

import asyncio
import socket
import sys
from collections.abc import Iterator
from typing import Any

import uvicorn

from bench.apps import starlette_app
from bench.constant_servers import say_ready
from bench.measure import OURS, Effort, Figure, Run, alone, beside, in_turn, more
from bench.service import Call, Running, ask
from bench.traffic import NAMES, SEEN, STREAMS, Request
from tests.support.servers import BINARIES, Server

CONNECTIONS = 50
REQUESTS = 2_000  # in each round
ROUNDS = 13
SLOWAPI = "slowapi"
BARE = "no limiter"


def added(effort: Effort) -> Iterator[Figure]:
    """Microseconds of the server's processor time that a limiter adds, counters in memory and in Redis."""
    number = effort.part(REQUESTS)
    with Server(BINARIES[0]) as server:
        stores = {"memory": "memory://", "Redis": server.url}
        contestants: dict[Any, tuple[Any, ...]] = {BARE: (cost, BARE, "", number)}
        for store, url in stores.items():
            contestants |= {(store, who): (cost, who, url, number) for who in (OURS, SLOWAPI)}
        took = in_turn(contestants, effort.rounds(ROUNDS))
    bars = {"memory": 1 / 5, "Redis": 1 / 10}
    for store, most in bars.items():
        ours, theirs = (more(took[store, who], took[BARE]) for who in (OURS, SLOWAPI))
        yield beside(f"{store}: {NAMES['known']}", ours, SLOWAPI, theirs, "us", at_most=most)
    yield alone("the app and the server without a limiter", took[BARE], "us")


def cost(who: str, url: str, number: int) -> Run:
    """Microseconds of the server's processor time for a request."""
    running = Running("-m", "bench.served", who, url).__enter__()  # it ends with this process
    loop, coming = asyncio.new_event_loop(), STREAMS["known"]()
    messages = (_message(request) for request in coming)
    calls = loop.run_until_complete(_connected(running.targets[0]))
    loop.run_until_complete(ask(calls, messages, SEEN["known"]))

    def run() -> float:
        before = running.cpu()
        loop.run_until_complete(ask(calls, messages, number))
        return (running.cpu() - before) / number

    return run


def _message(request: Request) -> bytes:
    return request.head() + f"\r\nX-Forwarded-For: {request.address}\r\n\r\n".encode()


async def _connected(target: str) -> list[Call]:
    host, _, port = target.rpartition(":")
    return [_call(*await asyncio.open_connection(host, int(port))) for _ in range(CONNECTIONS)]


def _call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Call:
    async def call(data: bytes) -> None:
        writer.write(data)
        answer = await reader.readuntil(b"\r\n\r\nok")
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(answer.decode())

    return call


def serve(who: str, url: str = "") -> None:
    """Serve the app until the process is ended."""
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    found.listen(2048)
    say_ready("http", found.getsockname()[1])
    app = starlette_app(who, url or None)
    # Connections stay open while the other servers are asked.
    config = uvicorn.Config(app, log_config=None, access_log=False, forwarded_allow_ips="*", timeout_keep_alive=600)
    asyncio.run(uvicorn.Server(config).serve([found]))


if __name__ == "__main__":
    serve(*sys.argv[1:])
