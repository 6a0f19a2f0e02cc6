"""`ratelimit-mw demo`."""

from typing import Any

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.cli.options import Json
from ratelimit_mw.cli.output import say, say_json, say_table
from ratelimit_mw.clock import ManualClock
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import Decision

REQUESTS = (7.0, 7.5, 8.0, 8.5, 9.0, 9.5, 10.0, 10.5, 12.0, 14.0, 17.0, 18.0)
"""When a client sends, in seconds."""

_START = 1_700_000_000.0  # a window of ten seconds begins here


def demo(*, as_json: Json = False) -> None:
    """Show what five requests per ten seconds let through, one algorithm beside the other.

    A client sends twelve requests, on a clock that is moved by hand. It needs neither an app nor a store.
    """
    clock = ManualClock(_START)
    names = [name for name, algorithm in ALGORITHMS.items() if not algorithm.queue and not algorithm.in_flight]
    limiters = [RateLimiter(_rules(name), clock=clock) for name in names]
    rows: list[tuple[float, list[Decision]]] = []
    for second in REQUESTS:
        clock.set(_START + second)
        rows.append((second, [limiter.check({"ip": "192.0.2.1"}) for limiter in limiters]))
    if as_json:
        say_json(
            [{"second": second, **dict(zip(names, decided, strict=True))} for second, decided in rows],
        )
        return
    say("A client sends twelve requests. Its limit is 5 per 10 seconds.\n")
    say_table((">second", *names), ((f"{second:g}", *map(_told, decided)) for second, decided in rows))
    passed = [sum(decided[place].allowed for _, decided in rows) for place in range(len(names))]
    say(f"\npassed: {', '.join(f'{name} {count}' for name, count in zip(names, passed, strict=True))}")
    say("A fixed window forgets at once what was before it, so twice the limit may pass around its end.")


def _rules(algorithm: str) -> dict[str, Any]:
    rule = {"name": "demo", "by": "ip", "limit": "5 per 10 seconds", "algorithm": algorithm}
    return {"domain": "demo", "rules": [rule]}


def _told(decision: Decision) -> str:
    return f"passes, {decision.remaining} left" if decision.allowed else f"429, {decision.retry_after:.1f} s to wait"
