"""`load`: how the process's load is known, for the rules that go by it."""

from ratelimit_mw.identity.sources import imported
from ratelimit_mw.rules.tree import Items, Map, Node, Scalar, kind, nearest, quoted
from ratelimit_mw.rules.values import text, whole
from ratelimit_mw.rules.wrong import Wrong
from ratelimit_mw.settings import LoadSettings

_FORM = "write python:package.module:function, or {capacity: 100}"


def read_load(node: Node) -> LoadSettings:
    """The settings that `node` states. Raises `Wrong`, also where the function can't be imported."""
    if isinstance(node, Scalar):
        name = text(node).strip()
        kind_, _, target = name.partition(":")
        if kind_ != "python" or not target:
            raise Wrong.at(None, f"{quoted(name)} is no source of a load", _FORM)
        try:
            return LoadSettings(imported(target.strip()), name)
        except ValueError as error:
            raise Wrong.at(None, str(error)) from None
    if isinstance(node, Items) or "capacity" not in node:
        raise Wrong.at(None, f"must say where the load comes from, not {kind(node)}", _FORM)
    wrong = Wrong()
    for key in node:
        if key != "capacity":
            wrong.add(node.keys_at[key], f"unknown key {quoted(key)}", nearest(key, ("capacity",)))
    capacity = 1
    with wrong.gathering():
        capacity = _capacity(node)
    wrong.finish()
    return LoadSettings(capacity=capacity)


def _capacity(node: Map) -> int:
    try:
        found = whole(node["capacity"])
    except Wrong as error:
        raise Wrong.at(node["capacity"].place, error.faults[0].message, error.faults[0].hint) from None
    if not 1 <= found <= 1_000_000:
        raise Wrong.at(node["capacity"].place, f"a capacity of {found} is out of range", "from 1 to 1000000")
    return found
