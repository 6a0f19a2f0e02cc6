"""Values that have a notation of their own, as JSON Schema: what an editor is told of a limit, a throttle, a cost.

What pydantic tells by itself is not here.
"""

from typing import Any

from ratelimit_mw.rules.readers import responding
from ratelimit_mw.rules.readers.limits import MOST

TEXT = {"type": "string"}


def or_list(of: dict[str, Any], *, at_least: int = 1) -> dict[str, Any]:
    """One of them, or a list."""
    return {"anyOf": [of, {"type": "array", "items": of, "minItems": at_least}]}


_ONE_LIMIT = {
    "anyOf": [
        {"type": "string", "examples": ["100 per minute", "10/2s", "20 concurrent", "unlimited"]},
        {
            "type": "object",
            "properties": {"requests": {"type": "integer", "minimum": 0}, "per": TEXT, "burst": {"type": "integer"}},
            "required": ["requests", "per"],
            "additionalProperties": False,
        },
    ]
}
LIMIT = {
    "anyOf": [
        *or_list(_ONE_LIMIT)["anyOf"],
        {"type": "object", "required": ["default"], "additionalProperties": or_list(_ONE_LIMIT)},
    ]
}

_PERCENT = {"type": "string", "pattern": r"^[0-9]{1,4}(\.[0-9]{1,2})?\s*%$", "examples": ["10%", "200%"]}
THROTTLE = {
    "anyOf": [
        {"const": "hard"},
        {"type": "object", "properties": {"soft": _PERCENT}, "required": ["soft"], "additionalProperties": False},
        {
            "type": "object",
            "properties": {
                "elastic": {
                    "type": "object",
                    "properties": {
                        "up_to": _PERCENT,
                        "below": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                    },
                    "required": ["up_to", "below"],
                    "additionalProperties": False,
                }
            },
            "required": ["elastic"],
            "additionalProperties": False,
        },
    ]
}
_STATUS = {
    "anyOf": [{"type": "integer", "minimum": 100, "maximum": 599}, {"type": "string", "examples": ["4xx", "500-599"]}]
}
COUNT = {
    "type": "object",
    "properties": {"status": or_list(_STATUS)},
    "required": ["status"],
    "additionalProperties": False,
}
BAN = {
    "type": "object",
    "properties": {
        "after": {**TEXT, "examples": ["10 denials in 1 minute", "1 denial"]},
        "for": {**TEXT, "examples": ["10 minutes"]},
        "growing": {**TEXT, "examples": ["2x up to 1 day"]},
    },
    "required": ["after", "for"],
    "additionalProperties": False,
}
COST = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": MOST},
        {**TEXT, "examples": ["header:X-Cost", "python:package.module:function", "response:X-Cost"]},
    ],
    "default": 1,
}
_LOADED = {"type": "string", "pattern": "^python:", "examples": ["python:package.module:function"]}
_BAND = {
    "anyOf": [
        {"const": "never"},
        {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 2}, "minItems": 2, "maxItems": 2},
    ]
}
LOAD = {
    "anyOf": [
        _LOADED,
        {
            "type": "object",
            "properties": {
                "source": _LOADED,
                "capacity": {"type": "integer", "minimum": 1},
                "shed": {
                    "type": "object",
                    "properties": {"low": _BAND, "normal": _BAND, "critical": _BAND},
                    "additionalProperties": False,
                    "minProperties": 1,
                },
            },
            "additionalProperties": False,
            "minProperties": 1,
        },
    ]
}

_GROUPS = or_list({"enum": list(responding.GROUPS)}, at_least=0)
HEADERS = {
    "anyOf": [
        *_GROUPS["anyOf"],
        {"type": "object", "properties": {"allowed": _GROUPS, "denied": _GROUPS}, "additionalProperties": False},
    ],
    "default": ["x-ratelimit", "retry-after"],
}
BODY = {
    **or_list({"anyOf": [{"enum": list(responding.FORMATS)}, {"type": "object", "minProperties": 1}]}),
    "default": "json",
    "examples": ["problem", ["json", "html"], {"error": {"code": "{reason}", "message": "{message}"}}],
}
