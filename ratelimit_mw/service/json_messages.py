"""The messages of `/json`: ShouldRateLimit as proto3-JSON, as envoyproxy/ratelimit reads and writes it.

The names of fields may be in camelCase or in snake_case. The values of an enumeration may be names or numbers. Whole
numbers may be texts.

This module is internal: its names may change in any release.
"""

from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from ratelimit_mw.service.checks import BadRequest
from ratelimit_mw.service.ratelimit_pb2 import JsonRateLimitRequest, RateLimitResponse

_FORM = (
    "the body is not the request of ShouldRateLimit as proto3-JSON, as in "
    '{"domain": "shop", "descriptors": [{"entries": [{"key": "k", "value": "v"}]}], "hitsAddend": 1}'
)


def request_of(value: object) -> bytes:
    """Return the wire message of a request.

    Args:
        value: The request, as `json.loads` returns it.

    Raises:
        BadRequest: The value is not a request. The error does not say where: the text of the library quotes the value.
    """
    if not isinstance(value, dict):
        raise BadRequest([_FORM])
    try:
        return ParseDict(value, JsonRateLimitRequest()).SerializeToString()
    except ParseError:
        raise BadRequest([_FORM]) from None


def response_of(data: bytes) -> tuple[dict[str, Any], bool]:
    """Return a response as JSON has it, and whether it denies the request. Fields with their default are left out.

    Args:
        data: The wire message of the response.
    """
    response = RateLimitResponse.FromString(data)
    return MessageToDict(response), response.overall_code == RateLimitResponse.OVER_LIMIT
