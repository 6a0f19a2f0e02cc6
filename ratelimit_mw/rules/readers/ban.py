"""`ban`: what many denials by a rule bring, and what it does not go with."""

import re
from typing import NamedTuple

from ratelimit_mw.model import SECOND, Ban
from ratelimit_mw.rules.documents.tree import Map, Node, Place, Scalar, kind, nearest, quoted
from ratelimit_mw.rules.readers.limits import DAY, Malformed, parse_period, spell_time
from ratelimit_mw.rules.readers.wrong import Wrong

_KEYS = ("after", "for", "growing")
_FORM = "as {after: 10 denials in 1 minute, for: 10 minutes}"
_AFTER = re.compile(r"([0-9]+)\s+denials?(?:\s+in\s+(.+))?", re.IGNORECASE | re.DOTALL)
_AFTER_FORM = "as 10 denials in 1 minute, or 1 denial"
_GROWING = re.compile(r"([0-9]+)\s*x\s+up\s+to\s+(.+)", re.IGNORECASE | re.DOTALL)
_GROWING_FORM = "as 2x up to 1 day"
_TIME_FORM = "as 10 minutes or 1 day"
_MOST_DENIALS = 1_000  # each of them is remembered
_MOST_GROWTH = 100
_LONGEST_WINDOW = 30 * DAY
_LONGEST = 365 * DAY


class Punishment(NamedTuple):
    """What a rule says of its bans: see `model.Ban`."""

    after: int = 1
    within: int = SECOND
    lasts: int = SECOND
    longest: int = SECOND
    growth: int = 1

    def under(self, prefix: str) -> Ban:
        """The ban whose keys begin so."""
        return Ban(prefix, *self)


def read_ban(node: Node) -> Punishment:
    """The bans that `node` states. Raises `Wrong` with everything that is wrong in it."""
    if not isinstance(node, Map):
        raise Wrong.at(None, f"must be a mapping, not {kind(node)}", _FORM)
    wrong = Wrong()
    for key in node:
        if key not in _KEYS:
            wrong.add(node.keys_at[key], f"unknown key {quoted(key)}", nearest(key, _KEYS))
    missing = [key for key in ("after", "for") if key not in node.keys_at]
    if missing:
        wrong.add(node.place, f"{' and '.join(map(repr, missing))} missing", _FORM)
    (after, within), lasts, growth, longest = (1, SECOND), 0, 1, 0
    with wrong.gathering():
        after, within = _denials(node["after"]) if "after" in node else (after, within)
    with wrong.gathering():
        lasts = _lasts(node["for"]) if "for" in node else lasts
    with wrong.gathering():
        growth, longest = _growth(node["growing"], lasts) if "growing" in node else (growth, lasts)
    wrong.finish()
    return Punishment(after, within, lasts, longest, growth)


def _denials(node: Node) -> tuple[int, int]:
    """How many denials, and within which time."""
    written = _text(node)
    found = _AFTER.fullmatch(written.strip())
    if found is None:
        raise Wrong.at(node.place, f"must be a number of denials, not {kind(node)}", _AFTER_FORM)
    after = int(found[1]) if len(found[1]) < 10 else _MOST_DENIALS + 1
    if not 1 <= after <= _MOST_DENIALS:
        raise Wrong.at(node.place, f"{found[1]} denials are out of range", f"from 1 to {_MOST_DENIALS}")
    if found[2] is None and after > 1:
        hint = f"as {after} denials in 1 minute"
        raise Wrong.at(node.place, f"{quoted(written)} does not say within which time", hint)
    within = SECOND if found[2] is None else _time(node.place, found[2])
    if within > _LONGEST_WINDOW:
        raise Wrong.at(node.place, f"denials of {spell_time(within)} are too many to remember", "at most 30 days")
    return after, within


def _lasts(node: Node) -> int:
    if not isinstance(node, Scalar):
        raise Wrong.at(node.place, f"must be a time, not {kind(node)}", _TIME_FORM)
    return _time(node.place, node.text)


def _growth(node: Node, lasts: int) -> tuple[int, int]:
    """How many times longer each ban is than the one before, and how long it is at most."""
    found = _GROWING.fullmatch(_text(node).strip())
    if found is None:
        raise Wrong.at(node.place, f"must say how bans grow, not {kind(node)}", _GROWING_FORM)
    growth = int(found[1]) if len(found[1]) < 10 else 0
    if not 2 <= growth <= _MOST_GROWTH:
        raise Wrong.at(node.place, f"{found[1]}x is out of range", f"from 2x to {_MOST_GROWTH}x")
    longest = _time(node.place, found[2])
    if longest <= lasts:
        message = f"a ban of {spell_time(lasts)} can't grow up to {spell_time(longest)}"
        raise Wrong.at(node.place, message, "leave growing out, or let it end later")
    return growth, longest


def _time(place: Place, written: str) -> int:
    try:
        found = parse_period(written)
    except Malformed as error:
        hint = error.hint if error.hint.startswith(("did you", "known")) else _TIME_FORM
        raise Wrong.at(place, str(error).removeprefix("a limit over "), hint) from None
    if found > _LONGEST:
        raise Wrong.at(place, f"{spell_time(found)} are too long for a ban", "at most 1 year")
    return found


def _text(node: Node) -> str:
    return node.text if isinstance(node, Scalar) else ""
