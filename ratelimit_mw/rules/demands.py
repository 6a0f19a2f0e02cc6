"""Whether the rules are what an app asks for by their names."""

from collections.abc import Iterable

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.hints import near, quoted
from ratelimit_mw.rules.domains import Rules


def require_named(rules: Rules, names: Iterable[str]) -> None:
    """Raises ConfigurationError for each of `names` that no rule has, or one that has to wait for the response."""
    rules_by_name = {rule.rule.name: rule for part in reversed(rules.parts) for rule in part.compiled}
    problems = []
    for name in sorted(set(names)):
        rule = rules_by_name.get(name)
        if rule is None:
            problems.append(
                Problem(
                    f"the app asks for the rule {quoted(name)}, which there is not",
                    hint=near(name, rules_by_name) or "a rule for this is on_demand: true",
                )
            )
        elif what := _settled_by(rule.rule.counts is not None, rule.rule.cost_after is not None):
            problems.append(_late(name, what))
        elif any(ALGORITHMS[quota.algorithm].in_flight for quota in rule.quotas):
            problems.append(_late(name, "a concurrent limit"))
    if problems:
        raise ConfigurationError(problems)


def _settled_by(counts: bool, cost_after: bool) -> str:
    return "count" if counts else "a cost that the response tells" if cost_after else ""


def _late(name: str, what: str) -> Problem:
    message = f"the app asks for the rule {quoted(name)}: {what} goes by the response, which is not there yet"
    return Problem(message, hint="give the rule a match, and the middleware follows the response")
