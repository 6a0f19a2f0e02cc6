"""`messages`: what a rule that counts the messages of WebSockets does not go with, and why."""

from ratelimit_mw.identity.identifier import CONNECTION, attributes_of
from ratelimit_mw.rules.breath import breathe
from ratelimit_mw.rules.documents.tree import Map, Node, Problems, node_at, place_of, quoted
from ratelimit_mw.rules.schema.file import File
from ratelimit_mw.rules.schema.rule import RuleSection

_LEAVE_OUT = "leave it out"


def check_messages(file: File, tree: Map, problems: Problems) -> None:
    """Report what messages can't be held to, and what requests can't be counted by."""
    counting = {section.name: section.messages is not None for section in file.rules}
    for n, section in enumerate(file.rules):
        breathe()
        node = node_at(tree, ("rules", n))
        own = section.messages is not None
        for index, name in enumerate(section.replaces):
            if counting.get(name, own) is not own:
                one, other = ("messages", "requests") if own else ("requests", "messages")
                message = f"this rule counts {one}, and {quoted(name)} {other}: neither stands in for the other"
                problems.add(place_of(node, "replaces", index), message)
        if own:
            _check_rule(section, node, problems)
        by_connection = [index for index, entry in enumerate(section.by) if CONNECTION in attributes_of(entry)]
        for index in by_connection:
            _check_by_connection(section, node, index, problems)


def _check_rule(rule: RuleSection, node: Node, problems: Problems) -> None:
    if rule.on_demand:
        message = "not with messages: a rule counts the messages of sockets, or what the app asks it for"
        problems.add(place_of(node, "on_demand"), message, _LEAVE_OUT)
    if rule.priority is not None:
        message = "not with messages: under load a socket is refused, and those that are open are left alone"
        problems.add(place_of(node, "priority"), message, "give it to a rule without messages, for the socket")
    if isinstance(node, Map) and "response" in node.keys_at:
        message = "not with messages: past them a socket closes, or drops what it got, and no response is sent"
        problems.add(node.keys_at["response"], message, _LEAVE_OUT)
    if rule.count is not None:
        problems.add(place_of(node, "count"), "not with messages: a message has no response", _LEAVE_OUT)
    if rule.cost.header:
        problems.add(place_of(node, "cost"), "not with messages: a message has no response", _LEAVE_OUT)
    if any(not stated.window.period for stated in rule.limit.all()):
        message = "not with messages: nothing tells when a message has been dealt with"
        problems.add(place_of(node, "limit"), message, "a rule without messages limits the sockets that are open")
    if rule.match.methods:
        message = "not with messages: a WebSocket is opened by GET, and has no other method"
        problems.add(place_of(node, "match", "methods"), message, _LEAVE_OUT)


def _check_by_connection(rule: RuleSection, node: Node, index: int, problems: Problems) -> None:
    if rule.messages is None:
        message = "only messages are counted by connection"
        problems.add(place_of(node, "by", index), message, "add messages: close or messages: drop")
        return
    for word, used in (("consistency", rule.consistency != "strict"), ("shards", rule.shards > 1)):
        if used:
            message = "not by connection: its counter is in the process that holds the connection, and nowhere else"
            problems.add(place_of(node, word), message, _LEAVE_OUT)
