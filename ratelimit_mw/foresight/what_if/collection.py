"""What a replay collects for its what-if curves: the arrivals at all counters, and the replays of one rule.

The curve of a limit that decides by itself is calculated from the arrivals. If its decisions are coupled, further
simulations replay the log at other limits, in the same pass, because standard input cannot be read twice. They take as
long as seven more replays. So this is done for one rule only, which the user names. Collecting needs no numpy.
"""

from array import array
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import NamedTuple

from ratelimit_mw.decision.planning import Plan
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.foresight.logs.entry import LogEntry
from ratelimit_mw.foresight.simulation import Simulation, identity_of
from ratelimit_mw.foresight.what_if.limits import Subject, decides_alone, replayed_candidates, subjects_of
from ratelimit_mw.model import Charge, Quota, Rule
from ratelimit_mw.rules.compiled import BLOCKED
from ratelimit_mw.rules.domains import Rules

NEEDS_NUMPY = "the what-if needs numpy: pip install 'ratelimit_mw[foresight]'"

MOST_ARRIVALS = 10_000_000
"""The most arrivals that are kept, of twelve bytes each."""

MOST_COUNTERS = 1_000_000
"""The most counters whose arrivals are kept."""

_MOST_PLANS = 1 << 15
"""The most charges whose counters are remembered."""

_Plan = tuple[Sequence[Charge], "array[int]", "array[int]"]
"""Charges, and what is appended to `Arrivals.counters` if the request is allowed, and if it is denied."""


class Series(NamedTuple):
    """The counters of one limit: the place of its rule in the order of the files, and its quota."""

    rule: int
    quota: Quota


class Arrivals:
    """The arrivals at all counters, in order of time.

    Args:
        rules: The rules, in the order of the files.

    Attributes:
        times: The time of each arrival, in microseconds since the epoch.
        counters: The number of the counter of each arrival. It is ~number if the arrival was decided, but not charged,
            because another rule denied the request.
        series: The limits whose counters were asked.
        series_of: The number of the series of each counter.
        coupled: The places of the rules whose decisions depended on more than one counter in the log. A rule may also
            be coupled by its own words.
        too_many: Why no arrivals are kept, as a sentence. "" if they are.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.times = array("q")
        self.counters = array("i")
        self.series: list[Series] = []
        self.series_of = array("i")
        self.coupled: set[int] = set()
        self.too_many = ""
        self._places = {id(rule): place for place, rule in enumerate(rules)}
        self._numbers: dict[str, int] = {}
        self._quotas: list[Quota] = []
        self._known: dict[Series, int] = {}
        self._plans: dict[int, _Plan] = {}

    @property
    def keys(self) -> list[str]:
        """The keys of the counters, by their numbers."""
        return list(self._numbers)

    def add(self, at: int, charges: Sequence[Charge], verdict: Verdict) -> None:
        """Add a request that asked these counters at a time. Requests must be in order of time."""
        if self.too_many or not charges:
            return
        known = self._plans.get(id(charges))
        if known is None or known[0] is not charges:
            known = self._plan(charges)
        numbers = known[1] if verdict.allowed else known[2]
        self.counters.extend(numbers)
        if len(numbers) == 1:
            self.times.append(at)
        else:
            self.times.extend((at,) * len(numbers))
        if len(self.times) > MOST_ARRIVALS or len(self._quotas) > MOST_COUNTERS:
            self._stop()

    def _plan(self, charges: Sequence[Charge]) -> _Plan:
        """Return what is appended for these charges, and keep it: most requests of a client have the same charges."""
        allowed, denied = array("i"), array("i")
        enforced, repeated, grouped = 0, False, False
        last = None
        for rule, (key, quota, cost, shadow) in () if charges is BLOCKED else charges:
            place = self._places[id(rule)]
            number = self._numbers.get(key)
            if number is None:
                number = self._numbered(key, Series(place, quota))
            if cost != 1 or (quota is not self._quotas[number] and quota != self._quotas[number]):
                self.coupled.add(place)
            allowed.append(number)
            # A shadow rule is not charged for a request that another rule denies.
            denied.append(~number if shadow else number)
            enforced += not shadow
            repeated |= rule is last
            grouped |= rule.quota_group != ""
            last = rule
        if len(allowed) == 1:
            denied = allowed  # no other rule denies it
        elif enforced > 1 or repeated or grouped:
            self._couple(charges, grouped=grouped)
        if len(self._plans) >= _MOST_PLANS:
            self._plans.clear()
        self._plans[id(charges)] = plan = charges, allowed, denied
        return plan

    def _stop(self) -> None:
        many = len(self.times) > MOST_ARRIVALS
        what = f"more than {MOST_ARRIVALS:,} requests at rules" if many else f"more than {MOST_COUNTERS:,} counters"
        self.too_many = f"there is no what-if: the log has {what}"
        self._clear()

    def _clear(self) -> None:
        """Release what was collected."""
        del self.times[:], self.counters[:], self.series[:], self.series_of[:], self._quotas[:]
        self._numbers.clear()
        self._known.clear()
        self._plans.clear()

    def _couple(self, charges: Sequence[Charge], *, grouped: bool) -> None:
        """Note which rules of a request depend on each other, or ask several counters for it."""
        places = [self._places[id(rule)] for rule, _ in charges]
        deciding = [place for place, (_, ask) in zip(places, charges, strict=True) if grouped or not ask.shadow]
        self.coupled.update(deciding if len(deciding) > 1 else ())
        self.coupled.update(place for place in places if places.count(place) > 1)

    def _numbered(self, key: str, series: Series) -> int:
        """Return the number of a new counter."""
        place = self._known.get(series)
        if place is None:
            place = self._known[series] = len(self.series)
            self.series.append(series)
        number = self._numbers[key] = len(self._numbers)
        self._quotas.append(series.quota)
        self.series_of.append(place)
        return number


class Replay:
    """Replays each request once more with another limit of one rule. All other rules stay as they are.

    Args:
        subject: The limit in force.
        limit: The other number of requests.
        quota: The quota with this number.
        simulation: A new simulation of the rules in force.

    Attributes:
        denied: The requests that the rule denies.
        clients: The identities of the clients that it limits.
    """

    def __init__(self, subject: Subject, limit: int, quota: Quota, simulation: Simulation) -> None:
        self.subject, self.limit = subject, limit
        self.denied = 0
        self.clients: set[str] = set()
        self._quota, self._simulation = quota, simulation
        self.close = simulation.close

    def add(self, entry: LogEntry, charges: Sequence[Charge]) -> None:
        """Decide on a request that asks these counters. Requests must be in order of time."""
        rule, quota = self.subject.rule, self.subject.quota
        if charges is not BLOCKED:
            charges = [
                charge._replace(ask=charge.ask._replace(quota=self._quota))
                if charge.rule is rule and charge.ask.quota == quota
                else charge
                for charge in charges
            ]
        verdict = self._simulation.decide(entry, Plan(charges))  # also of a blocked one: others may end now
        for charge, outcome in zip(verdict.charges, verdict.outcomes, strict=True):
            if charge.rule is rule and not outcome.allowed and (not rule.quota_group or not verdict.allowed):
                self.denied += 1
                self.clients.add(identity_of(charge.ask.key))
                return  # several counters of the rule deny one request


class Collection:
    """Collects what the curves of one set of rules need.

    Args:
        rules: The rules of the replay.
        name: The only rule to make curves of. It is replayed at other limits, unless its curve can be calculated for
            certain. None: all rules, and none is replayed.
        simulation: Returns a new simulation of the rules, for a replay at another limit.

    Attributes:
        arrivals: The arrivals at all counters.
        subjects: The limits to make curves of, in the order of the files.
        replays: The replays of one rule at other limits.
    """

    def __init__(self, rules: Rules, name: str | None, simulation: Callable[[], Simulation]) -> None:
        self.arrivals = Arrivals([rule for part in rules.parts for rule in part.rules])
        self.subjects = [each for each in subjects_of(rules) if name in (None, each.rule.name)]
        replayed = [] if name is None or decides_alone(rules) else self.subjects
        self.replays = [
            Replay(subject, limit, quota, simulation())
            for subject in replayed
            for limit, quota in subject.quotas(replayed_candidates(subject.limit))
        ]

    def add(self, entry: LogEntry, charges: Sequence[Charge], verdict: Verdict) -> None:
        """Add the request of a line, what it asked, and what the rules decided. Requests must be in order of time."""
        self.arrivals.add(entry[0], charges, verdict)
        for replay in self.replays:
            replay.add(entry, charges)

    def close(self) -> None:
        """Release the simulations."""
        for replay in self.replays:
            replay.close()


def collection_of(rules: Rules, name: str | None, simulation: Callable[[], Simulation]) -> Collection | None:
    """Return a new collection. None if numpy is not installed. See `Collection` for the arguments."""
    return Collection(rules, name, simulation) if find_spec("numpy") is not None else None
