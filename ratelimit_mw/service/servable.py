"""Rules that a service cannot serve, because they need the response, the body or the connection of a request.

This module is internal: its names may change in any release.
"""

from collections.abc import Callable
from typing import NamedTuple

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.config.file import RULES
from ratelimit_mw.config.load import Config, Examined, examine
from ratelimit_mw.config.tree import Place
from ratelimit_mw.envoy.words import UNREACHED
from ratelimit_mw.errors import ConfigurationError, Problem, quoted
from ratelimit_mw.rules.compiled import CompiledRule
from ratelimit_mw.rules.domains import Rules

_RULES = "name the file of the service, and a store for its counters"
_HINT = "leave this rule to the middleware in the app, or start with --ignore-unservable"


class _Unservable(NamedTuple):
    """What a service cannot serve of a rule: the key of the file, the reason, and whether a rule has it."""

    key: str
    why: str
    has: Callable[[CompiledRule], object]


_UNSERVABLE = (
    _Unservable(
        "count",
        "count needs the status of the response, which the service does not see",
        lambda rule: rule.rule.counts is not None,
    ),
    _Unservable(
        "cost",
        "a cost from the response can't be charged: the service does not see the response",
        lambda rule: rule.rule.cost_after is not None,
    ),
    _Unservable(
        "limit",
        "a concurrent limit needs the end of the response, which the service does not see",
        lambda rule: any(ALGORITHMS[quota.algorithm].in_flight for quota in rule.quotas),
    ),
    _Unservable(
        "on_limit",
        "defer needs the body of the request, which the service does not get",
        lambda rule: rule.rule.defers,
    ),
    _Unservable(
        "messages",
        "messages are counted in the app: the service does not see them",
        lambda rule: rule.rule.messages is not None,
    ),
    _Unservable(
        "by",
        "route needs match.path here, because the service does not see the routes of the app",
        lambda rule: rule.needs_routes,
    ),
)


def require_servable(rules: Rules, config: Config | None = None) -> None:
    """Refuse rules that a service cannot serve. See `unservable`.

    Raises:
        ConfigurationError: It has every problem, in the order of the file.
    """
    problems = unservable(rules, config)
    if problems:
        raise ConfigurationError(problems)


def unservable(rules: Rules, config: Config | None = None) -> tuple[Problem, ...]:
    """Return what a service cannot serve.

    Args:
        rules: The rules.
        config: What they were loaded from. If it is a file or a folder, each problem has its line.
    """
    found: list[Problem] = []
    if rules.asking is not None:
        found.append(Problem("storage: this file is that of an app that asks a service: it has no rules", hint=_RULES))
    compiled = [(part.domain, rule) for part in rules.parts for rule in part.compiled]
    faults = [(domain, rule, fault) for domain, rule in compiled for fault in _UNSERVABLE if fault.has(rule)]
    files = examine(config).files if faults and config is not None else ()
    sections = {made.domain: file[RULES] for file, made in files}  # none for a rules database
    for domain, rule, fault in faults:
        place = sections[domain][rule.rank].key_place(fault.key) if domain in sections else Place()
        message = f"rules[{rule.rank}].{fault.key}: the rule {quoted(rule.rule.name)} can't be served: {fault.why}"
        found.append(Problem(message, place.file, place.line, place.column, _HINT))
    return tuple(found)


def as_served(found: Examined, config: Config) -> Examined:
    """Return what a service finds in an examined file: also what it cannot serve, but only what `holds` for it."""
    refused = unservable(found.rules, config) if found.rules else ()
    warnings = tuple(warning for warning in found.warnings if holds(warning.message))
    return found._replace(problems=(*found.problems, *refused), warnings=warnings)


def holds(warning: str) -> bool:
    """Whether a warning is true of a service. Envoy sends the entries itself, so no list of them is missing."""
    return f": {UNREACHED}" not in warning
