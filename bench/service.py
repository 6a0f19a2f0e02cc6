"""The decision service: what its ports cost beside the same servers that answer a constant, and how it starts.

All servers are processes of their own, and are asked with the same bytes over the same connections. What is measured
is the processor time of the server alone, so the speed of the client does not matter.
"""

import asyncio
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import grpc.aio

from bench.apps import AsgiApp, empty_asgi, rate_of, receive, send
from bench.measure import Effort, Figure, Run, alone, beside, in_turn
from bench.traffic import STREAMS, Request
from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.service.messages import METHOD
from ratelimit_mw.service.ratelimit_pb2 import RateLimitDescriptor, RateLimitRequest
from tests.support.processes import end, spawn
from tests.support.servers import BINARIES, Server

USERS = 500
IN_FLIGHT = 100
CONNECTIONS = 4  # as many as an Envoy with four worker threads opens
REQUESTS = 4_000
ASKED = 10_000  # by an app in a round
ROUNDS = 11
STARTS = 5
WORKERS = 1, 2, 4
BY_CPU = "decisions of as many cores, by their CPU time"
GRPC = "grpcio, a constant answer"
HTTP = "uvicorn, a constant answer"

RULES = """\
domain: shop
client: {{secret: bench}}
storage: {{url: '{url}', timeout: 5s}}
descriptors:
  - {{key: user, rate_limit: {{unit: hour, requests_per_unit: 1000000}}}}
  - key: path
    descriptors:
      - {{key: user, rate_limit: {{unit: minute, requests_per_unit: 1000000, name: by_path}}}}
"""


AUTH_RULES = """\
domain: shop
client: {{secret: bench, trusted_proxies: [127.0.0.0/8]}}
storage: {{url: '{url}', timeout: 5s}}
response: {{headers: [x-ratelimit]}}
rules: [{{name: everything, by: ip, limit: 1000000 per minute}}]
"""


def decisions(effort: Effort) -> Iterator[Figure]:
    """100 in flight, two descriptors, 500 users: processor time of the server for each decision."""
    yield from _beside(effort, "grpc", "ShouldRateLimit", GRPC, {"memory": 1.4, "Redis": 1.6})


def auth(effort: Effort) -> Iterator[Figure]:
    """100 in flight, one rule, 500 clients behind one proxy: processor time of the server for each decision."""
    yield from _beside(effort, "http", "/auth", HTTP, {"memory": 1.6, "Redis": None})


def _beside(effort: Effort, port: str, what: str, constant: str, bars: dict[str, float | None]) -> Iterator[Figure]:
    number = effort.part(REQUESTS)
    with Server(BINARIES[0]) as server:
        contestants: dict[str, tuple[Any, ...]] = {constant: (cost, port, "", number)}
        for store, url in (("memory", "memory://"), ("Redis", server.url)):
            contestants[store] = cost, port, url, number
        taken = in_turn(contestants, effort.rounds(ROUNDS))
    for store, most in bars.items():
        yield beside(f"{what}, {store}", taken[store], constant, taken[constant], "us", at_most=most)
    for name, micros in taken.items():
        title = name if name == constant else f"{what}, {name}"
        yield alone(title, [1e6 / each for each in micros], "/s", note="decisions of one core, by its CPU time")


def workers(effort: Effort) -> Iterator[Figure]:
    """The same over Redis by several processes: the processor time of all of them for each decision, and their rate."""
    number = effort.part(REQUESTS)
    with Server(BINARIES[0]) as server:
        contestants = {count: (of_workers, count, server.url, number) for count in WORKERS}
        taken: dict[int, list[Any]] = in_turn(contestants, effort.rounds(ROUNDS))
    for count, rounds in taken.items():
        micros = [cpu for cpu, _ in rounds]
        yield alone(workers_title(count), micros, "us", note="CPU of all workers for a decision")
        yield alone(workers_title(count), [count * 1e6 / each for each in micros], "/s", note=BY_CPU)
        rates = [rate for _, rate in rounds]
        yield alone(workers_title(count), rates, "/s", note="measured, with the client on the same cores")


def workers_title(count: int) -> str:
    """What the figures of so many processes are called."""
    return f"ShouldRateLimit, Redis, --workers {count}"


def asking(effort: Effort) -> Iterator[Figure]:
    """100 in flight, one rule, clients by Zipf: processor time of an app that asks the service, beside Redis."""
    number = effort.part(ASKED)
    with Server(BINARIES[0]) as server:
        for what in ("acheck", "middleware"):
            contestants = {store: (of_app, what, store, server.url, number) for store in ("service", "Redis")}
            taken = in_turn(contestants, effort.rounds(ROUNDS))
            title = "acheck" if what == "acheck" else "middleware around an empty app"
            yield beside(f"{title}, the service", taken["service"], "Redis", taken["Redis"], "us", at_most=3)


def start(effort: Effort) -> Iterator[Figure]:
    """From the start of the process to its readiness, with 1 000 rules."""
    rules = "\n".join(f"  - {{name: r{n}, match: {{path: /p{n}}}, by: ip, limit: 5 per minute}}" for n in range(1000))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rules.yaml"
        path.write_text(f"domain: shop\nclient: {{secret: s}}\nrules:\n{rules}\n", "utf-8")
        seconds = []
        for _ in range(effort.rounds(STARTS)):
            begun = time.monotonic()
            with Running(*_service("grpc", path)):
                seconds.append(time.monotonic() - begun)
    yield alone("start until ready with 1 000 rules", [each * 1e3 for each in seconds], "ms", at_most=2_000)


class Running:
    """A server in a process of its own, which is ready when the `with` begins.

    Args:
        words: What Python is called with. The server says on standard error where it is ready.
        servers: How many processes of the server say so.
        environment: What the server's environment has more than that of this process.
    """

    def __init__(self, *words: str, servers: int = 1, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        self._words = words
        self._environment = {**os.environ, **environment}
        self._servers = servers
        self.targets: list[str] = []
        """Where the servers are ready."""

    def __enter__(self) -> Self:
        self.process = spawn([sys.executable, *self._words], stderr=subprocess.PIPE, env=self._environment)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if b"ready: " in line:
                self.targets.append(line.decode().rpartition(" ")[2].strip())
                if len(self.targets) == self._servers:
                    return self
        raise RuntimeError("the server did not start")

    def __exit__(self, *exc_info: object) -> None:
        end(self.process)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def cpu(self) -> float:
        """The microseconds of processor time that the server and its processes have had, in ended threads, too."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return sum(time.clock_gettime_ns(_clock_of(int(each))) for each in (pid, *children)) / 1e3


def _clock_of(pid: int) -> int:
    """What Linux returns for clock_getcpuclockid(3): the clock of the processor time of a process."""
    return (~pid << 3) | 2


def _service(port: str, rules: Path) -> tuple[str, ...]:
    """What Python is called with to serve these rules at one port, `grpc` or `http`."""
    other = "http" if port == "grpc" else "grpc"
    ports = f"--{port}", "0", f"--{other}", "off", "--admin", "off", "--drain", "0"
    return "-m", "ratelimit_mw", "serve", "--rules", str(rules), *ports


def grpc_messages() -> list[bytes]:
    """The requests of 500 users, as Envoy sends them."""

    def entries(**values: str) -> RateLimitDescriptor:
        pairs = [RateLimitDescriptor.Entry(key=key.encode(), value=value.encode()) for key, value in values.items()]
        return RateLimitDescriptor(entries=pairs)

    found = []
    for number in range(USERS):
        user = f"user-{number}"
        descriptors = [entries(user=user), entries(path=f"/items/{number % 7}", user=user)]
        found.append(RateLimitRequest(domain="shop", descriptors=descriptors).SerializeToString())
    return found


def http_messages() -> list[bytes]:
    """The requests of 500 clients, as nginx sends them."""
    return [
        "GET /auth?denied=403 HTTP/1.1\r\nHost: shop.example\r\n"
        f"X-Forwarded-For: 10.1.{number // 250}.{number % 250}\r\n"
        f"X-Original-Method: GET\r\nX-Original-URI: /items/{number % 7}\r\n"
        "User-Agent: Mozilla/5.0 (X11; Linux x86_64)\r\nAccept: */*\r\n\r\n".encode()
        for number in range(USERS)
    ]


Call = Callable[[bytes], Awaitable[Any]]


async def grpc_calls(*targets: str) -> list[Call]:
    """What asks over each connection. gRPC sends several calls over one."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(targets[place % len(targets)], options) for place in range(CONNECTIONS)]
    calls: list[Any] = [channel.unary_unary(METHOD) for channel in channels]
    return [calls[place % CONNECTIONS] for place in range(IN_FLIGHT)]


async def http_calls(target: str) -> list[Call]:
    """What asks over each connection. HTTP/1.1 sends one request after the other."""
    host, _, port = target.rpartition(":")
    return [_http_call(*await asyncio.open_connection(host, int(port))) for _ in range(IN_FLIGHT)]


def _http_call(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Call:
    async def call(data: bytes) -> None:
        writer.write(data)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(head.decode())

    return call


async def ask(calls: Sequence[Call], messages: Iterator[bytes], number: int) -> None:
    """Send a number of requests. Each of the calls sends one after the other."""
    left = iter(range(number))

    async def one_after_the_other(call: Call) -> None:
        for _ in left:
            await call(next(messages))

    await asyncio.gather(*[one_after_the_other(call) for call in calls])


def cost(port: str, url: str, number: int) -> Run:
    """Microseconds of the server's processor time for a decision. Without a `url`, the server answers a constant.

    The server has one core, and the client the others. The threads of grpcio would otherwise move between the cores
    of the machine, and the same server would take 120 or 220 µs, from round to round.
    """
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])  # the server inherits it
    rules = Path(tempfile.mkdtemp(prefix="rlmw-bench-")) / "rules.yaml"
    rules.write_text((RULES if port == "grpc" else AUTH_RULES).format(url=url), "utf-8")
    words = _service(port, rules) if url else ("-m", "bench.constant_servers", port)
    running = Running(*words).__enter__()  # it ends with this process
    os.sched_setaffinity(0, cores[1:] or cores)
    loop = asyncio.new_event_loop()
    messages = itertools.cycle(grpc_messages() if port == "grpc" else http_messages())
    calls = loop.run_until_complete((grpc_calls if port == "grpc" else http_calls)(running.targets[0]))
    loop.run_until_complete(ask(calls, messages, 2 * USERS))

    def run() -> float:
        before = running.cpu()
        loop.run_until_complete(ask(calls, messages, number))
        return (running.cpu() - before) / number

    return run


def of_app(what: str, store: str, url: str, number: int) -> Run:
    """Microseconds of the app's processor time for a decision."""
    file: dict[str, Any] = {"domain": "shop", "client": {"secret": "bench"}, "storage": {"url": url, "timeout": "5s"}}
    if store == "service":
        rules = Path(tempfile.mkdtemp(prefix="rlmw-bench-")) / "rules.yaml"
        rules.write_text(AUTH_RULES.format(url=url), "utf-8")
        running = Running(*_service("http", rules)).__enter__()  # it ends with this process
        file["storage"]["url"] = f"http://{running.targets[0]}"
    else:
        file["rules"] = [{"name": "everything", "by": "ip", "limit": "1000000 per minute"}]
    limiter, runner, coming = RateLimiter(file), asyncio.Runner(), STREAMS["Zipf"]()
    middleware: AsgiApp = RateLimitMiddleware(empty_asgi, limiter=limiter)
    prepare: Callable[[Request], Any] = Request.attributes if what == "acheck" else Request.scope
    ask = limiter.acheck if what == "acheck" else lambda scope: middleware(scope, receive, send)

    def run() -> float:
        rate = runner.run(rate_of([prepare(request) for request in islice(coming, number)], IN_FLIGHT, ask))
        return rate.cpu * 1e6

    return run


def of_workers(count: int, url: str, number: int) -> Run:
    """The microseconds of all processes for a decision, and the decisions in a second of the clock."""
    rules = Path(tempfile.mkdtemp(prefix="rlmw-bench-")) / "rules.yaml"
    rules.write_text(RULES.format(url=url), "utf-8")
    words = (*_service("grpc", rules), "--workers", str(count))
    running = Running(*words, servers=count).__enter__()  # it ends with this process
    loop, messages = asyncio.new_event_loop(), itertools.cycle(grpc_messages())
    calls = loop.run_until_complete(grpc_calls(*running.targets))
    loop.run_until_complete(ask(calls, messages, 2 * USERS))

    def run() -> tuple[float, float]:
        before, begun = running.cpu(), time.monotonic()
        loop.run_until_complete(ask(calls, messages, number))
        return (running.cpu() - before) / number, number / (time.monotonic() - begun)

    return run
