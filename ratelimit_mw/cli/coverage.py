"""Tells which rules apply to a route of an app: to all of its requests, to some, or to none.

A route stands for many paths. `sample_paths` finds one path for each way in which rules and the route can meet: a path
that both match, and a path of the route that the rule does not match. Each such path is then matched as a request is,
by the same selection as plans and explanations. So a rule that is reported applies to a path that is shown.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ratelimit_mw.cli.sample_paths import sample_path
from ratelimit_mw.rules.compiled import CompiledRule, Matching
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.path_templates import Template
from ratelimit_mw.rules.ruleset import RuleSet

_ADDRESS = "240.0.0.1"  # a reserved address, which no list of exemptions has
_ALWAYS_THERE = {"global", "ip", "remote_address", "path", "route", "method"}
_THE_METHOD = "the method"


class Coverage(NamedTuple):
    """A rule that applies to requests of a route.

    Attributes:
        domain: The domain of the rule.
        rule: The name of the rule.
        partial: True if there are requests of this route and method to which the rule does not apply, although they
            meet its conditions: another path, an exempt path, or another rule replaces it.
        conditions: What a request must have in addition, such as "tier is gold".
        general: True if the rule has no `match.path`.
        example: A path to which the rule applies.
    """

    domain: str
    rule: str
    partial: bool
    conditions: tuple[str, ...]
    general: bool
    example: str


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
    exempt: list[_Compared] = []
    for part in rules.parts:
        standing = [rule for rule in part.compiled if not (rule.on_demand or rule.rule.messages)]
        compared = [_Compared(part, standing, route, method)]
        exempt += compared
        if websocket and part.messages is not None:
            compared.append(_Compared(part.messages, [r for r in part.compiled if r.rule.messages], route, method))
        found += [coverage for _, coverage in sorted(each for one in compared for each in one.coverages())]
    fully = all(each.exempt == len(each.paths) for each in exempt)
    return Covered(tuple(found), fully, any(each.exempt for each in exempt))


class _Compared:
    """The rules of one domain that apply to sample paths of a route.

    Args:
        rules: The rule set that selects rules.
        asked: Those of its rules that the middleware asks.
        route: The route.
        method: The method of the requests.

    Attributes:
        paths: The sample paths.
        exempt: The number of sample paths that are exempt.
    """

    def __init__(self, rules: RuleSet, asked: Sequence[CompiledRule], route: Template, method: str) -> None:
        self._rules = rules
        matches = {rule.rank: rule.match for rule in asked}
        self._asked = {rule.rank: rule for rule in asked if _takes(matches[rule.rank], method)}
        self._matches = matches
        self._pathless = [rank for rank, rule in self._asked.items() if not rule.templates]
        self.paths = list(dict.fromkeys(_spelled(route, path) for path in self._samples(route, method)))
        self.exempt = 0
        self._applied: dict[int, list[str]] = {}
        self._doubtful: set[int] = set()
        for path in self.paths:
            self._match(path, method)

    def coverages(self) -> Iterator[tuple[int, Coverage]]:
        """Yield each rule that applies, after its rank."""
        for rank, paths in self._applied.items():
            match, name = self._matches[rank], self._asked[rank].rule.name
            partial = len(paths) < len(self.paths) or rank in self._doubtful
            conditions = tuple(self._conditions(match))
            yield rank, Coverage(self._rules.domain, name, partial, conditions, not match.templates, paths[0])

    def _samples(self, route: Template, method: str) -> Iterator[str]:
        """Yield a path for each way in which the rules and the exemptions can meet the route."""
        first = sample_path((route,))
        if first is None:
            return
        yield first
        exempting = [match for match in self._rules.exempt if _takes(match, method)]
        rules = self._asked.values()
        for match in (*exempting, *(self._matches[rule.rank] for rule in rules)):
            if match.templates and (met := _meeting(route, match.templates)):
                yield from met
                yield from filter(None, [sample_path((route,), tuple(match.templates))])
        replacing: dict[int, list[Matching]] = {}
        for rule in rules:
            for rank in rule.replaces:
                replacing.setdefault(rank, []).append(self._matches[rule.rank])
        for rule in rules:
            others = (*exempting, *replacing.get(rule.rank, ()))
            # A condition other than the path may not hold, and so does not take requests from the rule.
            sure = [match for match in others if not match.exact and not match.networks]
            if hiding := [template for match in sure for template in match.templates]:
                yield from _meeting(route, rule.templates or (route,), hiding)

    def _match(self, path: str, method: str) -> None:
        """Note the rules that apply to one path."""
        request = self._rules.attributes.request_from({"path": path, "method": method, "ip": _ADDRESS})
        ((_, (candidates, replaced, free, _)),) = self._rules.selections(request)
        if free is not None:
            self.exempt += 1
            return
        reached = {rank: strict for rank, _, _, _, strict in candidates}
        ranks = sorted({*self._pathless, *(reached.keys() & self._asked.keys())} - replaced.keys())
        applied = [self._asked[rank] for rank in ranks]
        for rule in applied:
            self._applied.setdefault(rule.rank, []).append(path)
            if reached.get(rule.rank, True) and _depends(
                rule
            ):  # it replaces another rule for some requests: those with a user, for example
                self._doubtful |= rule.replaces & {other.rank for other in applied}

    def _conditions(self, match: Matching) -> Iterator[str]:
        for condition in match.conditions(self._rules.attributes.address):
            if condition.name != _THE_METHOD:
                yield f"{condition.name} is {' or '.join(condition.wanted)}"


def _takes(match: Matching, method: str) -> bool:
    return not match.methods or method in match.methods or (method == "HEAD" and "GET" in match.methods)


def _depends(rule: CompiledRule) -> bool:
    """Whether it depends on more than the path and the method that the rule has a counter for a request."""
    alternatives = {name.strip() for entry in rule.by for name in entry.split("|")}
    return bool(rule.match.exact or rule.match.networks) or not alternatives & _ALWAYS_THERE


def _meeting(route: Template, templates: Iterable[Template], outside: Sequence[Template] = ()) -> list[str]:
    """A path that the route and a template match, for each template, if there is one."""
    return [path for each in templates if (path := sample_path((route, each), tuple(outside))) is not None]


def _spelled(route: Template, path: str) -> str:
    """A path as a client must write it: with the slash at the end that the route has."""
    short = route.endswith("/*") and path.count("/") < route.count("/")
    return path + "/" if path != "/" and (route.endswith("/") or short) else path
