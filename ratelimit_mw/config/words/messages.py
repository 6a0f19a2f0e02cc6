"""`messages`: a rule that counts WebSocket messages, and what it cannot be combined with.

A rule counts either requests or messages. A rule that counts messages is not charged for the handshake. It is charged
for each message that the client sends, and has no response. `http.websocket` counts the messages.
"""

from typing import Literal

from ratelimit_mw.config import kinds
from ratelimit_mw.config.word import Conflict, Values, Word
from ratelimit_mw.config.words.charging import COUNT, no_cost_of_response
from ratelimit_mw.config.words.consistency import CONSISTENCY, SHARDS
from ratelimit_mw.config.words.limit import no_concurrent
from ratelimit_mw.config.words.load import PRIORITY
from ratelimit_mw.config.words.response import RULE_RESPONSE
from ratelimit_mw.config.words.selection import BY, MATCH, METHODS, ON_DEMAND
from ratelimit_mw.identity.identifier import CONNECTION, attributes_of

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
