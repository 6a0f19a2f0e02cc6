"""The messages of ShouldRateLimit: bytes from the wire become lists of entries, and a decision becomes bytes.

Nothing here waits or decides.

This module is internal: its names may change in any release.
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError

from ratelimit_mw.model import EntryList, ListStatus
from ratelimit_mw.service.ratelimit_pb2 import (
    HeaderValue,
    RateLimitDescriptor,
    RateLimitRequest,
    RateLimitResponse,
    Unit,
)

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
METHOD = f"/{SERVICE}/ShouldRateLimit"

MOST_DESCRIPTORS = 100
MOST_ENTRIES = 32
LONGEST_TEXT = 4096
"""The most bytes of a key or a value."""

UNLIMITED = 2**32 - 1
"""The `limit_remaining` of an unlimited descriptor, and the largest one of others."""

UNIT_NAMES = ("", "second", "minute", "hour", "day", "month", "year", "week")
"""The units of a limit by their numbers on the wire."""

_OK = RateLimitResponse.OK
_OVER_LIMIT = RateLimitResponse.OVER_LIMIT

Header = tuple[str, str]


class Refused(Exception):
    """A request cannot be decided. The text is a constant, and says what is wrong. It has nothing that was sent."""


class TooLong(Refused):
    """A text or a message is too long, which a client can cause by a long path or header.

    It is answered as a denial. An error would let the request pass where Envoy's `failure_mode_deny` is false.
    """


PASSED = RateLimitResponse(overall_code=_OK).SerializeToString()
DENIED = RateLimitResponse(overall_code=_OVER_LIMIT).SerializeToString()
"""The bytes of responses without statuses."""


class DecodedRequest(NamedTuple):
    """A request of ShouldRateLimit, decoded.

    Attributes:
        domain: The domain.
        lists: The descriptors, in order.
        hits: What a descriptor charges if it has no hits of its own.
    """

    domain: str
    lists: list[EntryList]
    hits: int


def read(data: bytes) -> DecodedRequest:
    """Return the request in these bytes.

    Raises:
        Refused: The bytes are no request, the request is not complete, or it has more than a request may have.
    """
    try:
        request = RateLimitRequest.FromString(data)
    except DecodeError:
        raise Refused("the message is malformed") from None
    if not request.domain:
        raise Refused("the domain is empty")
    descriptors = request.descriptors
    if not descriptors:
        raise Refused("there are no descriptors")
    if len(descriptors) > MOST_DESCRIPTORS:
        raise Refused("there are more than 100 descriptors")
    hits = request.hits_addend or 1
    return DecodedRequest(request.domain, [_read(each, hits) for each in descriptors], hits)


def _read(descriptor: RateLimitDescriptor, hits_of_request: int) -> EntryList:
    entries = [(entry.key, entry.value) for entry in descriptor.entries]
    if len(entries) > MOST_ENTRIES:
        raise Refused("a descriptor has more than 32 entries")
    pairs = []
    for key, value in entries:
        if len(key) > LONGEST_TEXT or len(value) > LONGEST_TEXT:
            raise TooLong("a key or a value is longer than 4 KiB")
        # Envoy sends what a client sent, which need not be UTF-8. Refusing it would let the request pass.
        pairs.append((key.decode("utf-8", "backslashreplace"), value.decode("utf-8", "backslashreplace")))
    hits = descriptor.hits_addend.value if descriptor.HasField("hits_addend") else None
    if descriptor.is_negative_hits:
        hits = -(hits_of_request if hits is None else hits)
    return EntryList(pairs, hits, _limit(descriptor.limit) if descriptor.HasField("limit") else None)


def _limit(limit: RateLimitDescriptor.RateLimitOverride) -> tuple[int, str]:
    if not 0 < limit.unit < len(UNIT_NAMES):
        raise Refused("the limit of a descriptor has an unknown unit")
    return limit.requests_per_unit, UNIT_NAMES[limit.unit]


class Writer:
    """Writes responses. It keeps a message for each limit, because only two numbers of a status are new each time.

    A message of statuses and one of headers that follow each other are read as one message.
    """

    def __init__(self) -> None:
        self._template = lru_cache(maxsize=1024)(_template)

    def write(
        self, allowed: bool, statuses: Sequence[ListStatus], headers: Iterable[Header] = (), body: bytes = b""
    ) -> bytes:
        """Return the bytes of the response.

        Args:
            allowed: Whether the request passes.
            statuses: The statuses of its descriptors.
            headers: The headers that the proxy adds to its response.
            body: The body of a denial. Empty: the proxy's own.
        """
        parts = [PASSED if allowed else DENIED, *map(self._status, statuses)]
        if headers or body:
            added = [HeaderValue(key=key, value=value) for key, value in headers]
            parts.append(RateLimitResponse(response_headers_to_add=added, raw_body=body).SerializeToString())
        return b"".join(parts)

    def _status(self, status: ListStatus) -> bytes:
        """The bytes of a response with this status alone."""
        allowed, _, name, limit, _, unit, remaining, unlimited, _, _ = status
        seconds = _seconds(status)
        if remaining is None or unlimited:  # an unknown rest would be read as 0, so the limit is not told
            unit = None
        response, made, until_reset = self._template(allowed, seconds is None, limit, unit, name)
        made.limit_remaining = UNLIMITED if unlimited else min(remaining or 0, UNLIMITED)
        if seconds is not None:
            until_reset.seconds = seconds
        return response.SerializeToString()


_Template = tuple[RateLimitResponse, RateLimitResponse.DescriptorStatus, Duration]
"""A response with one status, the status, and its `duration_until_reset`."""


def _template(allowed: bool, endless: bool, limit: int | None, unit: str | None, name: str | None) -> _Template:
    """Make a response with one status. It has a limit if a unit of the protocol names its period.

    Args:
        allowed: Whether the limit admits the request.
        endless: Whether `duration_until_reset` is absent.
        limit: The number of requests per period.
        unit: The unit of the period.
        name: The name of the limit.
    """
    response = RateLimitResponse()
    made = response.statuses.add(code=_OK if allowed else _OVER_LIMIT)
    if unit in UNIT_NAMES:
        number, most = UNIT_NAMES.index(unit), min(limit or 0, UNLIMITED)
        shown = RateLimitResponse.RateLimit(requests_per_unit=most, unit=Unit.Name(number), name=name or "")
        made.current_limit.CopyFrom(shown)
    if not endless:
        made.duration_until_reset.SetInParent()
    return response, made, made.duration_until_reset


@lru_cache(maxsize=16)
def passed(descriptors: int) -> bytes:
    """Return the bytes of a response that lets a request pass to which no limit applies."""
    return Writer().write(True, [ListStatus(True)] * descriptors)


def go_headers(statuses: Sequence[ListStatus]) -> list[Header]:
    """Return the headers of envoyproxy/ratelimit: those of the descriptor that denies, or that has the least left."""
    limited = [
        each for each in statuses if each.remaining is not None and not each.unlimited and each.unit in UNIT_NAMES
    ]
    if not limited:
        return []
    least = min(limited, key=lambda status: (status.allowed, status.remaining))
    seconds = _seconds(least)
    return [
        ("RateLimit-Limit", str(least.limit)),
        ("RateLimit-Remaining", str(least.remaining)),
        *([("RateLimit-Reset", str(seconds))] if seconds is not None else []),
    ]


def _seconds(status: ListStatus) -> int | None:
    """The whole seconds, rounded up, after which a denied list is admitted, or the counter is as if unused.

    None if no limit applies, if it is unknown, or if no waiting helps.
    """
    seconds = status.reset_after if status.allowed else status.retry_after
    if math.isinf(seconds) or (status.remaining is None and status.allowed):
        return None
    return math.ceil(seconds)
