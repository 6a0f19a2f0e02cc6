"""Many rules: what matching a thousand of them costs, and how long taking up a thousand of them holds up a loop."""

import asyncio
import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.measure import Collections, Effort, Figure, Run, Spread, alone, beside, in_turn
from bench.traffic import Request
from ratelimit_mw import RateLimiter

FEW, MANY = 10, 1_000
PLANS = 5_000
LONG = "/api/" + "a/" * 50_000
KINDS = {"one path": "one path, seen before", "new": "paths never seen before, spread over all rules"}

RELOADS = 9
ADDRESSES = 100_000
OBJECTS = 100_000
CLIENT = {"ip": "192.0.2.1", "path": "/a7/1"}


def matching(effort: Effort) -> Iterator[Figure]:
    """Matching cost of 1 000 rules against 10 rules, one of which applies."""
    number, rounds = effort.part(PLANS), effort.rounds(25)
    took = in_turn(
        {(kind, count): (plan_cpu, count, kind, number) for kind in KINDS for count in (FEW, MANY)}
        | {("long", MANY): (plan_cpu, MANY, "long", 50)},
        rounds,
    )
    microseconds = {name: [value * 1e6 for value in values] for name, values in took.items()}
    for kind, name in KINDS.items():
        many, few = microseconds[kind, MANY], microseconds[kind, FEW]
        yield beside(f"{MANY} rules: {name}", many, f"{FEW} rules", few, "us", at_most=1.5)
    yield alone(f"{MANY} rules: a path of 100 KB", microseconds["long", MANY], "us")


def plan_cpu(count: int, kind: str, plans: int) -> Run:
    """Seconds of the processor to find the rules of a request, with this number of rules."""
    from ratelimit_mw.config.load import Document, load_documents
    from ratelimit_mw.identity.http_request import AsgiRequest

    listed = [
        {"name": f"r{n}", "match": {"path": f"/api/v{n}/items/{{id:int}}"}, "limit": "10 per minute"}
        for n in range(count)
    ]
    rules = load_documents([Document("", {"domain": "bench", "rules": listed})])
    served = 0

    def paths() -> Iterator[str]:
        nonlocal served
        for number in range(served, served + plans):
            spread = number * 7919 % count
            yield {"one path": "/api/v7/items/42", "long": LONG}.get(kind) or f"/api/v{spread}/items/{number}"
        served += plans

    def run() -> float:
        requests = [AsgiRequest(Request(7, path).scope()) for path in paths()]
        start = time.process_time()
        for request in requests:
            rules.plan(request)
        return (time.process_time() - start) / plans

    return run


def reload(effort: Effort) -> Iterator[Figure]:
    """Reload of 1 000 rules while a loop serves: the longest pause, in a process with 100 000 objects of its own."""
    yield _longest_pause(_rules, effort)


def reload_list(effort: Effort) -> Iterator[Figure]:
    """Reload of a list of 100 000 addresses while a loop serves: the longest pause, as in `reload`."""
    yield _longest_pause(_addresses, effort)


def _longest_pause(written: Callable[[int], str], effort: Effort) -> Figure:
    kept = [[number] for number in range(OBJECTS)]  # lists, because the garbage collector visits them
    found, collections = asyncio.run(_pauses(3 if effort.quick else RELOADS, written))
    del kept
    longest = Spread.of(pause.cpu * 1e3 for pause in found)
    note = (
        f"{len(found)} reloads; the longest pause by the clock was {max(pause.clock for pause in found) * 1e3:.1f} ms, "
        f"the longest garbage collection {collections.longest * 1e3:.1f} ms, full ones: {collections.full}, "
        f"the longest reload {max(pause.reload for pause in found):.1f} s"
    )
    name = "the longest pause of the loop, by this process's work"
    return Figure(name, longest, "ms", at_most=20, worst=True, note=note)


class Pause:
    """The longest time that a loop was held up during one reload.

    `clock` is its wall time. `cpu` counts at most the time that this process, with all its threads, worked in it: what
    other processes took is no pause of ours.
    """

    def __init__(self) -> None:
        self.clock = self.cpu = self.reload = 0.0


async def _pauses(reloads: int, written: Callable[[int], str]) -> tuple[list[Pause], Collections]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rules.yaml")
        _write(file, written(1))
        found = []
        async with RateLimiter(file) as limiter:
            await limiter.acheck(CLIENT)
            gc.collect()  # an app's own objects are older than its last full collection
            with Collections() as collections:
                for number in range(reloads):
                    _write(file, written(2 + number))
                    found.append(await _pause(limiter))
        return found, collections


async def _pause(limiter: RateLimiter) -> Pause:
    found, version, begun = Pause(), limiter.state.version, time.perf_counter()
    while limiter.state.version == version:
        clock, cpu = time.perf_counter(), time.process_time()
        await asyncio.sleep(0.001)
        await limiter.acheck(CLIENT)
        clock, cpu = time.perf_counter() - clock - 0.001, time.process_time() - cpu
        found.clock = max(found.clock, clock)
        found.cpu = max(found.cpu, min(clock, cpu))
    found.reload = time.perf_counter() - begun
    return found


def _write(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(f"domain: d\nreload: 100ms\nclient: {{secret: s}}\n{text}")
    new.replace(file)


def _rules(limit: int) -> str:
    listed = (
        f"  - {{name: r{n}, match: {{path: '/a{n}/{{id}}'}}, by: [ip, path], limit: [{limit}/m, 20/h]}}\n"
        for n in range(MANY)
    )
    return f"rules:\n{''.join(listed)}"


def _addresses(limit: int) -> str:
    # 7919 is prime, so that each of the addresses is in a network of its own.
    numbers = (number * 7919 % 2**24 for number in range(ADDRESSES))
    listed = (f"      - 10.{number >> 16}.{number >> 8 & 255}.{number & 255}\n" for number in numbers)
    return f"rules:\n  - {{name: r, limit: {limit}/m}}\nexempt:\n  - ip:\n{''.join(listed)}"
