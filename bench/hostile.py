"""What a hostile request costs beside a plain one: cookies, queries and headers of 8 and 64 KiB."""

import asyncio
import time
from collections.abc import Iterator

from bench.apps import empty_asgi, receive, send
from bench.measure import Effort, Figure, Run, alone, beside, in_turn
from bench.traffic import Request
from ratelimit_mw import RateLimiter

CONFIG = {
    "domain": "bench",
    "client": {"user": "cookie:sid", "tier": "query:plan", "secret": "s"},
    "rules": [
        {"name": "all", "by": "user|ip", "limit": {"default": "100 per day", "premium": "200 per day"}},
        {"name": "header", "match": {"header:x-kind": "a"}, "by": "header:x-user", "limit": "100 per day"},
    ],
}
BY_LINES = {**CONFIG, "client": {"user": "cookie:sid", "tier": "header:x-plan", "secret": "s"}}
"""The same rules without the query, so that the plan of a client is remembered by its header lines."""

RULES = {"": CONFIG, "plans by header lines, ": BY_LINES}
KIB = 1024
SIZES = {8 * KIB: 6, 64 * KIB: 40}
"""The bar of each size, as a multiple of a plain decision."""

_COOKIES = {
    "cookies without a name": b"; ",
    "cookies of one name": b"; sid=",
    "its name without a value": b" sid",
    "escapes": b"\\101",
    "commas": b",aaaaaaa",
    "blanks": b" ",
    "bytes that are not UTF-8": b"\xe9",
}
_QUERIES = {
    "other parameters": b"&a=1",
    "parameters of one name": b"&plan=",
    "percent signs": b"%41",
    "percent signs without digits": b"%zz",
    "percent signs that are not UTF-8": b"%ff",
    "semicolons": b";plan=",
}
_LINES = {
    "lines of one cookie": (b"cookie", b"sid=a"),
    "lines of one header": (b"x-user", b"a"),
    "lines of another spelling": (b"x_user", b"a"),
    "lines of other headers": (b"x-other", b"a"),
}
HOSTILE = (*_COOKIES, *_QUERIES, *_LINES)


def scope_of(kind: str, size: int) -> dict[str, object]:
    """A scope whose headers or query have this size. 0: a plain request, with one cookie."""
    scope = Request(7, "/").scope()
    cookie, query, lines = b"sid=s", b"plan=premium", []
    if size and kind in _COOKIES:
        cookie = b'sid="a' + _COOKIES[kind] * ((size - 64) // len(_COOKIES[kind])) + b'"; sid=s'
    elif size and kind in _QUERIES:
        query = b"plan=a" + _QUERIES[kind] * ((size - 64) // len(_QUERIES[kind]))
    elif size:
        name, value = _LINES[kind]
        lines = [(name, value)] * (size // (len(name) + len(value) + 4))
    headers = [(b"host", b"shop.example"), (b"cookie", cookie), *lines]
    return {**scope, "headers": headers, "query_string": query}


def decisions(effort: Effort) -> Iterator[Figure]:
    """The dearest kind of hostile request beside a plain one, by CPU. Neither is cached: each has its own address."""
    rounds = effort.rounds(15)
    for rules in RULES:
        for size, bar in SIZES.items():
            took = in_turn({kind: (decision_cpu, kind, size, rules) for kind in ("plain", *HOSTILE)}, rounds)
            microseconds = {kind: [value * 1e6 for value in values] for kind, values in took.items()}
            cheapest, *_, dearest = sorted(HOSTILE, key=lambda kind: min(took[kind]))
            ours, plain, what = microseconds[dearest], microseconds["plain"], f"{size // KIB} KiB, {rules}the"
            yield beside(f"{what} dearest: {dearest}", ours, "a plain request", plain, "us", at_most=bar)
            yield alone(f"{what} cheapest: {cheapest}", microseconds[cheapest], "us", detail=True)


def decision_cpu(kind: str, size: int, rules: str) -> Run:
    """Seconds of the processor for one such request to the middleware around an empty app, with counters in memory."""
    from ratelimit_mw.asgi import RateLimitMiddleware

    middleware = RateLimitMiddleware(empty_asgi, limiter=RateLimiter(RULES[rules], storage="memory://"))
    scope = scope_of(kind, 0 if kind == "plain" else size)
    number = 200 if kind == "plain" else 20
    served = 0

    async def serve() -> float:
        nonlocal served
        scopes = [{**scope, "client": (f"10.0.{n >> 8 & 255}.{n & 255}", 1)} for n in range(served, served + number)]
        served += number
        start = time.process_time()
        for each in scopes:
            await middleware(each, receive, send)
        return (time.process_time() - start) / number

    return lambda: asyncio.run(serve())
