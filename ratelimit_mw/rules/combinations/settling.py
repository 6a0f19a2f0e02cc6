"""What a response settles (`count`, `cost: response:`, `N concurrent`): what it does not go with, and why."""

from ratelimit_mw.algorithms import ALGORITHMS, IN_FLIGHT
from ratelimit_mw.rules.documents.tree import Map, Node, Problems, place_of
from ratelimit_mw.rules.schema.rule import RuleSection

_TWO_RULES = "make two rules of it"


def check_settling(rule: RuleSection, node: Node, problems: Problems) -> None:
    """Report what makes no sense together, each with the reason."""
    concurrent = [stated for stated in rule.limit.all() if not stated.window.period]
    if concurrent:
        _check_concurrent(rule, node, problems)
    in_flight = ALGORITHMS[rule.algorithm].in_flight
    if in_flight:
        for window, place in rule.limit.all():
            if window.period:
                hint = f"write {window.limit} concurrent, or another algorithm"
                problems.add(place, f"{rule.algorithm} counts what is in flight, not over a time", hint)
    afterwards = rule.count is not None or rule.cost.header
    if afterwards and (rule.consistency != "strict" or rule.shards > 1):
        word = "consistency" if rule.consistency != "strict" else "shards"
        why = "what is taken here may come back later, and has to come back to where it was taken"
        problems.add(
            place_of(node, word),
            f"not with {'count' if rule.count is not None else 'a cost that the response tells'}: {why}",
        )
    if rule.on_demand:
        _check_on_demand(rule, node, problems)


def _check_concurrent(rule: RuleSection, node: Node, problems: Problems) -> None:
    in_flight = ALGORITHMS[rule.algorithm].in_flight
    windows = any(stated.window.period for stated in rule.limit.all())
    if not windows and "algorithm" in rule.model_fields_set and not in_flight and isinstance(node, Map):
        message = f"what is concurrent is counted by {IN_FLIGHT}, not by {rule.algorithm}"
        problems.add(place_of(node, "algorithm"), message, "leave it out")
    if not in_flight and (rule.consistency != "strict" or rule.shards > 1):
        word = "consistency" if rule.consistency != "strict" else "shards"
        message = "what is in flight is counted in one place, one by one"
        problems.add(
            place_of(node, word), f"not with a concurrent limit: {message}", _TWO_RULES if windows else "leave it out"
        )
    if rule.count is not None:
        message = "what is in flight has no status yet: a concurrent limit counts everything"
        problems.add(place_of(node, "count"), message, _TWO_RULES if windows else "leave count out")
    if rule.cost.header:
        message = "what is in flight has no response yet: a concurrent limit can't wait for its cost"
        problems.add(place_of(node, "cost"), message, _TWO_RULES if windows else "leave it out")


def _check_on_demand(rule: RuleSection, node: Node, problems: Problems) -> None:
    why = "an app that asks for a rule by its name is charged at once"
    if rule.count is not None:
        problems.add(place_of(node, "count"), f"not with on_demand: {why}, whatever its response will be")
    if rule.cost.header:
        problems.add(place_of(node, "cost"), f"not with on_demand: {why}, before there is a response")
    if any(not stated.window.period for stated in rule.limit.all()):
        problems.add(place_of(node, "limit"), f"not with on_demand: {why}, and nothing is held until a response ends")
    if rule.replaces:
        message = "a rule that applies on demand only stands in for no other"
        problems.add(place_of(node, "replaces"), message, "leave one of the two out")
