"""`on_limit`, `defer`, `messages` and `ban`: what happens to requests, messages and clients above the limit.

`on_limit: defer` belongs to a rule. The section `defer` belongs to the file and sets the limits of the queue, which all
rules of the file share. The package `deferral` queues and replays the requests.

A rule counts either requests or messages. A rule that counts messages is not charged for the handshake. It is charged
for each message that the client sends, and has no response. `http.websocket` counts the messages.

After many denials by a rule with `ban`, the rule denies the client everything for a time. `after` is the number of
denials that start a ban, `for` is its length, and `growing` makes each further ban longer. The algorithm `ban` counts
the denials in the store. It has its own key per identity.
"""

import re
from dataclasses import replace
from typing import Literal

from ratelimit_mw.algorithms.ban import BanQuota
from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Node, Problems
from ratelimit_mw.config.word import Conflict, Section, Values, Word, section_word
from ratelimit_mw.config.words.charging import COUNT, no_cost_of_response
from ratelimit_mw.config.words.consistency import CONSISTENCY, SHARDS
from ratelimit_mw.config.words.limit import LIMIT, no_concurrent
from ratelimit_mw.config.words.load import PRIORITY
from ratelimit_mw.config.words.response import RULE_RESPONSE
from ratelimit_mw.config.words.selection import BY, MATCH, METHODS, ON_DEMAND, SHADOW
from ratelimit_mw.errors import Invalid, quoted
from ratelimit_mw.identity.identifier import CONNECTION, attributes_of
from ratelimit_mw.identity.path_forms import cleaned
from ratelimit_mw.model import Penalty, Quota
from ratelimit_mw.settings import DeferSettings
from ratelimit_mw.units import SECOND, spell_duration

_LOCAL = "with by: connection, the counter is only in the process that has the connection"


def _by_connection(rule: Values) -> bool:
    return any(CONNECTION in attributes_of(entry) for entry in rule[BY])


MESSAGES: Word[Literal["close", "drop"] | None] = kinds.choice(
    "messages",
    ("close", "drop"),
    None,
    "The rule counts WebSocket messages. Above the limit, the WebSocket is closed, or the message is dropped.",
    unset="messages are not counted",
    conflicts=(
        Conflict(ON_DEMAND, "the app can't ask for a rule that counts messages"),
        Conflict(PRIORITY, "under load, new WebSockets are refused, but open ones are not closed"),
        Conflict(RULE_RESPONSE, "no response is sent when a message is over the limit"),
        Conflict(COUNT, "a message has no response"),
        no_cost_of_response("a message has no response"),
        no_concurrent("the end of a message's processing is unknown"),
        Conflict(MATCH, "every WebSocket is opened with GET", when=lambda rule: rule[MATCH][METHODS], what="methods"),
        Conflict(CONSISTENCY, _LOCAL, when=lambda rule: rule.differs(CONSISTENCY) and _by_connection(rule)),
        Conflict(SHARDS, _LOCAL, when=lambda rule: rule.differs(SHARDS) and _by_connection(rule)),
    ),
    fields=lambda messages: {"messages": messages},
)

_FOLDER = re.compile(r"(/[A-Za-z0-9._~-]+)+")  # characters that no client or server encodes or changes


def _validate_defer(rule: Values, problems: Problems) -> None:
    for window in rule[LIMIT].all():
        if not window.limit:
            problems.add(window.place, "a limit of 0 never admits, so a deferred request would never be replayed")


def read_folder(node: Node) -> str:
    """Read the path of the folder of the status pages, without a slash at its end."""
    written = kinds.read_text(node)
    found = written.rstrip("/")
    if not _FOLDER.fullmatch(found) or cleaned(found) != found:
        raise Invalid(f"{quoted(written)} is not a path for the status pages", "for example /.ratelimit/deferred")
    return found


def _read_headers(node: Node) -> tuple[str, ...]:
    """Read the names of headers, in lower case."""
    return tuple(name.lower() for name in kinds.each(kinds.read_header_name, empty=True)(node))


DEFER: Word[DeferSettings] = section_word(
    "defer",
    Section(
        "Defer",
        "How requests are deferred if a rule with `on_limit: defer` would deny them.",
        (
            kinds.text("path", "The path below which the status pages are.", "/.ratelimit/deferred", read_folder),
            kinds.number("max_length", 1, 1_000_000, 1_000, "The most requests in the queue."),
            kinds.number("max_each", 1, 1_000_000, 100, "The most requests of one client in the queue."),
            kinds.number("max_body", 0, 16_777_216, 65_536, "The largest request body, in bytes."),
            kinds.number("max_attempts", 1, 100, 5, "The number of failures after which a request is parked."),
            kinds.duration(
                "keep",
                "1s",
                "30 days",
                "1d",
                "The longest time that a request waits. Its result is kept for the same time.",
            ),
            kinds.load("below", 0.7, "The load below which requests are replayed.", shown_default=0.7),
            Word(
                key="headers",
                read=_read_headers,
                default=None,
                schema=kinds.or_list(kinds.TEXT, at_least=0),
                about="The request headers that are kept. All headers if it is not set.",
            ),
        ),
        make=DeferSettings,
    ),
)

ON_LIMIT: Word[Literal["deny", "defer"]] = kinds.choice(
    "on_limit",
    ("deny", "defer"),
    "deny",
    "What happens to a request above the limit: it is denied, or it is deferred and replayed later.",
    conflicts=(
        Conflict(SHADOW, "a shadow rule denies no request"),
        Conflict(ON_DEMAND, "when the app asks for a rule by name, it is already handling the request"),
        Conflict(MESSAGES, "WebSocket messages can't be deferred"),
    ),
    validate=_validate_defer,
    fields=lambda on_limit: {"defers": on_limit == "defer"},
)


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


def _check_ban(ban: Values, problems: Problems) -> None:
    """Report a ban that would not grow."""
    growing = ban[_GROWING_BY]
    if growing is not None and growing[1] <= ban[_BAN_FOR]:
        message = f"a ban of {spell_duration(ban[_BAN_FOR])} can't grow up to {spell_duration(growing[1])}"
        problems.add(ban.place("growing"), message, "remove growing, or write a longer time")


def _penalty(after: tuple[int, int], growing: tuple[int, int] | None, **others: int) -> Penalty:
    lasts = others["for"]
    growth, longest = growing or (1, lasts)
    return Penalty("", BanQuota("ban", *after, lasts=lasts, longest=longest, growth=growth))


def _alter_ban(quota: Quota, rule: Values, prefix: str) -> Quota:
    """Add the ban to a quota of the rule. All limits of the rule share one ban per identity."""
    ban = rule[BAN]
    return replace(quota, penalty=ban and replace(ban, prefix=f"{prefix}ban:{{"))


_BAN_FOR: Word[int] = Word(
    key="for",
    read=lambda node: kinds.duration_between(kinds.read_text(node), "1ms", "1 year"),
    default=SECOND,
    schema={**kinds.TEXT, "examples": ["10 minutes"]},
    about="How long the ban lasts.",
    required=True,
)
_GROWING_BY: Word[tuple[int, int] | None] = Word(
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
            _BAN_FOR,
            _GROWING_BY,
        ),
        make=_penalty,
        check=_check_ban,
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
    alter=_alter_ban,
)
