"""The rules of a limiter, of one domain or several, and the names that an app uses. A reload must keep them."""

import copy
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.errors import ConfigurationError, Problem, collecting, near, nearest, quoted
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.identity.request import Request, knows_routes
from ratelimit_mw.model import Charge
from ratelimit_mw.rules.compiled import BLOCKED, CompiledRule, NamedRule, quotas_of
from ratelimit_mw.rules.inline import InlineLimit
from ratelimit_mw.rules.matching import Plans
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.settings import ClientSettings


class Rules:
    """The rules of a limiter: those of one or more domains, `parts`. The rules of every domain apply to a request.

    All domains have the same `storage`, `client` and `response`, and the same meaning for each attribute name. Rules
    are immutable, and threads may share them.
    """

    def __init__(self, parts: Sequence[RuleSet]) -> None:
        first = parts[0]
        compiled = [rule for part in parts for rule in part.compiled]
        self.quotas = quotas = quotas_of(compiled)
        """The quotas of all rules. Rules with equal quotas share them."""
        self.elastic = any(quota.elastic for quota in quotas)
        """A limit depends on the load."""
        lists = [part.descriptors for part in parts if part.descriptors is not None]
        self.waiting = any(quota.waits for quota in quotas) or any(each.waiting for each in lists)
        """A request may have to wait for its turn."""
        self.deferring = any(rule.rule.defers for rule in compiled)
        """A request may be deferred instead of denied."""
        self.shedding = any(rule.rule.priority for rule in compiled)
        """A request may be shed under load."""
        self.metered = self.elastic or self.deferring or self.shedding
        """Any of these features depends on the load."""
        self._settling = any(rule.rule.counts is not None or rule.rule.cost_after for rule in compiled)
        self._holding = any(ALGORITHMS[quota.algorithm].in_flight for quota in quotas)
        self.domain = first.domain
        self.source = first.source
        """The place of the rules, if they are still to be read from there."""
        self.storage = first.storage
        self.response = first.response
        self.reload = first.reload
        self.observe = first.observe
        self.load = first.load
        self.defer = first.defer
        self.rules = tuple(rule for part in parts for rule in part.rules)
        self.warnings = tuple(warning for part in parts for warning in part.warnings)
        self.client, self.attributes = first.client, first.attributes
        if len(parts) > 1:
            self.client, self.attributes = _joined(parts)
        self._use(parts)

    def _use(self, parts: Sequence[RuleSet]) -> None:
        self.parts = tuple(parts)
        self.plan = parts[0].plan if len(parts) == 1 else self._plan_all
        """Returns the charges of a request and a cost, in the order of the domains and of their files."""
        self._single: dict[str, Rules] = {}
        limiting = [part.messages for part in parts if part.messages is not None]
        self.messages = Rules(limiting) if limiting else None
        """The rules for the messages of a WebSocket. None if no rule limits messages."""
        self.holding = (
            self._holding
            or parts[0].inline.holding
            or any(part.overrides and part.overrides.in_flight for part in parts)
        )
        """A request may hold concurrent places until its response has ended."""
        self.settling = self._settling or self.holding
        """A charge is settled only when the response is known or has ended."""
        self.asking = parts[0].asking
        """The question that tries the service which decides. None if the rules are here."""
        self.special = self.metered or self.waiting or self.settling or self.messages is not None
        """A request takes more than one decision before the app is called."""
        by_path = any(part.by_path for part in parts)
        remembered = self.asking is None and not self.metered and all(part.overrides_never_end for part in parts)
        by_identity = all(part.by_identity for part in parts)
        attributes = [part.attributes for part in parts]
        self.plans = Plans(attributes, by_path=by_path, by_identity=by_identity) if remembered else None
        """A cache of plans. None if a plan depends on the time or the load, or if the request is stored."""
        read = self.plans.fields if self.plans is not None else None
        self.bare = read is not None and not self.special
        """Nothing of a request is read except its head, and one decision is enough."""
        self.fields = read if read is not None and self.bare and read.names else None
        """The header fields that rules read, if they are bare. None if they read none."""

    def overridden(self, parts: Sequence[RuleSet]) -> "Rules":
        """Return the same rules, in `parts` that have other overrides."""
        same = copy.copy(self)
        same._use(parts)  # noqa: SLF001  one of our own
        return same

    def of(self, domain: str) -> "Rules | None":
        """Return the rules of one domain, or None if there is no such domain.

        While the rules are still to be read from their source, they have every domain.
        """
        if self.source is not None or (len(self.parts) == 1 and domain == self.domain):
            return self
        found = [part for part in self.parts if part.domain == domain]
        if found and domain not in self._single:
            self._single[domain] = Rules(found)
        return self._single.get(domain)

    def _plan_all(self, request: Request, cost: int = 1) -> tuple[Charge, ...]:
        charges: tuple[Charge, ...] = ()
        for part in self.parts:
            found = part.plan(request, cost)
            if found is BLOCKED:
                return BLOCKED
            charges += found
        return charges

    def plan_rule(self, asked: NamedRule, request: Request, cost: int = 1) -> Sequence[Charge] | None:
        """See `RuleSet.plan_rule`. If several domains have a rule of this name, the first one's is used."""
        every = (part.plan_rule(asked, request, cost) for part in self.parts)
        return next((found for found in every if found is not None), None)

    def route(self, name: str, request: Request) -> str | None:
        """See `RuleSet.route`."""
        return next((route for part in self.parts if (route := part.route(name, request)) is not None), None)

    def classify(self, request: Request, asked: NamedRule | None = None) -> Sequence[Charge] | None:
        """See `RuleSet.classify`. A request that one domain exempts is not shed because of another domain."""
        if asked is not None:
            return next((said for part in self.parts if (said := part.classify(request, asked)) is not None), None)
        charges: list[Charge] = []
        for part in self.parts:
            found = part.classify(request)
            if found is BLOCKED or not found:
                return found
            charges += found
        return charges

    def concerns(self, request: Request) -> bool:
        """See `RuleSet.concerns`."""
        return any(part.concerns(request) for part in self.parts)


def _joined(parts: Sequence[RuleSet]) -> tuple[ClientSettings, Attributes]:
    """Return settings and attributes that read the requests of several domains. Each hashes with its own key."""
    first = parts[0]
    named = {name: source for part in parts for name, source in part.client.attributes.items()}
    first.inline.reserved.update(rule.rule.name for part in parts[1:] for rule in part.compiled)
    client = replace(first.client, attributes=named)
    attributes = Attributes(client)
    for part in parts:
        part.attributes.accept(named)  # check() may pass one mapping to each domain in turn
        attributes.await_those_of(part.attributes)
    return client, attributes


def declare(rules: Rules, limit: InlineLimit) -> None:
    """Compile an inline limit, unless that was done before. The first domain has the inline limits.

    Raises ConfigurationError if it cannot be used.
    """
    if rules.asking is not None:
        message = f"the limit {quoted(limit.limit)} in the code can't be used: the service decides by its own rules"
        raise ConfigurationError([Problem(message, hint="add a rule to the file of the service")])
    first = rules.parts[0]
    first.inline.declare(limit)
    if first.inline.holding and not rules.holding:
        rules._use(rules.parts)  # noqa: SLF001  one of our own
    if rules.attributes is not first.attributes:
        rules.attributes.await_those_of(first.attributes)


def rule_names(rules: Rules) -> set[str]:
    """The names of all rules that an app can ask for."""
    return {rule.rule.name for part in rules.parts for rule in part.compiled}


def unknown_rule(name: str, known: Collection[str]) -> Problem:
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
    if rules.asking is not None:  # only the service knows its rules
        return
    rules_by_name = {rule.rule.name: rule for part in reversed(rules.parts) for rule in part.compiled}
    known = rules_by_name.keys()
    problems = []
    for name in sorted(set(names)):
        rule = rules_by_name.get(name)
        if rule is None:
            problems.append(unknown_rule(name, known))
        elif what := _settled_late(rule):
            why = f"{what} depends on the response, which does not exist yet"
            hint = "give the rule a match instead: the middleware sees the response"
            problems.append(Problem(f"the app asks for the rule {quoted(name)}, but {why}", hint=hint))
    if problems:
        raise ConfigurationError(problems)


def _settled_late(rule: CompiledRule) -> str:
    """Return what settles the charges of a rule when the response is known. "" if nothing does."""
    if rule.rule.counts is not None:
        return "its count"
    return "its cost" if rule.rule.cost_after is not None else ""


def require_routes(app: object) -> Callable[[Rules], None]:
    """Return a check that refuses rules by the app's own routes if the routes of `app` cannot be read."""
    readable = knows_routes(app)

    def check(rules: Rules) -> None:
        unread = [] if readable else [rule for part in rules.parts for rule in part.compiled if rule.needs_routes]
        if unread:
            hint = "add match.path, or count by path"
            raise ConfigurationError(
                [_without_routes(f"rule {quoted(rule.rule.name)}", " without match.path", hint) for rule in unread]
            )

    return check


def require_routes_of(request: Request, limit: InlineLimit, rules: Rules) -> None:
    """Refuse a limit in code that counts by route if the routes of the app that the middleware wraps are unknown.

    The limit would have nothing to count by. At the start, the views of such an app are unknown, too.

    Raises:
        ConfigurationError: The routes are needed and unknown.
    """
    if type(request).app_route is not Request.app_route:
        return
    rule = rules.parts[0].inline.rules.get(limit)  # None while the rules are still to be read from their database
    if rule is not None and rule.needs_routes:
        hint = "put the middleware around the app itself, or count by path, as in by='ip+path'"
        raise ConfigurationError([_without_routes(f"limit {quoted(limit.limit)} of {limit.name}", "", hint)])


def _without_routes(limit: str, how: str, hint: str) -> Problem:
    return Problem(
        f"the {limit} counts by route{how}, but the routes of this app can't be read: it is not an app of "
        "Starlette, FastAPI, Flask or Django",
        hint=hint,
    )


class UsedNames:
    """The names that an app has used with one limiter. All of them existed when they were used.

    Attributes:
        rules: The names of rules that the app has asked for.
        registered: The names of rules in the decorators of the app's views. A name that no rule has binds nothing.
        inline: The inline limits that the app has asked for, by their names.
        domains: The domains that were passed to `check()`.
        attributes: The custom attributes that were passed to `check()`.
    """

    def __init__(self) -> None:
        self.rules: set[str] = set()
        self.registered: set[str] = set()
        self.inline: dict[str, InlineLimit] = {}
        self.domains: set[str] = set()
        self.attributes: set[str] = set()

    def name_of(self, rules: Rules, rule: str | InlineLimit) -> str:
        """Return the name of a rule that the app asks for. An inline limit is compiled when it is first asked for.

        Raises ConfigurationError if the inline limit cannot be used with these rules.
        """
        if isinstance(rule, str):
            return rule
        if rules.source is None:  # otherwise the rules are still to be read from their database
            declare(rules, rule)
            self.inline[rule.name] = rule
        return rule.name

    def register(self, rules: Rules, wanted: Iterable[str | InlineLimit]) -> None:
        """Register what the decorators of the app's views ask for. What cannot be used fails in its own view."""
        for rule in wanted:
            if isinstance(rule, str):
                self.registered.add(rule)
            else:
                with suppress(ConfigurationError):
                    self.name_of(rules, rule)

    def check(self, rules: Rules, before: Rules) -> None:
        """Raise ConfigurationError if `rules` lack a used name. `before` are the rules in force.

        The inline limits that were asked for are compiled, so that no request has to do it.
        """
        known = rule_names(rules)
        needed = self.rules | (self.registered & rule_names(before))
        problems = [unknown_rule(name, known) for name in sorted(needed - known)]
        problems += [unknown_domain(name, rules) for name in sorted(self.domains) if rules.of(name) is None]
        problems += [
            Problem(f"the app passes the attribute {quoted(name)} to check(), but it is not under attributes")
            for name in sorted(self.attributes)
            if not rules.attributes.known(name)
        ]
        for limit in tuple(self.inline.values()) if rules.source is None else ():
            with collecting(problems):
                declare(rules, limit)
        if problems:
            raise ConfigurationError(problems)
