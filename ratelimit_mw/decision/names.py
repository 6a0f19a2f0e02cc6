"""The names of rules, domains and attributes that an app uses. A reload must keep them."""

from weakref import ref

from ratelimit_mw.errors import ConfigurationError, Problem, quoted
from ratelimit_mw.reload.watcher import Retriever
from ratelimit_mw.rules.domains import Rules, rule_names, unknown_domain, unknown_rule

DECORATED: set[str] = set()
"""The rule names in the decorators and dependencies of this process. `limited` of each framework adds its name.

A decorator does not know which limiter will decide. So each name binds the limiters of middlewares that have such a
rule.
"""


class UsedNames:
    """The names that an app has used with one limiter. All of them existed when they were used.

    Attributes:
        rules: The names of rules that the app has asked for.
        domains: The domains that were passed to `check()`.
        attributes: The custom attributes that were passed to `check()`.
        serving: True if the limiter decides for a middleware, so that the names in `DECORATED` may be its rules.
    """

    def __init__(self) -> None:
        self.rules: set[str] = set()
        self.domains: set[str] = set()
        self.attributes: set[str] = set()
        self.serving = False

    def bind(self, retriever: Retriever) -> None:
        """Make `retriever` refuse rules that lack a used name."""
        held = ref(retriever)  # the retriever keeps `check`, and must not keep itself

        def check(rules: Rules) -> None:
            watched = held()
            if watched is not None:
                self._check(rules, watched.rules)

        retriever.require(check)

    def _check(self, rules: Rules, before: Rules) -> None:
        """Raise ConfigurationError if `rules` lack a used name. `before` are the rules in force."""
        known = rule_names(rules)
        needed = self.rules | (DECORATED & rule_names(before) if self.serving else set())
        problems = [unknown_rule(name, known) for name in sorted(needed - known)]
        problems += [unknown_domain(name, rules) for name in sorted(self.domains) if rules.of(name) is None]
        problems += [
            Problem(f"the app passes the attribute {quoted(name)} to check(), but it is not under attributes")
            for name in sorted(self.attributes)
            if not rules.attributes.known(name)
        ]
        if problems:
            raise ConfigurationError(problems)
