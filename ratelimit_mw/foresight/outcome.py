"""What sets of rules did with a log, as values: the denials, the counts of each rule, and how two sets differ."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ratelimit_mw.foresight.gaps import Gap
from ratelimit_mw.foresight.results import DeniedClient, Heaviest, RuleResult
from ratelimit_mw.foresight.what_if.curve import Curve
from ratelimit_mw.model import Rule


class Denial(NamedTuple):
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


class Outcome:
    """What one set of rules did with a log.

    Args:
        rules: The rules, in the order of the files.

    Attributes:
        requests: The requests that were replayed.
        denied: The requests that were denied.
        reasons: How many requests were denied for each reason.
        rules: What each rule did, by its place in the order of the files. (Several limits may have one name.)
        clients: The denials of each rule and client, by the place of the rule and the identity of the client.
        limited: The denied requests of each client, whichever rule denied them, by its identity.
        names: The names of the clients in `clients`.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self.requests = self.denied = 0
        self.reasons: Counter[str] = Counter()
        self.rules = {place: RuleResult(rule) for place, rule in enumerate(rules)}
        self.clients: Heaviest[tuple[int, str]] = Heaviest()
        self.limited: Heaviest[str] = Heaviest()
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
                held = seen.total, seen.error == 0, seen.at_least, seen.first, seen.last
                found.append(DeniedClient(name, result.name, result.shadow, *held))
        return found[:number]


class Difference:
    """How the outcomes of requests differ between two sets of rules.

    Attributes:
        newly_denied: The requests that the rules deny and those to compare with allow, by client.
        newly_allowed: The requests that the rules allow and those to compare with deny, by client.
        denied: The number of the first.
        allowed: The number of the second.
    """

    def __init__(self) -> None:
        self.newly_denied: Heaviest[str] = Heaviest()
        self.newly_allowed: Heaviest[str] = Heaviest()
        self.denied = self.allowed = 0

    def deny(self, client: str, at: int) -> None:
        """Count a request that is newly denied, by the name of the client that the rules deny."""
        self.denied += 1
        self.newly_denied.add(client, at)

    def allow(self, client: str, at: int) -> None:
        """Count a request that is newly allowed, by the name of the client that the rules to compare with deny."""
        self.allowed += 1
        self.newly_allowed.add(client, at)


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
        unreadable: The number of unreadable lines.
        shown: The first unreadable lines. They may name clients, so there are none if clients are hashed.
        without_request: The lines without a request that could be read.
        late: The requests that were further behind than `disorder`.
        limited_before: The requests with the status 429: the app, or a proxy, limited them already.
        against: What the rules to compare with did. None without them.
        difference: How both differ. None without rules to compare with.
        curves: What other limits would deny, one curve for each limit of a rule, in the order of the file.
        without_curve: Why there is no curve, or why rules have none: sentences.
    """

    formats: list[str]
    outcome: Outcome
    gaps: list[Gap] = field(default_factory=list)
    first: int = 0
    last: int = 0
    skipped: int = 0
    unreadable: int = 0
    shown: list[str] = field(default_factory=list)
    without_request: int = 0
    late: int = 0
    limited_before: int = 0
    against: Outcome | None = None
    difference: Difference | None = None
    curves: list[Curve] = field(default_factory=list)
    without_curve: list[str] = field(default_factory=list)

    @property
    def lines(self) -> int:
        """All lines: requests, and those that could not be read."""
        return self.outcome.requests + self.skipped + self.unreadable + self.without_request

    @property
    def unasked(self) -> bool:
        """True if no rule was asked."""
        return not any(rule.asked for rule in self.outcome.rules.values())
