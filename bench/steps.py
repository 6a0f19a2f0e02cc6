"""How many bytecodes of this package a request runs: a figure that needs no quiet machine.

`python -m bench.steps` prints the counts, and `--write` stores them for the version of Python that runs it. `make soak`
holds the stored counts. A count of processor instructions (callgrind) would also see the work of C functions, but there
is no wheel of valgrind, and its counts differ with each build of Python.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import ratelimit_mw
from bench.apps import FIVE, ask_wsgi, config, empty_asgi, receive, send
from bench.traffic import STREAMS
from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.support.servers import BINARIES, Server
from tests.support.steps import steps

STORED = Path(__file__).with_name("results") / "steps.json"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
REQUESTS = 100
PACKAGE = str(Path(ratelimit_mw.__file__).parent)


def counted() -> dict[str, int]:
    """Bytecodes for each request, by what is asked."""
    five = {**config(), "rules": FIVE}
    found = {
        "ASGI, memory, a known client": _asgi(config(), "one"),
        "ASGI, memory, new clients": _asgi(config(), "new"),
        "ASGI, memory, five rules, a known client": _asgi(five, "one"),
        "ASGI, memory, five rules, new clients": _asgi(five, "new"),
        "WSGI, memory, a known client": _wsgi("one"),
        "WSGI, memory, new clients": _wsgi("new"),
    }
    if BINARIES:
        with Server(BINARIES[0]) as server:
            found["acheck, Redis, one at a time"] = _redis(server.url)
    return found


def stored() -> dict[str, int]:
    """The stored counts of this version of Python. Empty if there are none."""
    found: dict[str, dict[str, int]] = json.loads(STORED.read_text("utf-8"))
    return found.get(PYTHON, {})


def _each(work: Callable[[int], object]) -> int:
    """Bytecodes for each request, without those of the first ones."""
    work(REQUESTS)
    return round(steps(lambda: work(REQUESTS), PACKAGE) / REQUESTS)


def _asgi(rules: dict[str, object], stream: str) -> int:
    with RateLimiter(rules, clock=ManualClock()) as limiter:
        app, coming = Asgi(empty_asgi, limiter=limiter), STREAMS[stream]()

        async def serve(number: int) -> None:
            for request in islice(coming, number):
                await app(request.scope(), receive, send)

        return _each(lambda number: asyncio.run(serve(number)))


def _wsgi(stream: str) -> int:
    def hello(_environ: object, start: Callable[..., object]) -> list[bytes]:
        start("200 OK", [])
        return [b"ok"]

    with RateLimiter(config(), clock=ManualClock()) as limiter:
        app, coming = Wsgi(hello, limiter=limiter), STREAMS[stream]()
        return _each(lambda number: [ask_wsgi(app, request.environ()) for request in islice(coming, number)])


def _redis(url: str) -> int:
    def decide(number: int) -> int:
        async def run() -> None:
            async with RateLimiter(config(), storage=url) as limiter:
                for request in islice(STREAMS["new"](), number):
                    await limiter.acheck(request.attributes())

        return steps(lambda: asyncio.run(run()), PACKAGE)

    decide(1)  # what is imported and made at the first one
    return round((decide(2 * REQUESTS) - decide(REQUESTS)) / REQUESTS)


if __name__ == "__main__":
    now = counted()
    print("\n".join(f"{count:6} {what}" for what, count in now.items()))
    if sys.argv[1:] == ["--write"]:
        STORED.write_text(json.dumps(json.loads(STORED.read_text("utf-8")) | {PYTHON: now}, indent=1) + "\n", "utf-8")
