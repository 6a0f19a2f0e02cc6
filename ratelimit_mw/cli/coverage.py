"""Tells which rules apply to a route of an app: to all of its requests, to some, or to none.

A route stands for many paths. `sample_paths` finds one for each set of templates that its paths match. Each such path
is then matched as a request is, by the same selection as plans and explanations. So a rule that is reported applies to
a path of the route.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from ratelimit_mw.identity.identifier import choices_of
from ratelimit_mw.rules.compiled import CompiledRule, Matching
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.path_templates import TYPES, Segment, Template, TemplateParts, cleaned, matcher, parts_of
from ratelimit_mw.rules.ruleset import RuleSet

_ADDRESS = "240.0.0.1"  # a reserved address, which no list of exemptions has
_ALWAYS_THERE = {"global", "ip", "remote_address", "path", "route", "method"}
_THE_METHOD = "the method"

_VALUES = ("x", "1", "1.1", "00000000-0000-4000-8000-000000000000", "")
"""Values of parameters: each kind of parameter takes at least one of them."""

_ANY = Segment(("", ""), ("str",))

_matcher = lru_cache(maxsize=4096)(matcher)


class Coverage(NamedTuple):
    """A rule that applies to requests of a route.

    Attributes:
        domain: The domain of the rule.
        rule: The name of the rule.
        partial: True if there are requests of this route and method to which the rule does not apply, although they
            meet its conditions: another path, an exempt path, or another rule replaces it.
        conditions: What a request must have in addition, such as "tier is gold".
        general: True if the rule has no `match.path`.
    """

    domain: str
    rule: str
    partial: bool
    conditions: tuple[str, ...]
    general: bool


class Covered(NamedTuple):
    """The rules that apply to a route, in the order in which they are asked, and whether requests are exempt."""

    rules: tuple[Coverage, ...]
    exempt: bool
    """True if each request is exempt, in all domains."""
    partly_exempt: bool


def covered(rules: Rules, route: Template, method: str, *, websocket: bool = False) -> Covered:
    """Return the rules that apply to requests of `route` with this method. A WebSocket has the rules of messages, too.

    A condition on anything but the path and the method may hold or not. Rules with `on_demand` are not included.
    """
    found: list[Coverage] = []
    exempt: list[bool] = []
    for part in rules.parts:
        standing = [rule for rule in part.compiled if not (rule.on_demand or rule.rule.messages)]
        coverages, free = _compared(part, standing, route, method)
        exempt += free
        if websocket and part.messages is not None:
            messages = [rule for rule in part.compiled if rule.rule.messages]
            coverages += _compared(part.messages, messages, route, method)[0]
        found += [coverage for _, coverage in sorted(coverages)]
    return Covered(tuple(found), all(exempt), any(exempt))


def _compared(
    rules: RuleSet, asked: Iterable[CompiledRule], route: Template, method: str
) -> tuple[list[tuple[int, Coverage]], list[bool]]:
    """Return each rule that applies to a sample path, after its rank, and whether each sample path is exempt.

    Args:
        rules: The rule set that selects rules.
        asked: Those of its rules that the middleware asks.
        route: The route.
        method: The method of the requests.
    """
    own = {rule.rank: rule for rule in asked if _takes(rule.match, method)}
    matches = [each for each in (*rules.exempt, *(rule.match for rule in own.values())) if _takes(each, method)]
    templates = tuple(dict.fromkeys(template for match in matches for template in match.templates))
    paths = {_spelled(route, path) for path in sample_paths(route, templates).values()}
    applied: dict[int, int] = {}
    doubtful: set[int] = set()
    exempt = []
    for path in sorted(paths):
        request = rules.attributes.request_from({"path": path, "method": method, "ip": _ADDRESS})
        ((_, (candidates, replaced, free, _)),) = rules.selections(request)
        exempt.append(free is not None)
        if free is None:
            reached = {rank: strict for rank, _, _, _, strict in candidates}
            ranks = {rank for rank, rule in own.items() if not rule.templates or rank in reached} - replaced.keys()
            for rank in ranks:
                applied[rank] = applied.get(rank, 0) + 1
                if reached.get(rank, True) and _depends(own[rank]):
                    doubtful |= own[rank].replaces & ranks  # it replaces them for some requests: those with a user
    return [
        (
            rank,
            Coverage(
                rules.domain,
                own[rank].rule.name,
                number < len(paths) or rank in doubtful,
                tuple(_conditions(rules, own[rank].match)),
                not own[rank].match.templates,
            ),
        )
        for rank, number in applied.items()
    ], exempt


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


def _spelled(route: Template, path: str) -> str:
    """Return a path as a client must write it: with the slash at the end that the route has."""
    short = route.endswith("/*") and path.count("/") < route.count("/")
    return path + "/" if path != "/" and (route.endswith("/") or short) else path


# ------------------------------------------------------------------------------------------------------ sample paths


@lru_cache(maxsize=4096)
def sample_paths(route: Template, templates: tuple[Template, ...]) -> Mapping[int, str]:
    """Return a path of the route for each set of templates that its paths match, a short one first.

    A set is a number whose bit n stands for `templates[n]`. Paths and templates are compared in their cleaned form,
    without empty segments. A parameter with a type stands for its plain values (see `path_templates`).
    """
    parts = [parts_of(cleaned(each)) for each in (route, *templates)]
    found: dict[int, str] = {}
    for length in range(max(map(_longest, parts)) + 1):
        segments = {bit: own for bit, each in enumerate(parts) if (own := _expanded(each, length)) is not None}
        if 0 not in segments:
            continue
        paths = {sum(1 << bit for bit in segments): ""}
        for place in range(length):
            texts = _texts({bit: own[place] for bit, own in segments.items()})
            longer: dict[int, str] = {}
            for held, path in paths.items():
                for takers, text in texts.items():
                    longer.setdefault(held & takers, f"{path}/{text}")
            paths = longer
        for held, path in paths.items():
            found.setdefault(held >> 1, path or "/")
    return found


def meets(route: Template, template: Template) -> bool:
    """Return True if there is a path that both match."""
    return 1 in sample_paths(route, (template,))


def _longest(parts: TemplateParts) -> int:
    """Return the number of segments from which on more of them make no difference."""
    return len(parts.segments) + (0 if parts.tail is None else len(parts.tail.segments) + 2)


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
        value = [Segment((tail.before, ""), ("path",)), *[_ANY] * (inside - 2), Segment(("", tail.after), ("path",))]
    return [*head, *value, *tail.segments]


def _texts(segments: Mapping[int, Segment]) -> dict[int, str]:
    """Return a text of the route's segment for each set of segments that take it. The route has the number 0."""
    different = dict.fromkeys(segments.values())
    texts = dict.fromkeys(_filled(each, value) for each in different for value in _VALUES)
    mixed = [each for each in different if each.kinds and any(each.texts)]
    texts |= dict.fromkeys(_filled(one, _filled(other, value)) for one in mixed for other in mixed for value in _VALUES)
    found: dict[int, str] = {}
    for text in texts:
        if text and _is_taken(segments[0], text):
            takers = {each for each in different if _is_taken(each, text)}
            found.setdefault(sum(1 << bit for bit, each in segments.items() if each in takers), text)
    return found


def _filled(segment: Segment, value: str) -> str:
    return segment.filled(iter([value] * len(segment.kinds)))


def _is_taken(segment: Segment, text: str) -> bool:
    if segment.kinds == ("path",):
        before, after = segment.texts
        return text.startswith(before) and text.endswith(after) and len(text) >= len(before) + len(after)
    values = _matcher(segment)(text)
    return values is not None and all(
        kind not in TYPES or TYPES[kind].is_plain(given) for kind, (_, given) in zip(segment.kinds, values, strict=True)
    )
