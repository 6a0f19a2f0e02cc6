"""Rules that a service cannot serve, because they need the response, the body or the connection of a request.

`/auth` serves rules that make requests wait, but the proxy waits only for a time. A rule whose wait may be longer is
logged.

This module is internal: its names may change in any release.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.config.load import Config, gather, parse
from ratelimit_mw.config.tree import Items, Map, Place, Problems
from ratelimit_mw.errors import ConfigurationError, Problem, quoted
from ratelimit_mw.rules.compiled import CompiledRule
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.units import MILLISECOND, spell_duration

logger = logging.getLogger("ratelimit_mw.service")

DEADLINE = 250 * MILLISECOND
"""How long the proxies of the documentation wait for `/auth`, in microseconds."""

_HINT = "leave this rule to the middleware in the app, or start with --ignore-unservable"


class _Unservable(NamedTuple):
    """What a service cannot serve of a rule: the key of the file, and the reason."""

    key: str
    why: str


_COUNT = _Unservable("count", "count needs the status of the response, which the service does not see")
_COST = _Unservable("cost", "a cost from the response can't be charged: the service does not see the response")
_CONCURRENT = _Unservable("limit", "a concurrent limit needs the end of the response, which the service does not see")
_DEFER = _Unservable("on_limit", "defer needs the body of the request, which the service does not get")
_ROUTE = _Unservable("by", "route needs match.path here, because the service does not see the routes of the app")
_MESSAGES = _Unservable("messages", "messages are counted in the app: the service does not see them")


def require_servable(rules: Rules, config: Config | None = None) -> None:
    """Refuse rules that a service cannot serve.

    Args:
        rules: The rules.
        config: What they were loaded from. If it is a file or a folder, each problem has its line.

    Raises:
        ConfigurationError: It has every problem, in the order of the file.
    """
    problems = unservable(rules, config)
    if problems:
        raise ConfigurationError(problems)


def unservable(rules: Rules, config: Config | None = None) -> tuple[Problem, ...]:
    """Return what a service cannot serve. See `require_servable`."""
    found: list[Problem] = []
    trees: Mapping[str, Map] | None = None
    for part in rules.parts:
        for rule in part.compiled:
            for fault in _faults(rule):
                trees = _trees(config) if trees is None else trees
                place = _place(trees.get(part.domain), rule.rank, fault.key)
                message = (
                    f"rules[{rule.rank}].{fault.key}: the rule {quoted(rule.rule.name)} can't be served: {fault.why}"
                )
                found.append(Problem(message, place.file, place.line, place.column, _HINT))
    return tuple(found)


def warn_of_waits(rules: Rules, config: Config | None = None) -> None:
    """Log each rule that may make a request wait for longer than `DEADLINE`. See `require_servable`."""
    trees: Mapping[str, Map] | None = None
    for part in rules.parts:
        for rule in part.compiled:
            wait = 0 if rule.rule.shadow else max((quota.max_wait for quota in rule.quotas), default=0)
            if wait > DEADLINE:
                trees = _trees(config) if trees is None else trees
                place = _place(trees.get(part.domain), rule.rank, "max_wait")
                message = (
                    f"rules[{rule.rank}]: a request may wait {spell_duration(wait)} for its turn by the rule "
                    f"{quoted(rule.rule.name)}, and /auth answers after that. The proxies of the documentation wait "
                    f"{spell_duration(DEADLINE)}"
                )
                logger.warning("%s", Problem(message, place.file, place.line, place.column, _WAIT_HINT))


_WAIT_HINT = "set max_wait below the deadline of the proxy, or raise that one, such as proxy_read_timeout of nginx"


def _faults(rule: CompiledRule) -> Iterator[_Unservable]:
    if rule.rule.counts is not None:
        yield _COUNT
    if rule.rule.cost_after is not None:
        yield _COST
    if any(ALGORITHMS[quota.algorithm].in_flight for quota in rule.quotas):
        yield _CONCURRENT
    if rule.rule.defers:
        yield _DEFER
    if rule.rule.messages is not None:
        yield _MESSAGES
    if rule.needs_routes:
        yield _ROUTE


def _trees(config: Config | None) -> dict[str, Map]:
    """Return the tree of each file, by its domain. It is empty for a rules database."""
    found: dict[str, Map] = {}
    ignored = Problems()  # the rules are loaded already, so there is only the one that a URL is no file
    for document in gather(config, ignored) if config is not None else ():
        tree = parse(document, os.environ, ignored)
        if isinstance(tree, Map):
            found[str(getattr(tree.get("domain"), "text", ""))] = tree
    return found


def _place(tree: Map | None, rank: int, key: str) -> Place:
    rules = None if tree is None else tree.get("rules")
    if isinstance(rules, Items) and rank < len(rules):
        rule = rules[rank]
        if isinstance(rule, Map):
            return rule.keys_at.get(key, rule.place)
    return Place()
