"""`ratelimit-mw serve` as a process, and clients that ask it with Envoy's own messages.

    with Serving(path_of_rules, "--headers", "rules") as service:
        service.ask(request("shop", [("remote_address", "192.0.2.1")]))

All ports are chosen by the system, and read from the line that says that the service is ready.
"""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

import grpc
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2 as common
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc

from tests.support.apps import ROOT
from tests.support.processes import end, spawn

START_WITHIN = 60.0
ASK_WITHIN = 30.0

RULES = """\
domain: shop
client: {secret: s}
storage: {timeout: 5s}
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 3, name: by_user}}
  - {key: tenant, value: gold, rate_limit: {unlimited: true}}
"""
"""Three requests a year for each user, and as many as it wants for the tenant `gold`."""


class Serving:
    """One process of the service.

    Args:
        rules: The path of the rules.
        words: Further words of the command. `--drain 0` and ports that the system chooses are the defaults.
        environment: Further variables.
    """

    def __init__(self, rules: str | os.PathLike[str], *words: str, **environment: str) -> None:
        self._words = words if "--rules" in words else ("--rules", os.fspath(rules), *words)
        self._environment = environment
        self._channel: grpc.Channel | None = None
        self.lines: list[str] = []
        """What the process wrote to its log."""

    def __enter__(self) -> Self:
        defaults = {"--grpc": "0", "--http": "0", "--admin": "0", "--drain": "0"}
        told = {*self._words, *(f"--{name.removeprefix('RATELIMIT_').lower()}" for name in self._environment)}
        ports = [word for flag, port in defaults.items() if flag not in told for word in (flag, port)]
        known = {name: value for name, value in os.environ.items() if not name.startswith("RATELIMIT")}
        self.process = spawn(
            [sys.executable, "-m", "ratelimit_mw", "serve", *self._words, *ports],
            stderr=subprocess.PIPE,
            env={**known, "PYTHONPATH": str(ROOT), **self._environment},
        )
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(START_WITHIN) or not self.addresses:
            self.__exit__()
            raise RuntimeError("the service did not start:\n" + "\n".join(self.lines))
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._channel is not None:
            self._channel.close()
        end(self.process)
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.decode().rstrip())
            if "ready: " in self.lines[-1]:
                self._ready.set()
        self._ready.set()

    @property
    def addresses(self) -> dict[str, str]:
        """The addresses that are served, by the names `grpc`, `http` and `admin`."""
        ready = [line for line in self.lines if "ready: " in line]
        return dict(re.findall(r"(grpc|http|admin) at ([^\s,\"]+)", ready[0])) if ready else {}

    @property
    def grpc(self) -> str:
        """The target of a gRPC channel."""
        return self.addresses["grpc"]

    @property
    def http(self) -> str:
        """The URL of the HTTP port."""
        return f"http://{self.addresses['http']}"

    @property
    def admin(self) -> str:
        """The URL of the admin port."""
        return f"http://{self.addresses['admin']}"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        return self.process.wait(START_WITHIN)

    def ask(self, message: Any, *, timeout: float = ASK_WITHIN, metadata: Any = ()) -> Any:
        """Send a request over a channel that all calls share, and return the response."""
        if self._channel is None:
            self._channel = grpc.insecure_channel(self.grpc)
        return asking(self._channel)(message, timeout=timeout, metadata=metadata)


def asking(channel: grpc.Channel) -> Any:
    """Return the method ShouldRateLimit of a channel."""
    return rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit


def descriptor(*entries: tuple[str, str], hits: int | None = None, limit: tuple[int, str] | None = None) -> Any:
    """Return a descriptor as Envoy sends it. `limit` is a number of requests and a unit in upper case."""
    made = common.RateLimitDescriptor(
        entries=[common.RateLimitDescriptor.Entry(key=key, value=value) for key, value in entries]
    )
    if hits is not None:
        made.hits_addend.value = hits
    if limit is not None:
        made.limit.requests_per_unit, unit = limit
        made.limit.unit = dict(zip(_UNITS, range(len(_UNITS)), strict=True))[unit]
    return made


_UNITS = ("UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK")


def request(domain: str, *descriptors: Any, hits: int = 0) -> Any:
    """Return a request as Envoy sends it. A descriptor may be given as a list of its entries."""
    lists = [descriptor(*each) if isinstance(each, list) else each for each in descriptors]
    return rls_pb2.RateLimitRequest(domain=domain, descriptors=lists, hits_addend=hits)


Response = rls_pb2.RateLimitResponse
OK, OVER_LIMIT = Response.OK, Response.OVER_LIMIT


def rules_at(folder: Path, text: str) -> Path:
    """Write rules to a file in `folder`, and return its path."""
    path = folder / "ratelimits.yaml"
    path.write_text(text, "utf-8")
    return path
