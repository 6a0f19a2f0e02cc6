"""`on_limit`, `defer` and `messages`: what happens to requests and WebSocket messages above the limit.

`on_limit: defer` belongs to a rule. The section `defer` belongs to the file and sets the limits of the queue, which all
rules of the file share. The package `deferral` queues and replays the requests.

A rule counts either requests or messages. A rule that counts messages is not charged for the handshake. It is charged
for each message that the client sends, and has no response. `http.websocket` counts the messages.
"""

import re
from typing import Literal

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
from ratelimit_mw.settings import DeferSettings

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


def _validate(rule: Values, problems: Problems) -> None:
    for window, place in rule[LIMIT].all():
        if not window.limit:
            problems.add(place, "a limit of 0 never admits, so a deferred request would never be replayed")


def read_folder(node: Node) -> str:
    """Read the path of the folder of the status pages, without a slash at its end."""
    written = kinds.read_text(node)
    found = written.rstrip("/")
    if not _FOLDER.fullmatch(found) or cleaned(found) != found:
        raise Invalid(f"{quoted(written)} is not the path of a folder", "for example /.ratelimit/deferred")
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
            kinds.text("path", "The folder of the status pages.", "/.ratelimit/deferred", read_folder),
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
    validate=_validate,
    fields=lambda on_limit: {"defers": on_limit == "defer"},
)
