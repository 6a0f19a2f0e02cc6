"""Warnings about rules that load but have no effect. `ratelimit-mw check` finds them by comparing rules."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.cli.coverage import covers_paths
from ratelimit_mw.config.file import RULES
from ratelimit_mw.config.load import Config, Examined, examine
from ratelimit_mw.config.tree import Place, Problems
from ratelimit_mw.config.word import Values
from ratelimit_mw.config.words.charging import COST
from ratelimit_mw.config.words.client import ATTRIBUTES
from ratelimit_mw.config.words.limit import LIMIT
from ratelimit_mw.config.words.load import PRIORITY
from ratelimit_mw.config.words.rule import RULE
from ratelimit_mw.config.words.selection import BY, EXEMPT, NAME, REPLACES
from ratelimit_mw.errors import Problem
from ratelimit_mw.identity.attributes import canonical_name
from ratelimit_mw.identity.identifier import attributes_of, choices_of
from ratelimit_mw.model import Quota
from ratelimit_mw.rules.compiled import CompiledRule, Matching
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.units import spell_period

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

    The limits of two rules are compared if all their words are `compared`: other words change what is charged, or when.
    Both must always apply: no shadow rule, no limit by tier, and no rule that another one replaces.
    """

    def __init__(self, file: Values, rules: RuleSet) -> None:
        self.warnings = Problems()
        self._file = file
        self._sections = file[RULES]
        self._rules = rules
        special = [word for word in RULE.words.values() if not word.compared]
        replaced = {rank for rule in rules.compiled for rank in rule.replaces}
        self._compared = [
            rule
            for rule in rules.compiled
            if not any(self._sections[rule.rank].differs(word) for word in special)
            and not self._sections[rule.rank][COST].source
            and not (rule.read_limit or rule.rule.shadow or rule.tiers is not None or rule.rank in replaced)
        ]
        for rule in rules.compiled:
            section = self._sections[rule.rank]
            if self._applies(rule, section):
                self._attributes(rule, section)
                self._claimed(rule)
                self._paths(rule)
                if section[LIMIT].all() and not section[COST].fixed:
                    self._warn(rule, "cost", "a cost of 0 charges nothing, so the limit is never reached")
                elif any(rule is each for each in self._compared):
                    self._limits(rule, section)
                if section[REPLACES] and not rule.replaces:
                    self._warn(rule, "replaces", "a shadow rule replaces only shadow rules")

    def _warn(self, rule: CompiledRule, key: str, message: str) -> None:
        self.warnings.add(self._sections[rule.rank].place(key), message)

    def _named(self, rule: CompiledRule) -> str:
        section = self._sections[rule.rank]
        return f"'{section[NAME]}'{_line(section.place('name'))}"

    def _applies(self, rule: CompiledRule, section: Values) -> bool:
        """Return True if the rule has an effect. Otherwise warn."""
        for n, exempt in enumerate(self._rules.exempt):
            if covers(exempt, rule.match):
                line = _line(self._file[EXEMPT][n].node.place)
                self._warn(rule, "name", f"has no effect: exempt[{n}]{line} exempts every request that it matches")
                return False
        for other in self._rules.compiled:
            if rule.rank in other.replaces and covers(other.match, rule.match) and _identified(other, rule):
                self._warn(rule, "name", f"has no effect: {self._named(other)} replaces it wherever it matches")
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
            why = f"no request has a {name}, because client.{name} is not set"
            self.warnings.add(section.place("match", name), f"matches no request: {why}")
        for index, entry in enumerate(section[BY]):
            parts = attributes_of(entry)
            if "tier" in absent.intersection(parts):
                lost, why = "tier", "client.tier is not set"
            else:
                lost = next((part for part in parts if part.startswith("path:")), "") if not rule.templates else ""
                why = "only a rule with match.path has parameters"
            if lost and len(choices_of(entry)) == 1:
                self.warnings.add(section.place("by", index), f"counts by {lost}, but {why}: no request is counted")

    def _claimed(self, rule: CompiledRule) -> None:
        """Warn about a claim that takes the place of the address, unless a rule counts the same requests by address."""
        sources = {_CLAIM: _CLAIM, "user": self._rules.client.user or "", **self._file[ATTRIBUTES]}
        claims = {name for name, source in sources.items() if canonical_name(source) == _CLAIM}
        for index, entry in enumerate(rule.by):
            *choices, last = [set(map(canonical_name, names)) for names in choices_of(entry)]
            claimed = sorted(claims & set().union(*choices)) if "ip" in last else []
            if claimed and not any(covers(other.match, rule.match) for other in self._by_address()):
                self.warnings.add(
                    self._sections[rule.rank].place("by", index),
                    f"{claimed[0]} is only claimed, in the header Authorization: a client that claims another one each "
                    "time is never counted by its address",
                    f"write [ip, {claimed[0]}], or add a rule by: ip for these requests",
                )

    def _by_address(self) -> list[CompiledRule]:
        """Return the enforced rules by address that only rules by address replace."""
        rules = self._rules.compiled
        found = [rule for rule in rules if any(canonical_name(entry) == "ip" for entry in rule.by)]
        lost = {rank for rule in rules if rule not in found for rank in rule.replaces}
        return [rule for rule in found if not (rule.rule.shadow or rule.on_demand or rule.rank in lost)]

    def _paths(self, rule: CompiledRule) -> None:
        for index, template in enumerate(rule.match.templates):
            if _ESCAPED.search(template):
                place, decoded = self._sections[rule.rank].place("match", "path", index), unquote(template)
                hint = f"write {decoded}" if decoded.isprintable() else ""
                self.warnings.add(
                    place, "almost never matches, because paths are decoded before they are matched", hint
                )

    def _limits(self, rule: CompiledRule, section: Values) -> None:
        """Warn about limits that never deny, because a stricter limit always denies first."""
        for index, quota in enumerate(rule.limits):
            found = next(self._stricter(rule, index), None)
            if found is not None:
                other, stricter = found
                whose = " of the same rule" if other is rule else f" of {self._named(other)}"
                self.warnings.add(
                    section[LIMIT].default[index].place,
                    f"{_format_limit(quota)} can never deny: {_format_limit(stricter)}{whose} always denies first",
                )

    def _stricter(self, rule: CompiledRule, index: int) -> Iterator[tuple[CompiledRule, Quota]]:
        """Yield the limits that always deny before this one. Of two equal limits, the first is the stricter."""
        quota = rule.limits[index]
        for other in self._compared:
            for place, stricter in enumerate(other.limits):
                before = (other.rank, place) < (rule.rank, index)
                if (
                    (other.rank, place) != (rule.rank, index)
                    and never_full(quota, stricter)
                    and _counts_all_of(other, rule)
                    and (before or not (never_full(stricter, quota) and _counts_all_of(rule, other)))
                ):
                    yield other, stricter


def never_full(quota: Quota, stricter: Quota) -> bool:
    """Return True if `quota` can never deny a request that `stricter` admits. Return False if that is not certain.

    All requests that are charged to `quota` must also be charged to `stricter`.
    """
    for each in (quota, stricter):
        way = ALGORITHMS[each.algorithm]
        if (each.consistency, each.shards) != ("strict", 1) or way.in_flight or way.has_burst or each.elastic:
            return False
    if (quota.algorithm, quota.period, quota.buckets) == (stricter.algorithm, stricter.period, stricter.buckets):
        return stricter.limit <= quota.limit
    # An algorithm of windows looks back over one window and a slice. A sliding window weighs two windows, which the
    # windows of the stricter limit overlap in part. Together, no more than three further windows of it count.
    seen = quota.period + -(-quota.period // quota.buckets)
    return (-(-seen // stricter.period) + 3) * stricter.limit <= quota.limit


def covers(wider: Matching, narrower: Matching) -> bool:
    """Return True if `wider` matches every request that `narrower` matches. False if that is not certain."""
    return (
        _among(narrower.methods, wider.methods)
        and _among(narrower.networks, wider.networks)
        and all(
            any(own.read is other.read and _among(other.values, own.values) for other in narrower.exact)
            for own in wider.exact
        )
        and covers_paths(wider.templates, narrower.templates)
    )


def _among(narrower: tuple[str, ...], wider: tuple[str, ...]) -> bool:
    return not wider or (bool(narrower) and set(narrower) <= set(wider))


def _counts_all_of(wider: CompiledRule, rule: CompiledRule) -> bool:
    """Return True if all charges to a counter of `rule` are also charged to one counter of `wider`."""
    return (
        rule.cost <= wider.cost
        and all(any(_wider(ours, theirs, wider, rule) for ours in wider.by) for theirs in rule.by)
        and covers(wider.match, rule.match)
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
