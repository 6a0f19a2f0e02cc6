"""Makes the plan of a request: the counters to ask in one store call, each with its rule."""

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.clock import Clock
from ratelimit_mw.decision.kill_switch import KillSwitch
from ratelimit_mw.decision.load import Meter
from ratelimit_mw.decision.shedding import Shedder, WouldShed
from ratelimit_mw.decision.verdict import Conclusion, ServiceVerdict, Verdict, fields_of, only_policy, terms_of
from ratelimit_mw.identity.address import ClientAddress, canonical
from ratelimit_mw.identity.http_request import RequestHead
from ratelimit_mw.identity.request import Arguments, Request
from ratelimit_mw.logs import Once, logger
from ratelimit_mw.model import SECOND, Ask, Charge, Decision, Row
from ratelimit_mw.rules.compiled import BLOCKED, NamedRule
from ratelimit_mw.rules.domains import Rules, UsedNames, rule_names, unknown_rule
from ratelimit_mw.rules.matching import Plans
from ratelimit_mw.stores.base import ReplyFields
from ratelimit_mw.tally import Passes
from ratelimit_mw.units import whole

_new = object.__new__
_tuple = tuple.__new__
MakeVerdict = Callable[[Sequence[Charge], Any], Verdict]
_MOST_SHAPES = 1024  # overrides and elastic limits make new quotas, and apps have many costs


class Shape:
    """What the plans of all clients share that ask the same limits of the same rules at the same costs.

    With many clients, the plans do not stay in the cache of the processor, but this does. When the first such plan is
    executed, the engine sets `place` and `decide`, and then `passes`, which counts the requests that all rules allow,
    and `brief_passes`.

    Args:
        charges: The charges of such a plan.
        direct: Whether the store may be asked in one step. It is not asked so if rules deny only together: what it has
            charged is then returned.
        verdict: Makes the verdict of the charges of a plan and the reply.
    """

    __slots__ = ("brief", "brief_passes", "decide", "direct", "held", "passes", "place", "shadows", "terms", "verdict")

    def __init__(self, charges: Sequence[Charge], *, direct: bool = False, verdict: MakeVerdict = Verdict) -> None:
        shadows = [place for place, (_, ask) in enumerate(charges) if ask.shadow]
        self.place: Callable[[Sequence[Ask]], Any] | None = None
        """Finds the place of the counters of a plan in the store, for `decide`."""
        self.decide: Any = None
        """Decides on the counters of a place, and charges them, in one step (see `Decider`). For callers that block."""
        self.passes: Passes | None = None
        self.brief_passes: Passes | None = None
        """The same, if the plan is `brief`. Otherwise None."""
        special = [rule.hidden or ask.quota.spare or ask.quota.waits for rule, ask in charges]
        self.verdict = verdict
        self.brief = verdict is Verdict and len(shadows) < len(charges) and not any(special)
        """Whether the rows of a reply that admits say all: one is enforced, and none is hidden, throttled or paced."""
        self.terms = [terms_of(rule, ask.quota) for rule, ask in charges]
        """The terms of each counter, so that the charges of a plan need not be read for them."""
        self.shadows: Sequence[int] = shadows
        """The indices of the asks that are shadows."""
        self.direct = direct and bool(charges) and not any(charges[place].rule.quota_group for place in shadows)
        """Whether the plan is executed in one step."""
        self.held = [(rule, ask.quota) for rule, ask in charges]
        """The rules and the quotas, so that their identities stay their own."""

    def binding(self, rows: Sequence[Row]) -> int:
        """The index of the enforced counter with the least remaining, if all admit. Of several, the first."""
        binding, least = 0, math.inf
        for place, (_, remaining, _, _, _) in enumerate(rows):
            if remaining < least and place not in self.shadows:
                binding, least = place, remaining
        return binding


FREE = Verdict((), None)
"""The verdict on a request that no counter is asked about."""


class Plan:
    """The counters that a request asks, each with its rule. A plan is immutable, so similar requests may share it.

    Args:
        charges: The counters.
        asks: What the store is asked: that of each charge. If there are none, `verdict` is the verdict.
        shape: What it shares with other plans.

    Attributes:
        place: The place of its counters in the store, for `shape.decide`. None if the engine has not set it yet, or if
            the plan is not executed in one step.
    """

    __slots__ = ("asks", "charges", "place", "shape")
    verdict = FREE

    def __init__(self, charges: Sequence[Charge], asks: Sequence[Ask], shape: Shape) -> None:
        self.charges = charges
        self.asks = asks
        self.shape = shape
        self.place: Any = shape.place and shape.place(asks)

    def concluded(self, reply: Any) -> Verdict:
        """The verdict by the reply of the store."""
        return self.shape.verdict(self.charges, reply)

    def decision_of(self, reply: ReplyFields) -> Decision:
        """The decision for the app, made of a reply that was concluded on this plan. It equals that of the verdict."""
        now, rows, _ = reply
        if len(rows) > 1:
            return self.verdict_of(reply).decision
        return only_policy(fields_of(now, rows[0], self.shape.terms[0]))

    def verdict_of(self, conclusion: Conclusion) -> Verdict:
        """The verdict of what was concluded on this plan."""
        if not isinstance(conclusion, tuple):
            return conclusion
        # What `concluded` makes, in less time: only what differs from the defaults of the class is set.
        verdict = _new(Verdict)
        verdict.charges = self.charges
        verdict.now, verdict.rows, _ = conclusion
        if len(verdict.rows) > 1:
            verdict.binding = self.shape.binding(verdict.rows)
        return verdict


_BLANK = "\0"
"""Stands for the address in the plan from which a pattern is made. No key contains this character."""


class Pattern:
    """What plans share that differ in the address alone. It makes the plan of a further address.

    Args:
        plan: Such a plan, with `_BLANK` in place of the address.
        addresses: Cuts an address to its network.
    """

    __slots__ = ("_addresses", "_asked", "_shape")

    def __init__(self, plan: Plan, addresses: ClientAddress) -> None:
        self._addresses = addresses
        self._asked = [(rule, ask.key.split(_BLANK), *ask[1:]) for rule, ask in plan.charges]
        self._shape = plan.shape

    def plan(self, peer: str | None) -> Plan | None:
        """The plan for the address of a peer. None if the text is no address."""
        network = self._addresses.cut(canonical(peer))
        if network is None:
            return None
        charges: list[Charge] = []
        for rule, parts, quota, cost, shadow in self._asked:
            charges.append(_tuple(Charge, (rule, _tuple(Ask, (network.join(parts), quota, cost, shadow)))))
        return Plan(tuple(charges), [ask for _, ask in charges], self._shape)


NO_PLAN = Plan((), (), Shape(()))
"""In place of the plan of a request whose verdict is known."""


class Refusal(Plan):
    """The plan of a request that is shed or blocked: it asks no counter, and `verdict` denies it."""

    def __init__(self, verdict: Verdict, charges: Sequence[Charge] = ()) -> None:
        super().__init__(charges, (), Shape(()))
        self.verdict = verdict


_BLOCKED = Refusal(Verdict((), None, denied="blocked"), BLOCKED)


class Planner:
    """Makes the plans of requests.

    Args:
        would_shed: see `Shedder`.
        shed: see `Shedder.counts`.
        clock: the user's clock, or None for the system's.
        names: what the app has used with the limiter.
    """

    def __init__(self, would_shed: WouldShed, shed: Counter[str], clock: Clock | None, names: UsedNames) -> None:
        self._clock = clock
        self.switch = KillSwitch(clock)
        self._shedding = would_shed, shed
        self._meter: Meter | None = None
        self._shapes: dict[Hashable, Shape] = {}
        self._once = Once()
        self.names = names

    @cached_property
    def shedder(self) -> Shedder:
        """Decides which requests are shed. Few apps have priorities."""
        return Shedder(self.meter, self.switch, *self._shedding)

    def plan(self, rules: Rules, request: Request, cost: int = 1, name: NamedRule | None = None) -> Plan:
        """The plan of `request` or, with `name`, of that rule alone, whether or not the request is shed.

        Raises ValueError unless `cost` is a whole number of at least 0.
        """
        if type(cost) is not int or cost != 1:
            cost = whole(cost)
        known = rules.plans if name is None and cost == 1 and not self.switch.thrown else None
        key = known.key(request) if known is not None else None
        if known is None or key is None:
            return self._planned(rules, request, cost, name)
        return known.get(key) or self._kept(known, key, rules, request)

    def plan_of_head(self, rules: Rules, context: Any, head: RequestHead) -> Plan:
        """The plan of a request by rules that are `bare`. The request is made only if its plan is not known.

        Args:
            rules: the rules.
            context: the scope or the environ.
            head: the head of the request, with the fields that the rules read.
        """
        known = rules.plans
        if known is None or self.switch.thrown:
            return self.plan(rules, head[0](context, head))
        find = known.get
        # To hash an address alone reads fewer objects, which are rarely in the cache of the processor.
        key: Hashable = head[4] if known.by_peer and head[3] == "GET" else head if known.by_path else head[3:]
        plan: Plan | None = find(key)
        if plan is None and known.patterned:
            similar = head[:4] if known.by_path else head[3:4]
            pattern: Pattern | None = known.get(similar)
            if pattern is None and known.seen(similar):
                pattern = self._pattern(known, similar, rules, head[0](context, head))
            plan = _patterned(known, key, pattern, head[4])
        if plan is None:
            plan = self._kept(known, key, rules, head[0](context, head))
        return plan

    def _pattern(
        self,
        known: Plans,
        similar: Hashable,
        rules: Rules,
        request: Request,
        cost: int = 1,
        *,
        given: Mapping[str, object] | None = None,
    ) -> Pattern | None:
        """Make and keep the pattern of similar requests from one whose address is not read yet. See `_kept`."""
        request.values["ip"] = _BLANK
        pattern = Pattern(self._planned(rules, request, cost, None), rules.attributes.client_address)
        keeps = known.keeps(request) if given is None else known.patterns_given(given)
        if self.switch.thrown or not keeps:
            return None
        known.put(similar, pattern)
        return pattern

    def _kept(
        self,
        known: Plans,
        key: Hashable,
        rules: Rules,
        request: Request,
        cost: int = 1,
        *,
        given: Mapping[str, object] | None = None,
    ) -> Plan:
        """Make a plan. It is kept if it was made before, and if the request (or what was `given`) is short enough."""
        absences = rules.attributes.absences
        plan = self._planned(rules, request, cost, None)
        # Do not cache the plan if the switch was turned during the call, or while equal requests are to be noticed.
        if (
            known.seen(key)
            and (known.keeps(request) if given is None else known.keeps_given(given))
            and not self.switch.thrown
            and rules.attributes.absences == absences
        ):
            known.put(key, plan)
        return plan

    def _planned(
        self, rules: Rules, request: Request, cost: int, name: NamedRule | None, *, holding: bool = False
    ) -> Plan:
        charges = rules.plan(request, cost) if name is None else self.by_name(name, rules, request, cost, holding)
        if self.switch.thrown:
            charges = self.switch.apply(charges)
        if rules.holding and not holding and request.context is None and charges is not BLOCKED:
            # A concurrent place is released at the end of a response, and a direct call has no response.
            charges = [charge for charge in charges if not ALGORITHMS[charge.ask.quota.algorithm].in_flight]
        if rules.elastic and charges and charges is not BLOCKED:
            charges = self.meter(rules).stretched(charges)
        # A clock that is moved by hand renews concurrent places in a step of its own.
        direct = not (rules.holding and self._clock)
        return self.plan_of(charges, direct, Verdict if rules.asking is None else ServiceVerdict)

    def plan_of(self, charges: Sequence[Charge], direct: bool = True, verdict: MakeVerdict = Verdict) -> Plan:
        """The plan with these charges. It shares its shape with the plans of other clients.

        `direct` says whether the store may be asked in one step. For `verdict` see `Shape`.
        """
        key: Hashable
        asks: Sequence[Ask]
        if charges is BLOCKED:
            return _BLOCKED
        if len(charges) == 1:
            ((rule, ask),) = charges
            asks = (ask,)
            key = direct, id(rule), id(ask[1]), ask[2], ask[3]  # by identity, because hashing a rule takes long
        elif not charges:
            key, asks = direct, ()
        else:
            rules, asks = zip(*charges)  # noqa: B905  `strict` takes longer
            _, quotas, costs, shadows = zip(*asks)  # noqa: B905
            key = direct, *map(id, rules), *map(id, quotas), costs, shadows
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            shape = self._shapes[key] = Shape(charges, direct=direct, verdict=verdict)
        return Plan(charges, asks, shape)

    def admit(
        self,
        rules: Rules,
        request: Request,
        cost: int = 1,
        name: NamedRule | None = None,
        *,
        commit: bool = True,
        holding: bool = False,
    ) -> Plan:
        """The plan of a request, or a `Refusal` if it is shed.

        `commit` says whether the shedder counts the request, and `holding` that its concurrent places are released
        later, as those of a block of code.
        """
        if rules.shedding:
            shed = self.shedder.shed(rules, request, name, commit=commit)
            if shed is not None:
                return Refusal(shed)
        if holding:
            return self._planned(rules, request, whole(cost), name, holding=True)
        return self.plan(rules, request, cost, name)

    def plan_given(
        self, rules: Rules, given: Arguments, cost: int = 1, name: NamedRule | None = None, *, commit: bool = True
    ) -> Plan:
        """The plan for the arguments of `check()`, cached if it depends on these arguments alone."""
        known = rules.plans if name is None else None
        if known is None or self.switch.thrown or type(given) is not dict or type(cost) is not int:
            return self.admit(rules, self.request_of(rules, given), cost, name, commit=commit)
        read, find = known.read_of(given), known.get
        key = cost, *read, *read.values()
        try:
            plan: Plan | None = find(key)
        except TypeError:  # an unhashable value
            return self.plan(rules, self.request_of(rules, given), cost)
        address = "remote_address" if "remote_address" in given else "ip"
        if plan is None and known.patterned and type(given.get(address)) is str:
            unknown = {**read, address: _BLANK}
            similar = ((cost, *unknown, *unknown.values()),)  # no other key is a tuple of one tuple
            pattern: Pattern | None = find(similar)
            if pattern is None and known.seen(similar):
                request = self.request_of(rules, unknown)
                pattern = self._pattern(known, similar, rules, request, whole(cost), given=unknown)
            plan = _patterned(known, key, pattern, given[address])
        if plan is None:
            plan = self._kept(known, key, rules, self.request_of(rules, given), whole(cost), given=given)
        return plan

    def request_of(self, rules: Rules, given: Arguments) -> Request:
        """The request with the attributes in `given`. Their names count as used."""
        request = rules.attributes.request_of(given)
        custom = rules.attributes.custom
        if custom and isinstance(given, Mapping):
            self.names.attributes.update(custom.intersection(given))
        return request

    def meter(self, rules: Rules) -> Meter:
        """The meter of this process's load, with the settings of `rules`.

        A load that a function reports is timed by the user's clock. A measured load always uses real time.
        """
        meter = self._meter
        if meter is None or (meter.settings is not rules.load and meter.settings != rules.load):
            clock = self._clock
            now = time.monotonic if clock is None or rules.load.source is None else lambda: clock.now() / SECOND
            meter = self._meter = Meter(rules.load, now)
        return meter

    def by_name(
        self, asked: NamedRule, rules: Rules, request: Request, cost: int, holding: bool = False
    ) -> Sequence[Charge]:
        """The charges of one rule. Raises LookupError for an unknown name, and ValueError for an unusable limit.

        `holding` says that concurrent places are released later, as those of a block of code.

        While the rules are still to be read from their database, a rule has no charges, and this is logged.
        """
        charges = rules.plan_rule(asked, request, cost)
        name = asked.name
        if charges is None:
            if rules.source is None:
                raise LookupError(str(unknown_rule(name, rule_names(rules))))
            self._once(
                logger.error,
                "the app asks for the rule %r, but the rules could not be read yet: the request is not limited "
                "(logged once)",
                name,
            )
            return ()
        if name not in self.names.inline and rules.asking is None:
            self.names.rules.add(name)
        ends = holding or request.context is not None
        if rules.settling and any(_settled_late(charge, ends) for charge in charges):
            self._once(
                logger.error,
                "the app asks for the rule %r, which depends on the response, but a rule asked for by name is charged "
                "at once. Give it a match, so that the middleware applies it. A concurrent rule does not apply to "
                "check(): put the code into a block, with limiter.limited(…) (logged once)",
                name,
                about=name,
            )
        return charges


def _patterned(known: Plans, key: Hashable, pattern: Pattern | None, address: str | None) -> Plan | None:
    """Make a plan from the pattern of similar requests. None without a pattern, or if `address` is no address."""
    plan = None if pattern is None else pattern.plan(address)
    if plan is not None and known.seen(key):
        known.put(key, plan)
    return plan


def _settled_late(charge: Charge, ends: bool) -> bool:
    """Whether the charge depends on a response. `ends` says that a concurrent place has an end."""
    rule, ask = charge
    in_flight = ALGORITHMS[ask.quota.algorithm].in_flight and not ends
    return rule.counts is not None or rule.cost_after is not None or in_flight
