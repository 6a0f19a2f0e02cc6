"""Warnings about rules that load but have no effect. `ratelimit-mw check` finds them by comparing rules."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_network
from urllib.parse import unquote

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.config.file import RULES
from ratelimit_mw.config.load import Config, Examined, examine
from ratelimit_mw.config.tree import Place, Problems
from ratelimit_mw.config.word import Values
from ratelimit_mw.config.words.charging import COST
from ratelimit_mw.config.words.client import ATTRIBUTES, BY
from ratelimit_mw.config.words.limit import LIMIT
from ratelimit_mw.config.words.load import PRIORITY
from ratelimit_mw.config.words.rule import RULE
from ratelimit_mw.config.words.selection import EXEMPT, NAME, REPLACES, SHADOW
from ratelimit_mw.errors import Problem
from ratelimit_mw.identity.attributes import canonical_name
from ratelimit_mw.identity.identifier import attributes_of, choices_of
from ratelimit_mw.model import Quota
from ratelimit_mw.rules.compiled import CompiledRule, Matching
from ratelimit_mw.rules.path_templates import Segment, Template, TemplateParts, cleaned, matcher, parts_of
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.settings import Network
from ratelimit_mw.units import spell_period


def never_full(quota: Quota, stricter: Quota) -> bool:
    """Return True if `quota` can never deny a request that `stricter` admits. Return False if that is not certain.

    All requests that are charged to `quota` must also be charged to `stricter`.
    """
    own, other = ALGORITHMS[quota.algorithm], ALGORITHMS[stricter.algorithm]
    both = (quota, stricter)
    if {(each.consistency, each.shards) for each in both} != {("strict", 1)} or own.in_flight or other.in_flight:
        return False
    if own.queue or other.queue or any(each.elastic or each.max_wait for each in both):
        return False
    if own.has_burst or other.has_burst:
        slower = not stricter.limit or (quota.limit > 0 and _interval(stricter) >= _interval(quota))
        return own is other and stricter.burst <= quota.burst and slower
    if own is other and (quota.period, quota.buckets) == (stricter.period, stricter.buckets):
        return stricter.limit <= quota.limit
    # An algorithm of windows looks back over one window and a slice. A sliding window weighs two windows, which the
    # windows of the stricter limit overlap in part. Together, no more than three further windows of it count.
    seen = quota.period + -(-quota.period // quota.buckets)
    return (-(-seen // stricter.period) + 3) * stricter.limit <= quota.limit


def _interval(quota: Quota) -> int:
    return -(-quota.period // quota.limit)


def covers(wider: Matching, narrower: Matching) -> bool:
    """Return True if `wider` matches every request that `narrower` matches."""
    return (
        _within(narrower.methods, wider.methods)
        and _networks(wider.networks, narrower.networks)
        and all(
            any(own.read is other.read and set(other.values) <= set(own.values) for other in narrower.exact)
            for own in wider.exact
        )
        and _paths(wider.templates, narrower.templates)
    )


# The functions below compare one part of two rules. Each returns True if the first (`wider`) includes all requests of
# the second (`narrower`), and False if that is not certain: a missing warning does less harm than a wrong one.


def _within(narrower: tuple[str, ...], wider: tuple[str, ...]) -> bool:
    return not wider or (bool(narrower) and set(narrower) <= set(wider))


def _networks(wider: tuple[str, ...], narrower: tuple[str, ...]) -> bool:
    return not wider or (
        bool(narrower) and all(any(_contains(own, other) for own in _read(wider)) for other in _read(narrower))
    )


@lru_cache(maxsize=4)
def _read(networks: tuple[str, ...]) -> tuple[Network, ...]:
    return tuple(map(ip_network, networks))


def _contains(wider: Network, narrower: Network) -> bool:
    return (
        wider.version == narrower.version
        and wider.prefixlen <= narrower.prefixlen
        and narrower.network_address in wider
    )


def _paths(wider: tuple[Template, ...], narrower: tuple[Template, ...]) -> bool:
    if not wider:
        return True
    forms = _forms(wider)
    return bool(narrower) and all(any(_template(own, other) for own in forms) for other in _forms(narrower))


def _forms(templates: tuple[Template, ...]) -> list[TemplateParts]:
    """Return the templates and their cleaned forms, because the cleaned form of a path is matched too."""
    return list(map(_parts, dict.fromkeys([*templates, *map(cleaned, templates)])))


_parts = lru_cache(maxsize=4096)(parts_of)  # each rule is compared with all others


def _template(wider: TemplateParts, narrower: TemplateParts) -> bool:
    head = wider.segments
    if wider.tail is None:
        return (
            narrower.tail is None
            and len(head) == len(narrower.segments)
            and all(map(_segment, head, narrower.segments))
        )
    if wider.tail == narrower.tail and len(head) == len(narrower.segments):
        return all(map(_segment, head, narrower.segments))
    # The tail matches anything: all paths that continue after the head. A folder also matches the head itself.
    folder = wider.tail.folder
    anything = folder or (not wider.tail.before and not wider.tail.after and not wider.tail.segments)
    known = len(narrower.segments) + (narrower.tail is not None and not narrower.tail.folder)
    needed = len(head) + (not folder)
    return anything and known >= needed and all(map(_segment, head, narrower.segments))


def _segment(wider: Segment, narrower: Segment) -> bool:
    if wider == narrower:
        return True
    if not narrower.kinds:
        return matcher(wider)(narrower.texts[0]) is not None
    return wider == _ANY_ONE


_ANY_ONE = Segment(("", ""), ("str",))


_CLAIM = "header:authorization"
"""The header in which a client claims to be a user, before the app has verified it."""

_ALWAYS_THERE = {"global", "ip"}
_ESCAPED = re.compile("%[0-9A-Fa-f]{2}")


def check(config: Config, *, environ: Mapping[str, str] = os.environ) -> Examined:
    """Examine a configuration, and compare its rules with each other, to find rules that have no effect."""
    found = examine(config, environ=environ)
    warnings = list(found.warnings)
    for file, rules in found.files:
        warnings += (*rules.without_user, *_Lint(file, rules).warnings.in_order())
    return found._replace(warnings=tuple(sorted(warnings, key=lambda each: (each.file, each.line, each.column))))


def paths(found: Examined) -> Mapping[tuple[str, str], Sequence[Problem]]:
    """Return where each path of a rule is, by domain and name. The message is the dotted name of the key."""
    placed = {}
    for file, made in found.files:
        for rule in made.compiled:
            section = file[RULES][rule.rank]
            places = [section.place("match", "path", index) for index in range(len(rule.match.templates))]
            placed[made.domain, rule.rule.name] = [
                Problem(place.path, place.file, place.line, place.column) for place in places
            ]
    return placed


class _Lint:
    """Collects the warnings of one file.

    Only rules whose words are all `compared` are compared with others: other words change what is charged, or when.
    A rule may make another one useless only if it always applies: it must not be a shadow rule, have a limit by tier,
    or be replaced itself.
    """

    def __init__(self, file: Values, rules: RuleSet) -> None:
        self.warnings = Problems()
        self._file = file
        self._sections = file[RULES]
        special = [word for word in RULE.words.values() if not word.compared]
        self._rules = rules
        replaced = {rank for rule in rules.compiled for rank in rule.replaces}
        comparable = [
            rule
            for rule in rules.compiled
            if not any(self._sections[rule.rank].differs(word) for word in special)
            and not self._sections[rule.rank][COST].source
            and rule.read_limit is None
        ]
        self._comparable = {rule.rank for rule in comparable}
        sources = {_CLAIM: _CLAIM, "user": rules.client.user or "", **file[ATTRIBUTES]}
        self._claims = {name for name, source in sources.items() if canonical_name(source) == _CLAIM}
        by_address = [rule for rule in rules.compiled if any(canonical_name(entry) == "ip" for entry in rule.by)]
        lost = {rank for rule in rules.compiled if rule not in by_address for rank in rule.replaces}
        self._by_address = [
            rule for rule in by_address if not (rule.rule.shadow or rule.on_demand or rule.rank in lost)
        ]
        self._strict = [
            rule for rule in comparable if not rule.rule.shadow and rule.tiers is None and rule.rank not in replaced
        ]
        for rule in rules.compiled:
            section = self._sections[rule.rank]
            if self._applies(rule, section):
                self._attributes(rule, section)
                self._claimed(rule)
                self._paths(rule)
                if section[LIMIT].all() and not section[COST].fixed:
                    self._warn(rule, "cost", "a cost of 0 charges nothing, so the limit is never reached")
                elif section[LIMIT].tiers is None and rule.rank in self._comparable:
                    self._limits(rule, section)
                if section[SHADOW] and section[REPLACES]:
                    self._warn(rule, "replaces", "a shadow rule replaces nothing")

    def _warn(self, rule: CompiledRule, key: str, message: str, hint: str = "") -> None:
        self.warnings.add(self._sections[rule.rank].place(key), message, hint)

    def _named(self, rank: int) -> str:
        return f"'{self._sections[rank][NAME]}'{_line(self._sections[rank].place('name'))}"

    def _applies(self, rule: CompiledRule, section: Values) -> bool:
        """Return True if the rule has an effect. Otherwise warn."""
        for n, exempt in enumerate(self._rules.exempt):
            if covers(exempt, rule.match):
                line = _line(self._file[EXEMPT][n].node.place)
                self._warn(rule, "name", f"has no effect: exempt[{n}]{line} exempts every request that it matches")
                return False
        for other in self._rules.compiled:
            if rule.rank in other.replaces and covers(other.match, rule.match) and _identified(other, rule):
                replacer = self._named(other.rank)
                self._warn(rule, "name", f"has no effect: {replacer} replaces it wherever it matches")
                return False
        if not section[LIMIT].all() and rule.read_limit is None and not rule.replaces and section[PRIORITY] is None:
            self._warn(rule, "limit", "has no effect: the rule has no limit and replaces no other rule")
            return False
        return True

    def _attributes(self, rule: CompiledRule, section: Values) -> None:
        """Warn about attributes that no request has."""
        client = self._rules.client
        absent = {key for key, source in (("user", client.user), ("tier", client.tier)) if source is None}
        for name in sorted(absent & {each.name for each in rule.match.exact}):
            self.warnings.add(
                self._sections[rule.rank].place("match", name),
                f"matches no request: no request has a {name}, because client.{name} is not set",
            )
        for index, entry in enumerate(section[BY]):
            lost = [part for part in attributes_of(entry) if part == "tier" and part in absent]
            lost += [part for part in attributes_of(entry) if part.startswith("path:") and not rule.match.templates]
            if lost and len(choices_of(entry)) == 1:
                why = "client.tier is not set" if lost[0] == "tier" else "only a rule with match.path has parameters"
                place = self._sections[rule.rank].place("by", index)
                self.warnings.add(place, f"counts by {lost[0]}, but {why}: no request is counted")

    def _claimed(self, rule: CompiledRule) -> None:
        """Warn about a claim that takes the place of the address, unless a rule counts the same requests by address."""
        for index, entry in enumerate(rule.by):
            *choices, last = [set(map(canonical_name, names)) for names in choices_of(entry)]
            claims = sorted(self._claims & set().union(*choices)) if "ip" in last else []
            if claims and not any(covers(other.match, rule.match) for other in self._by_address):
                self.warnings.add(
                    self._sections[rule.rank].place("by", index),
                    f"{claims[0]} is only claimed, in the header Authorization: a client that claims another one each "
                    "time is never counted by its address",
                    f"write [ip, {claims[0]}], or add a rule by: ip for these requests",
                )

    def _paths(self, rule: CompiledRule) -> None:
        for index, template in enumerate(rule.match.templates):
            if _ESCAPED.search(template):
                place = self._sections[rule.rank].place("match", "path", index)
                decoded = unquote(template)
                self.warnings.add(
                    place,
                    "almost never matches, because paths are decoded before they are matched",
                    f"write {decoded}" if decoded.isprintable() else "",
                )

    def _limits(self, rule: CompiledRule, section: Values) -> None:
        """Warn about limits that never deny, because a stricter limit always denies first."""
        for index, (_, quota) in enumerate(rule.counters):
            found = next(self._stricter(rule, index), None)
            if found is not None:
                other, stricter = found
                whose = " of the same rule" if other is rule else f" of {self._named(other.rank)}"
                self.warnings.add(
                    section[LIMIT].default[index].place,
                    f"{_format_limit(quota)} can never deny: {_format_limit(stricter)}{whose} always denies first",
                )

    def _stricter(self, rule: CompiledRule, index: int) -> Iterator[tuple[CompiledRule, Quota]]:
        """Yield the limits that always deny before this one. Of two equal limits, the first is the stricter."""
        quota = rule.counters[index][1]
        for other in self._strict:
            for place, (_, stricter) in enumerate(other.counters):
                if (
                    (other.rank, place) != (rule.rank, index)
                    and never_full(quota, stricter)
                    and _counts_all_of(other, rule)
                    and (
                        (other.rank, place) < (rule.rank, index)
                        or rule not in self._strict
                        or not (never_full(stricter, quota) and _counts_all_of(rule, other))
                    )
                ):
                    yield other, stricter


def _counts_all_of(wider: CompiledRule, rule: CompiledRule) -> bool:
    """Return True if all charges to a counter of `rule` are also charged to one counter of `wider`."""
    return (
        rule.cost <= wider.cost
        and covers(wider.match, rule.match)
        and all(any(_wider(ours, theirs, wider, rule) for ours in wider.by) for theirs in rule.by)
    )


def _wider(ours: str, theirs: str, wider: CompiledRule, rule: CompiledRule) -> bool:
    """Return True if all requests with the same identity by `theirs` also have the same identity by `ours`.

    `ours` is an entry of `wider.by`, and `theirs` an entry of `rule.by`.
    """
    own, other = (set(map(canonical_name, attributes_of(entry))) for entry in (ours, theirs))
    by_template = any(name == "route" or name.startswith("path:") for name in own)
    if by_template and wider.match.templates != rule.match.templates:
        return False  # `route` and `path:N` depend on the templates of the rule
    if "|" in ours or "|" in theirs:
        return ours == theirs
    return own == {"global"} or own <= other


def _identified(replacing: CompiledRule, rule: CompiledRule) -> bool:
    """Return True if `replacing` has a counter whenever `rule` has one."""
    return any(_ALWAYS_THERE.issuperset(names) for entry in replacing.by for names in choices_of(entry)) or all(
        any(_wider(ours, theirs, replacing, rule) for ours in replacing.by) for theirs in rule.by
    )


def _format_limit(quota: Quota) -> str:
    return f"{quota.limit} per {spell_period(quota.period)}"


def _line(place: Place) -> str:
    return f" (line {place.line})" if place.line else ""
