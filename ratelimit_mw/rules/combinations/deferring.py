"""`on_limit: defer`: what it does not go with, and why."""

from ratelimit_mw.rules.documents.tree import Node, Problems, place_of
from ratelimit_mw.rules.schema.rule import RuleSection


def check_deferring(rule: RuleSection, node: Node, problems: Problems) -> None:
    """Report what makes no sense together, each with the reason."""
    if rule.on_limit != "defer":
        return
    place = place_of(node, "on_limit")
    if rule.shadow:
        problems.add(place, "a shadow rule denies nobody, and so has nothing to defer", "leave one of the two out")
    if rule.on_demand:
        message = "not with on_demand: an app that asks for a rule by its name has begun to respond already"
        problems.add(place, message, "leave one of the two out")
    if rule.messages is not None:
        problems.add(place, "a message of a WebSocket is no request, and can't be deferred", "leave one of the two out")
    for window, limit_place in rule.limit.all():
        if not window.limit:
            problems.add(limit_place, "what never passes can't be deferred, for its time would never come")
