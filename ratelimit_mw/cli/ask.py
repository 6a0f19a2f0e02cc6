"""The command `ask`, which asks a running service as a proxy does, and is its health probe. Extra `serve`.

A probe runs every few seconds, and typer alone takes more CPU than all of this. So argparse reads the words, and only
an answer with a table or JSON imports what the other commands share.
"""

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ratelimit_mw.cli import Exit
from ratelimit_mw.service.messages import METHOD, UNIT_NAMES, UNLIMITED
from ratelimit_mw.service.ratelimit_pb2 import RateLimitDescriptor, RateLimitRequest, RateLimitResponse
from ratelimit_mw.service.settings import read_address


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
        with _channel(given) as channel:
            return Exit.OK if _asked(channel, given) else Exit.PROBLEMS
    except ValueError as error:
        code, message = Exit.USAGE, str(error)
    except grpc.RpcError as error:
        found: Any = error  # an error of a call has the code and the details of its status
        code, message = Exit.STORE_AWAY, f"{given.grpc}: {found.code().name}: {found.details()}"
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


def _channel(given: Namespace) -> grpc.Channel:
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
    options = [("grpc.enable_http_proxy", 0)]
    if given.server_ca is None:
        return grpc.insecure_channel(str(address), options)
    credentials = grpc.ssl_channel_credentials(given.server_ca, given.key, given.cert)
    return grpc.secure_channel(str(address), credentials, options)


def _asked(channel: grpc.Channel, given: Namespace) -> bool:
    """Ask, print the answer, and return whether it is a good one.

    Raises:
        ValueError: A descriptor cannot be read.
        grpc.RpcError: The service does not answer, or refuses the request.
    """
    if given.health:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        found = stub.Check(health_pb2.HealthCheckRequest(service="ratelimit"), timeout=given.timeout)
        good = bool(found.status == health_pb2.HealthCheckResponse.SERVING)
        _say({"serving": good}) if given.json else sys.stdout.write("serving\n" if good else "not serving\n")
        return good
    request = RateLimitRequest(domain=given.domain, descriptors=[_descriptor(each) for each in given.descriptors])
    if given.hits is not None:
        for each in request.descriptors:
            each.hits_addend.value = abs(given.hits)
            each.is_negative_hits = given.hits < 0
    metadata = [] if given.token is None else [("authorization", f"Bearer {given.token}")]
    method: Any = channel.unary_unary(METHOD)
    response = RateLimitResponse.FromString(
        method(request.SerializeToString(), timeout=given.timeout, metadata=metadata)
    )
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
