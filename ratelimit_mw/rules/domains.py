"""The rules of several files, one domain each, and the check of the rule names that an app uses."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.errors import ConfigurationError, Problem, near, nearest, quoted
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.identity.request import Entry, Request
from ratelimit_mw.model import Charge
from ratelimit_mw.rules.compiled import BLOCKED, NamedRule
from ratelimit_mw.rules.inline import InlineLimit
from ratelimit_mw.rules.matching import Plans
from ratelimit_mw.rules.ruleset import Features, RuleSet


class Domains(Features):
    """The rules of several files. The rules of every file apply to a request.

    All files have the same `storage`, `client` and `response`, and the same meaning for each attribute name.
    """

    def __init__(self, parts: Sequence[RuleSet]) -> None:
        super().__init__((rule for part in parts for rule in part.compiled), [part.descriptors for part in parts])
        first = parts[0]
        self._use(parts)
        self.domain = first.domain
        self.storage = first.storage
        self.response = first.response
        self.reload = first.reload
        self.observe = first.observe
        self.source = None
        named = {name: source for part in parts for name, source in part.client.attributes.items()}
        self.client = replace(first.client, attributes=named)
        first.inline.reserve(rule.rule.name for part in parts[1:] for rule in part.compiled)
        for part in parts:
            part.attributes.accept(named)  # check() may pass one mapping to each domain in turn
        # These attributes only read requests. Each domain hashes values with its own key.
        self.attributes = Attributes(self.client)
        for part in parts:
            self.attributes.await_those_of(part.attributes)
        self.rules = tuple(rule for part in parts for rule in part.rules)
        self.load = first.load
        self.defer = first.defer
        self.messages: Domains | None = _of_messages(parts)
        self.plans = _plan_cache(parts)
        self.warnings = tuple(warning for part in parts for warning in part.warnings)

    def of(self, domain: str) -> RuleSet | None:
        """Return the rules of one domain, or None if no file has it."""
        return next((part for part in self.parts if part.domain == domain), None)

    def plan(self, request: Request, cost: int = 1) -> Sequence[Charge]:
        """See `RuleSet.plan`."""
        charges: list[Charge] = []
        for part in self.parts:
            found = part.plan(request, cost)
            if found is BLOCKED:
                return BLOCKED
            charges += found
        return charges

    def plan_rule(self, asked: str | NamedRule, request: Request, cost: int = 1) -> Sequence[Charge] | None:
        """See `RuleSet.plan_rule`. If several domains have a rule of this name, the first one's is used."""
        for part in self.parts:
            found = part.plan_rule(asked, request, cost)
            if found is not None:
                return found
        return None

    def route(self, name: str, request: Request) -> str | None:
        """See `RuleSet.route`."""
        return next((route for part in self.parts if (route := part.route(name, request)) is not None), None)

    def classify(self, request: Request, name: str | None = None) -> Sequence[Charge] | None:
        """See `RuleSet.classify`. A request that one domain exempts is not shed because of another domain."""
        if name is not None:
            return next((said for part in self.parts if (said := part.classify(request, name)) is not None), None)
        charges: list[Charge] = []
        for part in self.parts:
            found = part.classify(request)
            if found is BLOCKED or not found:
                return found
            charges += found
        return charges

    def plan_entries(self, entries: Sequence[Entry], cost: int = 1) -> Sequence[Charge]:
        """See `RuleSet.plan_entries`."""
        return [charge for part in self.parts for charge in part.plan_entries(entries, cost)]

    def overridden(self, parts: Sequence[RuleSet]) -> "Domains":
        """The same rules, in `parts` that have other overrides."""
        same = copy.copy(self)
        same._use(parts)  # noqa: SLF001  one of our own
        same.messages = _of_messages(parts)
        same.plans = _plan_cache(parts)
        return same

    def _use(self, parts: Sequence[RuleSet]) -> None:
        self.parts = tuple(parts)
        if any(part.settling for part in parts):  # by an override, of which `Features` does not know
            self.settling = self.special = True

    def concerns(self, request: Request) -> bool:
        """See `RuleSet.concerns`."""
        return any(part.concerns(request) for part in self.parts)


def _of_messages(parts: Sequence[RuleSet]) -> Domains | None:
    """Return the rules for the messages of a WebSocket, or None if no part has any."""
    limiting = [part.messages for part in parts if part.messages is not None]
    return Domains(limiting) if limiting else None


def _plan_cache(parts: Sequence[RuleSet]) -> Plans | None:
    caches = [part.plans for part in parts if part.plans is not None]
    if len(caches) < len(parts):
        return None
    return Plans([part.attributes for part in parts], by_path=any(cache.by_path for cache in caches))


Rules = RuleSet | Domains
"""The rules of a limiter."""


def declare(rules: Rules, limit: InlineLimit) -> None:
    """Compile an inline limit, unless that was done before. The first domain has the inline limits.

    Raises ConfigurationError if it cannot be used.
    """
    first = rules.parts[0]
    first.inline.declare(limit)
    if rules is not first:
        rules.attributes.await_those_of(first.attributes)


def rule_names(rules: Rules) -> set[str]:
    """The names of all rules that an app can ask for."""
    return {rule.rule.name for part in rules.parts for rule in part.compiled}


def unknown_rule(name: str, known: Iterable[str]) -> Problem:
    """The problem that the app asks for a rule that is not among `known`."""
    hint = near(name, known) or "a rule for this is on_demand: true"
    if name[:1].isdigit() and not near(name, known):
        hint = "a limit in code is written as @limited(…), or as limit=… after the name of a rule"
    return Problem(f"the app asks for the rule {quoted(name)}, which does not exist", hint=hint)


def unknown_domain(name: str, rules: Rules) -> Problem:
    """The problem that the app asks for a domain that the rules do not have."""
    hint = nearest(name, [part.domain for part in rules.parts])
    return Problem(f"the app asks for the domain {quoted(name)}, which does not exist", hint=hint)


def require_named(rules: Rules, names: Iterable[str]) -> None:
    """Check the rule names that an app asks for.

    Raises:
        ConfigurationError: A name is unknown, or the rule depends on the response, which does not exist yet when the
            app asks for it.
    """
    rules_by_name = {rule.rule.name: rule for part in reversed(rules.parts) for rule in part.compiled}
    known = rules_by_name.keys()
    problems = []
    for name in sorted(set(names)):
        rule = rules_by_name.get(name)
        if rule is None:
            problems.append(unknown_rule(name, known))
        elif what := _settled_by(rule.rule.counts is not None, rule.rule.cost_after is not None):
            problems.append(_late(name, what))
        elif any(ALGORITHMS[quota.algorithm].in_flight for quota in rule.quotas):
            problems.append(_late(name, "a concurrent limit"))
    if problems:
        raise ConfigurationError(problems)


def _settled_by(counts: bool, cost_after: bool) -> str:
    return "count" if counts else "a cost that the response tells" if cost_after else ""


def _late(name: str, what: str) -> Problem:
    message = f"the app asks for the rule {quoted(name)}, but {what} depends on the response, which does not exist yet"
    return Problem(message, hint="give the rule a match instead: the middleware sees the response")
