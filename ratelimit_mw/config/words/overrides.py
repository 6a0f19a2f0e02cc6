"""`overrides`, and all other limits that take the place of a rule's own, or that have no rule in the file.

The words of the rules file read them, so they mean the same everywhere:

* `overrides`: another limit, a block or an exemption for one client, in the file.
* `Recompiler`: the same at run time, another number for a limit of a rule, and what a decorator declares, as
  `limited("5 per minute", by="user")`.
* `with_function`: `limit: python:package.module:function`, a function of the app that returns the text of a request's
  limit. The rest of the rule is checked and compiled with a sample of a limit. Each text is then compiled when the
  function first returns it.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.config import kinds
from ratelimit_mw.config.tree import Map, Place, Problems, convert, node_at, unpack
from ratelimit_mw.config.word import Section, Values, Word, sections_word
from ratelimit_mw.config.words.limit import (
    ALGORITHM,
    LIMIT,
    MOST,
    Limits,
    Window,
    limit_schema,
    parse_limit,
    read_limits,
)
from ratelimit_mw.config.words.rule import RULE, compile_counters, compile_rule, validate_rule
from ratelimit_mw.config.words.selection import BY, NAME, WITHOUT_ATTRIBUTE, read_method
from ratelimit_mw.errors import ConfigurationError, Invalid, Problem, nearest, quoted
from ratelimit_mw.identity.attributes import Attributes, canonical_name
from ratelimit_mw.identity.identifier import attributes_of, choices_of
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import NEVER, Quota, Rule
from ratelimit_mw.rules.compiled import (
    CompiledOverride,
    CompiledRule,
    Counter,
    Matching,
    identity_of,
    kind_of,
    names_in,
)
from ratelimit_mw.rules.inline import ComputedLimits, InlineLimit, RuntimeCompiler, counters_by
from ratelimit_mw.settings import ClientSettings
from ratelimit_mw.units import HOUR


def compile_overrides(
    overrides: Sequence[Values], domain: str, rules: Sequence[Values], attributes: Attributes, problems: Problems
) -> tuple[CompiledOverride, ...]:
    """Return the compiled overrides of a file, without those whose client cannot be identified."""
    named = {rule[NAME]: rule for rule in rules}
    usable = [override for override in overrides if not override.dropped]  # the others have been reported
    compiled = [_compile(override, domain, named, attributes, problems) for override in usable]
    return tuple([made for made in compiled if made.identity])


def _compile(
    override: Values, domain: str, rules: Mapping[str, Values], attributes: Attributes, problems: Problems
) -> CompiledOverride:
    limits, name, client = override[_OWN_LIMIT], override[_RULE] or "", override[_CLIENT]
    kind, identity = _kind(override), ""
    counters: tuple[Counter, ...] = ()
    try:
        identity = identity_of(client, attributes, kind)
    except ValueError as error:
        problems.add(override.place("client"), str(error))
    if limits is not None:
        if name not in rules:
            problems.add(override.place("rule"), f"there is no rule {quoted(name)}", nearest(name, rules))
        elif identity:
            _require_counter(identity, rules[name], override.place("client"), problems)
            counters = override_counters(domain, rules[name], limits, Map(override.place("limit")), problems)
    return CompiledOverride(identity, kind, override[_UNTIL], name, counters)


def _kind(override: Values) -> str:
    return kind_of(override[_RULE], override[_OWN_LIMIT], block=override[_BLOCK], exempt=override[_EXEMPT])


def _check(override: Values, problems: Problems) -> None:
    """Report an override that has no effect, or several."""
    if not override.dropped:
        problems.read(lambda _: _kind(override), override.node, "")


def _require_counter(identity: str, rule: Values, place: Place, problems: Problems) -> None:
    """Report an identity that no counter of the rule can have. A limit for it would apply to no client."""
    names = names_in(identity)
    with suppress(ValueError):  # a `by` that cannot be read is reported with its rule
        if not any(
            sorted(map(canonical_name, choice)) == sorted(names) for entry in rule[BY] for choice in choices_of(entry)
        ):
            message = f"no counter of {quoted(rule[NAME])} is identified by {'+'.join(names)}"
            problems.add(place, message, f"it counts by {', '.join(rule[BY])}")


def override_counters(domain: str, rule: Values, limits: Limits, node: Map, problems: Problems) -> tuple[Counter, ...]:
    """Return the counters of a rule with the limits of an override. Problems are reported at the place of `node`."""
    if limits.function:
        problems.add(node.place, "the limit of an override can't be a function", "write the limit itself")
        return ()
    if limits.tiers is not None:
        problems.add(node.place, "the limit of an override can't depend on the tier", "write one limit")
        return ()
    changed = rule.with_value(LIMIT, limits, node)
    validate_rule(changed, problems)
    return compile_counters(domain, changed)[0]


_CLIENT: Word[Mapping[str, str]] = Word(
    key="client",
    read=kinds.read_texts,
    default={},
    schema=kinds.TEXTS,
    about="The attributes of the client, such as {ip: 192.0.2.1} or {user: alice}.",
    required=True,
)
_RULE = kinds.optional_text("rule", "The rule whose limit is replaced for the client.", unset="none")
_OWN_LIMIT: Word[Limits | None] = Word(
    key="limit",
    read=read_limits,
    default=None,
    schema=limit_schema,
    about="The client's own limit.",
    section=LIMIT.section,
    unset="that of the rule",
)
_BLOCK = kinds.flag("block", "All requests of the client are denied.")
_EXEMPT = kinds.flag("exempt", "Requests of the client are never counted.")
_UNTIL: Word[int] = Word(
    key="until",
    read=kinds.read_timestamp,
    default=NEVER,
    schema=kinds.TEXT,
    about="When the override ends, in ISO 8601.",
    unset="never",
)
_COMMENT = kinds.text("comment", "A comment for other operators.")

_OVERRIDE = Section(
    "Override",
    "An exception to the rules for one client: another limit of one rule, a block, or an exemption.",
    (_CLIENT, _RULE, _OWN_LIMIT, _BLOCK, _EXEMPT, _UNTIL, _COMMENT),
    check=_check,
    whole=True,
)

OVERRIDES = sections_word("overrides", _OVERRIDE, "Exceptions to the rules for single clients.")


_ROOM = 10
"""The largest factor by which a throttle raises a limit. The sample must stay below the largest limit."""


def sample_of(domain: str, rule: Values) -> Quota:
    """Return a quota that has the effects of any limit of the rule."""
    ((_, sample),), _ = compile_counters(domain, with_sample(rule))
    return sample


def with_sample(rule: Values) -> Values:
    """Return the rule with a large limit in place of its own."""
    algorithm = ALGORITHMS[rule[ALGORITHM]]
    largest = MOST if algorithm.largest is None else algorithm.largest.limit
    # A concurrent limit has no period. Other algorithms cannot have one from a function.
    window = Window(largest // _ROOM, 0 if algorithm.in_flight else HOUR, place=rule.place("limit"))
    return rule.with_value(LIMIT, Limits((window,)))


def with_function(
    made: CompiledRule, rule: Values, compiler: RuntimeCompiler, attributes: Attributes, problems: Problems
) -> CompiledRule:
    """Return the compiled rule with the function of its limit in place of the sample.

    Args:
        made: The rule, compiled with the sample.
        rule: The values of the rule.
        compiler: Compiles the limits. It knows the rule.
        attributes: The attributes that rules may use.
        problems: Receives the errors.
    """
    source = rule[LIMIT].function
    if ALGORITHMS[rule[ALGORITHM]].in_flight:
        message = f"{rule[ALGORITHM]} counts requests in flight; a function returns limits per time"
        problems.add(rule.place("limit"), message, "use another algorithm")
        return made
    read = attributes.source(source)
    compiled = partial(counters_by, compiler, rule[NAME])
    limits = ComputedLimits(rule[NAME], source, compiled, deny=made.rule.on_error == "deny")

    def read_limit(request: Request) -> tuple[Counter, ...]:
        return limits.counters(read(request), asked=request.context is not None)

    # How many limits a text has is known only later.
    several = replace(made.rule, several=True)
    return replace(made, rule=several, keys=(), limits=(), sample=made.limits[0], read_limit=read_limit)


@dataclass(frozen=True, slots=True, eq=False)
class Recompiler:
    """Compiles other limits of the rules in force, and inline limits. See `rules.inline.RuntimeCompiler`.

    Attributes:
        base: What the rules of the file have in common.
        attributes: The attributes that rules may use.
        rules: The values of each rule by its name, packed, and without its `match`.
    """

    base: Rule
    attributes: Attributes
    rules: Mapping[str, Values | bytes]

    def limit(self, identity: str, rule: str, limit: object, until: int = NEVER) -> CompiledOverride:
        """Return the compiled override of a limit.

        Args:
            identity: The identity of the client, as in the key of a counter. Empty for the limit of all clients.
            rule: The name of the rule.
            limit: The client's limit, in any form that a rules file may have.
            until: The end of the override in microseconds since the epoch, or `NEVER`.

        Raises:
            ValueError: There is no such rule, it has no counter of this client, or the limit cannot be used.
        """
        if rule not in self.rules:
            raise ValueError(f"there is no rule {quoted(rule)} ({nearest(rule, self.rules)})")
        problems = Problems()
        node = convert({"limit": limit}, {}, problems)
        limits = problems.read(read_limits, node_at(node, ("limit",)), Limits(()))
        counters: tuple[Counter, ...] = ()
        values: Values = unpack(self.rules[rule])
        if not problems:
            counters = override_counters(self.base.domain, values, limits, Map(node.place), problems)
        if identity:
            _require_counter(identity, values, node.place, problems)
        _raise(problems)
        return CompiledOverride(identity, "limit", until, rule, counters)

    def with_number(self, rule: str, place: int, number: int) -> Quota:
        """Return the quota of a rule as if one of its limits had another number of requests.

        Everything else stays as the file has it. A burst that the file does not set is the new number.

        Args:
            rule: The name of the rule.
            place: The index of the limit among those of clients without a tier.
            number: The number of requests.

        Raises:
            ValueError: The rule cannot have this number.
        """
        values: Values = unpack(self.rules[rule])
        limits = values[LIMIT]
        windows = list(limits.default)
        windows[place] = windows[place]._replace(limit=number)
        changed = values.with_value(LIMIT, limits._replace(default=tuple(windows)))
        problems = Problems()
        validate_rule(changed, problems)
        _raise(problems)
        return compile_counters(self.base.domain, changed)[0][place][1]

    def inline(self, limit: InlineLimit, cost: int = 1) -> CompiledRule:
        """Return the rule of a limit. It is on demand, behind the rules of the file, and has their defaults.

        `cost` is only checked: the one who asks for the rule passes it.

        Raises ConfigurationError with every problem of the limit, and Invalid if it is the name of a function.
        """
        problems = Problems()
        words: dict[str, object] = {"name": limit.name if limit.shared else "inline", "limit": limit.limit}
        if limit.by:
            words["by"] = list(limit.by)
        if limit.algorithm:
            words["algorithm"] = limit.algorithm
        if cost > 1:
            words["cost"] = cost
        node = convert({**words, "on_demand": True}, {}, problems)
        # A qualified name may be longer than the names in a file.
        rule = problems.read(RULE.read, node, RULE.default()).with_value(NAME, limit.name)
        if rule[LIMIT].function:  # a function of the app has returned it. It is not imported
            raise Invalid("a limit in code can't be the name of a function", "write the limit itself")
        made = compile_rule(len(self.rules), rule, self.base, {}, Matching(), self.attributes, problems)
        problems.refuse_as(f"the limit {quoted(limit.limit)}{f' of {limit.name}' if limit.name else ''}")
        return made


def _raise(problems: Problems) -> None:
    """Raise Invalid with all problems, if there is one."""
    if problems:
        raise Invalid("; ".join(map(str, problems.in_order())))


_CUSTOM = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def reads_as_limit(text: str) -> bool:
    """Return True if `text` is a limit, False if it is the name of a rule.

    Raises ConfigurationError for a text that begins with a number and is not a limit: it is a limit with a mistake.
    """
    try:
        parse_limit(text)
    except Invalid as error:
        if text.strip()[:1].isdigit():
            raise ConfigurationError([Problem(f"limited({quoted(text)}): {error}", hint=error.hint)]) from None
        return False
    return True


def read_methods(limit: str, methods: Sequence[str]) -> frozenset[str]:
    """Return the methods that a limit in code counts, as `match: {methods: …}` does.

    Raises ConfigurationError if one is not a method.
    """
    problems = Problems()
    node = convert({"methods": [methods] if isinstance(methods, str) else list(methods)}, {}, problems)
    found = problems.read(kinds.each(read_method), node_at(node, ("methods",)), ())
    problems.refuse_as(f"limited({quoted(limit)})")
    return frozenset(found)


def validate_inline(limit: InlineLimit, cost: int) -> None:
    """Check an inline limit where it is declared, before there is a rules file.

    A name in `by` that is not built in may be an attribute of the file. That is known when the limit is compiled.

    Args:
        limit: The limit. Its name is used only if it is shared.
        cost: What each request will be charged.

    Raises:
        ConfigurationError: No rules file could use the limit. The error has every problem found.
    """
    names = [name for entry in limit.by for name in attributes_of(entry)]
    known = Attributes(ClientSettings(""))
    built_in = {name for name in names if known.known(name)} | {*WITHOUT_ATTRIBUTE}
    possible = {name: "header:X" for name in names if _CUSTOM.fullmatch(name) and name not in built_in}
    attributes = Attributes(ClientSettings("", attributes=possible, secret="-"))  # noqa: S106  the file may have one
    Recompiler(Rule(""), attributes, {}).inline(limit, cost)
