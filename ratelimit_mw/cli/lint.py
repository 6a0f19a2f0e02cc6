"""Warnings about rules that load but have no effect. `ratelimit-mw check` finds them by comparing rules.

The second half of this file compares the paths of templates.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from urllib.parse import unquote

from ratelimit_mw.algorithms import ALGORITHMS
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
from ratelimit_mw.rules.path_templates import (
    ANYTHING,
    TYPES,
    Segment,
    Template,
    TemplateParts,
    cleaned,
    matcher,
    parts_of,
)
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.units import spell_period

_CLAIM = "header:authorization"
"""The header in which a client claims to be a user, before the app has verified it."""

WITHOUT_USER = "counts by user, but client.user is not set: only Django's middleware knows the user"
"""The warning about a rule by user. It does not hold for an app with Django's middleware."""

_ALWAYS_THERE = {"global", "ip"}
_ESCAPED = re.compile("%[0-9A-Fa-f]{2}")


def check(config: Config, *, environ: Mapping[str, str] = os.environ) -> Examined:
    """Examine a configuration, and compare its rules with each other, to find rules that have no effect."""
    found = examine(config, environ=environ)
    warnings = list(found.warnings)
    for file, rules in found.files:
        warnings += _Lint(file, rules).warnings.in_order()
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
            if "user" in absent and all("user" in names for names in choices_of(entry)):
                self.warnings.add(section.place("by", index), WITHOUT_USER)
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


# ------------------------------------------------------------------------------------- the paths of templates

_VALUES = ("x", "1", "1.1", "00000000-0000-4000-8000-000000000000", "")
"""Values of parameters: each kind of parameter takes at least one of them."""

_matcher = lru_cache(maxsize=4096)(matcher)
_parts = lru_cache(maxsize=4096)(parts_of)  # each rule is compared with all others


def strictly(holds: Callable[[TemplateParts, TemplateParts], bool], route: Template, match: Matching) -> bool:
    """Return True if `holds` for a route and a template of a match, as they are written and in their cleaned forms.

    Exemptions and `replaces` need both.
    """
    return not match.templates or any(
        holds(_parts(route), _parts(each)) and holds(_parts(cleaned(route)), _parts(cleaned(each)))
        for each in match.templates
    )


def meets(one: Template, other: Template) -> bool:
    """Return True if there is a path that both match, as they are written or in their cleaned forms."""
    return meet(_parts(one), _parts(other)) or meet(_parts(cleaned(one)), _parts(cleaned(other)))


def meet(one: TemplateParts, other: TemplateParts) -> bool:
    """Return True if there is a path that both match, as they are written."""
    return any(
        own is not None and held is not None and all(map(_common, own, held))
        for own, held in _expanded_alike(one, other)
    )


def covers_paths(wider: tuple[Template, ...], narrower: tuple[Template, ...]) -> bool:
    """Return True if each path that a template of `narrower` matches also matches one of `wider`.

    Without templates, all paths match. False if it is not certain.
    """
    if not wider:
        return True
    forms = [_parts(cleaned(each)) for each in wider]
    return bool(narrower) and all(any(within(_parts(cleaned(each)), form) for form in forms) for each in narrower)


def within(narrower: TemplateParts, wider: TemplateParts) -> bool:
    """Return True if each path that `narrower` matches also matches `wider`. False if it is not certain."""
    return all(
        own is None or (held is not None and all(map(_segment_within, own, held)))
        for own, held in _expanded_alike(narrower, wider)
    )


def _expanded_alike(one: TemplateParts, other: TemplateParts) -> Iterator[list[list[Segment] | None]]:
    """Yield the segments of two templates for paths of each length that matters and that `one` may have."""
    longest = [len(each.segments) + (0 if each.tail is None else len(each.tail.segments) + 2) for each in (one, other)]
    lengths = range(max(len(one.segments) - 1, 0), max(longest) + 1)
    return ([_expanded(each, length) for each in (one, other)] for length in lengths)


def _expanded(parts: TemplateParts, length: int) -> list[Segment] | None:
    """Return the segments of a template for paths of this length. None if it matches none of them.

    A segment that the value of a tail begins or ends has the kind "path".
    """
    head, tail = parts.segments, parts.tail
    if len(head) == 1 and head[0] == Segment(("",)):  # the root
        head = ()
    if tail is None:
        return list(head) if len(head) == length else None
    inside = length - len(head) - len(tail.segments)
    may_be_empty = tail.folder or not any((head, tail.before, tail.after, tail.segments))
    if inside < (not may_be_empty):
        return None
    if inside < 2:
        value = [Segment((tail.before, tail.after), ("path",))] * inside
    else:
        rest = [ANYTHING] * (inside - 2)
        value = [Segment((tail.before, ""), ("path",)), *rest, Segment(("", tail.after), ("path",))]
    return [*head, *value, *tail.segments]


@lru_cache(maxsize=4096)
def _common(one: Segment, other: Segment) -> bool:
    """Return True if there is a text that both segments take."""
    texts = {_filled(each, value) for each in (one, other) for value in _VALUES}
    texts |= {_filled(each, text) for each in (one, other) for text in texts}
    return any(_is_taken(one, text) and _is_taken(other, text) for text in texts)


def _filled(segment: Segment, value: str) -> str:
    return segment.filled(iter([value] * len(segment.kinds)))


def _segment_within(narrower: Segment, wider: Segment) -> bool:
    if narrower.kinds:
        return wider in (narrower, ANYTHING, _ANY_REST)
    return _is_taken(wider, narrower.texts[0])


_ANY_REST = Segment(("", ""), ("path",))


def _is_taken(segment: Segment, text: str) -> bool:
    if segment.kinds == ("path",):
        before, after = segment.texts
        return text.startswith(before) and text.endswith(after) and len(text) >= len(before) + len(after)
    values = _matcher(segment)(text)
    return values is not None and all(
        kind not in TYPES or TYPES[kind].is_plain(given) for kind, (_, given) in zip(segment.kinds, values, strict=True)
    )
