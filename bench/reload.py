"""A thousand rules taken up while a loop serves: the longest time that it was held up."""

import asyncio
import tempfile
import time
from pathlib import Path

from bench.measure import Figure
from ratelimit_mw import RateLimiter

RELOADS = 7
CLIENT = {"ip": "192.0.2.1", "path": "/a7/1"}


def rules(count: int, limit: int) -> str:
    listed = "".join(
        f"  - {{name: r{n}, match: {{path: '/a{n}/{{id}}'}}, by: [ip, path], limit: [{limit}/m, 20/h]}}\n"
        for n in range(count)
    )
    return f"domain: d\nreload: 100ms\nclient: {{secret: s}}\nrules:\n{listed}"


def write(file: Path, limit: int) -> None:
    new = file.with_suffix(".new")
    new.write_text(rules(1000, limit))
    new.replace(file)


async def longest_pause(limiter: RateLimiter) -> tuple[float, float]:
    worst, version, begun = 0.0, limiter.state.version, time.perf_counter()
    while limiter.state.version == version:
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        await limiter.acheck(CLIENT)
        worst = max(worst, time.perf_counter() - before - 0.001)
    return worst, time.perf_counter() - begun


async def pauses() -> list[tuple[float, float]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rules.yaml")
        write(file, 1)
        found = []
        async with RateLimiter(file) as limiter:
            await limiter.acheck(CLIENT)
            for reload in range(RELOADS):
                write(file, 2 + reload)
                found.append(await longest_pause(limiter))
        return found


def figures() -> list[Figure]:
    found = sorted(asyncio.run(pauses()))
    worst, took = found[len(found) // 2]
    return [
        Figure("Reload of 1000 rules", "the longest pause of the loop", worst * 1e3, "ms", f"bar: 5; in {took:.1f} s")
    ]
