"""The gRPC transport of the service: grpcio's asyncio server, with health checks.

This module is internal: its names may change in any release.
"""

import asyncio
import logging
import math
from bisect import bisect_left
from time import perf_counter
from typing import Any
from urllib.parse import unquote

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from ratelimit_mw.service.access import Certificates
from ratelimit_mw.service.messages import DENIED, SERVICE, Refused, TooLong
from ratelimit_mw.service.settings import Address, Settings
from ratelimit_mw.service.should_rate_limit import NotPermitted, ShouldRateLimit
from ratelimit_mw.service.state import RESPONSE_BOUNDS, Service

NAMES = ("", "ratelimit", SERVICE)
"""The services whose health can be asked. envoyproxy/ratelimit has "ratelimit"."""

_TRANSPORT_FACTOR = 16
"""The transport takes messages that are longer than `max_message` by this factor, so that they can be counted."""

_MAX_METADATA = 128 * 1024
"""The longest metadata of a request, in bytes. A proxy that traces passes on headers of its clients (`tracestate`,
`baggage`). grpc's own limit of 8 KiB would let a client make each of its questions fail, and pass where the proxy lets
requests pass then. Envoy itself accepts 60 KiB of headers."""

_MAX_PENDING = 20_000
"""The requests that may wait for the event loop. grpc's own limit of 1000 rejects requests at random above it: a burst,
or a pause of the process, would make questions fail."""


_HANDSHAKE = 30.0
"""The seconds within which a connection must have begun to speak TLS and HTTP/2. grpc's own limit is 120."""

_MAX_WATCHES = 1000
"""The health watches at once. They need no token, and each holds memory until its client ends it."""


class GrpcServer:
    """The gRPC port of the service.

    Args:
        service: What the servers of the process share.
        address: Where to listen.
    """

    def __init__(self, service: Service, address: Address) -> None:
        self._service = service
        self._address = address
        self.health = _Health()
        """What answers health checks."""
        self._asked = ShouldRateLimit(service)
        logging.getLogger("grpc._cython.cygrpc").addFilter(concerns_the_service)
        self._server = grpc.aio.server(options=_options(service.settings))
        handler: Any = grpc.unary_unary_rpc_method_handler(self._should_rate_limit)  # from bytes to bytes
        # Registered methods would cost each call more: the server waits for a call of each of them, and of any other.
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(SERVICE, {"ShouldRateLimit": handler}), self.health.handler()]
        )

    async def start(self) -> Address:
        """Listen, and return the address with the port that was chosen.

        Raises:
            RuntimeError: The address cannot be bound.
        """
        certificates, target = self._service.certificates, str(self._address)
        if certificates is not None and not self._address.path:
            port = self._server.add_secure_port(target, _credentials(certificates))
        else:
            port = self._server.add_insecure_port(target)
        await self._server.start()
        return self._address if self._address.path else self._address._replace(port=port)

    async def stop(self, grace: float) -> None:
        """Take no more requests. Those under way have `grace` seconds to end."""
        self.health.close()
        await self._server.stop(grace)

    async def _should_rate_limit(self, data: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        service = self._service
        service.asked["ShouldRateLimit"] += 1
        if service.access.by_token and not service.access.allows("check", _authorization(context)):
            service.refuse("no valid token", "a caller at %s was refused: gRPC needs a token", _peer(context))
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a valid token is required")
        left: Any = context.time_remaining()  # None without a deadline: the types do not know it
        if (left is not None and left <= 0) or context.cancelled():  # its client no longer waits: it is not charged
            service.refuse("the deadline is over")
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline is over")
        began = perf_counter()
        try:
            return await self._asked.answer(data, lambda: service.access.allows("refund", _authorization(context)))
        except TooLong:
            return DENIED
        except Refused as error:
            permitted = not isinstance(error, NotPermitted)
            status = grpc.StatusCode.INVALID_ARGUMENT if permitted else grpc.StatusCode.PERMISSION_DENIED
            await context.abort(status, str(error))
        finally:
            took, seconds = perf_counter() - began, service.seconds
            seconds.counts[bisect_left(RESPONSE_BOUNDS, took)] += 1
            seconds.total += took


def _authorization(context: grpc.aio.ServicerContext[bytes, bytes]) -> str | None:
    metadata = context.invocation_metadata() or ()
    return next((str(value) for key, value in metadata if key == "authorization"), None)


def concerns_the_service(record: logging.LogRecord) -> bool:
    """Return False for the trace of an answer that its client did not read: clients could fill the log with them.

    Such a client has left (grpc), or its answer was cancelled at the end of --grace (uvicorn).
    """
    cancelled = record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not (cancelled or str(record.msg).startswith("ExecuteBatchError raised in core"))


def _peer(context: grpc.aio.ServicerContext[bytes, bytes]) -> str:
    """Return the address of a caller without its port, or "unix"."""
    kind, _, address = context.peer().partition(":")
    return unquote(address.rpartition(":")[0]) if kind in ("ipv4", "ipv6") else kind


def _options(settings: Settings) -> list[tuple[str, int]]:
    options = [
        ("grpc.so_reuseport", 0),  # it would hide that the port is taken
        ("grpc.max_receive_message_length", settings.max_message * _TRANSPORT_FACTOR),
        ("grpc.max_metadata_size", _MAX_METADATA),  # beyond it, requests are rejected at random
        ("grpc.absolute_max_metadata_size", _MAX_METADATA),  # beyond it, all of them
        ("grpc.server_handshake_timeout_ms", math.ceil(_HANDSHAKE * 1000)),
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.server.max_pending_requests", _MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING),
    ]
    if math.isfinite(settings.max_connection_age):
        options += [
            ("grpc.max_connection_age_ms", math.ceil(settings.max_connection_age * 1000)),
            ("grpc.max_connection_age_grace_ms", math.ceil(settings.grace * 1000)),
        ]
    return options


def _credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Return credentials that use the certificates of now. grpc asks for them at each handshake."""

    def configured() -> grpc.ServerCertificateConfiguration:
        chain, key, client_ca = certificates.latest
        return grpc.ssl_server_certificate_configuration([(key, chain)], root_certificates=client_ca)

    used = certificates.latest

    def changed() -> Any:  # None keeps the configuration: the types do not know it
        nonlocal used
        if certificates.latest is used:
            return None
        used = certificates.latest
        return configured()

    return grpc.dynamic_ssl_server_credentials(configured(), changed, certificates.latest.client_ca is not None)


class _Health:
    """The health of the service: Check, and Watch until the service has drained.

    The servicer of grpcio-health-checking forgets all that watch a name when one of them leaves. And its watchers never
    end, so that a drain would always take the whole grace.
    """

    def __init__(self) -> None:
        self._status: int = health_pb2.HealthCheckResponse.NOT_SERVING
        self._closed = False
        self._watches = 0
        self._changed = asyncio.Event()
        """Set when the health changes, or at the end. The next change has an event of its own."""

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what answers the methods of `grpc.health.v1.Health`."""
        read, write = health_pb2.HealthCheckRequest.FromString, health_pb2.HealthCheckResponse.SerializeToString
        check: Any = grpc.unary_unary_rpc_method_handler(self.check, read, write)
        watch: Any = grpc.unary_stream_rpc_method_handler(self.watch, read, write)
        return grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check, "Watch": watch})

    def set(self, *, serving: bool) -> None:
        """Say whether the service takes requests, also to the clients that watch."""
        response = health_pb2.HealthCheckResponse
        self._status = response.SERVING if serving else response.NOT_SERVING
        self._wake()

    def close(self) -> None:
        """End all watches."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def check(self, request: Any, context: Any) -> Any:
        """Answer with the health of now."""
        if request.service not in NAMES:
            await context.abort(grpc.StatusCode.NOT_FOUND, "this service does not exist here")
        return health_pb2.HealthCheckResponse(status=self._status)

    async def watch(self, request: Any, context: Any) -> None:
        """Answer with the health of now, and with each change."""
        if self._watches >= _MAX_WATCHES:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many watches")
        self._watches += 1
        told = None
        try:
            while not self._closed:
                changed, status = self._changed, self._of(request.service)
                if status != told:
                    told = status
                    await context.write(health_pb2.HealthCheckResponse(status=status))
                await changed.wait()
        finally:
            self._watches -= 1

    def _of(self, name: str) -> int:
        return self._status if name in NAMES else health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
