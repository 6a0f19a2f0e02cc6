"""The limits of a configuration that have a what-if curve, and what is known of them before a replay."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.foresight.what_if.limits import replayed_candidates
from ratelimit_mw.foresight.what_if.replays import Variant
from ratelimit_mw.model import Quota, Rule
from ratelimit_mw.rules.compiled import CompiledRule
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.ruleset import RuleSet
from ratelimit_mw.units import spell_period


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One limit of one rule: that of clients without a tier, and of tiers that have the same limit.

    Attributes:
        rule: The rule.
        place: The place of the rule in the order of the files.
        quota: The quota in force.
        coupled: Why the decisions depend on more than the counter itself, as far as the rule tells it: a phrase, or "".
        with_number: Returns the quota with another number of requests. Raises ValueError if the rule cannot have it.
    """

    rule: Rule
    place: int
    quota: Quota
    coupled: str
    with_number: Callable[[int], Quota]

    @property
    def limit(self) -> int:
        """The number of requests."""
        return self.quota.shown_limit

    @property
    def spelled(self) -> str:
        """The limit as a person writes it."""
        in_flight = ALGORITHMS[self.quota.algorithm].in_flight
        return f"{self.limit} concurrent" if in_flight else f"{self.limit} per {spell_period(self.quota.period)}"

    def variants(self) -> Iterator[Variant]:
        """Return the limits at which the engine may replay a log, without the limit in force."""
        for limit in replayed_candidates(self.limit):
            try:
                yield Variant(self.rule, self.place, limit, self.quota, self.with_number(limit))
            except ValueError:
                continue  # the rule cannot have this limit


def subjects_of(rules: Rules) -> list[Subject]:
    """Return the limits of all rules, in the order of the files, except those that a function of the app returns.

    The burst of a bucket stays as it is if the file sets it. Otherwise it is the number of the limit.
    """
    found: list[Subject] = []
    place = 0
    for part in rules.parts:
        for compiled in part.compiled:
            found += _of_rule(part, compiled, place)
            place += 1
        for limit in part.descriptors.limits if part.descriptors is not None else ():
            quota = limit.quota
            if quota is not None:
                coupled = _coupled(limit.rule, quota)
                number = partial(_of_descriptor, quota)
                found.append(Subject(rule=limit.rule, place=place, quota=quota, coupled=coupled, with_number=number))
            place += 1
    return found


def decides_alone(rules: Rules) -> bool:
    """Return True if it is certain before a replay that the only rule has one counter, which decides by itself."""
    (first, *others) = rules.parts
    if others or first.descriptors is not None or len(first.compiled) != 1 or first.overrides is not None:
        return False
    (rule,) = first.compiled
    varies = rule.tiers is not None or rule.read_limit is not None or rule.read_cost is not None or rule.cost != 1
    return not varies and len(rule.by) == len(rule.limits) == 1 and not _coupled(rule.rule, rule.limits[0])


def _of_rule(part: RuleSet, compiled: CompiledRule, place: int) -> Iterator[Subject]:
    recompiler = part.recompiler
    if recompiler is None or compiled.read_limit is not None:
        return
    for index, quota in enumerate(compiled.limits):
        number = partial(recompiler.with_number, compiled.rule.name, index)
        coupled = _coupled(compiled.rule, quota)
        yield Subject(rule=compiled.rule, place=place, quota=quota, coupled=coupled, with_number=number)


def _of_descriptor(quota: Quota, number: int) -> Quota:
    """Return the quota of a descriptor with another number. A burst that is equal to the number follows it."""
    largest = ALGORITHMS[quota.algorithm].largest
    if largest is not None and number > largest.limit:
        raise ValueError(f"at most {largest.limit}")
    burst = number if quota.burst == quota.limit else quota.burst
    wait = burst * -(-quota.period // number) if ALGORITHMS[quota.algorithm].queue and number else 0
    return replace(quota, limit=number, burst=burst, max_wait=wait)


def _coupled(rule: Rule, quota: Quota) -> str:
    if rule.cost_after is not None or quota.overdraft:
        return "its cost is known after the response"
    if rule.counts is not None:
        return "the status decides what it counts"
    if quota.ban is not None:
        return "it bans"
    if ALGORITHMS[quota.algorithm].in_flight:
        return "it counts requests in flight"
    return ""
