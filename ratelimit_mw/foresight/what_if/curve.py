"""The what-if curve of one limit, as a value. Reading it needs no numpy."""

from typing import Literal, NamedTuple

Method = Literal["exact", "replayed"]
"""How a curve was made.

* `exact`: by arithmetic over the arrivals, for all limits at once. The result equals the engine's.
* `replayed`: the engine replayed the log at each limit, because the decisions depend on more than this counter.
"""


class Curve(NamedTuple):
    """What one limit of one rule would deny if it were another number. Everything else stays as it is.

    `limits`, `denied` and `clients` have the same length: at the limit `limits[n]`, the rule denies `denied[n]`
    requests of `clients[n]` clients. A shadow rule denies nothing; its numbers are what it would deny.

    Attributes:
        rule: The name of the rule.
        shadow: True if the rule is a shadow rule.
        quota: The limit in force as a person writes it, "60 per minute".
        algorithm: The name of the algorithm.
        method: How the curve was made.
        why_replayed: Why it was replayed, as a phrase ("it bans"). "" for an exact curve.
        limit: The limit in force: the number of requests per period.
        limits: The limits, ascending. `limit` is one of them.
        denied: How many requests the rule denies at each limit.
        clients: How many clients have at least one denied request at each limit.
        requests: The requests that the rule was asked.
        all_clients: The clients that it was asked for: the different identities that it counts.
        peaks: How many clients have how many requests in their busiest window, as (requests, clients), ascending by
            requests. For a fixed window, windows are those of the rule. Otherwise a window is any span of one period.
            If there are very many different numbers, neighbours are joined under the greatest of them. Empty if the
            window is too long for the arithmetic.
    """

    rule: str
    shadow: bool
    quota: str
    algorithm: str
    method: Method
    why_replayed: str
    limit: int
    limits: tuple[int, ...]
    denied: tuple[int, ...]
    clients: tuple[int, ...]
    requests: int
    all_clients: int
    peaks: tuple[tuple[int, int], ...]

    @property
    def in_force(self) -> int:
        """The index of the limit in force in `limits`."""
        return self.limits.index(self.limit)
