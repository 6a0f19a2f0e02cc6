"""`count`: the statuses of the responses whose requests are charged."""

import re
from dataclasses import replace

from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Invalid, Items, Map, Node, Problems, Scalar, kind
from ratelimit_mw.config.word import Values, Word
from ratelimit_mw.config.words.limit import is_concurrent, is_concurrent_only
from ratelimit_mw.config.words.selection import CHARGED_AT_ONCE, ON_DEMAND
from ratelimit_mw.hints import nearest, quoted
from ratelimit_mw.model import Quota

_FORM = "as {status: [401, 403]}, {status: 4xx} or {status: 500-599}"
_CLASS = re.compile(r"([1-5])[xX]{2}")
_RANGE = re.compile(r"([0-9]{3})\s*-\s*([0-9]{3})")
_LEAST, _MOST = 100, 599


def read_count(node: Node) -> frozenset[int]:
    """The statuses that `node` states. Raises `Invalid`."""
    if not isinstance(node, Map):
        raise Invalid.at(None, f"must be a mapping, not {kind(node)}", _FORM)
    invalid = Invalid()
    for key in node:
        if key != "status":
            invalid.add(node.keys_at[key], f"unknown key {quoted(key)}", nearest(key, ("status",)))
    if "status" not in node.keys_at:
        invalid.add(node.place, "the key 'status' is missing", _FORM)
    status = node.get("status")
    found: set[int] = set()
    if isinstance(status, Items) and not status:
        invalid.add(status.place, "an empty list would charge nobody")
    for item in status if isinstance(status, Items) else () if status is None else (status,):
        with invalid.gathering():
            found.update(_statuses(item))
    if len(found) > _MOST - _LEAST:
        invalid.add(node.place, "every status counts", "leave count out")
    invalid.finish()
    return frozenset(found)


def _statuses(node: Node) -> range:
    written = node.text.strip() if isinstance(node, Scalar) else ""
    hundred = _CLASS.fullmatch(written)
    if hundred is not None:
        first = int(hundred[1]) * 100
        return range(first, first + 100)
    bounds = _RANGE.fullmatch(written)
    if bounds is not None:
        first, last = int(bounds[1]), int(bounds[2])
    elif isinstance(node, Scalar) and isinstance(node.value, int) and not isinstance(node.value, bool):
        first = last = node.value
    else:
        raise Invalid.at(node.place, f"must be a status, not {kind(node)}", "as 401, 4xx or 500-599")
    if not _LEAST <= first <= last <= _MOST:
        raise Invalid.at(node.place, f"{written} is out of range", f"statuses go from {_LEAST} to {_MOST}")
    return range(first, last + 1)


def _alter(quota: Quota, rule: Values, _prefix: str) -> Quota:
    return replace(quota, refundable=True) if rule[COUNT] is not None else quota


def _check(rule: Values, problems: Problems) -> None:
    if rule[COUNT] is None:
        return
    if is_concurrent(rule):
        message = "what is in flight has no status yet: a concurrent limit counts everything"
        hint = "leave count out" if is_concurrent_only(rule) else "make two rules of it"
        problems.add(rule.place("count"), message, hint)
    if rule[ON_DEMAND]:
        message = f"not with on_demand: {CHARGED_AT_ONCE}, whatever its response will be"
        problems.add(rule.place("count"), message)


_STATUS = {
    "anyOf": [{"type": "integer", "minimum": 100, "maximum": 599}, {"type": "string", "examples": ["4xx", "500-599"]}]
}

COUNT: Word[frozenset[int] | None] = Word(
    key="count",
    read=read_count,
    default=None,
    schema={
        "type": "object",
        "properties": {"status": kinds.or_list(_STATUS)},
        "required": ["status"],
        "additionalProperties": False,
    },
    about="Which responses are charged, by their status; the charge of any other is given back.",
    check=_check,
    alter=_alter,
    fields=lambda rule, _file: {"counts": rule[COUNT]},
)
