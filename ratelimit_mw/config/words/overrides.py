"""`overrides`: another limit, a block or an exemption for one client, in the file."""

from collections.abc import Mapping, Sequence

from ratelimit_mw.config import kinds
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
    """Return the compiled overrides of a file, without those whose client cannot be identified."""
    named = {rule[NAME]: rule for rule in rules}
    usable = [override for override in overrides if not override.dropped]  # the others have been reported
    compiled = [_compile(override, domain, named, attributes, problems) for override in usable]
    return tuple([made for made in compiled if made.identity])


def _compile(
    override: Values, domain: str, rules: Mapping[str, Values], attributes: Attributes, problems: Problems
) -> CompiledOverride:
    limits, name, client = override[_OWN_LIMIT], override[_RULE] or "", override[_CLIENT]
    identity = ""
    counters: tuple[Counter, ...] = ()
    try:
        identity = identity_of(client, attributes)
    except ValueError as error:
        problems.add(override.place("client"), str(error))
    if limits is not None:
        if name not in rules:
            problems.add(override.place("rule"), f"there is no rule {quoted(name)}", nearest(name, rules))
        elif identity and names_network(client):
            hint = "only exempt and block can have a network"
            problems.add(override.place("client"), "the client of a limit must be a single address", hint)
        else:
            counters = override_counters(domain, rules[name], limits, Map(override.place("limit")), problems)
    (kind,) = _kinds(override)
    return CompiledOverride(identity, kind, override[_UNTIL], name, counters)


def _kinds(override: Values) -> list[str]:
    return [word.key for word in (_OWN_LIMIT, _EXEMPT, _BLOCK) if override[word]]


def _check(override: Values, problems: Problems) -> None:
    """Report an override that has no effect, or several."""
    place, kinds_set = override.node.place, _kinds(override)
    if override.dropped:
        return
    if len(kinds_set) != 1:
        problems.add(place, "must have exactly one of the keys limit, exempt and block")
    elif kinds_set == ["limit"] and override[_RULE] is None:
        problems.add(place, "a limit needs the key 'rule'", "add the name of the rule")
    elif kinds_set != ["limit"] and override[_RULE] is not None:
        message = f"{kinds_set[0]} can't be combined with rule"
        problems.add(place, message, f"remove rule: {kinds_set[0]} applies to all rules")


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
_UNTIL: Word[int] = Word(
    key="until",
    read=kinds.read_timestamp,
    default=NEVER,
    schema=kinds.TEXT,
    about="When the override ends, in ISO 8601.",
    unset="never",
)
_COMMENT = kinds.text("comment", "A note for people.")

_OVERRIDE = Section(
    "Override",
    "An exception to the rules for one client: another limit of one rule, a block, or an exemption.",
    (_CLIENT, _RULE, _OWN_LIMIT, _BLOCK, _EXEMPT, _UNTIL, _COMMENT),
    check=_check,
    whole=True,
)

OVERRIDES = sections_word("overrides", _OVERRIDE, "Exceptions to the rules for single clients.")
