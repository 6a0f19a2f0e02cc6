"""`messages`: a rule that counts the messages of WebSockets, and what it cannot be combined with."""

from collections.abc import Sequence
from typing import Literal

from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Problems
from ratelimit_mw.config.word import Values, Word
from ratelimit_mw.config.words.charging import COST, COUNT
from ratelimit_mw.config.words.client import BY
from ratelimit_mw.config.words.consistency import CONSISTENCY, SHARDS
from ratelimit_mw.config.words.limit import is_concurrent
from ratelimit_mw.config.words.load import PRIORITY
from ratelimit_mw.config.words.match import MATCH, METHODS
from ratelimit_mw.config.words.selection import NAME, ON_DEMAND, REPLACES
from ratelimit_mw.errors import quoted
from ratelimit_mw.identity.identifier import CONNECTION, attributes_of
from ratelimit_mw.process_local import checkpoint

_LEAVE_OUT = "leave it out"


def validate_replaced_kinds(rules: Sequence[Values], problems: Problems) -> None:
    """Report a rule of messages that replaces a rule of requests, and the other way round."""
    counting = {rule[NAME]: rule[MESSAGES] is not None for rule in rules}
    for rule in rules:
        checkpoint()
        own = rule[MESSAGES] is not None
        for index, name in enumerate(rule[REPLACES]):
            if counting.get(name, own) is not own:
                one, other = ("messages", "requests") if own else ("requests", "messages")
                message = f"this rule counts {one}, and {quoted(name)} {other}: neither stands in for the other"
                problems.add(rule.place("replaces", index), message)


def _validate(rule: Values, problems: Problems) -> None:
    if rule[MESSAGES] is not None:
        _validate_messages(rule, problems)
    for index, entry in enumerate(rule[BY]):
        if CONNECTION in attributes_of(entry):
            _validate_by_connection(rule, index, problems)


def _validate_messages(rule: Values, problems: Problems) -> None:
    if rule[ON_DEMAND]:
        message = "not with messages: a rule counts the messages of sockets, or what the app asks it for"
        problems.add(rule.place("on_demand"), message, _LEAVE_OUT)
    if rule[PRIORITY] is not None:
        message = "not with messages: under load a socket is refused, and those that are open are left alone"
        problems.add(rule.place("priority"), message, "give it to a rule without messages, for the socket")
    if rule.states("response"):
        message = "not with messages: past them a socket closes, or drops what it got, and no response is sent"
        problems.add(rule.key_place("response"), message, _LEAVE_OUT)
    if rule[COUNT] is not None:
        problems.add(rule.place("count"), "not with messages: a message has no response", _LEAVE_OUT)
    if rule[COST].header:
        problems.add(rule.place("cost"), "not with messages: a message has no response", _LEAVE_OUT)
    if is_concurrent(rule):
        message = "not with messages: nothing tells when a message has been dealt with"
        problems.add(rule.place("limit"), message, "a rule without messages limits the sockets that are open")
    if rule[MATCH][METHODS]:
        message = "not with messages: a WebSocket is opened by GET, and has no other method"
        problems.add(rule.place("match", "methods"), message, _LEAVE_OUT)


def _validate_by_connection(rule: Values, index: int, problems: Problems) -> None:
    if rule[MESSAGES] is None:
        message = "only messages are counted by connection"
        problems.add(rule.place("by", index), message, "add messages: close or messages: drop")
        return
    for word, used in (("consistency", rule[CONSISTENCY] != "strict"), ("shards", rule[SHARDS] > 1)):
        if used:
            message = "not by connection: its counter is in the process that holds the connection, and nowhere else"
            problems.add(rule.place(word), message, _LEAVE_OUT)


MESSAGES: Word[Literal["close", "drop"] | None] = kinds.choice(
    "messages",
    ("close", "drop"),
    None,
    "The rule counts the messages of WebSockets; past the limit the socket closes, or drops what it got.",
    validate=_validate,
    fields=lambda rule, _file: {"messages": rule[MESSAGES]},
)
