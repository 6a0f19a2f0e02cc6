"""`count`: the statuses of the responses whose requests are charged."""

import re

from ratelimit_mw.rules.documents.tree import Items, Map, Node, Scalar, kind, nearest, quoted
from ratelimit_mw.rules.readers.wrong import Wrong

_FORM = "as {status: [401, 403]}, {status: 4xx} or {status: 500-599}"
_CLASS = re.compile(r"([1-5])[xX]{2}")
_RANGE = re.compile(r"([0-9]{3})\s*-\s*([0-9]{3})")
_LEAST, _MOST = 100, 599


def read_count(node: Node) -> frozenset[int]:
    """The statuses that `node` states. Raises `Wrong`."""
    if not isinstance(node, Map):
        raise Wrong.at(None, f"must be a mapping, not {kind(node)}", _FORM)
    wrong = Wrong()
    for key in node:
        if key != "status":
            wrong.add(node.keys_at[key], f"unknown key {quoted(key)}", nearest(key, ("status",)))
    if "status" not in node.keys_at:
        wrong.add(node.place, "the key 'status' is missing", _FORM)
    status = node.get("status")
    found: set[int] = set()
    if isinstance(status, Items) and not status:
        wrong.add(status.place, "an empty list would charge nobody")
    for item in status if isinstance(status, Items) else () if status is None else (status,):
        with wrong.gathering():
            found.update(_statuses(item))
    if len(found) > _MOST - _LEAST:
        wrong.add(node.place, "every status counts", "leave count out")
    wrong.finish()
    return frozenset(found)


def _statuses(node: Node) -> range:
    written = node.text.strip() if isinstance(node, Scalar) else ""
    several = _CLASS.fullmatch(written)
    if several is not None:
        first = int(several[1]) * 100
        return range(first, first + 100)
    bounds = _RANGE.fullmatch(written)
    if bounds is not None:
        first, last = int(bounds[1]), int(bounds[2])
    elif isinstance(node, Scalar) and isinstance(node.value, int) and not isinstance(node.value, bool):
        first = last = node.value
    else:
        raise Wrong.at(node.place, f"must be a status, not {kind(node)}", "as 401, 4xx or 500-599")
    if not _LEAST <= first <= last <= _MOST:
        raise Wrong.at(node.place, f"{written} is out of range", f"statuses go from {_LEAST} to {_MOST}")
    return range(first, last + 1)
