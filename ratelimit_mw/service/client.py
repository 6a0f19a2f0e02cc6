"""A client of the gRPC port, for `ratelimit-mw ask`: it asks for a decision on descriptors, or for the health.

This module is internal: its names may change in any release.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ratelimit_mw.service.messages import METHOD, UNIT_NAMES
from ratelimit_mw.service.ratelimit_pb2 import RateLimitDescriptor, RateLimitRequest, RateLimitResponse
from ratelimit_mw.service.settings import Address

T = TypeVar("T")


class DescriptorAnswer(NamedTuple):
    """The status of one descriptor, as the service told it.

    Attributes:
        descriptor: The descriptor, as it was written.
        allowed: True if no limit denies it.
        limit: The number of requests per unit. None if no limit is told.
        unit: The unit of time.
        name: The name of the limit, or "".
        remaining: How much is left. None if it is not told.
        seconds: The seconds until it is admitted, or until the counter is as if unused. None if unknown.
    """

    descriptor: str
    allowed: bool
    limit: int | None
    unit: str
    name: str
    remaining: int | None
    seconds: int | None


class Unanswered(Exception):
    """The service does not answer, or refuses the request. The text says why."""


class Client:
    """A connection to the gRPC port of a service.

    Args:
        address: Where the service is.
        timeout: The seconds to wait for an answer.
        token: The token that the service requires, or None.
        server_ca: The authorities of the service's certificate, PEM. None: no TLS.
        certificate: The certificate of this client, PEM, or None.
        key: Its key, PEM, or None.
    """

    def __init__(
        self,
        address: Address,
        timeout: float,
        *,
        token: str | None = None,
        server_ca: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
    ) -> None:
        options = [("grpc.enable_http_proxy", 0)]
        if server_ca is None:
            self._channel = grpc.insecure_channel(str(address), options)
        else:
            pair = [each.read_bytes() if each is not None else None for each in (key, certificate)]
            credentials = grpc.ssl_channel_credentials(server_ca.read_bytes(), *pair)
            self._channel = grpc.secure_channel(str(address), credentials, options)
        self._timeout = timeout
        self._metadata = [] if token is None else [("authorization", f"Bearer {token}")]

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def ask(self, domain: str, descriptors: Sequence[str], hits: int | None) -> tuple[bool, list[DescriptorAnswer]]:
        """Send a request, which charges what it asks. Return whether it passes, and the status of each descriptor.

        Args:
            domain: The domain.
            descriptors: The descriptors, such as `path=/login,remote_address=203.0.113.7`.
            hits: The hits of each of them, as Envoy sends them. Below 0, they are given back. None: it sends none.

        Raises:
            ValueError: A descriptor cannot be read.
            Unanswered: There is no answer.
        """
        request = RateLimitRequest(domain=domain, descriptors=[_descriptor(each) for each in descriptors])
        if hits is not None:
            for each in request.descriptors:
                each.hits_addend.value = abs(hits)
                each.is_negative_hits = hits < 0
        method: Any = self._channel.unary_unary(METHOD)
        data = _answer(lambda: method(request.SerializeToString(), timeout=self._timeout, metadata=self._metadata))
        response = RateLimitResponse.FromString(data)
        pairs = zip(descriptors, response.statuses, strict=True)
        return response.overall_code == RateLimitResponse.OK, [_asked(*pair) for pair in pairs]

    def serving(self, name: str = "ratelimit") -> bool:
        """Return True if the service takes requests, as its health check says. Raises Unanswered."""
        request = health_pb2.HealthCheckRequest(service=name)
        stub: Any = health_pb2_grpc.HealthStub(self._channel)
        response = _answer(lambda: stub.Check(request, timeout=self._timeout))
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)


def _answer(ask: Callable[[], T]) -> T:
    try:
        return ask()
    except grpc.RpcError as error:
        found: Any = error  # an error of a call has the code and the details of its status
        raise Unanswered(f"{found.code().name}: {found.details()}") from None


def _descriptor(text: str) -> RateLimitDescriptor:
    entries = []
    for pair in text.split(","):
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"{pair!r} is not KEY=VALUE")
        entries.append(RateLimitDescriptor.Entry(key=key.encode(), value=value.encode()))
    return RateLimitDescriptor(entries=entries)


def _asked(descriptor: str, status: RateLimitResponse.DescriptorStatus) -> DescriptorAnswer:
    told = status.HasField("current_limit")
    current = status.current_limit
    return DescriptorAnswer(
        descriptor,
        status.code == RateLimitResponse.OK,
        current.requests_per_unit if told else None,
        UNIT_NAMES[current.unit] if 0 <= current.unit < len(UNIT_NAMES) else "",
        current.name,
        status.limit_remaining if told else status.limit_remaining or None,  # without a limit, 0 says nothing
        status.duration_until_reset.seconds if status.HasField("duration_until_reset") else None,
    )
