"""One rule as it was compiled: whom it matches, whom it counts by, and what it holds them to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ratelimit_mw.identity.identifier import Identifier
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import Quota, Rule
from ratelimit_mw.rules.conditions import Matching

Weigh = Callable[[Request], int]
"""From a request to its cost."""

Counter = tuple[str, Quota]
"""A key up to and with its opening brace, and what it is held to."""

Tiers = Mapping[str | None, tuple[Counter, ...]]
"""The counters of each tier."""


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
    tiers: Tiers | None
    cost: int
    replaces: frozenset[int]
    weigh: Weigh | None = None
    on_demand: bool = False

    @property
    def quotas(self) -> list[Quota]:
        """Everything that anybody is held to."""
        return [quota for counters in (self.counters, *(self.tiers or {}).values()) for _, quota in counters]
