"""Envoy's messages as short texts: what a request of descriptors asks, and what the service answers."""

import asyncio
import re
from typing import NamedTuple

import pytest

rls_pb2 = pytest.importorskip("envoy.service.ratelimit.v3.rls_pb2", reason="xds-protos is not installed")
pytest.importorskip("grpc_health", reason="the extra serve is not installed")

from ratelimit_mw.service.access import Access  # noqa: E402 - after the check that the extra is there
from ratelimit_mw.service.settings import Settings  # noqa: E402
from ratelimit_mw.service.should_rate_limit import ShouldRateLimit  # noqa: E402
from ratelimit_mw.service.state import Service  # noqa: E402

UNITS = rls_pb2.RateLimitResponse.RateLimit.Unit
CODES = rls_pb2.RateLimitResponse.Code


class Step(NamedTuple):
    """A request, and its answer.

    Attributes:
        descriptors: Each is a text: "foo=bar baz=shady". A number in front of it is its own hits: "0 service=1".
        statuses: What is expected of each descriptor, in their order.
        hits: The `hits_addend` of the request.
        later: The seconds that pass before the request.
        overall: The expected code, if it is not that of the statuses.
    """

    descriptors: list[str]
    statuses: list[str]
    hits: int = 0
    later: float = 0
    overall: str = ""


class Asked:
    """The gRPC method of a service with this limiter, on a loop of its own. Close it before the limiter.

    Args:
        limiter: The limiter.
        settings: Settings of the service, such as `headers="go"`.
    """

    def __init__(self, limiter, **settings):
        read = Settings.read(rules="unused", **settings)
        self._method = ShouldRateLimit(Service(read, limiter, Access(read)))
        self.limiter = limiter
        self._runner = asyncio.Runner()

    def __call__(self, descriptors, hits=0, domain="shop"):
        """The response to a request of these descriptors."""
        data = self._runner.run(self._method.answer(request(descriptors, hits, domain).SerializeToString()))
        return rls_pb2.RateLimitResponse.FromString(data)

    def close(self):
        self._runner.run(self.limiter.aclose())
        self._runner.close()


def request(descriptors, hits=0, domain="shop"):
    """A message with these descriptors: "foo=bar baz=qux", with a number in front if they have hits of their own."""
    message = rls_pb2.RateLimitRequest(domain=domain, hits_addend=hits)
    for text in descriptors:
        own, entries = re.fullmatch(r"(?:(\d+) )?(.*)", text).groups()
        descriptor = message.descriptors.add()
        if own is not None:
            descriptor.hits_addend.value = int(own)
        for entry in entries.split():
            key, _, value = entry.partition("=")
            descriptor.entries.add(key=key, value=value)
    return message


def shown(response):
    """The overall code, and the statuses as `passed` and `over` write them."""
    return [CODES.Name(response.overall_code), *map(_status, response.statuses)]


def passed(limit="", remaining=0, reset=0):
    """A status with the code OK: its limit such as "3/MINUTE name", what remains, and the seconds until its reset."""
    return _text("OK", limit, remaining, reset)


def over(limit, remaining, reset):
    """A status with the code OVER_LIMIT."""
    return _text("OVER_LIMIT", limit, remaining, reset)


def _status(status):
    limit = status.current_limit
    shown = f"{limit.requests_per_unit}/{UNITS.Name(limit.unit)} {limit.name}".strip() if limit.unit else ""
    return _text(CODES.Name(status.code), shown, status.limit_remaining, status.duration_until_reset.seconds)


def _text(code, limit, remaining, reset):
    return f"{code} {limit or 'no limit'}, {remaining} left, {reset} s"
