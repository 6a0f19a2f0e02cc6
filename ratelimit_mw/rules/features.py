"""What rules make use of: whoever serves a request looks here first, and what is not used costs nothing."""

from collections.abc import Iterable

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.rules.compiled import CompiledRule


class Features:
    """What some of `rules` make use of."""

    def __init__(self, rules: Iterable[CompiledRule]) -> None:
        rules = tuple(rules)
        quotas = [quota for rule in rules for quota in rule.quotas]
        self.elastic = any(quota.elastic for quota in quotas)
        """Whether some limit goes by the load."""
        self.waiting = any(quota.max_wait for quota in quotas)
        """Whether some request may have to wait for its turn."""
        self.settling = any(rule.rule.counts is not None or rule.rule.cost_after for rule in rules) or any(
            ALGORITHMS[quota.algorithm].in_flight for quota in quotas
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
