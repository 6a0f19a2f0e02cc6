"""Runs a log through the rules, by the log's own clock: who would have been limited, when, and by which rule."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.errors import near
from ratelimit_mw.foresight.clients import namer
from ratelimit_mw.foresight.gaps import Gap, answerable, find_gaps, needs_filter
from ratelimit_mw.foresight.logs.entry import BASIC, DURATIONS, FIELDS, Entry
from ratelimit_mw.foresight.logs.inputs import Log
from ratelimit_mw.foresight.logs.order import Order, merged
from ratelimit_mw.foresight.requests import Reading, Requests, readings_of
from ratelimit_mw.foresight.results import DeniedClient, Heaviest, RuleResult
from ratelimit_mw.foresight.simulation import Simulation, quiet
from ratelimit_mw.foresight.what_if.curve import Curve
from ratelimit_mw.identity.http_request import AsgiRequest
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import Charge
from ratelimit_mw.rules.compiled import BLOCKED
from ratelimit_mw.rules.path_matcher import PathMatcher
from ratelimit_mw.rules.path_templates import parse

Config = str | os.PathLike[str] | Mapping[str, object]


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


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to replay.

    Attributes:
        logs: The paths of the logs; "-" is standard input.
        rules: The rules.
        against: The rules to compare with. None: nothing is compared.
        form: The format of the logs, see `find_format`.
        places: Where fields are in the logs, by their names.
        since: The first time that is replayed, in microseconds since the epoch.
        until: The end: requests from this time on are not replayed.
        match: The template of the paths that are replayed. "" for all paths.
        disorder: The seconds by which a line may be behind the lines before it.
        spread: Distribute the requests of a second over it.
        hashed: Show clients only as hashes.
        on_denial: Is called with each denial.
        on_progress: Is called after each part of a log, with the numbers of lines and of bytes that were read so far.
    """

    logs: Sequence[str]
    rules: Config
    against: Config | None = None
    form: str = "auto"
    places: Mapping[str, str] = field(default_factory=dict)
    since: int = 0
    until: int | None = None
    match: str = ""
    disorder: int = 60
    spread: bool = False
    hashed: bool = False
    on_denial: Callable[[Denial], None] | None = None
    on_progress: Callable[[int, int], None] | None = None


class Outcome:
    """What one set of rules did with a log.

    Attributes:
        requests: The requests that were replayed.
        denied: The requests that were denied.
        reasons: How many requests were denied for each reason.
    """

    def __init__(self, simulation: Simulation, requests: Requests, *, hashed: bool) -> None:
        self.requests = self.denied = 0
        self.reasons: Counter[str] = Counter()
        self.rules: dict[int, RuleResult] = {}
        """The rules by the identity of their objects, in the order of the files."""
        self.clients: Heaviest[tuple[int, str]] = Heaviest()
        """The denials of each rule and client, by the identities of both."""
        self.limited: Heaviest[str] = Heaviest()
        """The denied requests of each client, whichever rule denied them."""
        self.on_denial: Callable[[Denial], None] | None = None
        self._names: dict[tuple[int, str], str] = {}
        self._simulation = simulation
        self._requests = requests
        self._name = namer(simulation.rules, hashed=hashed)
        self._kept = [rule for part in simulation.rules.parts for rule in part.rules]
        for rule in self._kept:
            self.rules[id(rule)] = RuleResult(rule)

    def made(self, entry: Entry) -> AsgiRequest:
        """Return the request of a line."""
        return self._requests.make(entry)

    def decide(self, entry: Entry, request: AsgiRequest | None = None) -> tuple[Verdict, AsgiRequest]:
        """Decide on the request of a line, and count the result."""
        request = self._requests.make(entry) if request is None else request
        charges, verdict = self._simulation.decide(entry, request)
        self.requests += 1
        last = None
        for charge in charges:
            rule = charge[0]
            if rule is not last:  # the counters of one rule follow each other
                last = rule
                if charges is not BLOCKED:
                    self.rules[id(rule)].asked += 1
        if (
            not verdict.allowed
            or verdict.over
            or verdict.delay
            or (verdict.shadowed and not all(map(_admitted, verdict.outcomes)))
        ):
            self._count(entry, request, verdict)
        return verdict, request

    def _count(self, entry: Entry, request: Request, verdict: Verdict) -> None:
        """Count a verdict that is more than an admission."""
        if not verdict.allowed:
            self.denied += 1
            reason = verdict.reason or "limited"
            self.reasons[reason] += 1
            self.limited.add(client_of(verdict, request), entry.at)
        counted: set[int] = set()
        for place, (charge, outcome) in enumerate(zip(verdict.charges, verdict.outcomes, strict=True)):
            rule = charge.rule
            result = self.rules[id(rule)]
            if outcome.allowed:
                result.over += place in verdict.over
                result.delayed += bool(outcome.delay)
            elif (not rule.quota_group or not verdict.allowed) and id(rule) not in counted:
                counted.add(id(rule))
                self._deny(entry, request, verdict, charge, outcome.retry_after)
        if verdict.reason == "blocked" and self.on_denial is not None:
            name = self.name_of(verdict, request)
            self.on_denial(
                Denial(entry.at, name, "", False, "blocked", float("inf"), entry.method, entry.target, entry.status)
            )

    def _deny(self, entry: Entry, request: Request, verdict: Verdict, charge: Charge, retry_after: int) -> None:
        rule, ask = charge
        self.rules[id(rule)].deny(entry.at)
        key = id(rule), identity_of(ask.key)
        if self.clients.add(key, entry.at):
            self.rules[id(rule)].clients += 1
            if len(self._names) > 2 * len(self.clients):  # most of them have lost their place in the table
                self._names = {each: name for each, name in self._names.items() if each in self.clients}
            self._names[key] = self._name(key[1], request)
        if self.on_denial is not None:
            reason = verdict.reason if not verdict.allowed and not ask.shadow else "limited"
            wait = float("inf") if retry_after < 0 else retry_after / 1e6
            self.on_denial(
                Denial(
                    entry.at,
                    self._names[key],
                    rule.name,
                    rule.shadow,
                    reason or "limited",
                    wait,
                    entry.method,
                    entry.target,
                    entry.status,
                )
            )

    def name_of(self, verdict: Verdict, request: Request) -> str:
        """Return the name of the client of a request that was denied."""
        return self._name(client_of(verdict, request), request)

    def most_limited(self, number: int, rule: str | None = None) -> list[DeniedClient]:
        """Return the clients that were denied most, each with the rule that denied them.

        Args:
            number: The most clients.
            rule: The name of the only rule to look at. None: all rules.
        """
        found: list[DeniedClient] = []
        for (each, identity), seen in self.clients.most(number if rule is None else len(self.clients)):
            result = self.rules[each]
            if rule is None or rule == result.name:
                name = self._names[each, identity]
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
        shown: The first unreadable lines.
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


_admitted = itemgetter(0)
"""Reads `Outcome.allowed`, in a fifth of the time of its name."""


def identity_of(key: str) -> str:
    """Return the identity in the key of a counter."""
    return key[key.index("{") + 1 : -1]


def client_of(verdict: Verdict, request: Request) -> str:
    """Return the identity of the client of a request that was denied, as the denying counter has it."""
    if verdict.binding >= 0:
        return identity_of(verdict.charges[verdict.binding].ask.key)
    return f"ip={request.values.get('ip') or request.peer or '?'}"


def replay(options: Options) -> Result:
    """Replay logs.

    Raises:
        ConfigurationError: The rules cannot be used.
        StoreUnavailable: The rules are in a database that does not answer.
        UnknownFormat: The format of a log is not known.
        ValueError: A field that `places` names does not exist, or `match` is not a template.
        OSError: A log cannot be read.
    """
    with ExitStack() as stack:
        simulations = [Simulation(options.rules)]
        stack.callback(simulations[0].close)
        if options.against is not None:
            simulations.append(Simulation(options.against))
            stack.callback(simulations[1].close)
        _check_fields(options.places, simulations)
        logs = [stack.enter_context(Log(path)) for path in options.logs]
        formats = [log.detect(options.form, options.places) for log in logs]
        stack.enter_context(quiet())

        def has(name: str) -> bool:
            names = tuple(DURATIONS) if name == "duration" else (name,)
            return any(form.has(each) for form in formats for each in names)

        readings = [readings_of(each.rules, has, options.places.keys()) for each in simulations]
        fields = _fields(simulations, readings)
        extras = [each for each in fields if each not in BASIC]
        makers = [Requests(each.values(), extras) for each in readings]
        for simulation in simulations:
            if needs_filter(simulation.rules, has):
                simulation.only_answerable(answerable(has))
        outcomes = [
            Outcome(simulation, maker, hashed=options.hashed)
            for simulation, maker in zip(simulations, makers, strict=True)
        ]
        result = Result(formats=[form.name for form in formats], outcome=outcomes[0])
        outcomes[0].on_denial = options.on_denial
        if len(outcomes) > 1:
            result.against, result.difference = outcomes[1], Difference()
        orders = [Order(options.disorder, spread=options.spread) for _ in logs]
        streams = [order.ordered(log.entries(fields)) for order, log in zip(orders, logs, strict=True)]
        _run(options, result, merged(streams), lambda: sum(log.position for log in logs))
        for log in logs:
            result.unreadable += log.unreadable.count
            result.shown += log.unreadable.shown
            result.without_request += log.unreadable.without_request
        result.shown = result.shown[:3]
        result.late = sum(order.late for order in orders)
        asked = {rule.name: rule.asked for rule in outcomes[0].rules.values()}
        known = _seen(makers[0])
        result.gaps = find_gaps(simulations[0].rules, has, readings[0], known, asked)
    return result


def _check_fields(places: Mapping[str, str], simulations: Sequence[Simulation]) -> None:
    """Raise ValueError for a field that no log can have and no rule can use."""
    custom = [name for each in simulations for part in each.rules.parts for name in part.attributes.custom]
    for name in places:
        if name not in (*FIELDS, *custom) and not name.startswith(("header:", "cookie:")):
            known = (*FIELDS, *custom)
            hint = near(name, known) or f"known: {', '.join(known)}, header:NAME and cookie:NAME"
            raise ValueError(f"--field: there is no field {name!r} ({hint})")


def _fields(simulations: Sequence[Simulation], readings: Sequence[Mapping[str, Reading]]) -> list[str]:
    """Return the fields of the logs that are read, in addition to those of every request."""
    found = {reading.field: None for each in readings for reading in each.values() if reading.field}
    names = list(found)
    if any(each.rules.settling for each in simulations):
        names.append("duration")
    return [*names, "status"]


def _seen(requests: Requests) -> Callable[[str], bool]:
    return lambda name: name in requests.seen


_REPORTED = 10_000
"""The lines between two reports of the progress."""


def _run(options: Options, result: Result, batches: Iterable[list[Entry]], position: Callable[[], int]) -> None:
    """Take each request in order of time."""
    outcome, against, difference = result.outcome, result.against, result.difference
    until = options.until if options.until is not None else float("inf")
    since, progress = options.since, options.on_progress
    matcher = PathMatcher([(0, parse(options.match))]) if options.match else None
    reported = 0
    for batch in batches:
        for entry in batch:
            at = entry[0]
            if at < since or at >= until:
                result.skipped += 1
                continue
            request = None
            if matcher is not None:
                request = outcome.made(entry)
                if not matcher.hits(request):
                    result.skipped += 1
                    continue
            result.limited_before += entry[4] == 429
            verdict, request = outcome.decide(entry, request)
            if against is not None and difference is not None:
                old, old_request = against.decide(entry)
                if old.allowed and not verdict.allowed:
                    difference.deny(outcome.name_of(verdict, request), at)
                elif verdict.allowed and not old.allowed:
                    difference.allow(against.name_of(old, old_request), at)
            if not result.first:
                result.first = at
            result.last = at
        if progress is not None:
            done = outcome.requests + result.skipped
            if done - reported >= _REPORTED:
                reported = done
                progress(done, position())
