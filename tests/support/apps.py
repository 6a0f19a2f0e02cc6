"""Apps under the servers that they meet in production: uvicorn, gunicorn and hypercorn as subprocesses.

    with uvicorn("examples.starlette_app:app", workers=2, env={"REDIS_URL": server.url}) as app:
        httpx.get(app.url + "/health")

The port is free (the server itself picks it). The app is ready when the `with` begins: every worker
has loaded it, and none was asked anything, so no limit has counted a probe.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from tests.support.processes import end, spawn

ROOT = Path(__file__).resolve().parents[2]
READY_WITHIN = 60.0


class AppExited(Exception):
    """The server ended before it was ready, with `status`, having said `log`."""

    def __init__(self, status: int, log: str) -> None:
        self.status, self.log = status, log
        super().__init__(f"exit status {status}:\n{log}")


class App:
    """A server that runs an app. `log` is what it wrote to stdout and stderr so far."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process = process
        self.url = ""
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def pids(self) -> set[int]:
        """The workers, by the log's account: uvicorn's "Started server process [7]", gunicorn's "with pid: 7"."""
        return {int(pid) for pid in re.findall(r"(?:server process \[|with pid: )(\d+)", self.log)}


def uvicorn(
    app: str,
    *,
    workers: int = 1,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    args: Sequence[str] = (),
) -> AbstractContextManager[App]:
    """Run an ASGI app, named as on the command line. `env` is added to this process's own."""
    served = [app, "--port", "0", "--workers", str(workers)]
    plain = ["--loop", "asyncio", "--http", "h11"]  # as without uvloop and httptools
    command = [sys.executable, "-m", "uvicorn", *served, *plain, *args]
    return serve(command, workers, "Application startup complete", env or {}, cwd)


def gunicorn(
    app: str,
    *,
    workers: int = 1,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    args: Sequence[str] = (),
) -> AbstractContextManager[App]:
    """Run a WSGI app, named as on the command line. `args` may choose threads, gevent, --preload …"""
    conf = Path(__file__).with_name("gunicorn_conf.py")
    command = [sys.executable, "-m", "gunicorn", app, "--bind", "127.0.0.1:0", "--config", str(conf)]
    return serve([*command, "--workers", str(workers), *args], workers, "Worker is ready", env or {}, cwd)


def hypercorn(
    app: str,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    args: Sequence[str] = (),
) -> AbstractContextManager[App]:
    """Run an ASGI app under hypercorn, in one worker. `args` may choose trio, `--root-path` …"""
    command = [sys.executable, "-m", "hypercorn", app, "--bind", "127.0.0.1:0", *args]
    return serve(command, 1, "Running on", env or {}, cwd)


def waitress(
    app: str,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    args: Sequence[str] = (),
) -> AbstractContextManager[App]:
    """Run a WSGI app under waitress, in one process. `args` may choose the number of threads."""
    command = [sys.executable, "-m", "waitress", "--listen", "127.0.0.1:0", *args, app]
    return serve(command, 1, "Serving on", env or {}, cwd)


LONG = 3_650 * 86_400 * 1_000_000
"""Microseconds of ten years, for windows by the real time: none of them ends before the last day of 2029."""


def within_a_minute(seconds: float = 15.0) -> None:
    """Return when the current minute has `seconds` left, so that a test's requests fall into one window of it."""
    left = 60 - time.time() % 60
    if left < seconds:
        time.sleep(left)


@contextmanager
def serve(command: Sequence[str], workers: int, ready: str, env: Mapping[str, str], cwd: Path) -> Iterator[App]:
    with tempfile.TemporaryDirectory(prefix="rlmw-") as directory:
        log = Path(directory) / "log"
        with log.open("wb") as output:
            process = spawn(command, cwd=cwd, env={**os.environ, **env}, stdout=output, stderr=output)
        app = App(process, log)
        try:
            _wait(app, workers, ready)
            yield app
        except BaseException:
            print(app.log)  # pytest shows it with the failure
            raise
        finally:
            end(process)


def _wait(app: App, workers: int, ready: str) -> None:
    deadline = time.monotonic() + READY_WITHIN
    while time.monotonic() < deadline:
        status = app.process.poll()
        text = app.log
        if status is not None:
            raise AppExited(status, text)
        address = re.search(r"(?:[Rr]unning on|Serving on|Listening at:) (http://[\d.]+:\d+)", text)
        if address and text.count(ready) >= workers:
            app.url = address[1]
            return
        time.sleep(0.02)
    msg = f"not ready after {READY_WITHIN:g} s:\n{app.log}"
    raise TimeoutError(msg)
