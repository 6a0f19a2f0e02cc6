"""`overrides`: another limit, a block or an exemption for one client, in the file or set at run time."""

from collections.abc import Mapping, Sequence

from ratelimit_mw.config import documents, kinds, readers
from ratelimit_mw.config.tree import Invalid, Map, Problems, node_at, pack, unpack
from ratelimit_mw.config.word import Section, Values, Word, sections_word, texts_word
from ratelimit_mw.config.words.limit import LIMIT as RULE_LIMIT
from ratelimit_mw.config.words.limit import LIMIT_SCHEMA, Limits, read_limits
from ratelimit_mw.config.words.rule import compile_counters, validate_rule
from ratelimit_mw.config.words.selection import NAME
from ratelimit_mw.errors import nearest, quoted
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.model import NEVER, Quota
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
    kinds_set = [word.key for word in (_LIMIT, _EXEMPT, _BLOCK) if override[word]]
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
    limits = override[_LIMIT]
    if limits is not None and name is not None:
        if name not in ranks:
            problems.add(override.place("rule"), f"there is no rule {quoted(name)}", nearest(name, ranks))
            return None
        if names_network(override[_CLIENT]):
            hint = "only exempt and block can have a network"
            problems.add(override.place("client"), "the client of a limit must be a single address", hint)
            return None
        counters = _counters(domain, rules[ranks[name]], limits, Map(override.place("limit")), problems)
    until = override[_UNTIL]
    return CompiledOverride(identity, kind, NEVER if until is None else until, name or "", counters)


def _counters(domain: str, rule: Values, limits: Limits, node: Map, problems: Problems) -> tuple[Counter, ...]:
    if limits.function:
        problems.add(node.place, "the limit of an override can't be a function", "write the limit itself")
        return ()
    if limits.tiers is not None:
        problems.add(node.place, "the limit of an override can't depend on the tier", "write one limit")
        return ()
    changed = rule.with_value(RULE_LIMIT, limits, node)
    validate_rule(changed, problems)
    return compile_counters(domain, changed)[0]


class Recompiler:
    """Compiles the overrides that operators set at run time. It keeps the values of the rules in force, packed."""

    def __init__(self, domain: str) -> None:
        self._domain = domain
        self._rules: dict[str, bytes] = {}

    def add(self, rule: Values) -> None:
        """Add a rule."""
        self._rules[rule[NAME]] = pack(rule.detached())

    def limit(self, identity: str, rule: str, limit: object, until: int = NEVER) -> CompiledOverride:
        """Return the compiled override of a limit.

        Args:
            identity: The identity of the client, as in the key of a counter.
            rule: The name of the rule.
            limit: The client's limit, in any form that a rules file may have.
            until: The end of the override in microseconds since the epoch, or `NEVER`.

        Raises:
            ValueError: There is no such rule, or the limit cannot be used.
        """
        if rule not in self._rules:
            raise ValueError(f"there is no rule {quoted(rule)} ({nearest(rule, self._rules)})")
        problems = Problems()
        node = documents.convert({"limit": limit}, {}, problems)
        counters: tuple[Counter, ...] = ()
        try:
            limits = read_limits(node_at(node, ("limit",)))
        except Invalid as invalid:
            for fault in invalid.faults:
                problems.add(node.place, fault.message, fault.hint)
        else:
            counters = _counters(self._domain, unpack(self._rules[rule]), limits, Map(node.place), problems)
        if problems:
            raise ValueError("; ".join(map(str, problems.in_order())))
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
        values: Values = unpack(self._rules[rule])
        limits = values[RULE_LIMIT]
        windows = list(limits.default)
        windows[place] = windows[place]._replace(window=windows[place].window._replace(limit=number))
        changed = values.with_value(RULE_LIMIT, limits._replace(default=tuple(windows)))
        problems = Problems()
        validate_rule(changed, problems)
        if problems:
            raise ValueError("; ".join(map(str, problems.in_order())))
        return compile_counters(self._domain, changed)[0][place][1]


_CLIENT = texts_word("client", "The attributes of the client, such as {ip: 192.0.2.1} or {user: alice}.", required=True)
_RULE = kinds.optional_text("rule", "The rule whose limit is replaced for the client.", unset="none")
_LIMIT: Word[Limits | None] = Word(
    key="limit",
    read=read_limits,
    default=None,
    schema=LIMIT_SCHEMA,
    about="The client's own limit.",
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
    (_CLIENT, _RULE, _LIMIT, _BLOCK, _EXEMPT, _UNTIL, _COMMENT),
)
