"""Counters in Redis, threads: the requests and the decisions of one process with 1, 8 and 32 threads."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from bench.apps import PEER_LIMIT, PER_MINUTE, config, faster, thread_rate, wsgi_rate
from bench.measure import OURS, Effort, Figure, Run, beside, in_turn, more
from bench.traffic import NAMES, STREAMS, Request
from tests.support.servers import BINARIES, Server

THREADS = (1, 8, 32)
REQUESTS = 1_500
ROUNDS = 5
LIMITS = ("limits, fixed window", "limits, sliding window")
THROTTLED = "throttled-py"


def wsgi(effort: Effort) -> Iterator[Figure]:
    """WSGI, Redis: requests of a Flask app. The bar is for what 8 threads add in CPU time."""
    number, rounds = effort.part(REQUESTS), effort.rounds(ROUNDS)
    with Server(BINARIES[0]) as server:
        for stream, threads in (("Zipf", 8), ("one", 8), ("new", 8), ("Zipf", 1), ("Zipf", 32)):
            peers = ("flask-limiter", "no limiter")
            asked = {who: (wsgi_rate, who, stream, number, threads, server.url) for who in (OURS, *peers)}
            rate = in_turn(asked, rounds)
            server.flush()
            what = f"Flask app, {threads} thread{'s' * (threads > 1)}: {NAMES[stream]}"
            for peer in peers:
                yield faster(what, rate[OURS], peer, rate[peer], detail=peer == "no limiter")
            if (stream, threads) == ("Zipf", 8):
                cpu = {who: [1e6 * each.cpu for each in rates] for who, rates in rate.items()}
                ours, theirs = (more(cpu[who], cpu["no limiter"]) for who in (OURS, "flask-limiter"))
                yield beside(f"CPU added, {what}", ours, "flask-limiter", theirs, "us", at_most=1 / 8)


def decisions(effort: Effort) -> Iterator[Figure]:
    """`check` beside the libraries that only decide. No bar is set for it."""
    number, rounds = effort.part(REQUESTS), effort.rounds(ROUNDS)
    with Server(BINARIES[0]) as server:
        for threads in THREADS:
            peers = (*LIMITS, THROTTLED)
            rate = in_turn({who: (decider_rate, who, number, threads, server.url) for who in (OURS, *peers)}, rounds)
            server.flush()
            what = f"check, {threads} thread{'s' * (threads > 1)}: {NAMES['Zipf']}"
            for peer in peers:
                yield faster(what, rate[OURS], peer, rate[peer], detail=True)


# --------------------------------------------------------------------- contestants, see `bench.measure.Remote`


def decider_rate(who: str, requests: int, threads: int, url: str) -> Run:
    """Decisions per second of one process with this number of threads."""
    coming = STREAMS["Zipf"]()
    prepare, ask = _decider(who, url)
    ask(prepare(next(coming)))
    return lambda: thread_rate([prepare(request) for request in islice(coming, requests)], threads, ask)


def _decider(who: str, url: str) -> tuple[Callable[[Request], Any], Callable[[Any], object]]:
    """How a contestant prepares a request, and how it decides it."""
    if who == OURS:
        from ratelimit_mw import RateLimiter

        return Request.attributes, RateLimiter(config(), storage=url).check
    if who == THROTTLED:
        from throttled import RateLimiterType, Throttled, rate_limiter
        from throttled.store import RedisStore

        throttle = Throttled(
            using=RateLimiterType.SLIDING_WINDOW.value, quota=rate_limiter.per_min(PER_MINUTE), store=RedisStore(url)
        )
        return _address, throttle.limit
    from limits import parse
    from limits.storage import RedisStorage
    from limits.strategies import FixedWindowRateLimiter, SlidingWindowCounterRateLimiter

    strategies = FixedWindowRateLimiter, SlidingWindowCounterRateLimiter
    strategy = strategies[LIMITS.index(who)](RedisStorage(url))
    item = parse(PEER_LIMIT)
    # Its keys do not name the strategy. Two of them on one key end in WRONGTYPE.
    return _address, lambda address: strategy.hit(item, who, address)


def _address(request: Request) -> str:
    return request.address
