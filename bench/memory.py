"""Counters in memory: the time of the processor that one rule adds to a request of the peer's own framework."""

from collections.abc import Callable, Iterator

from bench.apps import OURS_FIVE, asgi_cpu, wsgi_cpu
from bench.measure import OURS, Effort, Figure, Run, beside, in_turn
from bench.traffic import NAMES, SEEN

REQUESTS = 500  # in each round: about 50 ms, so that a round meets the same noise from beginning to end
ROUNDS = 60

Taken = dict[tuple[str, str], list[float]]


def asgi_known(effort: Effort) -> Iterator[Figure]:
    """One rule in a Starlette app."""
    took = _took(asgi_cpu, [(stream, who) for stream in ("known", "Zipf", "one") for who in (OURS, "slowapi")], effort)
    yield from _figures(took, "slowapi", {"known": 1 / 7, "Zipf": None, "one": None})


def asgi_new(effort: Effort) -> Iterator[Figure]:
    """One rule in a Starlette app, for a client and a path that are new to it."""
    took = _took(asgi_cpu, [("known", OURS), ("new", OURS), ("new", "slowapi")], effort)
    yield from _figures(took, "slowapi", {"new": 1 / 4.5})
    yield beside(NAMES["new"], took["new", OURS], f"ours, {NAMES['known']}", took["known", OURS], "us", at_most=1.8)


def asgi_five(effort: Effort) -> Iterator[Figure]:
    """Five rules that match each request of a Starlette app."""
    took = _took(asgi_cpu, [("known", OURS), ("known", OURS_FIVE)], effort)
    five, one = took["known", OURS_FIVE], took["known", OURS]
    yield beside(NAMES["known"], five, "ours, one rule", one, "us", at_most=2)


def wsgi(effort: Effort) -> Iterator[Figure]:
    """One rule in a Flask app."""
    bars = {"known": 1 / 10, "Zipf": 1 / 10, "one": None, "new": None}
    took = _took(wsgi_cpu, [(stream, who) for stream in bars for who in (OURS, "flask-limiter")], effort)
    yield from _figures(took, "flask-limiter", bars)


def _took(make: Callable[..., Run], contestants: list[tuple[str, str]], effort: Effort) -> Taken:
    """Microseconds added, by stream and limiter, round by round."""
    asked = {(stream, who): (make, who, stream, REQUESTS, effort.part(SEEN[stream])) for stream, who in contestants}
    found = in_turn(asked, effort.rounds(ROUNDS))
    return {name: [seconds * 1e6 for seconds in values] for name, values in found.items()}


def _figures(took: Taken, peer: str, bars: dict[str, float | None]) -> Iterator[Figure]:
    for stream, bar in bars.items():
        yield beside(NAMES[stream], took[stream, OURS], peer, took[stream, peer], "us", at_most=bar)
