"""`ban`: what it does not go with, and why."""

from ratelimit_mw.rules.documents.tree import Map, Node, Problems, place_of
from ratelimit_mw.rules.schema.rule import RuleSection

_ONE = "leave one of the two out"


def check_ban(rule: RuleSection, node: Node, problems: Problems) -> None:
    """Report bans that could never come, and those whose denials would be made where nobody counts them."""
    if rule.ban is None:
        return
    place = place_of(node, "ban")
    # An override, whose place has no `ban`, may well lift the limit: whoever has it is not banned either.
    if isinstance(node, Map) and "ban" in node and "limit" not in node.dropped and not rule.limit.all():
        problems.add(place, "a rule without a limit denies nobody, and so bans nobody", "leave it out")
    if rule.consistency != "strict" or rule.shards > 1:
        word = "consistency" if rule.consistency != "strict" else "shards"
        problems.add(place_of(node, word), "not with a ban: each denial has to be counted in one place", _ONE)
    if rule.on_limit == "defer":
        message = "not with on_limit: what is carried out later is not denied, and should bring nobody nearer to a ban"
        problems.add(place, message, _ONE)
