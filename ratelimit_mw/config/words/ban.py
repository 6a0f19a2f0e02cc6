"""`ban`: after many denials by a rule, the rule denies the client everything for a time.

`after` is the number of denials that start a ban, `for` is its length, and `growing` makes each further ban longer. The
algorithm `ban` counts the denials in the store. It has its own key per identity.
"""

import re
from dataclasses import replace

from ratelimit_mw.algorithms.ban import BanQuota
from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Node, Problems
from ratelimit_mw.config.word import Conflict, Section, Values, Word, section_word
from ratelimit_mw.config.words.consistency import CONSISTENCY, SHARDS
from ratelimit_mw.config.words.limit import LIMIT
from ratelimit_mw.config.words.on_limit import ON_LIMIT
from ratelimit_mw.errors import Invalid, quoted
from ratelimit_mw.model import Penalty, Quota
from ratelimit_mw.units import SECOND, spell_duration

_AFTER = re.compile(r"([0-9]+)\s+denials?(?:\s+in\s+(.+))?", re.IGNORECASE | re.DOTALL)
_GROWING = re.compile(r"([0-9]+)\s*x\s+up\s+to\s+(.+)", re.IGNORECASE | re.DOTALL)
_MOST_DENIALS = 1_000  # the store keeps the time of each denial
_MOST_GROWTH = 100
_ONE_PLACE = "all denials must be counted in one place"


def _read_after(node: Node) -> tuple[int, int]:
    """Read the number of denials, and the time within which they count (microseconds)."""
    hint = "for example 10 denials in 1 minute, or 1 denial"
    found = kinds.read_match(node, _AFTER, "a number of denials", hint)
    after = int(found[1][:10])
    if not 1 <= after <= _MOST_DENIALS:
        raise Invalid(f"{found[1]} denials are out of range", f"from 1 to {_MOST_DENIALS}")
    if found[2] is None and after > 1:
        hint = f"for example {after} denials in 1 minute"
        raise Invalid(f"{quoted(found[0])} has no time within which the denials are counted", hint)
    return after, SECOND if found[2] is None else kinds.duration_between(found[2], "1ms", "30 days")


def _read_growing(node: Node) -> tuple[int, int]:
    """Read the factor by which each ban is longer than the one before, and the longest ban (microseconds)."""
    found = kinds.read_match(node, _GROWING, "a factor and a longest ban", "for example 2x up to 1 day")
    growth = int(found[1][:10])
    if not 2 <= growth <= _MOST_GROWTH:
        raise Invalid(f"{found[1]}x is out of range", f"from 2x to {_MOST_GROWTH}x")
    return growth, kinds.duration_between(found[2], "1ms", "1 year")


def _check(ban: Values, problems: Problems) -> None:
    """Report a ban that would not grow."""
    growing = ban[_FURTHER]
    if growing is not None and growing[1] <= ban[_FOR]:
        message = f"a ban of {spell_duration(ban[_FOR])} can't grow up to {spell_duration(growing[1])}"
        problems.add(ban.place("growing"), message, "remove growing, or write a longer time")


def _made(after: tuple[int, int], growing: tuple[int, int] | None, **others: int) -> Penalty:
    lasts = others["for"]
    growth, longest = growing or (1, lasts)
    return Penalty("", BanQuota("ban", *after, lasts=lasts, longest=longest, growth=growth))


def _alter(quota: Quota, rule: Values, prefix: str) -> Quota:
    """Add the ban to a quota of the rule. All limits of the rule share one ban per identity."""
    ban = rule[BAN]
    return replace(quota, penalty=ban and replace(ban, prefix=f"{prefix}ban:{{"))


_FOR: Word[int] = Word(
    key="for",
    read=lambda node: kinds.duration_between(kinds.read_text(node), "1ms", "1 year"),
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

BAN: Word[Penalty | None] = section_word(
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
