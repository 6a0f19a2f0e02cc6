"""The values that the parts of the package exchange: what a store is asked, and what it answers.

Times are whole microseconds. A time of day counts from the epoch.

The values that each request creates are named tuples, because a frozen dataclass takes three times as long to create.
The hottest code creates them with `tuple.__new__` and all fields, which takes a third of the time of a normal call.

Apps import `Decision` from `ratelimit_mw`. Custom stores use `Ask`, `Quota`, `Outcome` and `Reply`. All other names of
this module are internal.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self

NEVER = -1
"""The `retry_after` of a request that can never be admitted. As the end of an override: it does not end."""

SECOND = 1_000_000
"""Microseconds in a second."""

OVERDRAFT = "+overdraft"
"""Ends the name of the function that decides for quotas with an `overdraft`."""


SENT = "(sent)"
"""The name under which the limits that requests bring along are counted, because their own names are the clients'."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The limit of one counter, and how it is counted.

    Attributes:
        algorithm: The name of the algorithm.
        limit: The number of requests per period. It includes `spare`, except for a bucket, whose `burst` includes it.
        period: The period in microseconds.
        burst: The size of a bucket. 0 for algorithms without buckets.
        buckets: The number of slices of a `bucketed_window`. Other algorithms ignore it.
        consistency: Where the counter is decided: `strict`, `lease` or `write_back`.
        shards: The number of keys over which the counter is spread.
        longest_wait: How long a request may wait for its turn instead of being denied, in microseconds.
        refundable: True if charges may be refunded before the period ends. A denial is then never certain to last.
        spare: The part of the limit (for a bucket, of the burst) above the limit that clients are shown.
        over: The `Decision.over` of a request that is admitted from `spare`.
        elastic: The quotas for different loads, if `spare` depends on the load.
        penalty: What many denials by this counter lead to.
        overdraft: A cost is taken in full, also by a denied request, as long as the counter is not in debt. If it does
            not fit, it is denied, and what exceeds the limit is a debt. A counter in debt takes nothing.
    """

    algorithm: str
    limit: int
    period: int
    burst: int = 0
    buckets: int = 60
    consistency: str = "strict"
    shards: int = 1
    longest_wait: int = 0
    refundable: bool = False
    spare: int = 0
    over: Literal["soft", "elastic"] | None = None
    elastic: "Elastic | None" = field(default=None, compare=False, repr=False)
    penalty: "Penalty | None" = None
    overdraft: bool = False
    decided_by: str = field(init=False, compare=False, repr=False)
    """The name of the function that decides, in `algorithms.DECIDE_ALL`."""
    shown_limit: int = field(init=False, compare=False, repr=False)
    """The requests per period that operators are shown. For a bucket it is the rate."""
    shown_size: int = field(init=False, compare=False, repr=False)
    """The limit that clients see. An unused counter has all of it left. For a bucket, it is the burst."""

    def __post_init__(self) -> None:
        # Computed once, because each decision and each response needs them.
        object.__setattr__(self, "decided_by", self.algorithm + OVERDRAFT if self.overdraft else self.algorithm)
        object.__setattr__(self, "shown_limit", self.limit if self.burst else self.limit - self.spare)
        object.__setattr__(self, "shown_size", (self.burst or self.limit) - self.spare if self.limit else 0)

    @property
    def waits(self) -> bool:
        """True if a request may have to wait for its turn."""
        return self.longest_wait > 0

    @property
    def widest(self) -> "Quota":
        """The largest quota that an elastic quota may become. Any other quota itself."""
        return self.elastic.quotas[-1] if self.elastic else self


@dataclass(frozen=True, slots=True)
class Elastic:
    """The quotas that an elastic quota may become while the load is below `below`. The smallest is the first."""

    below: float
    quotas: tuple[Quota, ...]


@dataclass(frozen=True, slots=True)
class Penalty:
    """A second counter, which counts the denials of others. While it denies, these deny, too.

    Attributes:
        prefix: The key of the second counter, up to and including the opening brace.
        quota: How it counts. Its algorithm has `Algorithm.count_denial`. With a limit of 0 it counts nothing.
    """

    prefix: str
    quota: Quota

    @property
    def without_counting(self) -> "Penalty":
        """The same penalty, which these denials do not count towards."""
        return replace(self, quota=replace(self.quota, limit=0))


class Ask(NamedTuple):
    """One counter that a request asks: can `cost` be charged to the counter `key`, which has `quota`?

    A `shadow` ask never denies the request. It is not charged for requests that it would have denied, unless its quota
    has an `overdraft`.
    """

    key: str
    quota: Quota
    cost: int = 1
    shadow: bool = False


class _Outcome(NamedTuple):
    """The fields of an `Outcome`. A named tuple itself cannot have the attribute of a class."""

    allowed: bool
    remaining: int
    reset_after: int
    retry_after: int = 0
    delay: int = 0


class Outcome(_Outcome):
    """The answer of one counter. All times are in microseconds.

    Attributes:
        allowed: True if the counter admits the request.
        remaining: How much is left after the decision.
        reset_after: The time until the counter is as if unused.
        retry_after: The time until the same cost is admitted. 0 if it is admitted now, `NEVER` if it never is. A
            penalty that begins with this request did not deny it, and denies the next ones for this time.
        delay: How long an admitted request has to wait for its turn.
    """

    __slots__ = ()
    reason = "limited"
    """Why it denies, if it does: a value of `Decision.reason`."""


Row = tuple[bool, int, int, int, int]
"""The fields of an `Outcome`, in an `Outcome` or in a plain tuple, which takes a fifth of the time to make."""


class Banned(Outcome):
    """The answer of a counter while a penalty denies the client, even if the counter itself would admit the request."""

    reason = "banned"
    lasts = 0
    """How long the penalty denies, whatever the counter says."""


class Reply(NamedTuple):
    """The answer of a store to one request.

    Attributes:
        now: The time of the store's clock.
        outcomes: One outcome for each ask, in the same order.
        only: None, or the index of the one ask that `outcomes` is about. This is a denial that was certain without
            asking the other counters.
    """

    now: int
    outcomes: Sequence[Outcome]
    only: int | None = None

    def admits(self, asks: Sequence[Ask]) -> bool:
        """Return True if no enforced ask was denied. Only then are quotas without an `overdraft` charged."""
        if self.only is not None:
            return False
        return all(outcome.allowed or ask.shadow for ask, outcome in zip(asks, self.outcomes, strict=True))


class ServiceReply(Reply):
    """The answer of a service, which decides by rules of its own. It has no outcomes."""

    decisions: Sequence["Decision"]
    """One decision for each ask, in the same order."""
    rules: Mapping[str, Mapping[str, Any]]
    """What the denials of some rules say to clients, by the name of the rule: `status`, `message`, `hidden`."""

    @classmethod
    def of(cls, decisions: Sequence["Decision"], rules: Mapping[str, Mapping[str, Any]]) -> Self:
        """The reply with these decisions."""
        made = tuple.__new__(cls, (0, (), None))  # in a third of the time of a normal call
        made.decisions, made.rules = decisions, rules
        return made


Priority = Literal["low", "normal", "critical"]
"""The priority of a request, in ascending order. Requests of low priority are shed first."""

Counts = Callable[[int, Callable[[str], str | None]], bool]
"""A function that says whether a response is charged.

Its arguments are the status, and a function that reads a response header by its name in lower case.
"""

CostAfter = Callable[[Callable[[str], str | None]], int]
"""A function that returns the cost of a request. Its argument reads a response header by its name in lower case."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The part of a rule that is needed after its counters are asked: its name, and the effects of its denials.

    Attributes:
        name: The name.
        on_error: The decision while the store is unavailable.
        shadow: True if the rule is counted and reported, but not enforced.
        quota_group: Rules with the same group (if it is not empty) deny a request only if all of them deny it. If there
            are several, the store is asked as for shadow rules, because no single one of them denies.
        max_waiting: The most threads of a process that may wait for a turn when a request waits for this rule.
        priority: The priority of the requests to which the rule applies. None if it sets none.
        defers: True if a request that the rule denies is deferred, if possible.
        several: True if the rule has more than one limit.
        hidden: True if no header mentions the rule.
        sent: True if a request has brought its limit along. Then its name is a text of the client.
        status: The status of its denials. None: the status of the file.
        message: The message of its denials. None: the message of the file.
        counts: Says which responses are charged. The charges of others are refunded. None: all responses are charged.
        messages: What happens to a WebSocket above the limit, if the rule counts messages. None: it counts requests.
        domain: The domain of the rule.
        descriptor: For a descriptor, its path in metrics: each entry as `key`, or as `key_value` if the file has the
            value.
        cost_after: Returns the cost of a request from the headers of its response. None: the cost is known before.
    """

    name: str
    on_error: str = "allow"
    shadow: bool = False
    quota_group: str = ""
    max_waiting: int = 1
    priority: Priority | None = None
    defers: bool = False
    several: bool = False
    hidden: bool = False
    sent: bool = False
    status: int | None = None
    message: str | None = None
    counts: Counts | None = None
    messages: Literal["close", "drop"] | None = None
    domain: str = ""
    descriptor: tuple[str, ...] = ()
    cost_after: "CostAfter | None" = field(default=None, compare=False, repr=False)
    label: str = field(init=False, compare=False, repr=False)
    """The domain and the name. The counts of the rule are found by it. All limits of requests have one label."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", f"{self.domain}/{self.logged}")

    @property
    def logged(self) -> str:
        """The name in logs and messages. All limits that requests bring along have one."""
        return SENT if self.sent else self.name


class Charge(NamedTuple):
    """One ask, and its rule."""

    rule: Rule
    ask: Ask


class EntryList(NamedTuple):
    """One list of entries (an Envoy descriptor) in a request of several lists.

    Attributes:
        entries: The (key, value) pairs, in order.
        hits: What this list charges. None: the `hits` of the request. 0 asks and takes nothing. Hits above 0 are taken
            in full, also by a denied request, as long as the counter is not above its limit. If they do not fit, they
            are denied and charged. Hits below 0 are given back, at most what the window was charged.
        limit: A number of requests and the unit of time ("second" to "year"), as in `(100, "hour")`. It replaces the
            limits of the file for this list. None: the limits of the file.
    """

    entries: Sequence[tuple[str, str]]
    hits: int | None = None
    limit: tuple[int, str] | None = None


class ListStatus(NamedTuple):
    """What was decided about one list of entries. If it has several limits, this is the most restrictive one.

    If no limit applies, all fields except `allowed` and `unlimited` have their defaults.

    Attributes:
        allowed: True if no limit denies the list. Another list of the request may still deny the request.
        rule: The name of the rule, as in `Decision.rule`.
        name: The `name` of the limit in the file, or the name of the rule. None for a limit without a name.
        limit: The number of requests per period.
        period: The period in seconds.
        unit: The unit of time that is as long as the period, such as "minute". None if there is none.
        remaining: How much of the limit is left. None if it is unknown, because the counter was not asked.
        unlimited: True if the descriptor of the list is `unlimited`.
        reset_after: The seconds until the counter is as if unused.
        retry_after: The seconds after which the same list is admitted. 0.0 if it is allowed, `inf` if it never is.
    """

    allowed: bool
    rule: str | None = None
    name: str | None = None
    limit: int | None = None
    period: float | None = None
    unit: str | None = None
    remaining: int | None = None
    unlimited: bool = False
    reset_after: float = 0.0
    retry_after: float = 0.0


class ListsDecision(NamedTuple):
    """The decision on several lists of entries. It is true if the request is allowed.

    Attributes:
        decision: The decision on the whole request. Its `policies` are the counters that were asked.
        statuses: One status for each list, in order.
    """

    decision: "Decision"
    statuses: tuple[ListStatus, ...]

    @property
    def allowed(self) -> bool:
        """True if the request may pass."""
        return self.decision.allowed

    def __bool__(self) -> bool:
        return self.decision.allowed


class Decision(NamedTuple):
    """The decision on one request. It is true if the request is allowed. All times are in seconds, as floats.

    If no rule applies, or if the store is unavailable, `rule`, `limit`, `remaining`, `used` and `period` are None.

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
        reason: Why the request is denied: "limited", "banned", "blocked" (by an override), "shed" (the process is
            overloaded) or "unavailable" (the store is). None if it is allowed.
        used: How much of the limit is used, this request included if it is allowed. For a bucket, how much of its
            burst. It is never above the limit; `over` tells of requests above it.
        period: The period of the limit. None for requests in flight.
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
    reason: str | None = None
    used: int | None = None
    period: float | None = None

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def banned(self) -> bool:
        """True if the client is banned."""
        return self.reason == "banned"
