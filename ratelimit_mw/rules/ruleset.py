"""The compiled rules: from a request to what has to be asked of the store. This is the hot path."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.errors import Problem
from ratelimit_mw.identity.attributes import Attributes, Reader
from ratelimit_mw.identity.entries import Entry
from ratelimit_mw.identity.identifier import Identifier
from ratelimit_mw.identity.paths import cleaned
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import NEVER, Ask, Charge, Quota, Rule
from ratelimit_mw.rules.breath import breathe
from ratelimit_mw.rules.conditions import Condition, Matching, Networks, is_preflight
from ratelimit_mw.rules.descriptors import Descriptors
from ratelimit_mw.rules.match import NO_PARAMETERS, PathMatcher
from ratelimit_mw.rules.overrides import Held, Overrides, bearing
from ratelimit_mw.rules.plans import Plans
from ratelimit_mw.rules.templates import Template
from ratelimit_mw.settings import ClientSettings, DeferSettings, LoadSettings, ResponseSettings, StorageSettings

Weigh = Callable[[Request], int]
"""From a request to its cost."""

Counter = tuple[str, Quota]
"""A key up to and with its opening brace, and what it is held to."""


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """One rule. `rank` is its place in the file, `replaces` the ranks of those that do not apply where it does.

    `tiers` is None unless the limit depends on the tier; `counters` are those of everybody else. `by` has the words
    that the identifiers were made of. `cost` is what a request takes, unless `weigh` finds that in the request. A rule
    `on_demand` applies to no request by itself.
    """

    rank: int
    rule: Rule
    match: Matching
    by: tuple[str, ...]
    identifiers: tuple[Identifier, ...]
    counters: tuple[Counter, ...]
    tiers: Mapping[str | None, tuple[Counter, ...]] | None
    cost: int
    replaces: frozenset[int]
    weigh: Weigh | None = None
    on_demand: bool = False

    @property
    def quotas(self) -> list[Quota]:
        """Everything that anybody is held to."""
        return [quota for counters in (self.counters, *(self.tiers or {}).values()) for _, quota in counters]


_Candidate = tuple[int, "_Program", str, Mapping[str, str], bool]
"""A rule whose path matches: its rank, to sort by; itself; the template; the parameters; whether both forms matched."""

_Lookup = Callable[[Request], Sequence[_Candidate]]


class _Program(NamedTuple):
    """A rule as the hot path wants it: a tuple, whose conditions are what remains when it has been looked up."""

    conditions: tuple[Condition, ...]
    counters: tuple[Counter, ...]
    tiers: Mapping[str | None, tuple[Counter, ...]] | None
    identifiers: tuple[Identifier, ...]
    rule: Rule
    cost: int
    weigh: Weigh | None
    replaces: frozenset[int]


BLOCKED: tuple[Charge, ...] = (Charge(Rule("block"), Ask("", Quota("fixed_window", 0, 1))),)
"""The plan of a client who may do nothing: itself, never a copy, and never asked of a store."""


class Recompiling(Protocol):
    """Compiles overrides that come at run time."""

    def limit(self, identity: str, rule: str, limit: object, until: int = NEVER) -> Held:
        """Another limit for an identity; `limit` is as a rule's. Raises ValueError."""
        ...


class RuleSet:
    """Every rule of a configuration, ready to be asked. Immutable, and safe to share between threads.

    Made by `load`. An exemption is a rule without counters: its rank is negative, so it comes before all others.
    """

    def __init__(
        self,
        *,
        domain: str,
        storage: StorageSettings,
        client: ClientSettings,
        response: ResponseSettings,
        attributes: Attributes,
        rules: tuple[CompiledRule, ...],
        exempt: tuple[Matching, ...],
        descriptors: Descriptors | None = None,
        warnings: tuple[Problem, ...] = (),
        load: LoadSettings | None = None,
        classifier: "RuleSet | None" = None,
        defer: DeferSettings | None = None,
        overrides: tuple[Held, ...] = (),
        recompiler: Recompiling | None = None,
        reload: float | None = None,
        source: str | None = None,
        shadow: bool = False,
    ) -> None:
        self.domain = domain
        self.storage = storage
        self.client = client
        self.response = response
        self.attributes = attributes
        limits = descriptors.limits if descriptors is not None else ()
        self.rules = (*(rule.rule for rule in rules), *(limit.rule for limit in limits))
        self.compiled = rules
        self.exempt = exempt
        self.descriptors = descriptors
        self.warnings = warnings
        self.load = load or LoadSettings()
        self.defer = defer or DeferSettings()
        quotas = [quota for rule in rules for quota in rule.quotas]
        self.elastic = any(quota.elastic for quota in quotas)
        """Whether some limit goes by the load."""
        self.waiting = any(quota.max_wait for quota in quotas)
        """Whether some request may have to wait for its turn."""
        self.settling = any(rule.rule.counts is not None or rule.rule.cost_after for rule in rules) or any(
            quota.algorithm == "concurrency" for quota in quotas
        )
        """Whether something is settled only when a response is known, or has ended."""
        self.deferring = any(rule.rule.defers for rule in rules)
        """Whether some request may be put off instead of denied."""
        self.demanding = any(rule.on_demand for rule in rules)
        """Whether some rule is asked for by the app only."""
        self.shedding = any(rule.rule.priority for rule in rules)
        """Whether some request may be shed under load."""
        self.metered = self.elastic or self.deferring or self.shedding
        """Whether something goes by the load."""
        self.classifier = classifier
        """The rules that say how important a request is, where that is wanted."""
        self.recompiler = recompiler
        self.reload = reload
        """Seconds between two looks for newer rules; None for never."""
        self.source = source
        """Where the rules themselves are, if not here."""
        self.shadow = shadow
        """Whether nothing of this is enforced, blocks included."""
        self._own = overrides = tuple(self._enforced(overrides))
        self.overrides = Overrides(overrides, attributes, SystemClock()) if overrides else None
        # Asked for only where it is needed: an async source that is asked for is awaited for every request.
        self._tier = attributes.reader("tier") if any(rule.tiers is not None for rule in rules) else None
        self._replacing = any(rule.replaces for rule in rules)
        self._exempting = bool(exempt)
        self._programs: dict[int, _Program] = {}
        self._index([rule for rule in rules if not rule.rule.messages], exempt)
        self.messages: RuleSet | None = self._of_messages([rule for rule in rules if rule.rule.messages])
        """What the messages of a WebSocket go by, in place of these; None where nothing limits messages."""
        self._ranks = {rule.rule.name: rule.rank for rule in rules}
        self._demanded = {
            rule.rank: PathMatcher([(rule.rank, template) for template in rule.match.templates])
            for rule in rules
            if (rule.on_demand or rule.rule.messages) and rule.match.templates
        }
        self.plans: Plans | None = self._remembering(overrides)
        """Plans by what they follow from; None where the time or the load has a say, or what was read is kept."""

    def _of_messages(self, rules: Sequence[CompiledRule]) -> Self | None:
        """The same, for the messages that these rules count."""
        if not rules:
            return None
        same = copy.copy(self)
        same.descriptors = same.messages = same.plans = None
        same._index(rules, self.exempt)  # noqa: SLF001  one of our own
        return same

    def concerns(self, request: Request) -> bool:
        """Whether some rule may come to apply to a request of this path."""
        paths = self._paths
        return bool(self._always or self._lookups) or (
            paths is not None and bool(paths.locate(request.path, cleaned(request.path)))
        )

    def _index(self, rules: Sequence[CompiledRule], exempt: tuple[Matching, ...]) -> None:
        """File each rule and exemption under what a request is looked up by."""
        address = self.attributes.address
        always: list[_Candidate] = []
        owned: list[tuple[int, Template]] = []
        by_value: dict[Reader, dict[str | None, list[_Candidate]]] = {}
        by_network: Networks[_Candidate] = Networks()
        for rank, match, rule in (
            *((n - len(exempt), match, None) for n, match in enumerate(exempt)),
            *((rule.rank, rule.match, rule) for rule in rules),
        ):
            breathe()
            if rule is not None and rule.on_demand:
                self._programs[rank] = _program(rule, ())
                continue
            # A rule is found by the first of these that it has; the rest of its match is tried one by one.
            if match.templates:
                owned += [(rank, template) for template in match.templates]
                tried = match
            elif match.exact:
                tried = match._replace(exact=match.exact[1:])
            else:
                tried = match._replace(networks=())
            program = self._programs[rank] = _program(rule, tried.conditions(address))
            candidate: _Candidate = (rank, program, "", NO_PARAMETERS, True)
            if match.templates:
                continue
            if match.exact:
                table = by_value.setdefault(match.exact[0].read, {})
                for value in set(match.exact[0].values):
                    table.setdefault(value, []).append(candidate)
            elif match.networks:
                by_network.add(match.networks, candidate)
            else:
                always.append(candidate)
        self._always = tuple(always)
        self._paths = PathMatcher(owned) if owned else None
        self._lookups: list[_Lookup] = [_by_value(read, table) for read, table in by_value.items()]
        if by_network:
            self._lookups.append(lambda request: by_network.find(address(request)))

    def _remembering(self, held: Iterable[Held]) -> Plans | None:
        lasting = all(override.until == NEVER for override in held)
        return Plans([self.attributes]) if lasting and not (self.elastic or self.shedding or self.deferring) else None

    @property
    def pieces(self) -> list[object]:
        """What is large of it: let go of one after the other, a set that nobody needs any more makes no pause."""
        return [self.recompiler, self._paths, self._lookups, self._always, self._programs, self.compiled]

    @property
    def parts(self) -> "tuple[RuleSet, ...]":
        """The rule set of each domain: just this one. See `Domains`."""
        return (self,)

    def of(self, domain: str) -> "RuleSet | None":
        """The rules of one domain, if they are of that one."""
        return self if domain == self.domain else None

    def overridden(self, further: Iterable[Held], clock: Clock) -> Self:
        """The same rules, with `further` overrides beside the file's own, of which `clock` tells the end."""
        further = tuple(self._enforced(further))
        held = (*self._own, *further)
        same = copy.copy(self)
        same.overrides = Overrides(held, self.attributes, clock) if held else None
        if self.messages is not None:
            same.messages = copy.copy(self.messages)
            same.messages.overrides = same.overrides
        same.plans = self._remembering(held)
        if self.classifier is not None:
            same.classifier = self.classifier.overridden(bearing(further), clock)
        return same

    def _enforced(self, overrides: Iterable[Held]) -> Iterable[Held]:
        return (held for held in overrides if held.kind != "block") if self.shadow else overrides

    def plan(self, request: Request, cost: int = 1) -> tuple[Charge, ...]:
        """The counters that `request` has to ask, in the order of the file; () where nothing applies.

        Nothing applies to what is exempt, to a CORS preflight, and where no rule matches. `cost` is from 0 on.
        """
        overrides = self.overrides
        if overrides is not None:
            if overrides.blocks(request):
                return BLOCKED
            if overrides.exempts(request):
                return ()
        if request.method == "OPTIONS" and is_preflight(request):
            return ()
        candidates = self._candidates(request)
        if self._exempting and _exempt(candidates, request):
            return ()
        if self._replacing:
            candidates = _not_replaced(candidates, request)
        charges = self._charges(candidates, request, cost)
        return charges if self.descriptors is None else (*charges, *self.descriptors.plan(request, cost))

    def _candidates(self, request: Request) -> Sequence[_Candidate]:
        """The rules and exemptions that may apply, less their further conditions; exemptions first."""
        found: list[_Candidate] = []
        if self._paths is not None and request.path:
            path = request.path
            for owner, route, parameters, strict in self._paths.locate(path, cleaned(path)):
                found.append((owner, self._programs[owner], route, parameters, strict))
        for lookup in self._lookups:
            found += lookup(request)
        return sorted((*self._always, *found)) if found else self._always

    def plan_rule(self, name: str, request: Request, cost: int = 1) -> Sequence[Charge] | None:
        """The counters of the rule of that name, whether or not its `match` holds; None where there is no such rule.

        The template that matched and its parameters are known as ever, and what is exempt is exempt from it too.
        """
        rank = self._ranks.get(name)
        if rank is None:
            return None
        if self.overrides is not None:
            if self.overrides.blocks(request):
                return BLOCKED
            if self.overrides.exempts(request):
                return ()
        if self._exempting and _exempt(self._candidates(request), request):
            return ()
        route, parameters = "", NO_PARAMETERS
        paths = self._demanded.get(rank, self._paths)
        if paths is not None and request.path:
            for owner, own_route, own_parameters, _ in paths.locate(request.path, cleaned(request.path)):
                if owner == rank:
                    route, parameters = own_route, own_parameters
        program = self._programs[rank]._replace(conditions=())
        return self._charges([(rank, program, route, parameters, True)], request, cost)

    def classify(self, request: Request, name: str | None = None) -> Sequence[Charge] | None:
        """What is said of the priority of `request`: see `priorities`. () where it is exempt, `BLOCKED` as ever.

        With `name`, what the rule of that name says of it; None where there is no such rule.
        """
        classifier = self.classifier
        if name is None:
            return classifier.plan(request) if classifier is not None else ()
        if name not in self._ranks:
            return None
        return (classifier.plan_rule(name, request) if classifier is not None else None) or ()

    def counters_of(self, rule: CompiledRule, identity: str) -> tuple[Counter, ...]:
        """What an identity without a tier is held to by one of these rules."""
        return self.overrides.counters(rule.rule.name, identity, rule.counters) if self.overrides else rule.counters

    def plan_entries(self, entries: Sequence[Entry], cost: int = 1) -> tuple[Charge, ...]:
        """The counters that one list of entries has to ask: those of `descriptors` alone."""
        return () if self.descriptors is None else self.descriptors.plan_entries(entries, cost)

    def _charges(self, candidates: Sequence[_Candidate], request: Request, cost: int) -> tuple[Charge, ...]:
        charges: list[Charge] = []
        tier = self._tier
        overrides = self.overrides
        for _, (
            conditions,
            everybody,
            tiers,
            identifiers,
            rule,
            own_cost,
            weigh,
            _,
        ), route, parameters, _ in candidates:
            for condition in conditions:
                if not condition(request):
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
                            charges.append(tuple.__new__(Charge, (rule, ask)))
        return tuple(charges)


def _program(rule: CompiledRule | None, conditions: tuple[Condition, ...]) -> _Program:
    if rule is None:
        return _Program(conditions, (), None, (), Rule("exempt"), 0, None, frozenset())
    return _Program(
        conditions,
        rule.counters,
        rule.tiers,
        rule.identifiers,
        rule.rule,
        rule.cost,
        rule.weigh,
        rule.replaces,
    )


def _by_value(read: Reader, table: Mapping[str | None, Sequence[_Candidate]]) -> _Lookup:
    return lambda request: table.get(read(request), ())


def _exempt(candidates: Sequence[_Candidate], request: Request) -> bool:
    for rank, program, _, _, strict in candidates:
        if rank >= 0:
            return False
        if strict and _all(program.conditions, request):
            return True
    return False


def _not_replaced(candidates: Sequence[_Candidate], request: Request) -> Sequence[_Candidate]:
    """Less what is replaced by a rule that matches, in both forms of the path, and has a counter."""
    gone: set[int] = set()
    for _, program, route, parameters, strict in candidates:
        if (
            program.replaces
            and strict
            and _all(program.conditions, request)
            and any(identify(request, parameters, route) is not None for identify in program.identifiers)
        ):
            gone |= program.replaces
    return [candidate for candidate in candidates if candidate[0] not in gone] if gone else candidates


def _all(conditions: tuple[Condition, ...], request: Request) -> bool:
    return all(condition(request) for condition in conditions)
