"""Every form that a rule's `limit` may take, read into one: what each tier is held to."""

from collections.abc import Mapping
from typing import NamedTuple

from ratelimit_mw.rules.breath import breathe
from ratelimit_mw.rules.documents.tree import Items, Map, Node, Place, Scalar, kind, nearest, quoted
from ratelimit_mw.rules.readers.limits import FORM, Malformed, Window, parse_limit, parse_period
from ratelimit_mw.rules.readers.wrong import Wrong

_KEYS = ("requests", "per", "burst")


class Stated(NamedTuple):
    """One window, and where it is stated."""

    window: Window
    place: Place


class Limits(NamedTuple):
    """The windows of whoever has no tier or one that is not named, and those of the tiers. None: unlimited."""

    default: tuple[Stated, ...]
    tiers: Mapping[str, tuple[Stated, ...]] | None = None

    def all(self) -> list[Stated]:
        """Every window that anybody is held to."""
        return [stated for several in (self.default, *(self.tiers or {}).values()) for stated in several]


def read_limits(node: Node) -> Limits:
    """The limits that `node` states. Raises `Wrong` with everything that is wrong in it."""
    breathe()
    if not isinstance(node, Map) or ("default" not in node and ("requests" in node or "per" in node)):
        return Limits(_several(node))
    wrong = Wrong()
    tiers: dict[str, tuple[Stated, ...]] = {}
    for tier, limit in node.items():
        if not tier.strip():
            wrong.add(limit.place, "a tier without a name, which no request has")
        with wrong.gathering():
            tiers[tier] = _several(limit)
    if "default" not in node:
        message = "a limit by tier needs 'default', for the tiers that are not named"
        wrong.add(node.place, message, "" if node else FORM)
    wrong.finish()
    return Limits(tiers.pop("default"), tiers)


def _several(node: Node) -> tuple[Stated, ...]:
    if not isinstance(node, Items):
        stated = _one(node)
        return () if stated is None else (stated,)
    wrong = Wrong()
    windows: list[Stated] = []
    if not node:
        wrong.add(node.place, "an empty list limits nothing", "write unlimited, or leave the rule out")
    for item in node:
        with wrong.gathering():
            stated = _one(item)
            if stated is None:
                wrong.add(item.place, "'unlimited' stands alone, not in a list")
            elif any(stated.window.period == other.window.period for other in windows):
                wrong.add(item.place, "two limits of one list have the same window", "keep the lower one")
            else:
                windows.append(stated)
    wrong.finish()
    return tuple(windows)


def _one(node: Node) -> Stated | None:
    if isinstance(node, Map) and "default" in node:
        raise Wrong.at(node.place, "tiers stand at the top of a limit, not within a tier or a list")
    if isinstance(node, Map):
        return Stated(_spelled_out(node), node.place)
    if isinstance(node, Items):
        raise Wrong.at(node.place, "must be a limit, not a list")
    if not isinstance(node.value, str):
        raise Wrong.at(node.place, f"must be a limit, not {kind(node)}", FORM)
    try:
        window = parse_limit(node.text)
    except Malformed as error:
        raise Wrong.at(node.place, str(error), error.hint) from None
    return None if window is None else Stated(window, node.place)


def _spelled_out(node: Map) -> Window:
    wrong = Wrong()
    for key in node:
        if key not in _KEYS:
            wrong.add(node.keys_at[key], f"unknown key {quoted(key)}", nearest(key, _KEYS))
    missing = [key for key in ("requests", "per") if key not in node]
    if missing:
        wrong.add(node.place, f"{' and '.join(map(repr, missing))} missing", "as {requests: 100, per: minute}")
    requests = burst = 0
    period = 0
    with wrong.gathering():
        requests = _whole(node["requests"]) if "requests" in node else 0
    with wrong.gathering():
        burst = _whole(node["burst"]) if "burst" in node else 0
    with wrong.gathering():
        period = _period(node["per"]) if "per" in node else 0
    wrong.finish()
    return Window(requests, period, burst if "burst" in node else None)


def _whole(node: Node) -> int:
    if (
        isinstance(node, Scalar)
        and isinstance(node.value, int)
        and not isinstance(node.value, bool)
        and node.value >= 0
    ):
        return node.value
    raise Wrong.at(node.place, f"must be a whole number from 0 on, not {kind(node)}")


def _period(node: Node) -> int:
    if not isinstance(node, Scalar) or not isinstance(node.value, str):
        raise Wrong.at(node.place, f"must be a time, not {kind(node)}", "as minute, 2 hours or 10s")
    try:
        return parse_period(node.text)
    except Malformed as error:
        raise Wrong.at(node.place, str(error), error.hint) from None
