"""What a replay finds, as values: the counts of each rule, the denials, the most denied clients, and the curves."""

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from ratelimit_mw.foresight.clients import Client
from ratelimit_mw.foresight.logs.entry import Unreadable
from ratelimit_mw.foresight.requests import Gap
from ratelimit_mw.model import SECOND, Rule

MINUTE = 60 * SECOND

_MOST_CLIENTS = 1_000_000
"""The most pairs of a rule and a client that are counted apart."""

K = TypeVar("K")


class Seen(NamedTuple):
    """The denials of one key.

    Attributes:
        total: The number of denials. If the table was full when the key came, it may be too large by up to `error`.
        error: By how much the total may be too large.
        first: The time of the first denial that was counted, in microseconds since the epoch.
        last: The time of the last denial.
    """

    total: int
    error: int
    first: int
    last: int

    @property
    def at_least(self) -> int:
        """The number of denials that are certain."""
        return self.total - self.error


class Heaviest(Generic[K]):
    """Counts keys in bounded memory, by the algorithm *space-saving* (Metwally, Agrawal, El Abbadi 2005).

    While there is room, all counts are exact. Then a new key takes the place of the key with the smallest count, and
    inherits that count as its possible error. A key with more than 1/`size` of all counts is always in the table.

    Args:
        size: The most keys.
    """

    def __init__(self, size: int = _MOST_CLIENTS) -> None:
        self.total = 0
        """How often a key was counted."""
        self.full = False
        """True if a key has lost its place. The number of keys is then unknown, but not smaller than `len`."""
        self._size = size
        self._counts: dict[K, list[int]] = {}  # count, error, first, last
        self._order: list[tuple[int, K]] = []  # a heap: a count that each key had, which may have grown since

    def __len__(self) -> int:
        return len(self._counts)

    def __iter__(self) -> Iterator[K]:
        return iter(self._counts)

    def __contains__(self, key: K) -> bool:
        return key in self._counts

    def add(self, key: K, at: int) -> bool:
        """Count a key at a time. Return True if the key is new in the table."""
        self.total += 1
        held = self._counts.get(key)
        if held is not None:
            held[0] += 1
            held[3] = at
            return False
        least = self._remove_least(key) if len(self._counts) >= self._size else 0
        self._counts[key] = [least + 1, least, at, at]
        return True

    def most(self, number: int) -> list[tuple[K, Seen]]:
        """Return the keys with the highest counts, the highest first.

        Of equal counts, the key that was first counted earlier is first, and of equal times, the lesser key.
        """
        best = heapq.nsmallest(number, self._counts.items(), key=lambda item: (-item[1][0], item[1][2], item[0]))
        return [(key, Seen(*held)) for key, held in best]

    def _remove_least(self, successor: K) -> int:
        """Remove a key with the smallest count for another key, and return this count."""
        if not self.full:
            self.full = True
            self._order = [(held[0], key) for key, held in self._counts.items()]
            heapq.heapify(self._order)
        count, key = self._order[0]
        while count < self._counts[key][0]:
            heapq.heapreplace(self._order, (self._counts[key][0], key))
            count, key = self._order[0]
        heapq.heapreplace(self._order, (count + 1, successor))
        del self._counts[key]
        return count


class RuleResult:
    """What one rule did.

    Attributes:
        name: The name of the rule.
        shadow: True for a shadow rule: it denied nothing, and its denials are those that it would have made.
        asked: The requests that it was asked.
        denied: The requests that it denied, whether or not another rule denied them, too.
        delayed: The requests that had to wait for their turn at its bucket.
        over: The requests that it admitted above its limit.
    """

    def __init__(self, rule: Rule) -> None:
        self.name = rule.name
        self.shadow = rule.shadow
        self.asked = self.denied = self.delayed = self.over = 0
        self.minutes: Counter[int] = Counter()
        """The denials of each minute since the epoch that has any."""
        self.clients = 0
        """The clients that it denied, of those that are in the table."""

    def deny(self, at: int) -> None:
        """Count a denial."""
        self.denied += 1
        self.minutes[at // MINUTE] += 1

    @property
    def worst(self) -> tuple[int, int] | None:
        """The most denials in a minute, and when this minute began. None without denials."""
        if not self.minutes:
            return None
        minute, count = min(self.minutes.items(), key=lambda item: (-item[1], item[0]))
        return count, minute * MINUTE


class DeniedClient(NamedTuple):
    """A client that a rule denied.

    Attributes:
        client: The client, as "ip=192.0.2.1".
        rule: The name of the rule.
        shadow: True if the rule is a shadow rule.
        denied: How many of its requests the rule denied, for certain.
        certain: False if it may have denied more, because not all clients could be counted.
        first: The time of the first denial, in microseconds since the epoch.
        last: The time of the last denial.
    """

    client: str
    rule: str
    shadow: bool
    denied: int
    certain: bool
    first: int
    last: int


class Curve(NamedTuple):
    """What one limit of one rule would deny if it were another number. Everything else stays as it is.

    `limits`, `denied` and `clients` have the same length: at the limit `limits[n]`, the rule denies `denied[n]`
    requests of `clients[n]` clients. A shadow rule denies nothing; its numbers are what it would deny.

    Attributes:
        rule: The name of the rule.
        shadow: True if the rule is a shadow rule.
        quota: The limit in force as a person writes it, "60 per minute".
        algorithm: The name of the algorithm.
        why_replayed: Why the engine replayed the log at each limit, as a phrase ("it bans"). "" if the curve is exact:
            computed from the arrivals for all limits at once. Its numbers equal those of the engine.
        limit: The limit in force: the number of requests per period.
        limits: The limits, ascending. `limit` is one of them.
        denied: How many requests the rule denies at each limit.
        clients: How many clients have at least one denied request at each limit.
        requests: The requests that the rule was asked.
        all_clients: The clients that it was asked for: the different identities that it counts.
        peaks: How many clients have how many requests in their busiest window, as (requests, clients), ascending by
            requests. If the algorithm counts in one window, this is its own. Otherwise it is any span of one period.
            Empty if the window is too long for the arithmetic.
        hit: The clients that the limits hit, at most 50 for each step from one limit to the next, and 300 in all.
    """

    rule: str
    shadow: bool
    quota: str
    algorithm: str
    why_replayed: str
    limit: int
    limits: tuple[int, ...]
    denied: tuple[int, ...]
    clients: tuple[int, ...]
    requests: int
    all_clients: int
    peaks: tuple[tuple[int, int], ...]
    hit: tuple[Client, ...] = ()

    @property
    def in_force(self) -> int:
        """The index of the limit in force in `limits`."""
        return self.limits.index(self.limit)


class DeniedRequest(NamedTuple):
    """One denial of one request.

    Attributes:
        at: The time of the request, in microseconds since the epoch.
        client: The name of the client.
        rule: The name of the rule. "" for a client that the rules block.
        shadow: True if a shadow rule would have denied the request.
        reason: Why: "limited", "banned" or "blocked".
        retry_after: The seconds after which the request would have been admitted. `inf` for never.
        method: The method.
        target: The path and the query, as the client has written them.
        status: The status of the response in the log. 0 if the log does not have it.
    """

    at: int
    client: str
    rule: str
    shadow: bool
    reason: str
    retry_after: float
    method: str
    target: str
    status: int


class RulesOutcome:
    """What one set of rules did with a log.

    Args:
        rules: The rules, in the order of the files.

    Attributes:
        requests: The requests that were replayed.
        denied: The requests that were denied.
        shadow_denied: The requests that were allowed, and that a shadow rule would have denied.
        without_address: The requests without a readable address that a rule counts by their address.
        unreadable_address: What the first of them has in place of an address.
        reasons: How many requests were denied for each reason.
        rules: What each rule did, by its place in the order of the files. (Several limits may have one name.)
        clients: The denials of each rule and client, by the place of the rule and the identity of the client.
        limited: The denied requests of each client, whichever rule denied them, by its identity.
        shadowed: The same for the requests that a shadow rule would have denied.
        names: The names of the clients in `clients`.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.requests = self.denied = self.shadow_denied = self.without_address = 0
        self.unreadable_address = ""
        self.reasons: Counter[str] = Counter()
        self.rules = {place: RuleResult(rule) for place, rule in enumerate(rules)}
        self.clients: Heaviest[tuple[int, str]] = Heaviest()
        self.limited: Heaviest[str] = Heaviest()
        self.shadowed: Heaviest[str] = Heaviest()
        self.names: dict[tuple[int, str], str] = {}

    def most_limited(self, number: int, rule: str | None = None) -> list[DeniedClient]:
        """Return the clients that were denied most, each with the rule that denied them.

        Args:
            number: The most clients.
            rule: The name of the only rule to look at. None: all rules.
        """
        found: list[DeniedClient] = []
        for (place, identity), seen in self.clients.most(number if rule is None else len(self.clients)):
            result = self.rules[place]
            if rule is None or rule == result.name:
                name = self.names[place, identity]
                held = seen.at_least, seen.error == 0, seen.first, seen.last
                found.append(DeniedClient(name, result.name, result.shadow, *held))
        return found[:number]


@dataclass
class Difference:
    """How the outcomes of requests differ between two sets of rules.

    Attributes:
        newly_denied: The requests that the rules deny and those to compare with allow, by client.
        newly_allowed: The requests that the rules allow and those to compare with deny, by client.
    """

    newly_denied: Heaviest[str] = field(default_factory=Heaviest)
    newly_allowed: Heaviest[str] = field(default_factory=Heaviest)


@dataclass(kw_only=True)
class Result:
    """The result of a replay.

    Attributes:
        formats: The formats of the logs, in their order.
        outcome: What the rules did.
        gaps: What could not be replayed.
        first: The time of the first request, in microseconds since the epoch. 0 without requests.
        last: The time of the last request.
        skipped: The requests that `since`, `until` or `match` left out.
        unreadable: The lines that could not be read, or have no request.
        late: The requests that were further behind than `disorder`.
        limited_before: The requests with the status 429: the app, or a proxy, limited them already.
        against: What the rules to compare with did. None without them.
        difference: How both differ. None without rules to compare with.
        curves: What other limits would deny, one curve for each limit of a rule, in the order of the file.
        without_curve: Why there is no curve, or why rules have none: sentences.
        unaddressed: Why the result says little, as a sentence: too many requests have no readable address. "" if not.
    """

    formats: list[str]
    outcome: RulesOutcome
    gaps: list[Gap] = field(default_factory=list)
    first: int = 0
    last: int = 0
    skipped: int = 0
    unreadable: Unreadable = field(default_factory=Unreadable)
    late: int = 0
    limited_before: int = 0
    against: RulesOutcome | None = None
    difference: Difference | None = None
    curves: list[Curve] = field(default_factory=list)
    without_curve: list[str] = field(default_factory=list)
    unaddressed: str = ""

    @property
    def lines(self) -> int:
        """All lines: requests, and those that could not be read."""
        return self.outcome.requests + self.skipped + self.unreadable.lines

    @property
    def unasked(self) -> bool:
        """True if no rule was asked."""
        return not any(rule.asked for rule in self.outcome.rules.values())


DAY = 1440
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, DAY, 2 * DAY, 7 * DAY, 28 * DAY)
"""Round spans of time, in minutes."""

_MOST_BARS = 88


class Bars(NamedTuple):
    """The spans of time that share a bar, in minutes since the epoch.

    Attributes:
        begin: The beginning of the first one.
        minutes: The length of each.
        number: How many there are.
    """

    begin: int
    minutes: int
    number: int

    def heights(self, minutes: Mapping[int, int]) -> list[int]:
        """Return the sum of the counts in each span."""
        found = [0] * self.number
        for minute, count in minutes.items():
            found[(minute - self.begin) // self.minutes] += count
        return found


def bars_of(first: int, last: int) -> Bars:
    """Return the spans of time for bars from the first to the last minute: few, of a round length."""

    def number(step: int) -> int:
        return last // step - first // step + 1

    step = next((step for step in STEPS if number(step) <= _MOST_BARS), 0)
    if not step:
        step = DAY * -(-(last - first + 1) // (DAY * (_MOST_BARS - 1)))
    return Bars(first // step * step, step, number(step))
