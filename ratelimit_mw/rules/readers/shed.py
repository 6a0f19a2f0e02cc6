"""`load: {shed: …}`: at which loads the requests of each priority are shed."""

from itertools import pairwise
from math import inf

from ratelimit_mw.rules.documents.tree import Items, Map, Node, Scalar, kind, nearest, quoted
from ratelimit_mw.rules.readers.wrong import Wrong
from ratelimit_mw.settings import Band, Bands

_FORM = "as {low: [0.7, 0.85], normal: [0.9, 1], critical: never}"
_BAND = "as [0.7, 0.85]: some from the first on, all from the second; or never"


def read_shed(node: Node) -> Bands:
    """The bands that `node` states, the others being as usual. Raises `Wrong`."""
    if not isinstance(node, Map) or not (node or node.dropped):
        raise Wrong.at(node.place, f"must say when which priority is shed, not {kind(node)}", _FORM)
    wrong = Wrong()
    bands = Bands()
    for priority, stated in node.items():
        if priority not in Bands._fields:
            wrong.add(node.keys_at[priority], f"unknown key {quoted(priority)}", nearest(priority, Bands._fields))
            continue
        with wrong.gathering():
            bands = bands._replace(**{priority: _band(stated)})
    wrong.finish()
    for (lower, band), (higher, next_band) in pairwise(bands._asdict().items()):
        if any(first > second for first, second in zip(band, next_band, strict=True)):
            message = f"{lower} would be shed after {higher}: {_spelled(band)} against {_spelled(next_band)}"
            raise Wrong.at(node.place, message, f"{lower} begins and ends no later than {higher}")
    return bands


def _band(node: Node) -> Band:
    if isinstance(node, Scalar) and node.text == "never":
        return inf, inf
    loads = [each.value for each in node if isinstance(each, Scalar)] if isinstance(node, Items) else []
    numbers = [float(load) for load in loads if isinstance(load, int | float) and not isinstance(load, bool)]
    if not isinstance(node, Items) or not len(node) == len(numbers) == 2:
        raise Wrong.at(node.place, f"must be two loads, not {kind(node)}", _BAND)
    begins, ends = numbers
    if not (0 <= begins <= 1 and begins <= ends <= 2):
        message = f"{_spelled((begins, ends))} is out of range"
        raise Wrong.at(node.place, message, "the first from 0 to 1, the second from there to 2")
    return begins, ends


def _spelled(band: Band) -> str:
    return "never" if band[0] == inf else f"[{band[0]:g}, {band[1]:g}]"
