"""The command `ask`, which asks a running service as a proxy does, and is its health probe. Extra `serve`.

A probe runs every few seconds, and typer alone takes more CPU than all of this. So argparse reads the words, and only
an answer with a table or JSON imports what the other commands share.
"""

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ratelimit_mw.cli import Exit
from ratelimit_mw.service.messages import METHOD, UNIT_NAMES, UNLIMITED
from ratelimit_mw.service.ratelimit_pb2 import RateLimitDescriptor, RateLimitRequest, RateLimitResponse
from ratelimit_mw.service.settings import Address, read_address

T = TypeVar("T")


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
        server_ca: bytes | None = None,
        certificate: bytes | None = None,
        key: bytes | None = None,
    ) -> None:
        options = [("grpc.enable_http_proxy", 0)]
        if server_ca is None:
            self._channel = grpc.insecure_channel(str(address), options)
        else:
            credentials = grpc.ssl_channel_credentials(server_ca, key, certificate)
            self._channel = grpc.secure_channel(str(address), credentials, options)
        self._timeout = timeout
        self._metadata = [] if token is None else [("authorization", f"Bearer {token}")]

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def ask(self, domain: str, descriptors: Sequence[str], hits: int | None) -> RateLimitResponse:
        """Send a request, which charges what it asks, and return the response.

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
        return RateLimitResponse.FromString(data)

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


def ask(words: Sequence[str]) -> Exit:
    """Ask a running service, and print its answer.

    Args:
        words: The words of the command line after `ask`.

    Returns:
        The exit code: OK if the request passes or the service takes requests, PROBLEMS if not.
    """
    given = _words().parse_intermixed_args(words)
    try:
        with closing(_client(given)) as client:
            return Exit.OK if _asked(client, given) else Exit.PROBLEMS
    except ValueError as error:
        code, message = Exit.USAGE, str(error)
    except Unanswered as error:
        code, message = Exit.STORE_AWAY, f"{given.grpc}: {error}"
    sys.stderr.write(f"ratelimit-mw: {message}\n")
    return code


def _words() -> ArgumentParser:
    """Return what reads the words of the command."""
    words = ArgumentParser(
        "ratelimit-mw ask",
        description="Ask a running service over gRPC, as a proxy does. The request is charged.",
        epilog="Exit codes: 0 the request passes (with --health: the service takes requests); 1 it is over a limit "
        "(with --health: the service takes no requests); 2 wrong usage; 3 the service does not answer, or refuses the "
        "request.",
        allow_abbrev=False,
    )
    add, environ = words.add_argument, os.environ
    add("descriptors", nargs="*", metavar="KEY=VALUE[,KEY=VALUE…]", help="One descriptor. Commas separate its entries.")
    add(
        "--grpc",
        metavar="ADDRESS",
        default=environ.get("RATELIMIT_GRPC", "127.0.0.1:8081"),
        help="[HOST:]PORT or unix:PATH. Default: the variable RATELIMIT_GRPC, or 127.0.0.1:8081.",
    )
    add("--domain", "-d", help="The domain of the rules.")
    add("--hits", type=int, help="The hits of each descriptor. 0 charges nothing, and -3 refunds 3.")
    add("--health", action="store_true", help="Ask whether the service takes requests.")
    add(
        "--token",
        default=environ.get("RATELIMIT_TOKEN"),
        help="The token that the service requires. Default: the variable RATELIMIT_TOKEN.",
    )
    add("--server-ca", type=_file, metavar="FILE", help="Use TLS, and trust these certificate authorities (PEM).")
    add("--cert", type=_file, metavar="FILE", help="The certificate of the client (PEM).")
    add("--key", type=_file, metavar="FILE", help="The key of --cert (PEM).")
    add("--timeout", type=float, default=5.0, help="Seconds to wait for the answer.")
    add("--json", action="store_true", help="Print JSON, for programs.")
    return words


def _file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ArgumentTypeError(f"{path!r} can't be read: {error.strerror}") from None


def _client(given: Namespace) -> Client:
    """Return the connection to the service. Raises ValueError for wrong usage."""
    if not given.health and (not given.descriptors or given.domain is None):
        raise ValueError("write a --domain and the descriptors to ask for, or --health")
    if (given.cert is None) != (given.key is None) or (given.cert is not None and given.server_ca is None):
        raise ValueError("--cert needs --key and --server-ca")
    if not given.timeout > 0:
        raise ValueError("--timeout must be above 0")
    address = read_address(given.grpc)
    if address is None:
        raise ValueError("--grpc: there is no service at 'off'")
    pem = {"server_ca": given.server_ca, "certificate": given.cert, "key": given.key}
    return Client(address, given.timeout, token=given.token, **pem)


def _asked(client: Client, given: Namespace) -> bool:
    """Ask, print the answer, and return whether it is a good one. Raises ValueError for wrong usage, and Unanswered."""
    if given.health:
        good = client.serving()
        _say({"serving": good}) if given.json else sys.stdout.write("serving\n" if good else "not serving\n")
        return good
    response = client.ask(given.domain, given.descriptors, given.hits)
    good = response.overall_code == RateLimitResponse.OK
    if given.json:
        from google.protobuf.json_format import MessageToDict  # imported late: a probe does not use it

        _say(MessageToDict(response))
    else:
        from ratelimit_mw.cli.common import say_table  # imported late: a probe does not use it

        sys.stdout.write("OK\n" if good else "OVER_LIMIT\n")
        columns = ("descriptor", "code", "limit", ">remaining", ">seconds")
        say_table(columns, map(_row, given.descriptors, response.statuses))
    return good


def _say(answer: Mapping[str, object]) -> None:
    """Print an answer as JSON. That to a request is as the service's `/json` has it."""
    from ratelimit_mw.cli.common import say_json  # imported late: a probe does not use it

    say_json(answer)


def _row(descriptor: str, status: RateLimitResponse.DescriptorStatus) -> tuple[object, ...]:
    current, told = status.current_limit, status.HasField("current_limit")
    limit = f"{current.requests_per_unit} per {UNIT_NAMES[current.unit]}" if told else ""
    return (
        descriptor,
        "OK" if status.code == RateLimitResponse.OK else "OVER_LIMIT",
        "unlimited" if status.limit_remaining == UNLIMITED else limit,
        status.limit_remaining if told else "",
        status.duration_until_reset.seconds if status.HasField("duration_until_reset") else "",
    )
