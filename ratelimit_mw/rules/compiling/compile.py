"""A checked file to a rule set: what several keys have to agree on is checked here, and all work done that can be."""

from collections.abc import Mapping

from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.identity.identifier import attributes_of
from ratelimit_mw.model import Rule
from ratelimit_mw.rules.breath import breathe
from ratelimit_mw.rules.combinations.messages import check_messages
from ratelimit_mw.rules.compiled import CompiledRule
from ratelimit_mw.rules.compiling.client import compile_client
from ratelimit_mw.rules.compiling.counters import check_limits, compile_counters
from ratelimit_mw.rules.compiling.descriptors import compile_descriptors
from ratelimit_mw.rules.compiling.matching import compile_by, compile_match, ints_apart_from_floats
from ratelimit_mw.rules.compiling.overriding import Recompiler, compile_overrides
from ratelimit_mw.rules.conditions import Matching
from ratelimit_mw.rules.documents.tree import Map, Node, Place, Problems, nearest, node_at, place_of, quoted
from ratelimit_mw.rules.overrides import bearing
from ratelimit_mw.rules.priorities import speaking
from ratelimit_mw.rules.readers.cost import compile_cost, cost_after
from ratelimit_mw.rules.readers.throttle import most
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.rules.schema.file import File
from ratelimit_mw.settings import DeferSettings, ResponseSettings, StorageSettings

_MAX_WAITING = Rule("").max_waiting


def compile_rules(
    file: File, tree: Map, problems: Problems, *, source: str | None = None, said: set[str] | None = None
) -> RuleSet:
    """The rule set of `file`. What is wrong is added to `problems`; then the result is of no use.

    `source` is where the rules themselves are, if not in the file. `said` remembers what was logged already.
    """
    client, attributes = compile_client(file, tree, problems, said)
    warnings = Problems()
    _check_names(file, tree, problems)
    _check_exempt(file, tree, problems)
    check_messages(file, tree, problems)
    exempt = tuple(
        compile_match(entry, node_at(tree, ("exempt", n)), attributes, problems) for n, entry in enumerate(file.exempt)
    )
    matches = tuple(
        compile_match(section.match, node_at(tree, ("rules", n, "match")), attributes, problems)
        for n, section in enumerate(file.rules)
    )
    exempt, matches = ints_apart_from_floats(exempt, matches)
    rules = tuple(
        _compile_rule(file, n, matches[n], node_at(tree, ("rules", n)), attributes, problems)
        for n in range(len(file.rules))
    )
    _check_page(file, tree, problems)
    descriptors = compile_descriptors(file, tree, attributes, problems, warnings)
    _warn_of_absent(file, tree, warnings)
    _warn_of_idle_throttles(file, rules, tree, warnings)
    storage, response = StorageSettings(**dict(file.storage)), ResponseSettings(**dict(file.response))
    overrides = compile_overrides(file, tree, attributes, problems)
    return RuleSet(
        domain=file.domain,
        storage=storage,
        client=client,
        response=response,
        attributes=attributes,
        rules=rules,
        exempt=exempt,
        load=file.load,
        defer=_compile_defer(file),
        overrides=overrides,
        classifier=RuleSet(
            domain=file.domain,
            storage=storage,
            client=client,
            response=response,
            attributes=attributes,
            rules=speaking(rules, attributes),
            exempt=exempt,
            overrides=bearing(overrides),
        ),
        recompiler=Recompiler(file),
        reload=file.reload,
        shadow=file.shadow,
        source=source,
        descriptors=descriptors,
        warnings=warnings.in_order(),
    )


def _compile_rule(  # noqa: PLR0917 - all of them are needed, and nothing else
    file: File, rank: int, match: Matching, node: Node, attributes: Attributes, problems: Problems
) -> CompiledRule:
    breathe()
    section = file.rules[rank]
    check_limits(section, node, problems)
    counters, tiers = compile_counters(file.domain, section)
    # A shadow rule denies nobody, so it can't stand in for one that does. Where the whole file is in shadow none does.
    replaced = () if section.shadow else section.replaces
    return CompiledRule(
        rank=rank,
        rule=Rule(
            section.name,
            section.on_error or file.storage.on_error,
            section.shadow or file.shadow,
            several=any(len(held) > 1 for held in (counters, *(tiers or {}).values())),
            hidden=section.response.hidden,
            status=section.response.status,
            message=section.response.message,
            max_waiting=_MAX_WAITING if section.max_waiting is None else section.max_waiting,
            priority=section.priority,
            defers=section.on_limit == "defer",
            counts=section.count,
            messages=section.messages,
            cost_after=cost_after(section.cost),
        ),
        match=match,
        by=section.by,
        identifiers=compile_by(section.by, match.templates, node_at(node, ("by",)), attributes, problems),
        counters=counters,
        tiers=tiers,
        cost=section.cost.fixed,
        weigh=compile_cost(section.cost, node_at(node, ("cost",)), attributes, problems),
        on_demand=section.on_demand,
        replaces=frozenset(other for other, rule in enumerate(file.rules) if rule.name in replaced),
    )


def _compile_defer(file: File) -> DeferSettings:
    headers = file.defer.headers
    return DeferSettings(**{**dict(file.defer), "headers": headers and tuple(name.lower() for name in headers)})


def _check_names(file: File, tree: Map, problems: Problems) -> None:
    first: dict[str, Place] = {}
    for n, section in enumerate(file.rules):
        place = place_of(tree, "rules", n, "name")
        if section.name and section.name in first:
            line = first[section.name].line
            hint = f"the other is at line {line}" if line else f"the other is {first[section.name].path}"
            problems.add(place, f"two rules are named {quoted(section.name)}", hint)
        first.setdefault(section.name, place)
    if "" in first:
        return  # the name that a `replaces` speaks of may be the one that could not be read
    replaced = {section.name: section.replaces for section in file.rules}
    for n, section in enumerate(file.rules):
        for index, name in enumerate(section.replaces):
            place = place_of(tree, "rules", n, "replaces", index)
            if name == section.name:
                problems.add(place, "a rule can't replace itself")
            elif name not in first:
                problems.add(place, f"there is no rule {quoted(name)}", nearest(name, first))
            elif section.name in _reachable(name, replaced):
                problems.add(place, f"this rule and {quoted(name)} replace each other, so neither would ever apply")


def _reachable(name: str, replaced: Mapping[str, tuple[str, ...]]) -> set[str]:
    """The rules that a rule replaces, those that these replace, and so on."""
    found: set[str] = set()
    ahead = [name]
    while ahead:
        new = set(replaced.get(ahead.pop(), ())) - found
        found |= new
        ahead += new
    return found


def _check_exempt(file: File, tree: Map, problems: Problems) -> None:
    for n in range(len(file.exempt)):
        node = node_at(tree, ("exempt", n))
        if isinstance(node, Map) and not node and not node.dropped:
            problems.add(node.place, "an entry that names nothing would exempt every request")


def _check_page(file: File, tree: Map, problems: Problems) -> None:
    if file.response.page is not None and "html" not in file.response.body:
        place = place_of(tree, "response", "page")
        problems.add(place, "no response has the format html", "write body: [json, html] for whoever accepts it")


def _warn_of_absent(file: File, tree: Map, warnings: Problems) -> None:
    """Note where a rule needs an attribute that no request brings; `check()` can still be given it."""
    for n, section in enumerate(file.rules):
        if section.limit.tiers is not None and file.client.tier is None:
            place = place_of(tree, "rules", n, "limit")
            warnings.add(place, "goes by tier, but there is no client.tier: every request has the default")
        for index, entry in enumerate(section.by):
            if file.client.user is None and "|" not in entry and "user" in attributes_of(entry):
                place = place_of(tree, "rules", n, "by", index)
                warnings.add(
                    place,
                    "counts by user, but there is no client.user: only Django's middleware knows one",
                )


def _warn_of_idle_throttles(file: File, rules: tuple[CompiledRule, ...], tree: Map, warnings: Problems) -> None:
    """Note where a throttle is less than one request more, and so nothing."""
    for n, section in enumerate(file.rules):
        if section.throttle is not None and not any(most(quota).spare for quota in rules[n].quotas):
            warnings.add(place_of(tree, "rules", n, "throttle"), "rounded down, this is not one request more")
