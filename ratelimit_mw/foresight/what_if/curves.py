"""Makes the what-if curves of a replay from the requests that it kept. This module needs numpy.

The curve of a limit that decides by itself is calculated. If its decisions are coupled, the engine decides again at
eight limits. Most requests need no further decision: if a counter stays within its limit even when each of its requests
is charged, it denies nothing, whatever the others decide. Only requests with another counter are decided.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.decision.planning import Plan
from ratelimit_mw.errors import quoted
from ratelimit_mw.foresight.clients import MOST_NAMED, Client, client_of, fair
from ratelimit_mw.foresight.results import Curve, RuleResult, RulesOutcome
from ratelimit_mw.foresight.simulation import Simulation, identity_of
from ratelimit_mw.foresight.what_if import Recording, Series, Subject, candidates, replayed_candidates
from ratelimit_mw.foresight.what_if.columns import Asked, Columns
from ratelimit_mw.foresight.what_if.exact import (
    Bools,
    Decided,
    Ints,
    Way,
    WindowTooLong,
    busiest_windows,
    decide_all,
    distribution,
    may_deny,
)
from ratelimit_mw.model import Charge, Quota, Row

_COUPLED = "its decisions depend on more than its own counter"
"""Why a curve is replayed: another rule, another limit of the rule, its tiers, costs, bans or responses decide, too."""

_LISTED = 5
"""The most rules without a curve that a sentence names."""

_REPLAYED = 2
"""How many of the rules whose decisions are coupled are replayed, and how many limits of each, without being asked."""


def find_curves(
    recording: Recording,
    subjects: Sequence[Subject],
    outcome: RulesOutcome,
    simulation: Callable[[], Simulation],
    *,
    every: bool,
) -> tuple[list[Curve], list[str]]:
    """Return the curves of limits, in their order, and why there are no others, as sentences.

    Args:
        recording: The requests of the replay.
        subjects: The limits, in the order of the files.
        outcome: What the rules did.
        simulation: Returns a new simulation of the rules, for a replay at another limit.
        every: Replay every limit whose decisions are coupled. Otherwise, only some of the rules that deny most.
    """
    if recording.too_many:
        return [], [recording.too_many]
    makers = _Makers(recording, outcome, simulation)
    found: dict[int, Curve] = {}
    coupled: dict[int, str] = {}
    for number, subject in enumerate(subjects):
        if (subject.place, subject.quota) in makers.series:
            curve = makers.exact(subject)
            if isinstance(curve, str):
                coupled[number] = curve
            else:
                found[number] = curve
    usable = [number for number, why in coupled.items() if why != _DROPPED]
    for number in usable if every else _denying_most(usable, subjects, outcome.rules):
        found[number] = makers.replayed(subjects[number], coupled.pop(number))
    without = {subjects[number].rule.name: why for number, why in coupled.items()}
    return [found[number] for number in sorted(found)], list(_reasons(without))


def _denying_most(
    numbers: Sequence[int], subjects: Sequence[Subject], results: Mapping[int, RuleResult]
) -> Iterator[int]:
    """Yield the first limits of the rules that deny most."""
    by_rule: dict[int, list[int]] = {}
    for number in numbers:
        by_rule.setdefault(subjects[number].place, []).append(number)
    for place in sorted(by_rule, key=lambda place: -results[place].denied)[:_REPLAYED]:
        yield from by_rule[place][:_REPLAYED]


def _reasons(coupled: Mapping[str, str]) -> Iterator[str]:
    if coupled:
        named = [f"{quoted(name)} ({why})" for name, why in list(coupled.items())[:_LISTED]]
        if len(coupled) > _LISTED:
            named.append(f"{len(coupled) - _LISTED:,} more")
        text = f"{', '.join(named[:-1])} and {named[-1]}" if len(named) > 1 else named[0]
        yield f"no what-if for {text}: `--rule NAME` replays the log at eight limits of a rule"


_DROPPED = "its counters did not fit into memory"
"""The replay itself has dropped some counters, so no further decision would be like those in force."""

Points = Mapping[int, tuple[int, int]]
"""The denied requests and the limited clients at each limit."""


class _Clients(Asked):
    """The clients that asked a series, with their busiest windows."""

    def __init__(self, columns: Columns, series: Series) -> None:
        super().__init__(columns, series)
        self.peaks: Ints = np.zeros(len(self.requests), np.int64)
        try:
            for arrivals, part in self.arrivals():
                np.maximum.at(self.peaks, self.clients[part], busiest_windows(arrivals, series.quota))
        except WindowTooLong:
            self.peaks[:] = 0
            self.known_peaks: tuple[tuple[int, int], ...] = ()
        else:
            self.known_peaks = distribution(self.peaks)

    def decided(self, way: Way, quotas: Sequence[Quota]) -> Decided:
        """Return what each quota denies. See `decide_all`."""
        found: list[Decided] = []
        for arrivals, part in self.arrivals():
            clients = self.clients[part]
            found.append(decide_all(way, arrivals, clients - clients[0], quotas))
        denied, limited, last = zip(*found, strict=True)
        return Decided(np.sum(denied, axis=0), np.sum(limited, axis=0), np.concatenate(last))


class _Makers:
    """Makes the curves of single limits.

    Args:
        recording: The requests of the replay.
        outcome: What the rules did.
        simulation: Returns a new simulation of the rules.

    Attributes:
        series: The series of the limits that a request asked, by the place of the rule and the quota.
    """

    def __init__(self, recording: Recording, outcome: RulesOutcome, simulation: Callable[[], Simulation]) -> None:
        self._recording, self._outcome, self._simulation = recording, outcome, simulation
        self._columns = Columns(recording)
        self.series = {each[:2]: each for each in reversed(recording.series)}
        self._grouped = any(rule.quota_group for rule in self._recording.rules)
        """Whether a counter may admit what another one denies."""
        self._lasts: dict[tuple[Series, Sequence[Quota]], Ints | None] = {}

    def exact(self, subject: Subject) -> Curve | str:
        """Return the curve by arithmetic, or why there is none."""
        coupled = subject.coupled or subject.place in self._recording.coupled
        if coupled or self._columns.limits(subject.place) > 1:
            return _COUPLED
        way = ALGORITHMS[subject.quota.algorithm].at_all_limits
        if way is None:
            return f"{subject.quota.algorithm} does not say how it decides at all limits at once"
        asked = _Clients(self._columns, self.series[subject.place, subject.quota])
        if not asked.known_peaks:
            return "its window is too long"
        try:
            quotas = dict(subject.quotas(candidates(subject.limit, asked.known_peaks)))
            decided = asked.decided(way, list(quotas.values()))
        except WindowTooLong:
            return "its window is too long"
        points = dict(zip(quotas, zip(decided.denied.tolist(), decided.clients.tolist(), strict=True), strict=True))
        if points[subject.limit][0] != self._outcome.rules[subject.place].denied:
            return _DROPPED
        return self._curve(subject, points, asked, decided.last)

    def replayed(self, subject: Subject, why: str) -> Curve:
        """Return the curve by further decisions of the engine."""
        place = subject.place
        result = self._outcome.rules[place]
        asked = _Clients(self._columns, self.series[subject.place, subject.quota])
        limited = {subject.limit: {identity for rule, identity in self._outcome.clients if rule == place}}
        points = {subject.limit: (result.denied, result.clients)}
        quotas = dict(subject.quotas(replayed_candidates(subject.limit)))
        for limit, doubtful in zip(quotas, self._doubtful(subject, list(quotas.values())), strict=True):
            # If the rule denies nothing at a limit, all decisions are the same at the higher ones.
            free = any(not denied and lower < limit for lower, (denied, _) in points.items())
            if free and not self._grouped:
                points[limit], limited[limit] = (0, 0), set()
                continue
            denied, limited[limit] = self._decide_again(subject, quotas[limit], doubtful)
            points[limit] = denied, len(limited[limit])
        points = dict(sorted(points.items()))
        last = np.full(len(asked.requests), -1, np.int64)
        identities = [identity_of(self._columns.keys[number]) for number in asked.counters.tolist()]
        for index, limit in enumerate(points):
            hit = np.array([identity in limited[limit] for identity in identities])
            last[asked.clients[hit]] = index
        return self._curve(subject, points, asked, last, why)

    def _curve(self, subject: Subject, points: Points, asked: _Clients, last: Ints, why: str = "") -> Curve:
        denied, limited = zip(*points.values(), strict=True)
        return Curve(
            rule=subject.rule.name,
            shadow=subject.rule.shadow,
            quota=subject.spelled,
            algorithm=subject.quota.algorithm,
            why_replayed=why,
            limit=subject.limit,
            limits=tuple(points),
            denied=denied,
            clients=limited,
            requests=self._outcome.rules[subject.place].asked,
            all_clients=self._columns.clients(subject.place),
            peaks=asked.known_peaks,
            hit=self._hit(asked, last),
        )

    def _hit(self, asked: _Clients, last: Ints) -> tuple[Client, ...]:
        """Return the clients that the limits hit, those that the highest limits hit first, and of these the busiest."""
        hit = np.flatnonzero(last >= 0)
        order = hit[np.lexsort((hit, -asked.peaks[hit], -last[hit]))].tolist()
        chosen = fair(order, lambda client: int(last[client]), MOST_NAMED)
        found: list[Client] = []
        for client, facts in zip(chosen, self._columns.facts(asked, chosen), strict=True):
            counter = int(asked.counters[np.searchsorted(asked.clients, client)])  # its first one
            name = self._recording.names.get(counter)
            name = name or self._recording.named(identity_of(self._columns.keys[counter]), None)
            client_hit = client_of(name, int(last[client]), int(asked.peaks[client]), facts, self._columns.having)
            found.append(client_hit._replace(requests=int(asked.requests[client])))
        return tuple(found)

    def _doubtful(self, subject: Subject, quotas: Sequence[Quota]) -> Iterator[Bools]:
        """Yield, for each of these quotas of a limit, which counters may deny a request."""
        columns = self._columns
        highest = np.full(len(columns.keys), -1, np.int64)  # the index of the highest quota at which a counter may deny
        for series in columns.series:
            own = series[:2] == (subject.place, subject.quota)
            asked = series, tuple(quotas) if own else (series.quota,)
            if asked not in self._lasts:
                self._lasts[asked] = self._last(*asked)
            last = self._lasts[asked]
            always = len(quotas) if last is None else np.where(last >= 0, last if own else len(quotas), -1)
            highest[columns.series_of == columns.series[series]] = always
        for plan in self._recording.unusual:
            highest[columns.members[columns.places_of(plan)]] = len(quotas)
        for index in range(len(quotas)):
            yield highest >= index

    def _last(self, series: Series, quotas: Sequence[Quota]) -> Ints | None:
        """Return the index of the last of these quotas at which each counter of a series may deny, or -1.

        A counter denies nothing if it does not when each of its requests is charged: fewer charges never deny more.
        None if this is not known: the charges come later, or end.
        """
        rule, quota = self._recording.rules[series.rule], series.quota
        algorithm = ALGORITHMS[quota.algorithm]
        if rule.cost_after is not None or rule.counts is not None or quota.overdraft or algorithm.in_flight:
            return None
        if algorithm.at_all_limits is None:
            return None
        asked = Asked(self._columns, series)
        last = np.empty(len(asked.counters), np.int64)
        try:
            for arrivals, part in asked.arrivals(charging_all=True):
                last[part] = may_deny(algorithm.at_all_limits, arrivals, quotas)
        except WindowTooLong:
            return None
        return last[np.argsort(asked.counters)]  # in the order of their numbers

    def _decide_again(self, subject: Subject, quota: Quota, doubtful: Bools) -> tuple[int, set[str]]:
        """Decide again on all requests with a doubtful counter, where a limit has another quota.

        Returns:
            The number of requests that the rule denies, and the identities of the clients that it limits.
        """
        recording, columns, rule = self._recording, self._columns, subject.rule
        whole = self._grouped
        shadows = np.array([series.shadow and series.rule != subject.place for series in recording.series])
        used = doubtful if whole else doubtful & ~shadows[columns.series_of]
        of_rule = np.array([series.rule == subject.place for series in recording.series])
        asking = columns.asking(used, used & of_rule[columns.series_of])
        askers = np.bincount(columns.members[used[columns.members]], minlength=len(used))

        def replaced(number: int, charge: Charge) -> Charge | None:
            if not (whole or used[number]):
                return None
            if charge.rule is rule and charge.ask.quota == subject.quota:
                return charge._replace(ask=charge.ask._replace(quota=quota))
            return charge

        simulation = self._simulation()
        made: dict[int, tuple[Plan, Sequence[int], _RepeatedDenial]] = {}
        denied, limited = 0, set[str]()
        try:
            for at, number, status, lasted in columns.decidable(asking):
                known = made.get(number)
                if known is None:
                    charges = columns.charges_of(number, replaced)
                    places = [place for place, charge in enumerate(charges) if charge.rule is rule]
                    asked = columns.members[columns.places_of(number)]
                    alone = bool((askers[asked[used[asked]]] == 1).all())
                    repeated = _RepeatedDenial(charges, places, alone=alone, never=whole or rule.shadow)
                    known = made[number] = simulation.plan_of(charges), places, repeated
                plan, own, repeated = known
                if at < repeated.until:
                    denied += repeated.denying
                    continue
                reply = simulation.taken(at, plan)
                if reply is None:
                    verdict = simulation.decide(at, status, lasted, plan)
                    outcomes: Sequence[Row] = () if rule.quota_group and verdict.allowed else verdict.outcomes
                else:
                    outcomes = reply[1]
                    repeated.note(at, outcomes)
                if outcomes:
                    for place in own:
                        if not outcomes[place][0]:
                            denied += 1
                            limited.add(identity_of(plan.charges[place].ask.key))
                            break  # several counters of the rule deny one request
        finally:
            simulation.close()
        return denied, limited


class _RepeatedDenial:
    """Until when the engine decides the same on the requests of a plan: most denials charge nothing.

    Args:
        charges: What the plan asks.
        own: The places of the rule in them.
        alone: Whether no other plan asks its counters. Otherwise, only a denial by the rule itself is sure to last.
        never: Whether a denied request may be charged.

    Attributes:
        until: The time from which on the engine decides again.
        denying: Whether the rule denies the requests until then.
    """

    __slots__ = ("_alone", "_never", "_own", "denying", "until")

    def __init__(self, charges: Sequence[Charge], own: Sequence[int], *, alone: bool, never: bool) -> None:
        quotas = [ask.quota for _, ask in charges]
        self._never = never or any(each.penalty or each.overdraft or each.refundable for each in quotas)
        self._own, self._alone = own, alone
        self.until, self.denying = 0, False

    def note(self, at: int, outcomes: Sequence[Row]) -> None:
        """Note what the engine has decided at a time."""
        waits = [row[3] for row in outcomes if not row[0]]
        if waits and not self._never:
            self.denying = any(not outcomes[place][0] for place in self._own)
            if self._alone:
                self.until = at + min(waits)
            elif self.denying:
                self.until = at + outcomes[self._own[0]][3]
