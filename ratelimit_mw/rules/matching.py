"""The rules that may apply to a request: how they are looked up, and what they ask. This is the hot path."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ratelimit_mw.identity.attributes import Reader
from ratelimit_mw.identity.identifier import Identifier
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import Ask, Charge, Rule
from ratelimit_mw.process_local import checkpoint
from ratelimit_mw.rules.compiled import CompiledRule, Condition, Counter, Matching, Networks, Overrides, Tiers, Weigh
from ratelimit_mw.rules.path_matcher import NO_PARAMETERS, PathMatcher
from ratelimit_mw.rules.path_templates import Template


class Program(NamedTuple):
    """A rule as the hot path wants it: a tuple, whose conditions are what remains when it has been looked up.

    `tests` are what decides in each of these conditions.
    """

    conditions: tuple[Condition, ...]
    tests: tuple[Callable[[Request], bool], ...]
    counters: tuple[Counter, ...]
    tiers: Tiers | None
    identifiers: tuple[Identifier, ...]
    rule: Rule
    cost: int
    weigh: Weigh | None
    replaces: frozenset[int]


Candidate = tuple[int, Program, str, Mapping[str, str], bool]
"""A rule whose path matches: its rank, to sort by; itself; the template; the parameters; whether both forms matched."""


def program(rule: CompiledRule | None, conditions: tuple[Condition, ...] = ()) -> Program:
    """A rule, or without one an exemption, that applies where these conditions hold."""
    tests = tuple(condition.holds for condition in conditions)
    if rule is None:
        return Program(conditions, tests, (), None, (), Rule("exempt"), 0, None, frozenset())
    return Program(
        conditions,
        tests,
        rule.counters,
        rule.tiers,
        rule.identifiers,
        rule.rule,
        rule.cost,
        rule.weigh,
        rule.replaces,
    )


def exemption(candidates: Sequence[Candidate], request: Request) -> int | None:
    """The rank of the exemption that applies, in both forms of the path. Such ranks are negative, and come first."""
    for rank, candidate, _, _, strict in candidates:
        if rank >= 0:
            return None
        if strict and applies(candidate, request):
            return rank
    return None


def replaced_by(candidates: Sequence[Candidate], request: Request) -> dict[int, str]:
    """The ranks of the rules that are replaced, each with the name of the first rule that replaces it.

    A rule replaces others where it matches, in both forms of the path, and has a counter.
    """
    replaced: dict[int, str] = {}
    for _, candidate, route, parameters, strict in candidates:
        if (
            candidate.replaces
            and strict
            and applies(candidate, request)
            and any(identify(request, parameters, route) is not None for identify in candidate.identifiers)
        ):
            for rank in candidate.replaces:
                replaced.setdefault(rank, candidate.rule.name)
    return replaced


def charges_of(
    candidates: Sequence[Candidate], request: Request, cost: int, tier: Reader | None, overrides: Overrides | None
) -> tuple[Charge, ...]:
    """The counters that the rules which apply have to ask. `tier` reads the request's, where limits go by it."""
    found: list[Charge] = []
    for _, (
        _,
        tests,
        everybody,
        tiers,
        identifiers,
        rule,
        own_cost,
        weigh,
        _,
    ), route, parameters, _ in candidates:
        for holds in tests:
            if not holds(request):
                break
        else:
            taken = cost * (own_cost if weigh is None else weigh(request))
            counters = everybody if tier is None or tiers is None else tiers.get(tier(request), everybody)
            identities: Iterable[str | None]
            if len(identifiers) == 1:
                identities = (identifiers[0](request, parameters, route),)
            else:  # two entries of one `by` may come to the same identity, and then it is one counter
                identities = dict.fromkeys([identify(request, parameters, route) for identify in identifiers])
            for identity in identities:
                if identity is not None:
                    own = overrides.counters(rule.name, identity, counters) if overrides else counters
                    for key, quota in own:
                        ask = tuple.__new__(Ask, (f"{key}{identity}}}", quota, taken, rule.shadow))
                        found.append(tuple.__new__(Charge, (rule, ask)))
    return tuple(found)


def applies(rule: Program, request: Request) -> bool:
    """Whether all conditions hold."""
    return all(holds(request) for holds in rule.tests)


_Lookup = Callable[[Request], Sequence[Candidate]]


class Index:
    """Rules and exemptions, filed under what a request is looked up by. `address` reads a client's.

    An exemption is a rule without counters: its rank is negative, so it comes before all others.
    """

    def __init__(self, rules: Sequence[CompiledRule], exempt: Sequence[Matching], address: Reader) -> None:
        always: list[Candidate] = []
        owned: list[tuple[int, Template]] = []
        by_value: dict[Reader, dict[str | None, list[Candidate]]] = {}
        by_network: Networks[Candidate] = Networks()
        programs: dict[int, Program] = {}
        for rank, match, rule in (
            *((n - len(exempt), match, None) for n, match in enumerate(exempt)),
            *((rule.rank, rule.match, rule) for rule in rules),
        ):
            checkpoint()
            looked_up, tried = match.split()
            candidate: Candidate = (rank, program(rule, tried.conditions(address)), "", NO_PARAMETERS, True)
            if looked_up.templates:
                owned += [(rank, template) for template in looked_up.templates]
                programs[rank] = candidate[1]
            elif looked_up.exact:
                ((read, wanted, _),) = looked_up.exact
                table = by_value.setdefault(read, {})
                for value in set(wanted):
                    table.setdefault(value, []).append(candidate)
            elif looked_up.networks:
                by_network.add(looked_up.networks, candidate)
            else:
                always.append(candidate)
        self.paths = PathMatcher(owned) if owned else None
        """What finds the rules that go by the path; None where none does."""
        self._programs = programs
        self._always = tuple(always)
        self._lookups: list[_Lookup] = [_by_value(read, table) for read, table in by_value.items()]
        if by_network:
            self._lookups.append(lambda request: by_network.find(address(request)))

    def candidates(self, request: Request) -> Sequence[Candidate]:
        """The rules and exemptions that may apply, less their further conditions; exemptions first."""
        found: list[Candidate] = []
        if self.paths is not None:
            programs = self._programs
            for owner, route, parameters, strict in self.paths.hits(request):
                found.append((owner, programs[owner], route, parameters, strict))
        for lookup in self._lookups:
            found += lookup(request)
        return sorted((*self._always, *found)) if found else self._always

    def concerns(self, request: Request) -> bool:
        """Whether some rule may come to apply to a request of this path."""
        return bool(self._always or self._lookups or (self.paths is not None and self.paths.hits(request)))

    @property
    def pieces(self) -> list[object]:
        """What is large of it."""
        return [self.paths, self._lookups, self._always, self._programs]


def _by_value(read: Reader, table: Mapping[str | None, Sequence[Candidate]]) -> _Lookup:
    return lambda request: table.get(read(request), ())
