"""The names of rules, domains and attributes that an app uses. A reload must keep them."""

from collections.abc import Iterable
from contextlib import suppress
from weakref import ref

from ratelimit_mw.errors import ConfigurationError, Problem, collecting, quoted
from ratelimit_mw.reload.watcher import Retriever
from ratelimit_mw.rules.domains import Rules, declare, rule_names, unknown_domain, unknown_rule
from ratelimit_mw.rules.inline import InlineLimit


class UsedNames:
    """The names that an app has used with one limiter. All of them existed when they were used.

    Attributes:
        rules: The names of rules that the app has asked for.
        registered: The names of rules in the decorators of the app's views. A name that no rule has binds nothing.
        inline: The inline limits that the app has asked for, by their names.
        domains: The domains that were passed to `check()`.
        attributes: The custom attributes that were passed to `check()`.
        serving: True if the limiter decides for a middleware.
    """

    def __init__(self) -> None:
        self.rules: set[str] = set()
        self.registered: set[str] = set()
        self.inline: dict[str, InlineLimit] = {}
        self.domains: set[str] = set()
        self.attributes: set[str] = set()
        self.serving = False

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

    def bind(self, retriever: Retriever) -> None:
        """Make `retriever` refuse rules that lack a used name."""
        held = ref(retriever)  # the retriever keeps `check`, and must not keep itself

        def check(rules: Rules) -> None:
            watched = held()
            if watched is not None:
                self._check(rules, watched.rules)

        retriever.require(check)

    def _check(self, rules: Rules, before: Rules) -> None:
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
