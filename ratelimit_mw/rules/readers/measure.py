"""`load`: how the process's load is known, for the rules that go by it, and when it sheds requests."""

from ratelimit_mw.identity.sources import imported
from ratelimit_mw.rules.documents.tree import Items, Map, Node, Scalar, kind, nearest, quoted
from ratelimit_mw.rules.readers.shed import read_shed
from ratelimit_mw.rules.readers.values import text, whole
from ratelimit_mw.rules.readers.wrong import Wrong
from ratelimit_mw.settings import Bands, LoadSettings

_KEYS = ("source", "capacity", "shed")
_SOURCE = "write python:package.module:function"
_FORM = f"{_SOURCE}, or {{capacity: 100}}"


def read_load(node: Node) -> LoadSettings:
    """The settings that `node` states. Raises `Wrong`, also where the function can't be imported."""
    if isinstance(node, Scalar):
        return _told(node, _FORM)
    if isinstance(node, Items) or not (node or node.keys_at):
        raise Wrong.at(None, f"must say where the load comes from, not {kind(node)}", _FORM)
    wrong = Wrong()
    for key in node:
        if key not in _KEYS:
            wrong.add(node.keys_at[key], f"unknown key {quoted(key)}", nearest(key, _KEYS))
    if "source" in node and "capacity" in node:
        why = "a source says the load itself: there is no capacity to measure it by"
        wrong.add(node.keys_at["capacity"], why, "leave one of them out")
    told, capacity, bands = LoadSettings(), None, Bands()
    with wrong.gathering():
        told = _told(node["source"], _SOURCE) if "source" in node else told
    with wrong.gathering():
        capacity = _capacity(node) if "capacity" in node else None
    with wrong.gathering():
        bands = read_shed(node["shed"]) if "shed" in node else bands
    wrong.finish()
    return LoadSettings(told.source, told.name, capacity, bands)


def _told(node: Node, form: str) -> LoadSettings:
    name = text(node).strip() if isinstance(node, Scalar) else ""
    scheme, _, target = name.partition(":")
    if scheme != "python" or not target:
        raise Wrong.at(node.place, f"{quoted(name) if name else kind(node)} is no source of a load", form)
    try:
        return LoadSettings(imported(target.strip()), name)
    except ValueError as error:
        raise Wrong.at(node.place, str(error)) from None


def _capacity(node: Map) -> int:
    try:
        found = whole(node["capacity"])
    except Wrong as error:
        raise Wrong.at(node["capacity"].place, error.faults[0].message, error.faults[0].hint) from None
    if not 1 <= found <= 1_000_000:
        raise Wrong.at(node["capacity"].place, f"a capacity of {found} is out of range", "from 1 to 1000000")
    return found
