"""The rows of the benchmark: what each measures, and what measures it. The first nineteen are the numbers to reach."""

import importlib
from collections.abc import Iterator
from typing import NamedTuple

from bench.measure import Effort, Figure


class Row(NamedTuple):
    """One row: its name on the command line, its title, and the functions that measure it (`module.function`)."""

    name: str
    title: str
    measured_by: tuple[str, ...]
    held: bool = True
    """Whether the row has a bar. The others are experiments, for a picture or a decision of the documentation."""

    def figures(self, effort: Effort) -> Iterator[Figure]:
        """Measure the row. The modules are imported now: each of them imports other things."""
        for path in self.measured_by:
            module, _, function = path.partition(".")
            yield from getattr(importlib.import_module(f"bench.{module}"), function)(effort)


ROWS = (
    Row(
        "uvicorn",
        "A Starlette app under a real uvicorn, 50 connections: CPU (user and system) added per request",
        ("served.added",),
    ),
    Row(
        "asgi-memory",
        "ASGI, memory, one rule, in a Starlette app: CPU added per request",
        ("memory.asgi_known", "telemetry.counting"),
    ),
    Row("asgi-memory-new", "The same, for a client and a path never seen before", ("memory.asgi_new",)),
    Row("five-rules", "Five rules on a request against one: CPU added per request", ("memory.asgi_five",)),
    Row("wsgi-memory", "WSGI, memory, one rule, in a Flask app: CPU added per request", ("memory.wsgi",)),
    Row("redis-asyncio", "asyncio, Redis, 100 in flight: one process", ("redis_asyncio.decisions",)),
    Row("redis-starlette", "ASGI, Redis, 100 in flight: a Starlette app in one process", ("redis_asyncio.starlette",)),
    Row("redis-latency", "ASGI, Redis, one at a time: mean latency of a decision", ("redis_asyncio.latency",)),
    Row("round-trips", "Redis round trips for a request that five rules match", ("redis_calls.round_trips",)),
    Row("redis-server", "CPU of the Redis server for a decision", ("redis_calls.server_cpu",)),
    Row("wsgi-redis", "WSGI and threads, Redis: one process", ("redis_threads.wsgi", "redis_threads.decisions")),
    Row("leases", "Leases and write-back", ("leases.figures",)),
    Row("denied", "Denied clients that keep sending requests rapidly", ("redis_calls.denied", "telemetry.denial")),
    Row("many-rules", "Matching cost of 1 000 rules against 10 rules", ("rules.matching",)),
    Row("hostile", "A hostile request of 8 and 64 KiB, beside a plain one: CPU", ("hostile.decisions",)),
    Row("redis-bytes", "Redis bytes per counter", ("footprint.redis_bytes",)),
    Row("million-counters", "Memory store, one million counters", ("footprint.million_counters",)),
    Row("reload", "Reload of 1 000 rules, in a process with 100 000 objects of its own", ("rules.reload",)),
    Row("reload-list", "Reload of a list of 100 000 addresses, in the same process", ("rules.reload_list",)),
    Row("import", "Import beyond the framework: CPU", ("footprint.importing",)),
    Row("replay", "Replay of a log of a million lines: CPU of one process", ("replay.reading", "replay.million_lines")),
    Row(
        "what-if",
        "The what-if of a replay: 50 limits for a million requests of 50 000 clients, CPU",
        ("what_if.curves",),
    ),
    Row(
        "service",
        "`ratelimit-mw serve`: CPU of a decision beside a constant answer of a plain server, and its start",
        ("service.decisions", "service.auth", "service.start"),
    ),
    Row("asking", "An app that asks the service: its CPU for a decision beside that over Redis", ("service.asking",)),
    Row("workers", "`ratelimit-mw serve` by several processes, over Redis", ("service.workers",), held=False),
    Row(
        "shared",
        "`lmdb://`: counters that the processes of one machine share",
        ("shared.cost", "shared.rates", "shared.pacing", "shared.size"),
    ),
    Row("page", "The live page: its data, and its calls to Redis", ("page.state_json", "page.viewers", "live.looks")),
    Row(
        "elastic", "An elastic limit of 40 a second, up to 200 % below a load of 0.7", ("elastic.figures",), held=False
    ),
    Row("shed", "Load shedding: 40 payments a second, and a job that wants 80 reports", ("shed.figures",), held=False),
    Row("memory-layouts", "One million counters in other layouts", ("memory_layouts.figures",), held=False),
)

UNMEASURED: set[str] = set()
"""Rows that came after the last full run. The next one measures them."""
