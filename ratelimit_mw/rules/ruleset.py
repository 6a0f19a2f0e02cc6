"""The compiled rules: from a request to what has to be asked of the store."""

import copy
from collections.abc import Iterable, Sequence
from typing import Self

from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.errors import Problem
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.identity.entries import Entry
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import NEVER, Charge
from ratelimit_mw.rules.candidates import Candidate, charges_of, is_exempt, not_replaced, program
from ratelimit_mw.rules.compiled import CompiledRule, Counter
from ratelimit_mw.rules.conditions import Matching
from ratelimit_mw.rules.descriptors import Descriptors
from ratelimit_mw.rules.doubts import Planning, plan_in_doubt
from ratelimit_mw.rules.features import Features
from ratelimit_mw.rules.index import Index
from ratelimit_mw.rules.overrides import BLOCKED, Held, Overrides, Recompiling, bearing
from ratelimit_mw.rules.paths.match import NO_PARAMETERS, PathMatcher
from ratelimit_mw.rules.plans import Plans
from ratelimit_mw.rules.preflights import Preflights, announced, as_announced, counts_options, needs_credentials
from ratelimit_mw.settings import ClientSettings, DeferSettings, LoadSettings, ResponseSettings, StorageSettings


class RuleSet(Features):
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
        super().__init__(rules)
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
        standing = [rule for rule in rules if not rule.on_demand]
        self._index = self._indexed([rule for rule in standing if not rule.rule.messages])
        self.messages: RuleSet | None = self._of_messages([rule for rule in standing if rule.rule.messages])
        """What the messages of a WebSocket go by, in place of these; None where nothing limits messages."""
        self._named = {rule.rule.name: rule for rule in rules}
        self._preflights = Preflights(self._named, self._tier)
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
        same._index = self._indexed(rules)  # noqa: SLF001  one of our own
        return same

    def _indexed(self, rules: Sequence[CompiledRule]) -> Index:
        return Index(rules, self.exempt, self.attributes.address)

    def concerns(self, request: Request) -> bool:
        """Whether some rule may come to apply to a request of this path."""
        return self._index.concerns(request)

    def _remembering(self, held: Iterable[Held]) -> Plans | None:
        lasting = all(override.until == NEVER for override in held)
        return Plans([self.attributes]) if lasting and not (self.elastic or self.shedding or self.deferring) else None

    @property
    def pieces(self) -> list[object]:
        """What is large of it: let go of one after the other, a set that nobody needs any more makes no pause."""
        return [self.recompiler, *self._index.pieces, self.compiled]

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

        Nothing applies to what is exempt, and where no rule matches. `cost` is from 0 on. A CORS preflight asks
        counters of its own.
        """
        charges = self._plan(request, cost)
        if request.doubtful or request.method == "OPTIONS":  # a preflight is planned by way of a copy
            return self._plan_in_doubt(request, lambda view: self._plan(view, cost), charges)
        return charges

    def _plan_in_doubt(self, request: Request, plan: Planning, charges: tuple[Charge, ...]) -> tuple[Charge, ...]:
        """As `plan_in_doubt`. `charges` are those of the first reading, which stand where there is no other."""
        request.rows = self.attributes.reread(request)
        if not request.rows:
            return charges
        found = plan_in_doubt(request, request.rows, self._tier, plan, BLOCKED)
        if found is BLOCKED:
            return BLOCKED
        ranks = {rule.name: rank for rank, rule in enumerate(self.rules)}
        return tuple(sorted(found, key=lambda charge: ranks[charge.rule.name]))

    def _plan(self, request: Request, cost: int) -> tuple[Charge, ...]:
        overrides = self.overrides
        if overrides is not None:
            if overrides.blocks(request):
                return BLOCKED
            if overrides.exempts(request):
                return ()
        candidates = self._index.candidates(request)
        if self._exempting and is_exempt(candidates, request):
            return ()
        if request.method == "OPTIONS" and (method := announced(request)) is not None:
            return self._plan_preflight(candidates, request, method, cost)
        if self._replacing:
            candidates = not_replaced(candidates, request)
        charges = charges_of(candidates, request, cost, self._tier, overrides)
        return charges if self.descriptors is None else (*charges, *self.descriptors.plan(request, cost))

    def _plan_preflight(
        self, candidates: Sequence[Candidate], request: Request, method: str, cost: int
    ) -> tuple[Charge, ...]:
        charges = self._preflights.charges(candidates, request, method, cost, self.overrides)
        if self.descriptors is None:
            return tuple(charges)
        return (*charges, *self.descriptors.plan_preflight(request, method, cost))

    def plan_rule(self, name: str, request: Request, cost: int = 1) -> Sequence[Charge] | None:
        """The counters of the rule of that name, whether or not its `match` holds; None where there is no such rule.

        The template that matched and its parameters are known as ever, and what is exempt is exempt from it too.
        """
        rule = self._named.get(name)
        if rule is None:
            return None
        charges = self._plan_rule(rule, request, cost)
        if request.doubtful or request.method == "OPTIONS":
            return self._plan_in_doubt(request, lambda view: self._plan_rule(rule, view, cost), charges)
        return charges

    def _plan_rule(self, rule: CompiledRule, request: Request, cost: int) -> tuple[Charge, ...]:
        if self.overrides is not None:
            if self.overrides.blocks(request):
                return BLOCKED
            if self.overrides.exempts(request):
                return ()
        if self._exempting and is_exempt(self._index.candidates(request), request):
            return ()
        route, parameters = "", NO_PARAMETERS
        paths = self._demanded.get(rule.rank, self._index.paths)
        if paths is not None:
            for owner, own_route, own_parameters, _ in paths.hits(request):
                if owner == rule.rank:
                    route, parameters = own_route, own_parameters
        candidate: Candidate = (rule.rank, program(rule), route, parameters, True)
        if request.method == "OPTIONS" and (method := announced(request)) is not None:
            return tuple(self._preflights.charges([candidate], request, method, cost, self.overrides))
        return charges_of([candidate], request, cost, self._tier, self.overrides)

    def classify(self, request: Request, name: str | None = None) -> Sequence[Charge] | None:
        """What is said of the priority of `request`: see `priorities`. () where it is exempt, `BLOCKED` as ever.

        With `name`, what the rule of that name says of it; None where there is no such rule. A CORS preflight is as
        important as the request that it announces; () where credentials, which it has not, would tell that.
        """
        classifier = self.classifier
        if name is None:
            charges = classifier.plan(request) if classifier is not None else ()
            if request.method != "OPTIONS" or not charges or charges is BLOCKED:
                return charges
            method = announced(request)
            return charges if method is None else self._classify_preflight(charges, request, method)
        if name not in self._named:
            return None
        return (classifier.plan_rule(name, request) if classifier is not None else None) or ()

    def _classify_preflight(self, counted: Sequence[Charge], request: Request, method: str) -> Sequence[Charge]:
        """As `classify`, where `counted` are the rules that would count the preflight."""
        classifier = self.classifier
        if classifier is None or any(needs_credentials(rule) for rule in classifier.compiled):
            return ()
        said = classifier.plan(as_announced(request, method))
        by_options = [each for each in counted if each.rule.name and counts_options(self._named[each.rule.name])]
        return (*said, *by_options) or counted  # no client is exempt by the method that it announces

    def counters_of(self, rule: CompiledRule, identity: str) -> tuple[Counter, ...]:
        """What an identity without a tier is held to by one of these rules."""
        return self.overrides.counters(rule.rule.name, identity, rule.counters) if self.overrides else rule.counters

    def plan_entries(self, entries: Sequence[Entry], cost: int = 1) -> tuple[Charge, ...]:
        """The counters that one list of entries has to ask: those of `descriptors` alone."""
        return () if self.descriptors is None else self.descriptors.plan_entries(entries, cost)
