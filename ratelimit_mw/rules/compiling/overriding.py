"""The section `overrides`, and an override that comes at run time: to what the hot path asks."""

from collections.abc import Mapping

from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.model import NEVER
from ratelimit_mw.rules.compiled import Counter
from ratelimit_mw.rules.compiling.counters import check_limits, compile_counters
from ratelimit_mw.rules.documents import mapping_tree
from ratelimit_mw.rules.documents.tree import Map, Node, Place, Problems, nearest, node_at, place_of, quoted
from ratelimit_mw.rules.overrides import KINDS, Held, identity_of, names_network
from ratelimit_mw.rules.readers.limit_forms import Limits, read_limits
from ratelimit_mw.rules.readers.wrong import Wrong
from ratelimit_mw.rules.schema.file import File, OverrideSection
from ratelimit_mw.rules.schema.rule import RuleSection


def compile_overrides(file: File, tree: Map, attributes: Attributes, problems: Problems) -> tuple[Held, ...]:
    """The overrides of a file."""
    rules = {section.name: section for section in file.rules}
    found = []
    for n, section in enumerate(file.overrides):
        node = node_at(tree, ("overrides", n))
        if isinstance(node, Map) and node.dropped:
            continue  # what is wrong with it has been said
        held = _compile(section, node, file.domain, rules, attributes, problems)
        if held is not None:
            found.append(held)
    return tuple(found)


def _compile(  # noqa: PLR0917 - all of them are needed, and nothing else
    section: OverrideSection,
    node: Node,
    domain: str,
    rules: Mapping[str, RuleSection],
    attributes: Attributes,
    problems: Problems,
) -> Held | None:
    kinds = [kind for kind in KINDS if getattr(section, kind)]
    if len(kinds) != 1:
        problems.add(node.place, "an override is a limit, an exemption or a block", "one of limit, exempt and block")
        return None
    if (section.rule is not None) != (kinds[0] == "limit"):
        message = "a limit is that of one rule" if kinds[0] == "limit" else f"{kinds[0]} holds for all rules"
        problems.add(node.place, message, "add its name as rule" if kinds[0] == "limit" else "leave the rule out")
        return None
    try:
        identity = identity_of(section.client, attributes)
    except ValueError as error:
        problems.add(place_of(node, "client"), str(error))
        return None
    counters: tuple[Counter, ...] = ()
    if section.limit is not None and section.rule is not None:
        place = place_of(node, "rule")
        if section.rule not in rules:
            problems.add(place, f"there is no rule {quoted(section.rule)}", nearest(section.rule, rules))
            return None
        if names_network(section.client):
            problems.add(place_of(node, "client"), "a limit is for one address", "a network can be exempt or blocked")
            return None
        counters = _counters(domain, rules[section.rule], section.limit, place_of(node, "limit"), problems)
    return Held(identity, kinds[0], NEVER if section.until is None else section.until, section.rule or "", counters)


def _counters(domain: str, rule: RuleSection, limits: Limits, place: Place, problems: Problems) -> tuple[Counter, ...]:
    if limits.tiers is not None:
        problems.add(place, "an override is for one client, who has one limit", "leave the tiers out")
        return ()
    changed = rule.model_copy(update={"limit": limits})
    check_limits(changed, Map(place), problems)
    return compile_counters(domain, changed)[0]


class Recompiler:
    """Compiles at run time what an operator sets. Made of a file that is right."""

    def __init__(self, file: File) -> None:
        self._domain = file.domain
        self._rules = {section.name: section for section in file.rules}

    def limit(self, identity: str, rule: str, limit: object, until: int = NEVER) -> Held:
        """Another limit for an identity; `limit` is as a rule's. Raises ValueError."""
        if rule not in self._rules:
            raise ValueError(f"there is no rule {quoted(rule)} ({nearest(rule, self._rules)})")
        problems = Problems()
        node = mapping_tree.convert({"limit": limit}, {}, problems)
        counters: tuple[Counter, ...] = ()
        place = node.place
        try:
            limits = read_limits(node_at(node, ("limit",)))
        except Wrong as wrong:
            for fault in wrong.faults:
                problems.add(place, fault.message, fault.hint)
        else:
            counters = _counters(self._domain, self._rules[rule], limits, place, problems)
        if problems:
            raise ValueError("; ".join(map(str, problems.in_order())))
        return Held(identity, "limit", until, rule, counters)
