"""The limits that an app declares or computes in its code, and the rules that one rule set makes of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import lru_cache, partial
from typing import NamedTuple, Protocol, TypedDict
from uuid import UUID

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.errors import ConfigurationError, Invalid, Problem, quoted
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.identity.identifier import KEY, identifier_of_key
from ratelimit_mw.logs import Once, logger
from ratelimit_mw.model import NEVER, Quota
from ratelimit_mw.rules.compiled import CompiledOverride, CompiledRule, Counter, NamedRule

_MAX_TEXTS = 1024
"""How many texts of limits are kept compiled in a rule set. The one that was used least recently is dropped."""

_LONGEST_TEXT = 256
"""The most characters of a limit that an app computes, so that the kept texts stay small."""

SAMPLE = "1000000 per hour"
"""The limit of an inline limit whose text a function returns, until there is a request."""

_NEVER = "0 per hour"
"""The limit that denies every request."""


class InlineLimit(NamedTuple):
    """A limit that a decorator or a dependency of the app declares. Equal inline limits are one rule.

    Attributes:
        name: The name of its rule, as in keys, headers and logs.
        limit: The text of the limit.
        by: The entries of `by`. Empty: the default.
        shared: True if the app has chosen the name. Views that declare the same limit then share its counters.
        algorithm: The algorithm. Empty: the default.
        computed: True if a function returns the limit of each request. The text is then `SAMPLE`.
    """

    name: str
    limit: str
    by: tuple[str, ...] = ()
    shared: bool = False
    algorithm: str = ""
    computed: bool = False


class RuntimeCompiler(Protocol):
    """Compiles limits that come at run time, by the settings of one rules file."""

    def limit(self, identity: str, rule: str, limit: object, until: int = NEVER) -> CompiledOverride:
        """Compile a limit for an identity. `limit` is written as in a rule. Raises ValueError if it is invalid."""
        ...

    def with_number(self, rule: str, place: int, number: int) -> Quota:
        """Return the quota of a rule as if its limit at an index had another number. Raises ValueError if it can't."""
        ...

    def inline(self, limit: InlineLimit) -> CompiledRule:
        """Compile an inline limit to a rule on demand. Raises ConfigurationError if it cannot be used."""
        ...


class _Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "the rule's by"

    def __repr__(self) -> str:
        return self.value


UNSET = _Unset.UNSET
"""The key of an app that sets none."""

Key = str | int | UUID | None | _Unset
"""What an app may count by in place of a rule's `by`."""


class ByName(TypedDict, total=False):
    """A rule that is asked by its name, whether or not its `match` holds.

    Attributes:
        rule: The name of the rule. Only this rule is asked, also if it is `on_demand`.
        key: What the rule counts by in place of its `by`: a text, a whole number or a UUID. It is hashed. With None or
            "", the rule does not apply, as if an attribute were absent.
        limit: A limit in place of the rule's, in the form of a rules file, such as "5 per hour".
    """

    rule: str
    key: Key
    limit: str | None


def text_of_key(key: object) -> str:
    """Return a key as text. "" if it is absent. Raises TypeError if it is not a text, a whole number or a UUID."""
    if key is None:
        return ""
    if isinstance(key, str):
        return str.__str__(key)  # an enum that is a str counts as the text that it equals
    if isinstance(key, (int, UUID)) and not isinstance(key, bool):
        return str(key)
    raise TypeError(f"key takes a string, a whole number or a UUID, not {type(key).__name__}")


def named_rule(rule: str | None = None, key: Key = UNSET, limit: str | None = None) -> NamedRule:
    """Return what the app asks for, see `ByName`. Raises TypeError for a wrong type, or without the name of a rule."""
    if not isinstance(rule, str):
        raise TypeError(f"rule takes the name of a rule, which key and limit belong to, not {rule!r}")
    if not (limit is None or isinstance(limit, str)):
        raise TypeError(f"limit takes a string such as '5 per minute', not {limit!r}")
    return NamedRule(rule, None if key is UNSET else text_of_key(key), limit)


@dataclass(slots=True, eq=False)
class InlineLimits:
    """The inline limits that one rule set was asked for. Each is one rule, see `rules`. Threads may share it.

    Attributes:
        named: The rules of the file by name. Inline limits are added.
        reserved: The names that no inline limit may have, because rules of a file have them.
        compiler: Compiles the limits.
        rules: The rules of the limits.
        owners: The limits by their names.
        computed: The counters of the limits that functions return, by the names of their rules.
        holding: True if one of the limits is `N concurrent`.
    """

    named: dict[str, CompiledRule]
    reserved: set[str]
    compiler: RuntimeCompiler
    rules: dict[InlineLimit, CompiledRule] = field(default_factory=dict)
    owners: dict[str, InlineLimit] = field(default_factory=dict)
    computed: "dict[str, ComputedLimits]" = field(default_factory=dict)
    holding: bool = False

    def declare(self, limit: InlineLimit) -> None:
        """Compile a limit, unless that was done before.

        Raises ConfigurationError if the limit cannot be used, or if another rule has its name.
        """
        if limit in self.rules:
            return
        if limit.name in self.reserved:
            message = f"the limit {quoted(limit.limit)} in the code has the name of the rule {quoted(limit.name)}"
            raise ConfigurationError([Problem(message, hint="choose another name for shared=")])
        made = self.compiler.inline(limit)
        # `setdefault` is atomic: of two threads that are here at once, one has the name, and both get its rule.
        owner = self.owners.setdefault(limit.name, limit)
        if owner != limit:
            raise ConfigurationError([two_limits(limit, owner)])
        self.holding = self.holding or _in_flight(made.counters)
        if limit.computed:
            compiled = partial(counters_by, self.compiler, limit.name, owner=limit)
            deny = made.rule.on_error == "deny"
            self.computed.setdefault(limit.name, ComputedLimits(limit.name, "its function", compiled, deny=deny))
        self.rules[limit] = self.named.setdefault(limit.name, made)


def two_limits(limit: InlineLimit, other: InlineLimit) -> Problem:
    """The problem that two inline limits of an app have one name, and so would have the same counters."""
    if limit.shared:
        message = f"two limits are shared as {quoted(limit.name)}, but they differ"
        hint = "give both the same limit and the same by, or different names"
    else:
        message = f"two limits have the same name {quoted(limit.name)}"
        hint = "give each a name of its own, as in shared='mail'"
    texts = " and ".join(dict.fromkeys(quoted(each.limit) for each in (other, limit)))
    return Problem(f"{message}: {texts}", hint=hint)


def with_key(rule: CompiledRule, key: str, attributes: Attributes) -> CompiledRule:
    """Return the rule, counted by a key that the app has computed. With "", it has no counter."""
    if not key:
        return replace(rule, by=(), identifiers=())
    return replace(rule, by=(KEY,), identifiers=(identifier_of_key(key, attributes),))


def counters_by(
    compiler: RuntimeCompiler, rule: str, text: str, owner: InlineLimit | None = None
) -> tuple[Counter, ...]:
    """Return the counters of a rule with a limit that the app has computed.

    Raises Invalid if it cannot be used. `owner` is the inline limit of which the rule was made.
    """
    if len(text) > _LONGEST_TEXT:
        raise Invalid(f"limit: {quoted(text)} is too long: a limit has at most {_LONGEST_TEXT} characters")
    try:
        made = compiler.limit("", rule, text) if owner is None else compiler.inline(owner._replace(limit=text))
    except ConfigurationError as error:
        raise Invalid(str(error)) from None
    if _in_flight(made.counters):
        raise Invalid(f"limit: {quoted(text)} is a concurrent limit, which only a rule or a decorator can have")
    return made.counters


def _in_flight(counters: Sequence[Counter]) -> bool:
    """Return True if one of the counters has concurrent places."""
    return any(ALGORITHMS[quota.algorithm].in_flight for _, quota in counters)


def with_limits(inline: InlineLimits) -> Callable[[str, str], CompiledRule]:
    """Return a function from the name of a rule and the text of a limit to that rule with that limit.

    The function keeps the rules that it makes. It raises Invalid if a limit that the app sets cannot be used.

    Args:
        inline: The rules by name, and what compiles their limits.
    """

    @lru_cache(maxsize=_MAX_TEXTS)
    def with_limit(name: str, text: str) -> CompiledRule:
        rule, computed = inline.named[name], inline.computed.get(name)
        if computed is None:
            counters = counters_by(inline.compiler, name, text, inline.owners.get(name))
        else:
            counters = computed.counters(text or None)
        return replace(
            rule,
            rule=replace(rule.rule, several=len(counters) > 1),
            keys=tuple(key for key, _ in counters),
            limits=tuple(quota for _, quota in counters),
            tiers=None,
            read_limit=None,
        )

    return with_limit


class ComputedLimits:
    """The counters of a rule, by the text of a limit that a function of the app has returned.

    If there is no usable limit, the rule does not apply, or it denies the request. Each reason is logged once.

    Args:
        rule: The name of the rule.
        source: The function, for the log.
        compiled: Returns the counters for a text. Raises ValueError if the rule cannot have this limit.
        deny: The rule denies requests without a usable limit.
    """

    def __init__(self, rule: str, source: str, compiled: Callable[[str], tuple[Counter, ...]], *, deny: bool) -> None:
        self._rule = rule
        self._source = source
        self._deny = deny
        self._once = Once()

        @lru_cache(maxsize=_MAX_TEXTS)
        def usable(text: str) -> tuple[Counter, ...] | None:
            try:
                return compiled(text)
            except ValueError:
                return None

        self._usable = usable

    def counters(self, text: str | None, *, asked: bool = True) -> tuple[Counter, ...]:
        """Return the counters of a request. Never raises.

        Args:
            text: What the function has returned. None if it raised, or returned no text.
            asked: False if there is no request to call the function with.
        """
        found = None if text is None or len(text) > _LONGEST_TEXT else self._usable(text)
        if found is not None:
            return found
        why = "returned a string that is not a limit for this rule"  # not the text, which may be a secret by mistake
        if text is None:
            why = "raised, or returned no string" if asked else "is not called by check(), which has no request"
        message = "the rule %r has no limit, because %s %s: such a request is %s (logged once)"
        then = "denied, by its on_error" if self._deny else "not limited by the rule"
        self._once(logger.error, message, self._rule, self._source, why, then, about=why)
        return (self._usable(_NEVER) or ()) if self._deny else ()
