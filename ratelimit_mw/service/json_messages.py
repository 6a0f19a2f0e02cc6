"""The messages of `/json`: ShouldRateLimit as proto3-JSON, as envoyproxy/ratelimit reads and writes it.

The names of fields may be in camelCase or in snake_case. The values of an enumeration may be names or numbers. Whole
numbers may be texts.

The wire messages of this package have keys and values as bytes, and no enumeration of units. The mapping of protobuf's
own library therefore does not fit them.

This module is internal: its names may change in any release.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from ratelimit_mw.service.checks import BadRequest
from ratelimit_mw.service.ratelimit_pb2 import RateLimitDescriptor, RateLimitRequest, RateLimitResponse

_UNITS = ("UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK")
"""The units by their numbers on the wire."""

_CODES = ("UNKNOWN", "OK", "OVER_LIMIT")
_UINT32, _UINT64 = 2**32 - 1, 2**64 - 1


def request_of(value: object) -> bytes:
    """Return the wire message of a request.

    Args:
        value: The request, as `json.loads` returns it.

    Raises:
        BadRequest: The value is not a request. It has all problems.
    """
    reader = _Reader()
    request = reader.request(value)
    if reader.problems:
        raise BadRequest(reader.problems)
    return request.SerializeToString()


class _Reader:
    """Reads one request. A value that cannot be used is left out, and added to `problems`."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def request(self, value: object) -> RateLimitRequest:
        fields = self._fields(value, ("domain", "descriptors", "hitsAddend"), "the request")
        return RateLimitRequest(
            domain=self._text(fields.get("domain"), "domain"),
            descriptors=[
                self._descriptor(each, f"descriptors[{index}]")
                for index, each in enumerate(self._list(fields.get("descriptors"), "descriptors"))
            ],
            hits_addend=self._number(fields.get("hitsAddend"), "hitsAddend", _UINT32),
        )

    def _descriptor(self, value: object, at: str) -> RateLimitDescriptor:
        fields = self._fields(value, ("entries", "limit", "hitsAddend"), at)
        descriptor = RateLimitDescriptor(
            entries=[
                self._entry(each, f"{at}.entries[{index}]")
                for index, each in enumerate(self._list(fields.get("entries"), f"{at}.entries"))
            ]
        )
        if "limit" in fields:
            limit = self._fields(fields["limit"], ("requestsPerUnit", "unit"), f"{at}.limit")
            requests = self._number(limit.get("requestsPerUnit"), f"{at}.limit.requestsPerUnit", _UINT32)
            descriptor.limit.requests_per_unit = requests
            descriptor.limit.unit = self._unit(limit.get("unit"), f"{at}.limit.unit")
        if "hitsAddend" in fields:  # 0 differs from an absent value
            descriptor.hits_addend.value = self._number(fields["hitsAddend"], f"{at}.hitsAddend", _UINT64)
        return descriptor

    def _entry(self, value: object, at: str) -> RateLimitDescriptor.Entry:
        fields = self._fields(value, ("key", "value"), at)
        return RateLimitDescriptor.Entry(
            key=self._text(fields.get("key"), f"{at}.key").encode(),
            value=self._text(fields.get("value"), f"{at}.value").encode(),
        )

    def _fields(self, value: object, names: Sequence[str], at: str) -> dict[str, object]:
        """Return the fields of an object by their names in camelCase. null is an absent value."""
        if not isinstance(value, Mapping):
            self.problems.append(f"{at}: must be an object")
            return {}
        known = {spelling: name for name in names for spelling in (name, _snake_case(name))}
        found: dict[str, object] = {}
        for key, each in value.items():
            name = known.get(key)
            if name is None:
                self.problems.append(f"{at}: a field is unknown; the fields are {', '.join(names)}")
            elif name in found:
                self.problems.append(f"{at}.{name}: is there in both spellings")
            elif each is not None:
                found[name] = each
        return found

    def _list(self, value: object, at: str) -> Sequence[object]:
        if value is None or isinstance(value, list):
            return value or ()
        self.problems.append(f"{at}: must be a list")
        return ()

    def _text(self, value: object, at: str) -> str:
        if value is None:
            return ""
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                self.problems.append(f"{at}: has half of a surrogate pair")
                return ""
            return value
        self.problems.append(f"{at}: must be a text")
        return ""

    def _number(self, value: object, at: str, most: int) -> int:
        if value is None:
            return 0
        written = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 20
        whole = isinstance(value, float) and value.is_integer()  # 1e3 is a whole number in JSON
        number = int(value) if written or whole else value  # type: ignore[call-overload]  # a text or a float
        if type(number) is int and 0 <= number <= most:
            return number
        self.problems.append(f"{at}: must be a whole number from 0 to {most}")
        return 0

    def _unit(self, value: object, at: str) -> int:
        if isinstance(value, str) and value in _UNITS:
            return _UNITS.index(value)
        if value is None or (type(value) is int and 0 <= value < len(_UNITS)):
            return value or 0
        self.problems.append(f"{at}: must be one of {', '.join(_UNITS)}")
        return 0


def _snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


def response_of(data: bytes) -> tuple[dict[str, Any], bool]:
    """Return a response as JSON has it, and whether it denies the request. Fields with their default are left out.

    Args:
        data: The wire message of the response.
    """
    response = RateLimitResponse.FromString(data)
    found = _without_defaults(
        overallCode=_CODES[response.overall_code],
        statuses=[_status(status) for status in response.statuses],
        responseHeadersToAdd=[
            _without_defaults(key=header.key, value=header.value) for header in response.response_headers_to_add
        ],
        rawBody=base64.b64encode(response.raw_body).decode("ascii"),
    )
    return found, response.overall_code == RateLimitResponse.OVER_LIMIT


def _status(status: RateLimitResponse.DescriptorStatus) -> dict[str, Any]:
    limit, until_reset = {}, ""
    if status.HasField("current_limit"):
        current = status.current_limit
        limit = _without_defaults(
            name=current.name, requestsPerUnit=current.requests_per_unit, unit=_UNITS[current.unit]
        )
    if status.HasField("duration_until_reset"):
        until_reset = f"{status.duration_until_reset.seconds}s"
    return _without_defaults(
        code=_CODES[status.code],
        currentLimit=limit,
        limitRemaining=status.limit_remaining,
        durationUntilReset=until_reset,
    )


def _without_defaults(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}
