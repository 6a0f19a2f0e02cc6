"""`ban`: after many denials by a rule, the rule denies the client everything for a time.

`after` is the number of denials that start a ban, `for` is its length, and `growing` makes each further ban longer. The
algorithm `ban` counts the denials in the store. It has its own key per identity.
"""

import re
from dataclasses import replace

from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Invalid, Node, Problems, Scalar, kind
from ratelimit_mw.config.word import Conflict, Section, Values, Word, section_word
from ratelimit_mw.config.words.consistency import CONSISTENCY, SHARDS
from ratelimit_mw.config.words.deferral import ON_LIMIT
from ratelimit_mw.config.words.limit import LIMIT
from ratelimit_mw.errors import DurationError, quoted
from ratelimit_mw.model import Ban, Quota
from ratelimit_mw.units import DAY, SECOND, parse_duration, spell_duration

_AFTER = re.compile(r"([0-9]+)\s+denials?(?:\s+in\s+(.+))?", re.IGNORECASE | re.DOTALL)
_GROWING = re.compile(r"([0-9]+)\s*x\s+up\s+to\s+(.+)", re.IGNORECASE | re.DOTALL)
_TIME_FORM = "for example 10 minutes or 1 day"
_MOST_DENIALS = 1_000  # the store keeps the time of each denial
_MOST_GROWTH = 100
_LONGEST_WINDOW = 30 * DAY
_LONGEST = 365 * DAY
_ONE_PLACE = "all denials must be counted in one place"


def _read_after(node: Node) -> tuple[int, int]:
    """Read the number of denials, and the time within which they count (microseconds)."""
    written = _text(node)
    found = _AFTER.fullmatch(written.strip())
    if found is None:
        hint = "for example 10 denials in 1 minute, or 1 denial"
        raise Invalid.at(None, f"must be a number of denials, not {kind(node)}", hint)
    after = _number(found[1])
    if not 1 <= after <= _MOST_DENIALS:
        raise Invalid.at(None, f"{found[1]} denials are out of range", f"from 1 to {_MOST_DENIALS}")
    if found[2] is None and after > 1:
        hint = f"for example {after} denials in 1 minute"
        raise Invalid.at(None, f"{quoted(written)} has no time within which the denials are counted", hint)
    within = SECOND if found[2] is None else _time(found[2])
    if within > _LONGEST_WINDOW:
        raise Invalid.at(None, f"denials can't be counted over {spell_duration(within)}", "at most 30 days")
    return after, within


def _read_for(node: Node) -> int:
    """Read the length of a ban in microseconds."""
    if not isinstance(node, Scalar):
        raise Invalid.at(None, f"must be a time, not {kind(node)}", _TIME_FORM)
    return _time(node.text)


def _read_growing(node: Node) -> tuple[int, int]:
    """Read the factor by which each ban is longer than the one before, and the longest ban (microseconds)."""
    found = _GROWING.fullmatch(_text(node).strip())
    if found is None:
        raise Invalid.at(None, f"must be a factor and a longest ban, not {kind(node)}", "for example 2x up to 1 day")
    growth = _number(found[1])
    if not 2 <= growth <= _MOST_GROWTH:
        raise Invalid.at(None, f"{found[1]}x is out of range", f"from 2x to {_MOST_GROWTH}x")
    return growth, _time(found[2])


def _text(node: Node) -> str:
    """Return the text of a scalar. Empty for a list or a mapping, which no pattern matches."""
    return node.text if isinstance(node, Scalar) else ""


def _number(digits: str) -> int:
    """Return a number that is above every range here if it has many digits."""
    return int(digits[:10])


def _time(written: str) -> int:
    """Return a duration in microseconds. Raises `Invalid` if it is longer than a year."""
    try:
        found = parse_duration(written)
    except DurationError as error:
        hint = error.hint if error.hint.startswith(("did you", "known")) else _TIME_FORM
        raise Invalid.at(None, str(error), hint) from None
    if found > _LONGEST:
        raise Invalid.at(None, f"a ban of {spell_duration(found)} is too long", "at most 1 year")
    return found


def _check(ban: Values, problems: Problems) -> None:
    """Report a ban that would not grow."""
    growing = ban[_FURTHER]
    if growing is not None and growing[1] <= ban[_FOR]:
        message = f"a ban of {spell_duration(ban[_FOR])} can't grow up to {spell_duration(growing[1])}"
        problems.add(ban.place("growing"), message, "remove growing, or write a longer time")


def _made(after: tuple[int, int], growing: tuple[int, int] | None, **others: int) -> Ban:
    lasts = others["for"]
    growth, longest = growing or (1, lasts)
    return Ban("", *after, lasts, longest, growth)


def _alter(quota: Quota, rule: Values, prefix: str) -> Quota:
    """Add the ban to a quota of the rule. All limits of the rule share one ban per identity."""
    ban = rule[BAN]
    return replace(quota, ban=ban and replace(ban, prefix=f"{prefix}ban:{{"))


_FOR: Word[int] = Word(
    key="for",
    read=_read_for,
    default=SECOND,
    schema={**kinds.TEXT, "examples": ["10 minutes"]},
    about="How long the ban lasts.",
    required=True,
)
_FURTHER: Word[tuple[int, int] | None] = Word(
    key="growing",
    read=_read_growing,
    default=None,
    schema={**kinds.TEXT, "examples": ["2x up to 1 day"]},
    about="The factor by which each further ban is longer, and the longest ban.",
    unset="all bans have the same length",
)

BAN: Word[Ban | None] = section_word(
    "ban",
    Section(
        "Ban",
        "After how many denials the rule bans a client, and for how long. A ban denies every request of the client.",
        (
            Word(
                key="after",
                read=_read_after,
                default=(1, SECOND),
                schema={**kinds.TEXT, "examples": ["10 denials in 1 minute", "1 denial"]},
                about="The number of denials that start a ban, and the time within which they count.",
                required=True,
            ),
            _FOR,
            _FURTHER,
        ),
        make=_made,
        check=_check,
        example="for example {after: 10 denials in 1 minute, for: 10 minutes}",
        whole=True,
    ),
    default=None,
    unset="no bans",
    conflicts=(
        Conflict(
            LIMIT,
            "it never denies",
            # An override may lift the limit. Its client is never banned.
            when=lambda rule: rule.has_key("ban") and "limit" not in rule.dropped and not rule[LIMIT].all(),
            what="a rule without a limit",
        ),
        Conflict(CONSISTENCY, _ONE_PLACE),
        Conflict(SHARDS, _ONE_PLACE),
        Conflict(ON_LIMIT, "a deferred request is not denied, and must not lead to a ban"),
    ),
    alter=_alter,
)
