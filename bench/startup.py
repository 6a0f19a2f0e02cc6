"""What importing costs at start, beyond the framework's own import."""

import subprocess
import sys

from bench.measure import Figure, in_turn

BEFORE = {"ratelimit_mw.asgi": "starlette.applications", "ratelimit_mw.wsgi": "flask"}
SCRIPT = """
import importlib, sys, time
importlib.import_module(sys.argv[1])
start = time.perf_counter()
importlib.import_module(sys.argv[2])
print(time.perf_counter() - start)
"""


def seconds(before: str, module: str) -> float:
    ran = subprocess.run([sys.executable, "-c", SCRIPT, before, module], capture_output=True, text=True, check=True)
    return float(ran.stdout)


def figures() -> list[Figure]:
    took = in_turn({module: lambda m=module, b=before: seconds(b, m) for module, before in BEFORE.items()}, rounds=5)
    return [
        Figure(f"import {module}, after {BEFORE[module]}", "ratelimit_mw", value * 1e3, "ms", "bar: 150")
        for module, value in took.items()
    ]
