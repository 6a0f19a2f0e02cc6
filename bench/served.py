"""A Starlette app under a real uvicorn, asked over 50 connections: the processor time that a limiter adds to a request.

Between two requests, a server leaves the caches of the processor cold, so a limiter costs more here than in a loop of
one process. The user and the system time of all threads of the server count. All clients come through one proxy,
because they have one machine.

All servers of a round are there at once. They take turns after each wave of 50 requests, one on each connection, so all
of them meet the same noise. A round is long enough for the garbage collector to run in each of them. Each round has
processes of its own, because two processes of one server differ by up to 6 µs: their memory is laid out differently.

`python -m bench.served WHO HTTP LOOP [URL]` is such a server.
"""

import socket
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Self

import uvicorn

from bench.apps import starlette_app
from bench.constant_servers import say_ready
from bench.measure import OURS, Effort, Figure, alone, beside, more
from bench.service import Running
from bench.traffic import NAMES, SEEN, STREAMS
from tests.support.servers import BINARIES, Server

CONNECTIONS = 50
WAVES = 20  # in each round
ROUNDS = 7
SLOWAPI = "slowapi"
BARE = "no limiter"
KINDS = {"uvicorn": ("h11", "asyncio"), "uvicorn[standard]": ("httptools", "uvloop")}
"""The parser and the event loop that uvicorn has without and with its recommended dependencies."""
ALIKE = {"MALLOC_MMAP_THRESHOLD_": str(2**22), "MALLOC_TRIM_THRESHOLD_": str(2**24)}
"""Keeps the memory that asyncio reads into (256 KiB). By default it depends on what an app has imported whether glibc
returns this memory after each request, which costs about 20 µs."""


def added(effort: Effort) -> Iterator[Figure]:
    """Microseconds of the server's processor time that a limiter adds, counters in memory and in Redis."""
    for kind, parts in KINDS.items():
        took: defaultdict[Any, list[float]] = defaultdict(list)
        with Server(BINARIES[0]) as server:
            stores = {"memory": "memory://", "Redis": server.url}
            contestants: dict[Any, tuple[str, ...]] = {BARE: (BARE, *parts)}
            for store, url in stores.items():
                contestants |= {(store, who): (who, *parts, url) for who in (OURS, SLOWAPI)}
            for _ in range(effort.rounds(ROUNDS)):
                for name, micros in _round(contestants, effort.part(WAVES)).items():
                    took[name].append(micros)
        for store, most in {"memory": 1 / 5, "Redis": 1 / 10}.items():
            ours, theirs = (more(took[store, who], took[BARE]) for who in (OURS, SLOWAPI))
            yield beside(f"{kind}, {store}: {NAMES['known']}", ours, SLOWAPI, theirs, "us", at_most=most)
        yield alone(f"{kind}: the app and the server without a limiter", took[BARE], "us")


def _round(contestants: dict[Any, tuple[str, ...]], waves: int) -> dict[Any, float]:
    """Microseconds for a request of each server. They take turns after each wave."""
    with ExitStack() as stack:
        asked = {name: stack.enter_context(Asked(*what)) for name, what in contestants.items()}
        for each in asked.values():
            for _ in range(SEEN["known"] // CONNECTIONS):
                each.wave()
        spent = dict.fromkeys(asked, 0.0)
        for number in range(waves):
            for name in asked if number % 2 else reversed(asked):
                spent[name] += asked[name].wave()
    return {name: micros / (waves * CONNECTIONS) for name, micros in spent.items()}


class Asked(Running):
    """A server with open connections. Its arguments are those of `serve`."""

    def __init__(self, *what: str) -> None:
        super().__init__("-m", "bench.served", *what, environment=ALIKE)
        self._coming = STREAMS["known"]()

    def __enter__(self) -> Self:
        super().__enter__()
        host, _, port = self.targets[0].rpartition(":")
        self._connections = [socket.create_connection((host, int(port)), 60) for _ in range(CONNECTIONS)]
        return self

    def __exit__(self, *exc_info: object) -> None:
        for connection in self._connections:
            connection.close()
        super().__exit__(*exc_info)

    def wave(self) -> float:
        """Send one request on each connection. Returns the microseconds that they took the server, in all."""
        before = self.cpu()
        for connection, request in zip(self._connections, self._coming, strict=False):
            connection.sendall(request.head() + f"\r\nX-Forwarded-For: {request.address}\r\n\r\n".encode())
        for connection in reversed(self._connections):  # the last first, which wakes this process once
            answer = b""
            while not answer.endswith(b"\r\n\r\nok"):
                answer += connection.recv(65_536)
            if not answer.startswith(b"HTTP/1.1 200 "):
                raise RuntimeError(answer.decode())
        return self.cpu() - before


def serve(who: str, http: str, loop: str, url: str = "") -> None:
    """Serve the app until the process is ended."""
    found = socket.socket()
    found.bind(("127.0.0.1", 0))
    found.listen(2048)
    say_ready("http", found.getsockname()[1])
    app = starlette_app(who, url or None)
    # Connections stay open while the other servers are asked.
    parts: Any = {"http": http, "loop": loop}
    config = uvicorn.Config(
        app, **parts, log_config=None, access_log=False, forwarded_allow_ips="*", timeout_keep_alive=600
    )
    uvicorn.Server(config).run([found])


if __name__ == "__main__":
    serve(*sys.argv[1:])
