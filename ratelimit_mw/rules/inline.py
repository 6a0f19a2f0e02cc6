"""The limits that an app declares or computes in its code, and the rules that one rule set makes of them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, Protocol

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.errors import ConfigurationError, Problem, quoted
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.identity.identifier import KEY, identifier_of_key
from ratelimit_mw.rules.compiled import CompiledRule, OverrideCompiler

_MAX_TEXTS = 1024
"""How many texts of limits are kept compiled in a rule set. The one that was used least recently is dropped."""


class InlineLimit(NamedTuple):
    """A limit that a decorator or a dependency of the app declares. Equal inline limits are one rule.

    Attributes:
        name: The name of its rule, as in keys, headers and logs.
        limit: The text of the limit.
        by: The entries of `by`. Empty: the default.
        shared: True if the app has chosen the name. Views that declare the same limit then share its counters.
    """

    name: str
    limit: str
    by: tuple[str, ...] = ()
    shared: bool = False


class InlineCompiler(Protocol):
    """Compiles inline limits by the settings of one rules file."""

    def compile(self, limit: InlineLimit) -> CompiledRule:
        """Compile a limit to a rule on demand. Raises ConfigurationError if it cannot be used."""
        ...


class InlineLimits:
    """The inline limits that one rule set was asked for. Each is compiled once. Iterating yields the rules.

    Args:
        named: The rules of the file by name. Inline limits are added.
        compiler: Compiles the limits. None: there are none, as in a rule set without a file.
    """

    def __init__(self, named: dict[str, CompiledRule], compiler: InlineCompiler | None) -> None:
        self._named = named
        self._of_file = frozenset(named)
        self._compiler = compiler
        self._rules: dict[InlineLimit, CompiledRule] = {}

    def __iter__(self) -> Iterator[CompiledRule]:
        return iter(tuple(self._rules.values()))

    def declare(self, limit: InlineLimit) -> None:
        """Compile a limit, unless that was done before.

        Raises ConfigurationError if the limit cannot be used, or if another rule has its name.
        """
        if limit in self._rules or self._compiler is None:
            return
        if limit.name in self._of_file:
            message = f"the limit {quoted(limit.limit)} in the code has the name of the rule {quoted(limit.name)}"
            raise ConfigurationError([Problem(message, hint="choose another name for shared=")])
        for other in tuple(self._rules):
            if other.name == limit.name and other != limit:
                raise ConfigurationError([two_limits(limit, other)])
        self._named[limit.name] = self._rules[limit] = self._compiler.compile(limit)


def two_limits(limit: InlineLimit, other: InlineLimit) -> Problem:
    """The problem that two inline limits of an app have one name, and so would have the same counters."""
    if limit.shared:
        message = f"two limits are shared as {quoted(limit.name)}, but they differ"
        hint = "give both the same limit and the same by, or different names"
    else:
        message = f"two limits have the name {quoted(limit.name)}, so they can't be told apart"
        hint = "give each a name of its own, as in shared='mail'"
    texts = " and ".join(dict.fromkeys(quoted(each.limit) for each in (other, limit)))
    return Problem(f"{message}: {texts}", hint=hint)


def with_key(rule: CompiledRule, key: str, attributes: Attributes) -> CompiledRule:
    """Return the rule, counted by a key that the app has computed. With "", it has no counter."""
    if not key:
        return replace(rule, by=(), identifiers=())
    return replace(rule, by=(KEY,), identifiers=(identifier_of_key(key, attributes),))


def with_limits(
    named: Mapping[str, CompiledRule], compiler: OverrideCompiler | None
) -> Callable[[str, str], CompiledRule]:
    """Return a function from the name of a rule and the text of a limit to that rule with that limit.

    The function keeps the rules that it makes. It raises ValueError if the limit cannot be used.

    Args:
        named: The rules by name.
        compiler: Compiles the limits, as those of overrides.
    """

    @lru_cache(maxsize=_MAX_TEXTS)
    def with_limit(name: str, text: str) -> CompiledRule:
        if compiler is None:
            raise ValueError(f"there is no rule {quoted(name)}")
        rule, counters = named[name], compiler.limit("", name, text).counters
        if any(ALGORITHMS[quota.algorithm].in_flight for _, quota in counters):
            raise ValueError(f"limit: {quoted(text)} is a concurrent limit, which code can't set")
        return replace(
            rule,
            rule=replace(rule.rule, several=len(counters) > 1),
            keys=tuple(key for key, _ in counters),
            limits=tuple(quota for _, quota in counters),
            tiers=None,
        )

    return with_limit
