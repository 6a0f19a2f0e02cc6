"""The worked examples of the documents that this project comes from, on every store."""

import json
from pathlib import Path

import pytest

from ratelimit_mw import ManualClock, RateLimiter

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "seeds.json").read_text())["vectors"]


def rules(vector):
    """The example as a user would write it."""
    found = []
    for number, part in enumerate([vector, *vector.get("with", [])]):
        limit = {"requests": part["limit"], "per": f"{part['period']} seconds"}
        if "burst" in part:
            limit["burst"] = part["burst"]
        rule = {"name": f"part-{number}", "limit": limit, "algorithm": part["algorithm"]}
        found.append(rule | {"throttle": part["throttle"]} if "throttle" in part else rule)
    return {"domain": "seeds", "storage": {"timeout": "5s"}, "rules": found}


def play(vector, storage):
    clock = ManualClock(0)
    with RateLimiter(rules(vector), storage=storage, clock=clock) as limiter:
        admitted = []
        for step in vector["steps"]:
            clock.set(step["t"])
            admitted.append(sum(limiter.check({"ip": "192.0.2.1"}).allowed for _ in range(step["n"])))
    assert admitted == [step["admit"] for step in vector["steps"]]


EACH = pytest.mark.parametrize("vector", [pytest.param(vector, id=vector["name"]) for vector in VECTORS])


@EACH
def test_a_worked_example_in_memory(vector):
    play(vector, "memory://")


@EACH
def test_a_worked_example_on_redis(vector, server):
    play(vector, server.url)
