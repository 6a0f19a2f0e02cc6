"""`ban`: after many denials by a rule, the rule denies the client everything for a time.

A ban has three keys. `after` is the number of denials that start it, `for` is its length, and `growing` makes each
further ban longer. The algorithm `ban` counts the denials in the store. It has its own key per identity.
"""

import re
from dataclasses import replace
from typing import NamedTuple

from ratelimit_mw.config import kinds, readers
from ratelimit_mw.config.tree import Invalid, Map, Node, Place, Problems, Scalar, kind
from ratelimit_mw.config.word import Values, Word
from ratelimit_mw.config.words.consistency import CONSISTENCY, SHARDS
from ratelimit_mw.config.words.deferral import ON_LIMIT
from ratelimit_mw.config.words.limit import LIMIT
from ratelimit_mw.errors import DurationError, quoted
from ratelimit_mw.model import Ban, Quota
from ratelimit_mw.units import DAY, SECOND, parse_duration, spell_duration

_KEYS = ("after", "for", "growing")
_FORM = "for example {after: 10 denials in 1 minute, for: 10 minutes}"
_AFTER = re.compile(r"([0-9]+)\s+denials?(?:\s+in\s+(.+))?", re.IGNORECASE | re.DOTALL)
_AFTER_FORM = "for example 10 denials in 1 minute, or 1 denial"
_GROWING = re.compile(r"([0-9]+)\s*x\s+up\s+to\s+(.+)", re.IGNORECASE | re.DOTALL)
_GROWING_FORM = "for example 2x up to 1 day"
_TIME_FORM = "for example 10 minutes or 1 day"
_MOST_DENIALS = 1_000  # the store keeps the time of each denial
_MOST_GROWTH = 100
_LONGEST_WINDOW = 30 * DAY
_LONGEST = 365 * DAY
_REMOVE_ONE = "remove one of the two"


class BanSpec(NamedTuple):
    """The bans of a rule, in denials and microseconds. See `model.Ban`, which also has the prefix of their keys."""

    after: int = 1
    within: int = SECOND
    lasts: int = SECOND
    longest: int = SECOND
    growth: int = 1


def read_ban(node: Node) -> BanSpec:
    """Read a ban. Raises `Invalid` with every error in it."""
    if not isinstance(node, Map):
        raise Invalid.at(None, f"must be a mapping, not {kind(node)}", _FORM)
    invalid = Invalid()
    readers.report_unknown_keys(node, _KEYS, invalid)
    missing = [key for key in ("after", "for") if key not in node.keys_at]
    if missing:
        invalid.add(node.place, readers.missing_keys(missing), _FORM)
    (after, within), lasts, growth, longest = (1, SECOND), 0, 1, 0
    with invalid.gathering():
        after, within = _denials(node["after"]) if "after" in node else (after, within)
    with invalid.gathering():
        lasts = _length(node["for"]) if "for" in node else lasts
    with invalid.gathering():
        growth, longest = _growth(node["growing"], lasts) if "growing" in node else (growth, lasts)
    invalid.finish()
    return BanSpec(after, within, lasts, longest, growth)


def _denials(node: Node) -> tuple[int, int]:
    """Return the number of denials, and the time within which they count (microseconds)."""
    written = _text(node)
    found = _AFTER.fullmatch(written.strip())
    if found is None:
        raise Invalid.at(node.place, f"must be a number of denials, not {kind(node)}", _AFTER_FORM)
    after = int(found[1]) if len(found[1]) < 10 else _MOST_DENIALS + 1
    if not 1 <= after <= _MOST_DENIALS:
        raise Invalid.at(node.place, f"{found[1]} denials are out of range", f"from 1 to {_MOST_DENIALS}")
    if found[2] is None and after > 1:
        hint = f"for example {after} denials in 1 minute"
        raise Invalid.at(node.place, f"{quoted(written)} has no time within which the denials are counted", hint)
    within = SECOND if found[2] is None else _time(node.place, found[2])
    if within > _LONGEST_WINDOW:
        raise Invalid.at(node.place, f"denials can't be counted over {spell_duration(within)}", "at most 30 days")
    return after, within


def _length(node: Node) -> int:
    """Return the length of a ban in microseconds."""
    if not isinstance(node, Scalar):
        raise Invalid.at(node.place, f"must be a time, not {kind(node)}", _TIME_FORM)
    return _time(node.place, node.text)


def _growth(node: Node, lasts: int) -> tuple[int, int]:
    """Return the factor by which each ban is longer than the one before, and the longest ban (microseconds)."""
    found = _GROWING.fullmatch(_text(node).strip())
    if found is None:
        raise Invalid.at(node.place, f"must be a factor and a longest ban, not {kind(node)}", _GROWING_FORM)
    growth = int(found[1]) if len(found[1]) < 10 else 0
    if not 2 <= growth <= _MOST_GROWTH:
        raise Invalid.at(node.place, f"{found[1]}x is out of range", f"from 2x to {_MOST_GROWTH}x")
    longest = _time(node.place, found[2])
    if longest <= lasts:
        message = f"a ban of {spell_duration(lasts)} can't grow up to {spell_duration(longest)}"
        raise Invalid.at(node.place, message, "remove growing, or write a longer time")
    return growth, longest


def _time(place: Place, written: str) -> int:
    """Return a duration in microseconds. Raises `Invalid` if it is longer than a year."""
    try:
        found = parse_duration(written)
    except DurationError as error:
        hint = error.hint if error.hint.startswith(("did you", "known")) else _TIME_FORM
        raise Invalid.at(place, str(error), hint) from None
    if found > _LONGEST:
        raise Invalid.at(place, f"a ban of {spell_duration(found)} is too long", "at most 1 year")
    return found


def _text(node: Node) -> str:
    """Return the text of a scalar. Empty for a list or a mapping, which no pattern matches."""
    return node.text if isinstance(node, Scalar) else ""


def _alter(quota: Quota, rule: Values, prefix: str) -> Quota:
    """Add the ban to a quota of the rule. All limits of the rule share one ban per identity."""
    spec = rule[BAN]
    return quota if spec is None else replace(quota, ban=Ban(f"{prefix}ban:{{", *spec))


def _validate(rule: Values, problems: Problems) -> None:
    """Report bans that can never begin, and bans whose denials would not all be counted in one place."""
    if rule[BAN] is None:
        return
    place = rule.place("ban")
    # An override may lift the limit: it is not the place of `ban`, and its client is never banned.
    if rule.has_key("ban") and "limit" not in rule.dropped and not rule[LIMIT].all():
        problems.add(place, "a rule without a limit never denies, so it can't ban", "remove ban")
    if rule[CONSISTENCY] != "strict" or rule[SHARDS] > 1:
        word = "consistency" if rule[CONSISTENCY] != "strict" else "shards"
        message = "can't be combined with ban: all denials must be counted in one place"
        problems.add(rule.place(word), message, _REMOVE_ONE)
    if rule[ON_LIMIT] == "defer":
        message = "can't be combined with on_limit: defer: a deferred request is not denied, and must not lead to a ban"
        problems.add(place, message, _REMOVE_ONE)


BAN: Word[BanSpec | None] = Word(
    key="ban",
    read=read_ban,
    default=None,
    schema={
        "type": "object",
        "properties": {
            "after": {**kinds.TEXT, "examples": ["10 denials in 1 minute", "1 denial"]},
            "for": {**kinds.TEXT, "examples": ["10 minutes"]},
            "growing": {**kinds.TEXT, "examples": ["2x up to 1 day"]},
        },
        "required": ["after", "for"],
        "additionalProperties": False,
    },
    about="After how many denials the rule bans a client, and for how long. A ban denies every request of the client.",
    unset="no bans",
    validate=_validate,
    alter=_alter,
)
