"""The life of the service: from bound ports to the last answer.

HTTP, admin and gRPC run on one event loop of one process. The service handles signals itself: it drains first, and then
lets the servers stop. (uvicorn closes its port first, so clients could not read "not ready".)

This module is internal: its names may change in any release.
"""

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import socket
from collections.abc import Coroutine, Iterator, Mapping
from functools import partial
from typing import Any

import uvicorn
import uvloop
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ratelimit_mw import RateLimiter
from ratelimit_mw.errors import ConfigurationError, StoreUnavailable, collecting
from ratelimit_mw.service import go_environment, ports
from ratelimit_mw.service.access import Access, Certificates, ReadAgain
from ratelimit_mw.service.admin import admin_app
from ratelimit_mw.service.api import http_app
from ratelimit_mw.service.grpc_server import GrpcServer, concerns_the_service
from ratelimit_mw.service.servable import require_servable
from ratelimit_mw.service.settings import Address, Settings
from ratelimit_mw.service.state import Service

logger = logging.getLogger("ratelimit_mw.service")

_STOPS = (signal.SIGTERM, signal.SIGINT)
_CLOSE = (b"connection", b"close")
_KEEP_ALIVE = 120
"""The seconds after which an idle HTTP connection is closed. Proxies close theirs earlier (nginx after 60, Traefik
after 90), so no request is sent on a connection that is just being closed."""


_LOOK_EVERY = 1.0
"""The seconds between two looks at the files of certificates and tokens, and for free descriptors."""


_FIRST_HEAD = 30.0
"""The seconds within which the head of the first request of a connection must arrive."""

_NEXT_HEAD = 120.0
"""The seconds after which a connection is looked at again. One without a further request since then is closed."""

_LONGEST_HEAD = 64 * 1024
"""The most bytes of a request that are not its body: its head, its trailers and what frames its chunks. The read that
ends the head, of at most 256 KiB, is not counted."""

_MOST_WAITING = 256
"""The most requests of a connection that wait for the answers to earlier ones. Proxies send one at a time."""

_OF_BODIES = frozenset((b"content-length", b"transfer-encoding"))
_NO_BODY = (b"content-length", b"0")

_BODY = b"The request is not valid HTTP/1.1, its head is too long, or it has a body and asks for an upgrade.\n"
_DENIAL = (
    b"HTTP/1.1 403 Forbidden\r\n"
    b"content-type: text/plain; charset=utf-8\r\n"
    b"content-length: %d\r\n"
    b"x-ratelimit-status: 400\r\n"
    b"connection: close\r\n"
    b"\r\n%s"
) % (len(_BODY), _BODY)


def run(settings: Settings, supervisor: socket.socket | None = None) -> None:
    """Serve in this process. See `ratelimit_mw.service.serve`.

    Args:
        settings: The settings of one process.
        supervisor: The connection to the process that has started this one, if there are several.
    """
    service, sockets = prepare(settings)
    ports.allow_descriptors(settings)
    try:
        uvloop.run(_Runner(service, sockets, supervisor).run())
    finally:
        for address in settings.addresses.values():
            ports.release(address)


def prepare(settings: Settings) -> tuple[Service, Mapping[str, socket.socket]]:
    """Return the service and its bound sockets by name, or raise ConfigurationError with every reason against it."""
    problems = go_environment.problems_of(settings)
    certificates, access, limiter, sockets = None, None, None, None
    with collecting(problems):
        if settings.tls_cert is not None:
            certificates = Certificates(settings)
    with collecting(problems):
        access = Access(settings)
    with collecting(problems):
        limiter = RateLimiter(settings.rules, storage=settings.storage)
        if not settings.ignore_unservable:
            limiter.require(partial(require_servable, config=settings.rules))
    with collecting(problems):
        sockets = ports.bind(settings.addresses)
        if not problems:  # otherwise no port is opened
            ports.listen(sockets, settings.addresses)
    if problems:
        ports.close(sockets or {}, settings.addresses)
        if limiter is not None:
            limiter.close()
        raise ConfigurationError(problems)
    return Service(settings, limiter, access, certificates), sockets


class _HttpServer(uvicorn.Server):
    """One uvicorn server, whose signals the service handles."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def close_connections(self) -> None:
        """End each connection after its next response, so that its client connects elsewhere."""
        self.config.encoded_headers.append(_CLOSE)
        self.server_state.default_headers = [*self.server_state.default_headers, _CLOSE]


class _Runner:
    """The servers of one process."""

    def __init__(
        self, service: Service, sockets: Mapping[str, socket.socket], supervisor: socket.socket | None
    ) -> None:
        self._service = service
        self._sockets = dict(sockets)
        self._supervisor = supervisor
        self._stopping = asyncio.Event()
        self._grpc: GrpcServer | None = None
        self._http: dict[str, tuple[_HttpServer, asyncio.Task[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._files = [ReadAgain("the tokens", [service.access.file], service.access.read)]
        if service.certificates is not None:
            self._files.append(ReadAgain("the certificates", service.certificates.files, service.certificates.read))

    async def run(self) -> None:
        """Serve until a signal, then drain."""
        loop = asyncio.get_running_loop()
        for number in _STOPS if self._supervisor is None else _STOPS[:1]:
            loop.add_signal_handler(number, self._stop, number)
        if self._supervisor is not None:
            loop.add_reader(self._supervisor, self._obey, self._supervisor)
        loop.add_signal_handler(signal.SIGHUP, lambda: self._keep(self._reload()))
        try:
            await self._start()
            self._keep(self._watch())
            await self._stopping.wait()
            await self._drain()
        finally:
            await self._service.limiter.aclose()
        logger.info("stopped")

    async def _start(self) -> None:
        service = self._service
        service.limiter.engine.current()  # begins to watch the rules and the overrides
        await service.limiter.engine.storage.aconnect()
        served = {}
        for name, app in (("http", http_app), ("admin", admin_app)):
            if name in self._sockets:
                served[name] = await self._start_http(name, app(service))
        if "grpc" in self._sockets:
            address = service.settings.addresses["grpc"]
            probe = self._sockets.pop("grpc")
            chosen = ports.bound_address(probe, address)
            probe.close()  # grpcio binds its port itself
            ports.release(address)
            self._grpc = GrpcServer(service, chosen)
            served["grpc"] = await self._grpc.start()
            self._grpc.health.set(serving=True)
        service.started = True
        note = service.limiter.engine.planner.switch.note
        if note:
            logger.warning("%s: no request is denied", note)
        if service.settings.allow_anyone:
            logger.warning("--allow-anyone: every caller that reaches these ports may ask for decisions")
        logger.info("ready: %s", ", ".join(f"{name} at {served[name]}" for name in sorted(served)))
        if self._supervisor is not None:
            self._supervisor.sendall(json.dumps({name: str(served[name]) for name in served}).encode())

    async def _start_http(self, name: str, app: Any) -> Address:
        found, address = self._sockets[name], self._service.settings.addresses[name]
        server = _HttpServer(_config(self._service, name, address, app))
        task = asyncio.create_task(server.serve([found]))
        listening = asyncio.create_task(server.listening.wait())
        await asyncio.wait((task, listening), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            listening.cancel()
            await task  # raises why it could not start
        self._http[name] = server, task
        return ports.bound_address(found, address)

    def _stop(self, number: int) -> None:
        if self._stopping.is_set():
            logger.warning("a second signal: the service ends at once")
            logging.shutdown()
            os._exit(128 + number)
        self._stopping.set()

    def _obey(self, supervisor: socket.socket) -> None:
        """Reload if the supervisor sends a byte, and stop if it ends the connection or has ended."""
        if supervisor.recv(4096):
            self._keep(self._reload())
        else:
            asyncio.get_running_loop().remove_reader(supervisor)
            self._stopping.set()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the servers, and keep its task from being collected."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self) -> None:
        """Read certificates and tokens again when their files change, and report a lack of descriptors."""
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            if ports.are_exhausted():  # the loop then closes new connections without a line, and no file can be read
                self._service.refuse("no_descriptors", "new connections are closed, because no descriptors are left")
                continue
            for each in self._files:
                each.look()

    async def _reload(self) -> None:
        for each in self._files:
            each.look(at_once=True)
        with contextlib.suppress(ConfigurationError):  # the limiter logs them
            try:
                await self._service.limiter.areload()
            except StoreUnavailable as error:
                logger.warning("the rules can't be read: %s", error)

    async def _drain(self) -> None:
        """Say that the service is not ready, answer everything that was accepted, and close the ports."""
        settings = self._service.settings
        logger.info("draining")
        self._service.draining = True
        if self._grpc is not None:
            self._grpc.health.set(serving=False)
        for server, _ in self._http.values():
            server.close_connections()
        await asyncio.sleep(settings.drain)
        closing = [self._close_http(name) for name in self._http if name != "admin"]
        if self._grpc is not None:
            closing.append(self._grpc.stop(settings.grace))
        await asyncio.gather(*closing)
        if "admin" in self._http:  # last, so that an operator can watch the end
            await self._close_http("admin")

    async def _close_http(self, name: str) -> None:
        server, task = self._http[name]
        server.should_exit = True
        await task


def _config(service: Service, name: str, address: Address, app: Any) -> uvicorn.Config:
    certificates = service.certificates
    config = uvicorn.Config(
        app,
        http=protocol_of(service),
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,  # `/auth` needs to see the proxy itself
        server_header=False,
        ws="none",
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(service.settings.grace),
    )
    config.load()
    if certificates is not None and not address.path:
        config.ssl = certificates.context(of_clients=name != "admin")
    return config


class _Flow(FlowControl):
    """Reads nothing while requests wait. uvicorn reads on after each answer, so that their number would have no bound.

    Args:
        protocol: The connection.
    """

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        super().__init__(protocol.transport)
        self._waiting = protocol.pipeline

    def resume_reading(self) -> None:
        if not self._waiting:
            super().resume_reading()


class _HttpProtocol(HttpToolsProtocol):
    """One connection. It counts what it refuses.

    A proxy may pass on header bytes that this server refuses: nginx accepts a vertical tab in a value. uvicorn answers
    400, which nginx's `auth_request` takes for a failure of the service. If nginx is told to let requests pass then, a
    client with such a header would have no limits. The answer is therefore a denial. uvicorn also warns of each such
    request, so that clients could fill the log: the service warns in its place, at most ten times a minute.

    uvicorn waits for ever for the head of a request, so that a caller could use up the connections of the process. Its
    parser, httptools, has no bound for a head, takes trailers for headers, and reads no body of a request that asks for
    an upgrade: the body would be the next request.
    """

    service: Service
    cycle: Any
    parser: Any

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self.flow = _Flow(self)
        self._beside_body = 0
        self._look_again = self.loop.call_later(_FIRST_HEAD, self._look, None)
        if len(self.connections) > self.service.settings.max_connections:
            self.service.refuse(
                "too_many_connections", "a connection was closed: the port has --max-connections of them"
            )
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._look_again.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._beside_body += len(data)
        super().data_received(data)
        if self._beside_body > _LONGEST_HEAD and not self.transport.is_closing():
            self.send_400_response("")
        if len(self.pipeline) > _MOST_WAITING:
            self.service.refuse("too_many_waiting")
            self.transport.abort()

    def on_headers_complete(self) -> None:
        upgrade = self.parser.should_upgrade()
        if upgrade and any(line[0] in _OF_BODIES and line != _NO_BODY for line in self.headers):
            raise ValueError("the parser would not read the body")
        super().on_headers_complete()
        if upgrade:  # what has come with its head is lost
            self.cycle.keep_alive = False
        self.headers = []  # trailers, which no app sees
        self._beside_body = 0

    def on_body(self, body: bytes) -> None:
        self._beside_body -= len(body)
        super().on_body(body)

    def _look(self, last: Any) -> None:
        """End the connection if the last request is still the one of the last look, and is answered."""
        if self.cycle is last and (last is None or self.cycle.response_complete):
            self.service.refuse("slow_http")
            self.transport.abort()
        else:
            self._look_again = self.loop.call_later(_NEXT_HEAD, self._look, self.cycle)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002  of uvicorn
        self.service.refuse("malformed_http", "a caller of --http or --admin sent an invalid or too long HTTP request")
        self.transport.write(_DENIAL)
        self.transport.close()


def protocol_of(of: Service) -> type[asyncio.Protocol]:
    """Return the protocol class for `uvicorn.Config(http=…)`."""
    log = logging.getLogger("uvicorn.error")
    log.setLevel(logging.ERROR)
    log.addFilter(concerns_the_service)

    class HttpProtocol(_HttpProtocol):
        """One connection of this service."""

        service = of

    return HttpProtocol
