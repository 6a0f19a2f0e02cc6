"""`consistency` and `shards`: which of them a rule's algorithm can have, and why not the others."""

from collections.abc import Mapping

from ratelimit_mw.rules.documents.tree import Map, Node, Problems, place_of
from ratelimit_mw.rules.schema.rule import RuleSection

_LEASABLE = "write algorithm: sliding_window, fixed_window or bucketed_window"
_CHARGEABLE = "write algorithm: sliding_window or fixed_window"
_REFILLED = "what is charged early or late is refilled early or late"
_QUEUE = "how long a request has to wait is known to the store alone"
_NEVER_TOO_MANY = "is chosen for never admitting too many, and write_back may"

_ONE_PLACE: Mapping[str, str] = {"leaky_bucket": "a queue", "concurrency": "what is in flight"}

_REFUSED = {
    ("lease", "sliding_log"): ("each request is logged at its own moment, and a leased one comes later", _LEASABLE),
    ("lease", "token_bucket"): (_REFILLED, _LEASABLE),
    ("lease", "leaky_bucket"): (_QUEUE, "leave it out"),
    ("lease", "concurrency"): ("what is in flight has to be given back one by one", "leave it out"),
    ("write_back", "sliding_log"): (_NEVER_TOO_MANY, _CHARGEABLE),
    ("write_back", "bucketed_window"): (_NEVER_TOO_MANY, f"{_CHARGEABLE}, or consistency: lease"),
    ("write_back", "token_bucket"): (_REFILLED, _CHARGEABLE),
    ("write_back", "leaky_bucket"): (_QUEUE, "leave it out"),
    ("write_back", "concurrency"): ("what is in flight has to be given back one by one", "leave it out"),
}


def check_consistency(rule: RuleSection, node: Node, problems: Problems) -> None:
    """Report a consistency that the rule's algorithm can't have, and shards that make no sense."""
    algorithm = rule.algorithm
    refused = _REFUSED.get((rule.consistency, algorithm))
    if refused is not None:
        why, hint = refused
        sentence = f"{algorithm} {why}" if why is _NEVER_TOO_MANY else f"not with {algorithm}: {why}"
        problems.add(place_of(node, "consistency"), sentence, hint)
    if rule.shards > 1 and isinstance(node, Map):
        _check_shards(rule, node, problems)


def _check_shards(rule: RuleSection, node: Map, problems: Problems) -> None:
    place, shards, algorithm = place_of(node, "shards"), rule.shards, rule.algorithm
    if rule.consistency != "strict":
        message = f"shards spread the calls that {rule.consistency} saves: a rule has one or the other"
        problems.add(place, message, "leave shards out: with fewer calls there is nothing left to spread")
        return
    if algorithm in _ONE_PLACE or rule.max_wait is not None:
        what = _ONE_PLACE.get(algorithm, "a queue")
        problems.add(place, f"{what} has one place, and can't be spread over {shards}", "leave shards out")
        return
    for window, _ in rule.limit.all() if "shards" in node else ():  # an override has fewer where its limit is small
        for whole, what in ((window.limit, "limit"), (window.burst or rule.burst or 0, "burst")):
            if 0 < whole < shards:
                problems.add(place, f"a {what} of {whole} can't be spread over {shards} shards", f"at most {whole}")
                return
            if 0 < whole < rule.cost.fixed * shards:
                message = (
                    f"a cost of {rule.cost.fixed} does not fit into each of {shards} shards of a {what} of {whole}"
                )
                problems.add(place, message, f"at most {whole // rule.cost.fixed}")
                return
