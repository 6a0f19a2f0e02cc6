"""The values that travel between the parts: what is asked of a store, and what it says.

The values that are made for each request are named tuples: a frozen dataclass takes three times as long
to make, and these stand on the hot path. `tuple.__new__`, given all of the fields, makes one in a third of the
time that its own name takes: the hottest places write it so. Times are whole microseconds; a time of day counts
from the epoch.

Apps import `Decision` from `ratelimit_mw`. Stores of an app's own use `Ask`, `Quota`, `Outcome` and
`Reply`. All other names of this module are internal.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

NEVER = -1
"""The `retry_after` of a request that no waiting will ever admit."""

SECOND = 1_000_000
"""Microseconds in a second."""


@dataclass(frozen=True, slots=True)
class Quota:
    """What one counter holds a client to: `limit` per `period`, as `algorithm` counts it.

    `period` is in microseconds. `burst` is what a bucket holds (the window algorithms ignore it), and
    `buckets` the number of slices of a `bucketed_window`. Both are settled when the rules are compiled.
    `refundable` says that what was taken may come back by itself, before its time, so that no denial is certain.
    `consistency` says how the store keeps count (`strict`, `lease` or `write_back`), and `shards` over how many
    keys the counter is spread. `max_wait` (microseconds) is how long a request may wait for its turn at a bucket,
    instead of being denied. `ban` is what many denials by it bring.

    `spare` is the part of the limit (of a bucket: of the burst) that lies above what clients are told, and `over`
    what an admission from it is called. `elastic` is there where more or less of it is open by the load.
    """

    algorithm: str
    limit: int
    period: int
    burst: int = 0
    buckets: int = 60
    consistency: str = "strict"
    shards: int = 1
    max_wait: int = 0
    refundable: bool = False
    spare: int = 0
    over: Literal["soft", "elastic"] | None = None
    elastic: "Elastic | None" = field(default=None, compare=False, repr=False)
    ban: "Ban | None" = None
    shown_limit: int = field(init=False, compare=False, repr=False)
    """The limit that clients are told. A bucket's limit is its rate, which no throttle raises."""

    def __post_init__(self) -> None:
        # Computed once, because each response needs it.
        object.__setattr__(self, "shown_limit", self.limit if self.burst else self.limit - self.spare)


@dataclass(frozen=True, slots=True)
class Elastic:
    """What an elastic quota may become while the load is below `below`: `quotas`, from the smallest on."""

    below: float
    quotas: tuple[Quota, ...]


@dataclass(frozen=True, slots=True)
class Ban:
    """`after` denials `within` a time bring a ban that `lasts` (0: none ever do); all times are in microseconds.

    A ban that begins less than `longest` after the end of the one before lasts `growth` times as long, up to
    `longest`. `prefix` is the key of its state, up to and with the opening brace.
    """

    prefix: str
    after: int
    within: int
    lasts: int
    longest: int
    growth: int = 1


class Ask(NamedTuple):
    """One counter that a request asks: may it take `cost` from `quota` under `key`?

    A `shadow` ask neither denies the request nor is charged for what it would have denied.
    """

    key: str
    quota: Quota
    cost: int = 1
    shadow: bool = False


class Outcome(NamedTuple):
    """What one counter said: `remaining` after the decision, the rest in microseconds.

    `reset_after`: until the counter is as if unused. `retry_after`: 0 when allowed, `NEVER` when no
    waiting helps, else the earliest moment at which the same cost is admitted. `delay`: how long an
    admitted request has to wait for its turn.
    """

    allowed: bool
    remaining: int
    reset_after: int
    retry_after: int = 0
    delay: int = 0


class Banned(Outcome):
    """What a counter says to a client who is banned: it is the ban that denies, whatever the counter would."""

    __slots__ = ()


class Reply(NamedTuple):
    """A store's answer to one request: its clock, and one outcome for each ask, in order.

    A denial that was certain beforehand speaks of the ask at the place `only`, and has that outcome alone.
    """

    now: int
    outcomes: Sequence[Outcome]
    only: int | None = None

    def admits(self, asks: Sequence[Ask]) -> bool:
        """True where no enforced ask was denied, and so where the request was charged."""
        if self.only is not None:
            return False
        return all(outcome.allowed or ask.shadow for ask, outcome in zip(asks, self.outcomes, strict=True))


Priority = Literal["low", "normal", "critical"]
"""How important a request is, in ascending order: as load rises, low ones are shed first."""

CostAfter = Callable[[Callable[[str], str | None]], int]
"""From what reads a response's headers, by their names in lower case, to the cost of the request."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What is left to know of a rule once its counters are asked: how to name it and what its denial means.

    Rules with the same `quota_group` (not empty) deny a request only together, when each of those asked does. Where
    there are several, they are asked as shadows are, for none of them denies by itself. `max_waiting` is how many
    threads of a process may be waiting for a turn when a request is to wait for one of this rule's. `priority` is that
    of the requests that it applies to, None where it says nothing of that.

    `several` says that the rule has more than one limit. A `hidden` rule is not spoken of in any header; `status` and
    `message` are those of its denials, where they are not the file's.

    What a response means is known afterwards: with `counts`, what a request took stays taken if its status is one of
    these, and with `cost_after` a request takes as much as that finds in the response's headers. What a rule that
    `defers` denies is put off, if it can be.

    With `messages` the rule counts the messages of WebSockets, not requests; it says what becomes of a socket past it.
    """

    name: str
    on_error: str = "allow"
    shadow: bool = False
    quota_group: str = ""
    max_waiting: int = 4
    priority: Priority | None = None
    defers: bool = False
    several: bool = False
    hidden: bool = False
    status: int | None = None
    message: str | None = None
    counts: frozenset[int] | None = None
    messages: Literal["close", "drop"] | None = None
    cost_after: "CostAfter | None" = field(default=None, compare=False, repr=False)


class Charge(NamedTuple):
    """One ask, and the rule on whose behalf it is made."""

    rule: Rule
    ask: Ask


class Decision(NamedTuple):
    """The decision on one request. All times are in seconds, as floats.

    If no rule applies, or if the store is unavailable, `rule`, `limit` and `remaining` are None.

    Attributes:
        allowed: True if the request may pass.
        rule: The name of the rule that binds most, or of the rule that denies.
        limit: The limit of its counter.
        remaining: How much of the limit is left after this request.
        reset_after: The seconds until the counter is as if unused.
        retry_after: The seconds after which the same request is admitted. 0.0 if it is allowed, `inf` if it can never
            pass.
        delay: The seconds that an admitted request has to wait for its turn.
        reset_at: The epoch second at which the counter is as if unused, by the clock of the store.
        over: "soft" or "elastic" if the request is admitted above its limit.
        policies: One Decision for each counter that was asked.
        banned: True if the client is banned.
        reason: Why the request is denied: "limited", "banned", "blocked" (by an override), "shed" (the process is
            overloaded) or "unavailable" (the store is). None if it is allowed.
    """

    allowed: bool
    rule: str | None = None
    limit: int | None = None
    remaining: int | None = None
    reset_after: float = 0.0
    retry_after: float = 0.0
    delay: float = 0.0
    reset_at: float = 0.0
    over: str | None = None
    policies: tuple["Decision", ...] = ()
    banned: bool = False
    reason: str | None = None
