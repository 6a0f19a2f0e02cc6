"""The what-if of a rule whose decisions are coupled: further simulations replay the log, each with another limit."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ratelimit_mw.decision.planning import Plan
from ratelimit_mw.foresight.logs.entry import Entry
from ratelimit_mw.foresight.simulation import Simulation
from ratelimit_mw.model import Charge, Quota, Rule
from ratelimit_mw.rules.compiled import BLOCKED


class Variant(NamedTuple):
    """One other limit of one rule.

    Attributes:
        rule: The rule.
        place: The place of the rule in the order of the files.
        limit: The other number of requests.
        quota: The quota in force, which other limits of the rule do not have.
        other: The quota with the other number.
    """

    rule: Rule
    place: int
    limit: int
    quota: Quota
    other: Quota


class Count:
    """What a variant denies.

    Attributes:
        denied: The requests that the rule denies.
        clients: The identities of the clients that it limits.
    """

    def __init__(self) -> None:
        self.denied = 0
        self.clients: set[str] = set()


class Replays:
    """Replays each request once more for each variant. All other rules stay as they are.

    Args:
        variants: The variants.
        simulation: Returns a new simulation of the rules in force.

    Attributes:
        counts: What each variant denies, in their order.
    """

    def __init__(self, variants: Iterable[Variant], simulation: Callable[[], Simulation]) -> None:
        self.variants = list(variants)
        self.counts = [Count() for _ in self.variants]
        self._simulations = [simulation() for _ in self.variants]

    def close(self) -> None:
        """Release the simulations."""
        for each in self._simulations:
            each.close()

    def add(self, entry: Entry, charges: Sequence[Charge]) -> None:
        """Decide on a request that asks these counters, by each variant. Requests must be in order of time."""
        for variant, simulation, count in zip(self.variants, self._simulations, self.counts, strict=True):
            _decide(variant, simulation, count, entry, charges)


def _decide(variant: Variant, simulation: Simulation, count: Count, entry: Entry, charges: Sequence[Charge]) -> None:
    rule, _, _, quota, other = variant
    if charges is BLOCKED:
        simulation.decide(entry, Plan(charges))  # requests in flight may end now
        return
    changed = [
        charge._replace(ask=charge.ask._replace(quota=other))
        if charge.rule is rule and charge.ask.quota == quota
        else charge
        for charge in charges
    ]
    verdict = simulation.decide(entry, Plan(changed))
    for charge, outcome in zip(verdict.charges, verdict.outcomes, strict=True):
        if charge.rule is rule and not outcome.allowed and (not rule.quota_group or not verdict.allowed):
            count.denied += 1
            key = charge.ask.key
            count.clients.add(key[key.index("{") + 1 : -1])
            return  # several counters of the rule deny one request
