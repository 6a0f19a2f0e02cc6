"""The compiled rules of one file: from a request to what has to be asked of the store."""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import Self

from ratelimit_mw.algorithms import NOTHING
from ratelimit_mw.clock import Clock, SystemClock
from ratelimit_mw.envoy.tree import Descriptors
from ratelimit_mw.errors import Problem
from ratelimit_mw.identity.attributes import Attributes, Reader
from ratelimit_mw.identity.identifier import NO_PARAMETERS, Parameters
from ratelimit_mw.identity.request import EntriesRequest, Request, alternatives, views
from ratelimit_mw.model import NEVER, Ask, Charge, Rule
from ratelimit_mw.rules.compiled import (
    BLOCKED,
    CompiledOverride,
    CompiledRule,
    Counter,
    Matching,
    NamedRule,
    Overrides,
    key_of_domain,
)
from ratelimit_mw.rules.inline import InlineLimits, RuntimeCompiler, with_key, with_limits
from ratelimit_mw.rules.matching import Candidate, Index, charges_of, exemption, replaced_by, strictest
from ratelimit_mw.rules.path_matcher import PathMatcher
from ratelimit_mw.rules.preflights import announced, apart, replaced_for_preflight, split
from ratelimit_mw.settings import (
    ClientSettings,
    DeferSettings,
    LoadSettings,
    ObserveSettings,
    ResponseSettings,
    StorageSettings,
)

Selection = tuple[Sequence[Candidate], Mapping[int, str], int | None, Request | None]
"""The rules that apply to one reading of a request. The plan charges them, and an explanation reads it.

First the candidates that the index found. Then those which do not apply: their ranks, each with the name of the rule
that replaces it. Then None, unless no rule is asked: the (negative) rank of an exemption, or `EXEMPTED` or `REFUSED`.
Last the request that a CORS preflight announces; None for other requests. It is a plain tuple, which is made for each
request.
"""

EXEMPTED, REFUSED = 0, 1
"""In a `Selection`: an override exempts, or blocks, the client."""

Charging = Callable[[Request, Selection | None], tuple[Charge, ...]]
"""Returns the charges of one alternative of a request. The selection is that of `RuleSet._agreed`."""

_NONE: Mapping[int, str] = MappingProxyType({})
_EXEMPTED: Selection = (), _NONE, EXEMPTED, None
_REFUSED: Selection = (), _NONE, REFUSED, None


class RuleSet:
    """Every rule of one domain, ready to be asked. Immutable, and safe to share between threads.

    Made by `load`. An exemption is a rule without counters: its rank is negative, so it comes before all others.
    """

    asking: str | None = None
    """The question that tries the service which decides. None if the rules are here, see `asking.AskingRules`."""

    def __init__(
        self,
        *,
        domain: str,
        storage: StorageSettings,
        client: ClientSettings,
        response: ResponseSettings,
        attributes: Attributes,
        rules: tuple[CompiledRule, ...],
        recompiler: RuntimeCompiler,
        exempt: tuple[Matching, ...],
        descriptors: Descriptors | None = None,
        warnings: tuple[Problem, ...] = (),
        load: LoadSettings | None = None,
        defer: DeferSettings | None = None,
        overrides: tuple[CompiledOverride, ...] = (),
        reload: float | None = None,
        observe: ObserveSettings | None = None,
        source: str | None = None,
        shadow: bool = False,
    ) -> None:
        self.domain = domain
        self.key = key_of_domain(domain)
        """How the keys of the domain begin."""
        self.storage = storage
        self.client = client
        self.response = response
        self.attributes = attributes
        attributes.accepts_all = source is not None
        limits = descriptors.limits if descriptors is not None else ()
        self.rules = (*(rule.rule for rule in rules), *(limit.rule for limit in limits))
        self.compiled = rules
        self.exempt = exempt
        self.descriptors = descriptors
        self.warnings = warnings
        self.load = load or LoadSettings()
        self.defer = defer or DeferSettings()
        self.recompiler = recompiler
        self.reload = reload
        """Seconds between two looks for newer rules; None for never."""
        self.observe = observe or ObserveSettings()
        self.source = source
        """The place of the rules, if they are not in this file."""
        self.shadow = shadow
        """Nothing is enforced, not even blocks."""
        self._own = overrides = tuple(self._enforced(overrides))
        self.overrides_never_end = _never_end(overrides)
        """Whether no override ends."""
        self._tier = _tier_reader(rules, attributes)
        self._replacing = any(rule.replaces for rule in rules)
        self._exempting = bool(exempt)
        enforced = any(each.rule.priority and not each.rule.shadow and not each.on_demand for each in rules)
        self._without_priority = Charge(Rule("", shadow=not enforced), Ask("", NOTHING, 0, not enforced))
        self._use(Overrides(overrides, attributes, SystemClock()) if overrides else None)
        standing = [rule for rule in rules if not rule.on_demand]
        self._index = self._indexed([rule for rule in standing if not rule.rule.messages])
        self._named = {rule.rule.name: rule for rule in rules}
        self.inline = InlineLimits(self._named, set(self._named), recompiler)
        """The limits that the app declares. `plan_rule` knows their names."""
        self._demanded = {
            rule.rank: PathMatcher([(rule.rank, template) for template in rule.match.templates])
            for rule in rules
            if (rule.on_demand or rule.rule.messages) and rule.match.templates
        }
        self.messages: RuleSet | None = self._of_messages([rule for rule in standing if rule.rule.messages])
        """The rules for the messages of a WebSocket. None if no rule limits messages."""

    @cached_property
    def _with_limit(self) -> Callable[[str, str], CompiledRule]:
        """Returns the rule of a name with the limit of a text. Few apps use it."""
        return with_limits(self.inline)

    def _of_messages(self, rules: Sequence[CompiledRule]) -> Self | None:
        """Return a rule set for the messages that these rules count, or None without rules."""
        if not rules:
            return None
        same = copy.copy(self)
        same.descriptors = same.messages = None
        same._use(self.overrides)  # noqa: SLF001  one of our own
        same._index = self._indexed(rules)  # noqa: SLF001  one of our own
        return same

    def _indexed(self, rules: Sequence[CompiledRule]) -> Index:
        return Index(rules, self.exempt, self.attributes.address)

    def concerns(self, request: Request) -> bool:
        """Return True if a rule may apply to a request of this path."""
        return self._index.concerns(request)

    def _use(self, overrides: Overrides | None) -> None:
        self.overrides = overrides
        self._plain = not (overrides or self._exempting or self._replacing or self.descriptors)
        """Whether the candidates alone decide: there are no overrides, exemptions, replacements and descriptors."""

    @property
    def by_path(self) -> bool:
        """Whether the path of a request may change its plan."""
        return self._index.paths is not None or self.attributes.reads_path

    @property
    def by_identity(self) -> bool:
        """Whether the address of a client changes nothing in a plan except the identities of its counters."""
        return self._plain and not any(rule.match.networks or rule.match.exact for rule in self.compiled)

    def overridden(self, further: Iterable[CompiledOverride], clock: Clock) -> Self:
        """Return the same rules with `further` overrides in addition to the file's own. `clock` tells when they end."""
        further = tuple(self._enforced(further))
        held = (*self._own, *further)
        same = copy.copy(self)
        same._use(Overrides(held, self.attributes, clock) if held else None)  # noqa: SLF001  one of our own
        if self.messages is not None:
            same.messages = copy.copy(self.messages)
            same.messages._use(same.overrides)  # noqa: SLF001  one of our own
        same.overrides_never_end = _never_end(held)
        return same

    def _enforced(self, overrides: Iterable[CompiledOverride]) -> Iterable[CompiledOverride]:
        return (held for held in overrides if held.kind != "block") if self.shadow else overrides

    def plan(self, request: Request, cost: int = 1) -> tuple[Charge, ...]:
        """Return the charges of a request, in the order of the file.

        The result is () if the request is exempt or no rule matches. `cost` is 0 or more. A CORS preflight has counters
        of its own. Only the descriptors apply to a list of entries.
        """
        if type(request) is EntriesRequest:
            return () if self.descriptors is None else self.descriptors.plan_entries(request.entries, cost)
        if self._plain and request.method != "OPTIONS":  # the common case, in one step
            charges = charges_of(self._index.candidates(request), request, cost, self._tier, None)
        else:
            charges = self._charges(request, None, cost)
        if request.several:
            return self._in_each(request, partial(self._charges, cost=cost), charges)
        return charges

    def selections(self, request: Request) -> list[tuple[Request, Selection]]:
        """Return each alternative of a request and the rules that apply to it, as in `plan`. For explanations."""
        if self.plan(request) is not None and request.several:  # the plan has read all that the rules need
            agreed = self._agreed(request)
            each = views(request, alternatives(request.several))
            return [(copy.copy(view), self.select(view, agreed)) for view in each]
        return [(request, self.select(request))]

    def candidate(self, rule: CompiledRule, request: Request) -> Candidate | None:
        """Return the candidate of a rule for a request, or None if the index does not find the rule."""
        standing = not rule.on_demand and not rule.rule.messages
        index = self._index if standing else self._indexed([rule])
        return next((found for found in index.candidates(request) if found[0] == rule.rank), None)

    def _in_each(
        self, request: Request, charge: Charging, first: tuple[Charge, ...] | None = None
    ) -> tuple[Charge, ...]:
        """Return the charges of all alternatives of a request: each counter once, in the order of the file.

        `first` are the charges by the first value of each attribute, if they are known.
        """
        first = charge(request, None) if first is None else first
        if not request.several:
            return first
        known, charges = 0, list[Charge]()
        while known < len(request.several):  # also if a further attribute with several values was read
            known = len(request.several)
            agreed = None if self._plain else self._agreed(request)
            each, charges = alternatives(request.several), []
            if self._plain and each[0].items() <= request.values.items():
                charges += first
                del each[0]
            for view in views(request, each):
                found = charge(view, agreed)
                if found is BLOCKED:
                    return BLOCKED
                charges += found
        end = len(self.rules)  # descriptors follow the rules
        return tuple(sorted(strictest(charges), key=lambda each: self._rank(each.rule.name, end)))

    def _rank(self, name: str, default: int) -> int:
        rule = self._named.get(name)
        return default if rule is None else rule.rank

    def _agreed(self, request: Request) -> Selection:
        """Return what applies to a request without the attributes that have several values.

        Its exemption and its replacements hold for all alternatives.
        """
        (agreed,) = [self.select(view) for view in views(request, [dict.fromkeys(request.several)])]
        return agreed

    def select(self, request: Request, agreed: Selection | None = None) -> Selection:
        """Return the rules that apply to a request, or to one alternative of it. See `_agreed`."""
        overrides = self.overrides
        if overrides is not None:
            if overrides.blocks(request):
                return _REFUSED
            if agreed is None and overrides.exempts(request):
                return _EXEMPTED
        if agreed is not None and agreed[2] is not None:
            return agreed
        candidates = self._index.candidates(request)
        view = announced(request) if request.method == "OPTIONS" else None
        if agreed is not None:
            return candidates, agreed[1], None, view
        if self._exempting and (rank := exemption(candidates, request)) is not None:
            return (), _NONE, rank, None
        if not self._replacing:
            return candidates, _NONE, None, view
        if view is None:
            return candidates, replaced_by(candidates, request), None, None
        return candidates, replaced_for_preflight(candidates, request, view), None, view

    def _charges(self, request: Request, agreed: Selection | None, cost: int) -> tuple[Charge, ...]:
        """Return the charges of the rules and of the descriptors for one alternative of a request. See `_agreed`."""
        candidates, replaced, free, view = self.select(request, agreed)
        if free is not None:
            return BLOCKED if free == REFUSED else ()
        if replaced:
            candidates = [candidate for candidate in candidates if candidate[0] not in replaced]
        charges = self._counted(candidates, request, view, cost, self.overrides)
        if self.descriptors is None:
            return charges
        if view is not None:
            return (*charges, *self.descriptors.plan_preflight(request, view, cost))
        return (*charges, *self.descriptors.plan(request, cost))

    def _counted(
        self,
        candidates: Sequence[Candidate],
        request: Request,
        view: Request | None,
        cost: int,
        overrides: Overrides | None,
    ) -> tuple[Charge, ...]:
        """Return the charges of rules. `view` is the request that `request`, a CORS preflight, announces."""
        if view is None:
            return charges_of(candidates, request, cost, self._tier, overrides)
        like_any, others = split(candidates)
        return (
            *charges_of(like_any, request, cost, self._tier, overrides),
            *apart(charges_of(others, view, cost, self._tier, overrides), cost),
        )

    def charges_alone(
        self, candidate: Candidate, request: Request, cost: int, overrides: Overrides | None
    ) -> tuple[Charge, ...]:
        """Return the charges of one rule for one alternative of a request, as if there were no other rule."""
        view = announced(request) if request.method == "OPTIONS" else None
        return self._counted([candidate], request, view, cost, overrides)

    def plan_rule(self, asked: NamedRule, request: Request, cost: int = 1) -> Sequence[Charge] | None:
        """Return the charges of the rule of that name, whether or not its `match` holds. None for an unknown name.

        The path parameters are those of the template that matches. Exemptions apply as usual. Raises ValueError if the
        limit that the app has set cannot be used.
        """
        rule = self.asked(asked)
        if rule is None:
            return None
        return self._in_each(request, lambda view, agreed: self._plan_rule(rule, view, cost, agreed))

    def asked(self, asked: NamedRule) -> CompiledRule | None:
        """Return the rule that the app asks for, with the key and the limit of the app. None for an unknown name."""
        name, key, limit = asked
        rule = self._named.get(name)
        if rule is not None and limit is not None:
            rule = self._with_limit(name, limit)
        return rule if rule is None or key is None else with_key(rule, key, self.attributes)

    def route(self, name: str, request: Request) -> str | None:
        """Return the path template of the rule of that name that matches a request. None if it has none."""
        rule = self._named.get(name)
        return None if rule is None else self._hit(rule, request)[0] or None

    def _hit(self, rule: CompiledRule, request: Request) -> tuple[str, Parameters]:
        """Return the path template of a rule that matches a request, "" for none, and the path parameters."""
        paths = self._demanded.get(rule.rank, self._index.paths)
        hits = () if paths is None else reversed(paths.hits(request))
        return next((hit[1:3] for hit in hits if hit[0] == rule.rank), ("", NO_PARAMETERS))

    def _plan_rule(
        self, rule: CompiledRule, request: Request, cost: int, agreed: Selection | None = None
    ) -> tuple[Charge, ...]:
        if self.overrides is not None and self.overrides.blocks(request):
            return BLOCKED
        if self._frees(request) if agreed is None else agreed[2] is not None:
            return ()
        return self.charges_alone(self.candidate_asked(rule, request), request, cost, self.overrides)

    def candidate_asked(self, rule: CompiledRule, request: Request) -> Candidate:
        """Return the candidate of a rule that the app asks for, whether or not its `match` holds."""
        return rule.rank, rule, *self._hit(rule, request), True

    def _frees(self, request: Request) -> bool:
        """Return True if an override or an exemption frees a request of all rules."""
        if self.overrides is not None and self.overrides.exempts(request):
            return True
        return self._exempting and exemption(self._index.candidates(request), request) is not None

    def classify(self, request: Request, asked: NamedRule | None = None) -> Sequence[Charge] | None:
        """Return a charge for each rule with a priority that applies to a request, whatever limit it has.

        The last charge is that of no rule. It is in shadow if no rule with a priority is enforced. The result is () if
        the request is exempt. With `asked`, only that rule is asked, by its own key. None if there is no such rule.
        """
        if asked is None:
            return self._in_each(request, self._prioritised)
        rule = self._named.get(asked.name)
        if rule is None:
            return None
        if rule.rule.priority is None:
            return ()
        return self._in_each(request, lambda view, agreed: self._plan_rule(rule.probe, view, 0, agreed))

    def _prioritised(self, request: Request, agreed: Selection | None) -> tuple[Charge, ...]:
        """Return the charges of `classify` for one alternative of a request. See `_agreed`."""
        candidates, replaced, free, view = self.select(request, agreed)
        if free is not None:
            return BLOCKED if free == REFUSED else ()
        probes: list[Candidate] = [
            (rank, rule.probe, route, parameters, strict)
            for rank, rule, route, parameters, strict in candidates
            if rule.rule.priority is not None and rank not in replaced
        ]
        return (*self._counted(probes, request, view, 0, None), self._without_priority)

    def counters_of(self, rule: CompiledRule, identity: str) -> tuple[Counter, ...]:
        """Return the counters of a rule for an identity without a tier."""
        return self.overrides.counters(rule.rule.name, identity, rule.counters) if self.overrides else rule.counters


def _tier_reader(rules: Iterable[CompiledRule], attributes: Attributes) -> Reader | None:
    """Return the function that reads the tier of a request. None if no counters depend on the request.

    The tier itself is read only if a limit depends on it: an async source that is asked for is awaited for every
    request.
    """
    if any(rule.tiers is not None for rule in rules):
        return attributes.reader("tier")
    return (lambda _request: None) if any(rule.read_limit is not None for rule in rules) else None


def _never_end(overrides: Iterable[CompiledOverride]) -> bool:
    return all(override.until == NEVER for override in overrides)
