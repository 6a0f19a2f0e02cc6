"""Every benchmark, or those named: `python -m bench [NAME …]`. Prints a table, writes bench/results/NAME.json.

Whatever ran, the overview and the README's tables are made anew in the end; `overview` does nothing else.
"""

import importlib
import json
import logging
import platform
import sys
from importlib.metadata import version

from bench import overview
from bench.measure import Figure
from bench.overview import RESULTS

CASES = (
    "memory_asgi",
    "memory_wsgi",
    "redis_asyncio",
    "redis_asgi",
    "redis_threads",
    "redis_wsgi",
    "redis_bytes",
    "memory_store",
    "memory_layouts",
    "many_rules",
    "reload",
    "startup",
    "denied",
    "leases",
    "elastic",
    "shed",
)
PEERS = ("limits", "slowapi", "Flask-Limiter", "throttled-py", "asgi-ratelimit", "redis", "starlette", "flask")


def show(figures: list[Figure]) -> None:
    for figure in figures:
        value = f"{figure.value:,.0f}" if figure.value >= 100 else f"{figure.value:.2f}"
        print(f"{figure.case:56} {figure.who:26} {value:>10} {figure.unit:4} {figure.beside}", flush=True)


def main(names: list[str]) -> None:
    logging.getLogger("ratelimit_mw").setLevel(logging.ERROR)
    unknown = set(names) - {*CASES, "overview"}
    if unknown:
        sys.exit(f"no benchmark is called {', '.join(sorted(unknown))}: there are {', '.join(CASES)} and overview")
    RESULTS.mkdir(exist_ok=True)
    about = {"python": platform.python_version(), **{peer: version(peer) for peer in PEERS}}
    for name in names or CASES:
        if name == "overview":
            continue
        figures = importlib.import_module(f".{name}", __package__).figures()
        show(figures)
        written = {"versions": about, "figures": [figure.as_dict() for figure in figures]}
        (RESULTS / f"{name}.json").write_text(json.dumps(written, indent=2) + "\n")
    overview.write()


if __name__ == "__main__":
    main(sys.argv[1:])
