"""`consistency` and `shards`: which of them a rule's algorithm can have, and why not the others."""

from ratelimit_mw.algorithms import ALGORITHMS, named
from ratelimit_mw.algorithms.algorithm import Algorithm
from ratelimit_mw.rules.documents.tree import Map, Node, Problems, place_of
from ratelimit_mw.rules.schema.rule import RuleSection


def check_consistency(rule: RuleSection, node: Node, problems: Problems) -> None:
    """Report a consistency that the rule's algorithm can't have, and shards that make no sense."""
    algorithm = ALGORITHMS[rule.algorithm]
    if rule.consistency != "strict":
        lease = rule.consistency == "lease"
        why = algorithm.no_lease if lease else algorithm.no_write_back
        if why:
            message = f"not with {rule.algorithm}: {why}"
            problems.add(place_of(node, "consistency"), message, _instead(algorithm, lease=lease))
    if rule.shards > 1 and isinstance(node, Map):
        _check_shards(rule, node, problems)


def _instead(algorithm: Algorithm, *, lease: bool) -> str:
    if algorithm.queue or algorithm.in_flight:
        return "leave it out"  # another algorithm would be no queue, and not count what is in flight
    others = named(lambda other: not (other.no_lease if lease else other.no_write_back))
    return f"write algorithm: {others}" + ("" if algorithm.no_lease else ", or consistency: lease")


def _check_shards(rule: RuleSection, node: Map, problems: Problems) -> None:
    place, shards = place_of(node, "shards"), rule.shards
    if rule.consistency != "strict":
        message = f"shards spread the calls that {rule.consistency} saves: a rule has one or the other"
        problems.add(place, message, "leave shards out: with fewer calls there is nothing left to spread")
        return
    why = ALGORITHMS[rule.algorithm].no_shards or (rule.max_wait is not None and "a queue has one place")
    if why:
        problems.add(place, f"{why}, and can't be spread over {shards}", "leave shards out")
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
