"""Many rules: what a thousand cost a request beside ten, and a path of 100 KB."""

import time
from collections.abc import Callable

from bench.measure import Figure, in_turn
from bench.memory_asgi import request_scope
from ratelimit_mw.config.load import load_rules
from ratelimit_mw.identity.http_request import AsgiRequest
from ratelimit_mw.rules.ruleset import RuleSet

PLANS = 5000
LONG = "/api/" + "a/" * 50_000


def rules(count: int) -> RuleSet:
    matching = [
        {"name": f"r{n}", "match": {"path": f"/api/v{n}/items/{{id:int}}"}, "limit": "10 per minute"}
        for n in range(count)
    ]
    return load_rules({"domain": "bench", "rules": matching})


def seconds_per_plan(ruleset: RuleSet, path: str, plans: int = PLANS) -> Callable[[], float]:
    scope = {**request_scope(), "path": path}

    def run() -> float:
        start = time.perf_counter()
        for _ in range(plans):
            ruleset.plan(AsgiRequest(scope))
        return (time.perf_counter() - start) / plans

    return run


def figures() -> list[Figure]:
    few, many = rules(10), rules(1000)
    took = in_turn(
        {
            "10 rules": seconds_per_plan(few, "/api/v7/items/42"),
            "1000 rules": seconds_per_plan(many, "/api/v7/items/42"),
            "a path of 100 KB": seconds_per_plan(many, LONG, plans=50),
        }
    )
    ratio = took["1000 rules"] / took["10 rules"]
    case = "Matching, one rule of many applies"
    return [
        Figure(case, "10 rules", took["10 rules"] * 1e6, "us"),
        Figure(case, "1000 rules", took["1000 rules"] * 1e6, "us", f"{ratio:.2f} x (bar: 1.5)"),
        Figure("Matching", "a path of 100 KB", took["a path of 100 KB"] * 1e3, "ms", "bar: 1"),
    ]
