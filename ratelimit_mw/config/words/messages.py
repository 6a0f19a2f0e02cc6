"""`messages`: a rule that counts WebSocket messages, and what it cannot be combined with.

A rule counts either requests or messages. A rule that counts messages is not charged for the handshake. It is charged
for each message that the client sends, and has no response. `http.websocket` counts the messages.
"""

from typing import Literal

from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Problems
from ratelimit_mw.config.word import Values, Word
from ratelimit_mw.config.words.charging import COST, COUNT
from ratelimit_mw.config.words.client import BY
from ratelimit_mw.config.words.consistency import CONSISTENCY, SHARDS
from ratelimit_mw.config.words.limit import is_concurrent
from ratelimit_mw.config.words.load import PRIORITY
from ratelimit_mw.config.words.selection import MATCH, METHODS, ON_DEMAND
from ratelimit_mw.identity.identifier import CONNECTION, attributes_of

_REMOVE = "remove this key"


def _validate(rule: Values, problems: Problems) -> None:
    """Report the words that have no meaning for messages, each with the reason."""
    if rule[ON_DEMAND]:
        message = "can't be combined with messages: the app can't ask for a rule that counts messages"
        problems.add(rule.place("on_demand"), message, _REMOVE)
    if rule.differs(PRIORITY):
        message = (
            "can't be combined with messages: under load, new WebSockets are refused, but open ones are not closed"
        )
        problems.add(rule.place("priority"), message, "move it to a rule without messages, which counts the handshakes")
    if rule.has_key("response"):
        message = "response can't be combined with messages: no response is sent when a message is over the limit"
        problems.add(rule.key_place("response"), message, "remove response")
    if rule.differs(COUNT):
        problems.add(rule.place("count"), "can't be combined with messages: a message has no response", _REMOVE)
    if rule[COST].header:
        message = "a cost from the response can't be combined with messages: a message has no response"
        problems.add(rule.place("cost"), message, _REMOVE)
    if is_concurrent(rule):
        message = "a concurrent limit can't be combined with messages: the end of a message's processing is unknown"
        problems.add(rule.place("limit"), message, "to limit open WebSockets, use a rule without messages")
    if rule[MATCH][METHODS]:
        message = "can't be combined with messages: every WebSocket is opened with GET"
        problems.add(rule.place("match", "methods"), message, _REMOVE)
    if any(CONNECTION in attributes_of(entry) for entry in rule[BY]):
        for word in (CONSISTENCY, SHARDS):
            if rule.differs(word):
                message = (
                    "can't be combined with by: connection: the counter is only in the process that has the connection"
                )
                problems.add(rule.place(word.key), message, _REMOVE)


MESSAGES: Word[Literal["close", "drop"] | None] = kinds.choice(
    "messages",
    ("close", "drop"),
    None,
    "The rule counts WebSocket messages. Above the limit, the WebSocket is closed, or the message is dropped.",
    unset="messages are not counted",
    validate=_validate,
    fields=lambda messages: {"messages": messages},
)
