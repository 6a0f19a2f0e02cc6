"""`overrides`: another limit, a block or an exemption for one client, in the file."""

from collections.abc import Mapping, Sequence

from ratelimit_mw.config import kinds, readers
from ratelimit_mw.config.tree import Map, Problems
from ratelimit_mw.config.word import Section, Values, Word, sections_word
from ratelimit_mw.config.words.limit import LIMIT, Limits, limit_schema, read_limits
from ratelimit_mw.config.words.rule import compile_counters, validate_rule
from ratelimit_mw.config.words.selection import NAME
from ratelimit_mw.errors import nearest, quoted
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.model import NEVER
from ratelimit_mw.rules.compiled import CompiledOverride, Counter, identity_of, names_network


def compile_overrides(
    overrides: Sequence[Values], domain: str, rules: Sequence[Values], attributes: Attributes, problems: Problems
) -> tuple[CompiledOverride, ...]:
    """Return the compiled overrides of a file."""
    ranks = {rule[NAME]: rank for rank, rule in enumerate(rules)} if overrides else {}
    found = []
    for override in overrides:
        if override.dropped:
            continue  # its errors have been reported
        compiled = _compile(override, domain, rules, ranks, attributes, problems)
        if compiled is not None:
            found.append(compiled)
    return tuple(found)


def _compile(  # noqa: PLR0917 - each argument is needed
    override: Values,
    domain: str,
    rules: Sequence[Values],
    ranks: Mapping[str, int],
    attributes: Attributes,
    problems: Problems,
) -> CompiledOverride | None:
    place = override.node.place
    kinds_set = [word.key for word in (_OWN_LIMIT, _EXEMPT, _BLOCK) if override[word]]
    if len(kinds_set) != 1:
        problems.add(place, "must have exactly one of the keys limit, exempt and block")
        return None
    (kind,), name = kinds_set, override[_RULE]
    if (name is not None) != (kind == "limit"):
        message = "a limit needs the key 'rule'" if kind == "limit" else f"{kind} can't be combined with rule"
        hint = "add the name of the rule" if kind == "limit" else f"remove rule: {kind} applies to all rules"
        problems.add(place, message, hint)
        return None
    try:
        identity = identity_of(override[_CLIENT], attributes)
    except ValueError as error:
        problems.add(override.place("client"), str(error))
        return None
    counters: tuple[Counter, ...] = ()
    limits = override[_OWN_LIMIT]
    if limits is not None and name is not None:
        if name not in ranks:
            problems.add(override.place("rule"), f"there is no rule {quoted(name)}", nearest(name, ranks))
            return None
        if names_network(override[_CLIENT]):
            hint = "only exempt and block can have a network"
            problems.add(override.place("client"), "the client of a limit must be a single address", hint)
            return None
        counters = override_counters(domain, rules[ranks[name]], limits, Map(override.place("limit")), problems)
    until = override[_UNTIL]
    return CompiledOverride(identity, kind, NEVER if until is None else until, name or "", counters)


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


_CLIENT = kinds.texts(
    "client", "The attributes of the client, such as {ip: 192.0.2.1} or {user: alice}.", required=True
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
_UNTIL: Word[int | None] = Word(
    key="until",
    read=readers.timestamp,
    default=None,
    schema=kinds.TEXT,
    about="When the override ends, in ISO 8601.",
    unset="never",
)
_COMMENT = kinds.text("comment", "A note for people.")

OVERRIDES = sections_word(
    "overrides",
    lambda: _OVERRIDE,
    "Exceptions to the rules for single clients.",
)

_OVERRIDE: Section = Section(
    "Override",
    "An exception to the rules for one client: another limit of one rule, a block, or an exemption.",
    (_CLIENT, _RULE, _OWN_LIMIT, _BLOCK, _EXEMPT, _UNTIL, _COMMENT),
)
