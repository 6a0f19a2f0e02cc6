"""Tells which rules apply to a route of an app: to all of its requests, to some, or to none.

A route and a rule are compared by their templates, segment by segment. If that leaves it open whether a rule applies to
all requests of a route, it applies to some.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from ratelimit_mw.identity.identifier import choices_of
from ratelimit_mw.rules.compiled import CompiledRule, Matching
from ratelimit_mw.rules.domains import Rules
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

_ALWAYS_THERE = {"global", "ip", "remote_address", "path", "route", "method"}
_THE_METHOD = "the method"

_VALUES = ("x", "1", "1.1", "00000000-0000-4000-8000-000000000000", "")
"""Values of parameters: each kind of parameter takes at least one of them."""

_matcher = lru_cache(maxsize=4096)(matcher)
_parts = lru_cache(maxsize=4096)(parts_of)  # each rule is compared with all others


@dataclass(frozen=True, slots=True)
class RuleOfRoute:
    """One rule that requests of a route ask.

    Attributes:
        rule: The name of the rule.
        domain: The domain of the rule. Empty for a rule that is asked for by name and is in no domain.
        limit: The text of a limit that a decorator declares. Empty for a rule of the file.
        covers: "all" requests of the route and method that meet the conditions. Or "some", because others may have
            another path, an exempt path, or another rule that replaces it.
        conditions: What a request must have in addition, such as "tier is gold".
        by_name: True if a decorator or a dependency asks for it, or declares it.
        general: True if it has no `match.path`, and is not asked for by name.
    """

    rule: str
    domain: str
    limit: str = ""
    covers: str = "all"
    conditions: tuple[str, ...] = ()
    by_name: bool = False
    general: bool = False

    def __str__(self) -> str:
        asked = "in the code" if self.limit else "by name"
        notes = [*([self.covers] if self.covers != "all" else []), *([asked] if self.by_name else [])]
        notes += [f"if {condition}" for condition in self.conditions]
        shown = self.limit or self.rule
        return f"{shown} ({', '.join(notes)})" if notes else shown


class Covered(NamedTuple):
    """The rules that apply to a route, in the order in which they are asked, and whether requests are exempt."""

    rules: tuple[RuleOfRoute, ...]
    exempt: bool
    """True if each request is exempt, in all domains."""
    partly_exempt: bool


def covered(rules: Rules, route: Template, method: str, *, websocket: bool = False) -> Covered:
    """Return the rules that apply to requests of `route` with this method. A WebSocket has the rules of messages, too.

    A condition on anything but the path and the method may hold or not. Rules with `on_demand` are not included.
    """
    found: list[RuleOfRoute] = []
    exempt: list[bool] = []
    some = False
    for part in rules.parts:
        free = [each for each in part.exempt if _takes(each, method) and not (each.exact or each.networks)]
        exempt.append(any(_strictly(_within, route, each) for each in free))
        partly = any(_strictly(_meet, route, each) for each in free)
        some = some or partly
        if not exempt[-1]:
            asked = [rule for rule in part.compiled if not rule.on_demand and (websocket or not rule.rule.messages)]
            found += _applying(part, asked, route, method, partly=partly)
    return Covered(tuple(found), all(exempt), some)


def _applying(
    part: RuleSet, asked: Iterable[CompiledRule], route: Template, method: str, *, partly: bool
) -> Iterator[RuleOfRoute]:
    """Yield each of the rules that apply to requests of a route. `partly`: some of its requests are exempt."""
    reached = [
        rule
        for rule in asked
        if _takes(rule.match, method) and (not rule.templates or any(meets(route, each) for each in rule.templates))
    ]
    for rule in reached:
        replacing = [each for each in reached if rule.rank in each.replaces and _strictly(_meet, route, each.match)]
        if not any(_strictly(_within, route, each.match) and not _depends(each) for each in replacing):
            whole = not (replacing or partly) and covers_paths(rule.templates, (route,))
            yield RuleOfRoute(
                rule.rule.name,
                part.domain,
                covers="all" if whole else "some",
                conditions=tuple(_conditions(part, rule.match)),
                general=not rule.templates,
            )


def _strictly(holds: Callable[[TemplateParts, TemplateParts], bool], route: Template, match: Matching) -> bool:
    """Return True if `holds` for a route and a template of a match, as they are written and in their cleaned forms.

    Exemptions and `replaces` need both.
    """
    return not match.templates or any(
        holds(_parts(route), _parts(each)) and holds(_parts(cleaned(route)), _parts(cleaned(each)))
        for each in match.templates
    )


def _conditions(rules: RuleSet, match: Matching) -> Iterator[str]:
    for condition in match.conditions(rules.attributes.address):
        if condition.name != _THE_METHOD:
            yield f"{condition.name} is {' or '.join(condition.wanted)}"


def _takes(match: Matching, method: str) -> bool:
    return not match.methods or method in match.methods or (method == "HEAD" and "GET" in match.methods)


def _depends(rule: CompiledRule) -> bool:
    """Return True if it depends on more than path and method that the rule has a counter for a request."""
    choices = [names for entry in rule.by for names in choices_of(entry)]
    return bool(rule.match.exact or rule.match.networks) or not any(_ALWAYS_THERE.issuperset(each) for each in choices)


# ------------------------------------------------------------------------------------- the paths of templates


def meets(one: Template, other: Template) -> bool:
    """Return True if there is a path that both match, as they are written or in their cleaned forms."""
    return _meet(_parts(one), _parts(other)) or _meet(_parts(cleaned(one)), _parts(cleaned(other)))


def _meet(one: TemplateParts, other: TemplateParts) -> bool:
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
    return bool(narrower) and all(any(_within(_parts(cleaned(each)), form) for form in forms) for each in narrower)


def _within(narrower: TemplateParts, wider: TemplateParts) -> bool:
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
