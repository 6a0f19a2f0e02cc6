"""From a request or its attributes to a plan: the counters to ask, in one store call."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.clock import Clock
from ratelimit_mw.decision.kill_switch import KillSwitch
from ratelimit_mw.decision.load import Meter
from ratelimit_mw.decision.shedding import Shedder
from ratelimit_mw.decision.storage import Shadows
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.identity.request import EntriesRequest, Request
from ratelimit_mw.model import SECOND, Ask, Charge
from ratelimit_mw.rules.compiled import BLOCKED
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.settings import LoadSettings

Arguments = Mapping[str, str] | Sequence[tuple[str, str]]
"""Attributes by their names, or one list of entries."""

_MOST = 10**15
"""A cost beyond this is as good as this one: no limit comes near, and every store can carry it."""


def described(rules: Rules, given: Arguments | Request) -> Request:
    """The request that is described; a request is one already."""
    if isinstance(given, Mapping):
        return rules.attributes.request_from(given)
    return EntriesRequest(given) if isinstance(given, Sequence) else given


def of_domain(rules: Rules, domain: str | None) -> Rules:
    """The rules of one domain, those of a domain that there is not being none; all where none is named."""
    if domain is None:
        return rules
    return rules.of(domain) or RuleSet(
        domain=domain,
        storage=rules.storage,
        client=rules.client,
        response=rules.response,
        attributes=rules.attributes,
        rules=(),
        exempt=(),
    )


def whole(cost: object) -> int:
    """A cost as stores can carry it. Raises ValueError unless it is a whole number from 0 on."""
    if not isinstance(cost, int) or cost < 0:
        raise ValueError(f"cost is {cost!r}: it has to be a whole number from 0 on")
    return min(int(cost), _MOST)


_log = logging.getLogger("ratelimit_mw")

_MOST_SAID = 100  # names remembered as said
_LONG = 512  # characters of what `check` is given: what is longer is remembered nowhere


class Plan:
    """The counters that a request asks, each with its rule; it may serve for many requests that are alike.

    Where there are none, the request is free, or blocked if there are charges all the same: `BLOCKED`.
    """

    __slots__ = ("asks", "charges")

    def __init__(self, charges: Sequence[Charge]) -> None:
        self.charges = charges
        self.asks: Sequence[Ask] = () if charges is BLOCKED else tuple([ask for _, ask in charges])


class Refusal(Plan):
    """The plan of a request that is shed: it asks nothing, and `verdict` is what becomes of it."""

    __slots__ = ("verdict",)

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(())
        self.verdict = verdict


class Planner:
    """Makes the plans of requests. `clock` is there where one was handed in."""

    def __init__(self, shadows: Shadows, clock: Clock | None) -> None:
        self._clock = clock
        self.switch = KillSwitch(clock)
        self.shedder = Shedder(self.meter, self.switch, shadows)
        self._meter: Meter | None = None
        self._said: set[str] = set()

    def plan(self, rules: Rules, request: Request, cost: int = 1, name: str | None = None) -> Plan:
        """What `request` has to ask; with `name`, of that rule alone. Raises ValueError for a bad cost."""
        if type(cost) is not int or cost != 1:
            cost = whole(cost)
        known = rules.plans if name is None and cost == 1 and not self.switch.thrown else None
        key = known.key(request) if known is not None else None
        if known is None or key is None:
            return self._planned(rules, request, cost, name)
        plan: Plan | None = known.get(key)
        if plan is None:
            plan = self._planned(rules, request, cost, name)
            # The switch may have been thrown meanwhile; what is in doubt does not follow from the key alone.
            if not (self.switch.thrown or request.doubtful):
                known.put(key, plan)
        return plan

    def _planned(self, rules: Rules, request: Request, cost: int, name: str | None) -> Plan:
        charges = planned(rules, request, cost) if name is None else self._by_name(name, rules, request, cost)
        if self.switch.thrown:
            charges = self.switch.left(charges)
        if rules.settling and (name is not None or request.context is None) and charges is not BLOCKED:
            # Nothing tells when what was asked for by a call has ended.
            charges = [charge for charge in charges if not ALGORITHMS[charge.ask.quota.algorithm].in_flight]
        if rules.elastic and charges and charges is not BLOCKED:
            charges = self.meter(rules).stretched(charges)
        return Plan(charges)

    def admit(
        self, rules: Rules, request: Request, cost: int = 1, name: str | None = None, *, commit: bool = True
    ) -> Plan:
        """As `plan`, if the request is not shed; with `commit` it takes its turn among those that may be."""
        if rules.shedding and (shed := self.shedder.shed(rules, request, name, commit=commit)) is not None:
            return Refusal(shed)
        return self.plan(rules, request, cost, name)

    def plan_given(self, rules: Rules, given: Arguments, cost: int = 1, *, commit: bool = True) -> Plan:
        """What a request has to ask that is given by its attributes; remembered, where nothing else bears on it."""
        known = rules.plans
        if known is None or self.switch.thrown or type(given) is not dict or type(cost) is not int:
            return self.admit(rules, described(rules, given), cost, commit=commit)
        key = cost, *given.items()
        try:
            plan: Plan | None = known.get(key)
        except TypeError:  # a value that can't be remembered by
            return self.plan(rules, described(rules, given), cost)
        if plan is None:
            plan = self.plan(rules, described(rules, given), cost)
            if _handy(given) and not self.switch.thrown:
                known.put(key, plan)
        return plan

    def meter(self, rules: Rules) -> Meter:
        """What measures the load of this process, as `rules` say."""
        meter = self._meter
        if meter is None or (meter.settings is not rules.load and meter.settings != rules.load):
            meter = self._meter = Meter(rules.load, self._time(rules.load))
        return meter

    def _time(self, load: LoadSettings) -> Callable[[], float]:
        """The time by which a load is asked for: that of a test's clock; what is measured takes real time."""
        clock = self._clock
        return time.monotonic if clock is None or load.source is None else lambda: clock.now() / SECOND

    def _by_name(self, name: str, rules: Rules, request: Request, cost: int) -> Sequence[Charge]:
        """The plan of one rule; of one that there is not, nothing."""
        charges = rules.plan_rule(name, request, cost)
        if charges is None:
            self._say(name, "which there is not: it is not limited")
            return ()
        if rules.settling and any(_settled_late(charge) for charge in charges):
            self._say(name, "which goes by the response: asked for by name it is charged at once, or not at all")
        return charges

    def _say(self, name: str, what: str) -> None:
        if name not in self._said and len(self._said) < _MOST_SAID:
            self._said.add(name)
            _log.error("the app asks for the rule %r, %s (said once)", name, what)


def _handy(given: Mapping[str, object]) -> bool:
    """Whether these attributes are plain texts, as `LRU` wants them, and so short that they can be remembered."""
    room = _LONG
    for name, value in given.items():
        if type(name) is not str or (value is not None and type(value) is not str):
            return False
        room -= len(name) + len(value or "")
    return room >= 0


def _settled_late(charge: Charge) -> bool:
    rule, ask = charge
    return rule.counts is not None or rule.cost_after is not None or ALGORITHMS[ask.quota.algorithm].in_flight


def planned(rules: Rules, request: Request, cost: int) -> Sequence[Charge]:
    """What the rules alone say."""
    if isinstance(request, EntriesRequest):
        return rules.plan_entries(request.entries, cost)
    return rules.plan(request, cost)
