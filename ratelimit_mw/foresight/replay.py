"""Runs a log through the rules, by the log's own clock: who would have been limited, when, and by which rule."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.errors import nearest
from ratelimit_mw.foresight.logs import Log, Order, merged
from ratelimit_mw.foresight.logs.entry import BASIC, DURATIONS, LogEntry, Unreadable, check_fields
from ratelimit_mw.foresight.requests import Gap, Reading, Requests, answerable, find_gaps, readings_of
from ratelimit_mw.foresight.results import DeniedRequest, Difference, Result, RulesOutcome
from ratelimit_mw.foresight.simulation import Decider, Simulation, quiet
from ratelimit_mw.foresight.what_if import NEEDS_NUMPY, Recording, subjects_of
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.path_matcher import PathMatcher
from ratelimit_mw.rules.path_templates import parse

_MOST_UNADDRESSED = 0.1
"""The share of requests without a readable address above which a result says little."""

_REPORTED = 10_000
"""The lines between two reports of the progress."""

Config = str | os.PathLike[str] | Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to replay.

    Attributes:
        logs: The paths of the logs; "-" is standard input.
        rules: The rules.
        against: The rules to compare with. None: nothing is compared.
        form: The format of the logs, see `find_format`.
        places: Where fields are in the logs, by their names.
        lenient: Find the format of a log of which much cannot be read.
        since: The first time that is replayed, in microseconds since the epoch.
        until: The end: requests from this time on are not replayed.
        match: The template of the paths that are replayed. "" for all paths.
        disorder: The seconds by which a line may be behind the lines before it.
        spread: Distribute the requests of a second over it.
        hashed: Show clients only as hashes.
        what_if: The name of the only rule to make what-if curves of. None: the curves of all rules that can be
            calculated, and of the two that deny most of those whose decisions are coupled with others.
        on_denial: Is called with each denial.
        on_progress: Is called after each part of a log, with the numbers of lines and of bytes that were read so far.
    """

    logs: Sequence[str]
    rules: Config
    against: Config | None = None
    form: str = "auto"
    places: Mapping[str, str] = field(default_factory=dict)
    lenient: bool = False
    since: int = 0
    until: int | None = None
    match: str = ""
    disorder: int = 60
    spread: bool = False
    hashed: bool = False
    what_if: str | None = None
    on_denial: Callable[[DeniedRequest], None] | None = None
    on_progress: Callable[[int, int], None] | None = None


def replay(options: Options) -> Result:
    """Replay logs.

    Raises:
        ConfigurationError: The rules cannot be used.
        StoreUnavailable: The rules are in a database that does not answer.
        UnusableLog: The format of a log is not known.
        ValueError: A field that `places` names does not exist, or `match` is not a template.
        OSError: A log cannot be read.
    """
    with ExitStack() as stack:
        return _Run(options, stack).play()


class _Run:
    """The logs and the rules of one replay, ready to play.

    Args:
        options: What to replay.
        stack: Closes what is opened.

    Raises:
        ConfigurationError, StoreUnavailable, UnusableLog, ValueError, OSError: See `replay`.
    """

    def __init__(self, options: Options, stack: ExitStack) -> None:
        self._options = options
        configs = [options.rules] if options.against is None else [options.rules, options.against]
        simulations = [stack.enter_context(closing(Simulation(each))) for each in configs]
        self._rules = simulations[0].rules
        parts = [part for each in simulations for part in each.rules.parts]
        check_fields(options.places, [name for part in parts for name in part.attributes.custom])
        _check_rule(options.what_if, self._rules)
        self._unreadable = Unreadable()
        self._logs = [stack.enter_context(closing(Log(path, self._unreadable))) for path in options.logs]
        self._formats = [log.detect(options.form, options.places, lenient=options.lenient) for log in self._logs]
        stack.enter_context(quiet())
        readings = [readings_of(each.rules, self._has, options.places.keys()) for each in simulations]
        self._readings = readings[0]
        self._collects = find_spec("numpy") is not None
        self._fields = [*_fields(simulations, readings), *(("agent",) if self._collects else ())]
        extras = [each for each in self._fields if each not in BASIC]
        self._requests = [Requests(each.values(), extras) for each in readings]
        self._deciders: list[Decider] = []
        for simulation, requests in zip(simulations, self._requests, strict=True):
            simulation.only_answerable(answerable(self._has))
            self._deciders.append(Decider(simulation, requests, hashed=options.hashed))

    def play(self) -> Result:
        """Replay the logs once, and return the result."""
        options, deciders = self._options, self._deciders
        deciders[0].on_denial = options.on_denial
        recording = None
        if self._collects:
            recording = Recording(self._rules.rules, deciders[0].named)
            deciders[0].on_plan, deciders[0].on_verdict = recording.plan_of, recording.add
        formats = [form.name for form in self._formats]
        result = Result(formats=formats, outcome=deciders[0].outcome, unreadable=self._unreadable)
        if len(deciders) > 1:
            result.against, result.difference = deciders[1].outcome, Difference()
        orders = [Order(options.disorder, spread=options.spread) for _ in self._logs]
        streams = [order.ordered(log.entries(self._fields)) for order, log in zip(orders, self._logs, strict=True)]
        self._take(result, merged(streams))
        if options.hashed:  # a line may name its client
            result.unreadable.shown.clear()
        result.late = sum(order.late for order in orders)
        self._conclude(result, recording)
        return result

    def _conclude(self, result: Result, recording: Recording | None) -> None:
        """Add to a result what could not be replayed, and the what-if curves."""
        options, rules = self._options, self._rules
        if all(part.attributes.client_address.header is None for part in rules.parts):
            result.gaps += [Gap("", log.proxied) for log in self._logs if log.proxied]
        result.unaddressed = self._unaddressed(result.outcome)
        asked = {rule.name: rule.asked for rule in result.outcome.rules.values()}
        result.gaps += find_gaps(rules, self._has, self._readings, self._requests[0].seen.__contains__, asked)
        if recording is None:
            result.without_curve = [NEEDS_NUMPY]
        else:
            from ratelimit_mw.foresight.what_if.curves import find_curves  # imported late: it needs numpy

            subjects = [each for each in subjects_of(rules) if options.what_if in (None, each.rule.name)]
            simulation = partial(Simulation, options.rules)
            result.curves, result.without_curve = find_curves(
                recording, subjects, result.outcome, simulation, every=options.what_if is not None
            )

    def _unaddressed(self, outcome: RulesOutcome) -> str:
        """Return a sentence if too many requests have no readable address where rules count by it."""
        if outcome.without_address <= _MOST_UNADDRESSED * outcome.requests:
            return ""
        places = {f"{form.place('ip')} of {form.name}": None for form in self._formats if form.has("ip")}
        return (
            f"{outcome.without_address:,} of {outcome.requests:,} requests have no readable address in "
            f"{', '.join(places)}, such as {outcome.unreadable_address!r:.80}: they count as one client. `--field ip=…`"
            " says where the address is"
        )

    def _has(self, name: str) -> bool:
        """Return True if a log has a field."""
        names = tuple(DURATIONS) if name == "duration" else (name,)
        return any(form.has(each) for form in self._formats for each in names)

    def _take(self, result: Result, batches: Iterable[list[LogEntry]]) -> None:
        """Take each request in order of time."""
        options, decider, outcome = self._options, self._deciders[0], result.outcome
        until = options.until if options.until is not None else float("inf")
        since, progress = options.since, options.on_progress
        hits = _hits(options.match, self._requests[0]) if options.match else None
        place = reported = 0
        for batch in batches:
            for entry in batch:
                place += 1
                at = entry[0]
                if at < since or at >= until or (hits is not None and not hits(entry)):
                    result.skipped += 1
                    continue
                result.limited_before += entry[4] == 429
                verdict = decider.decide(entry)
                if result.difference is not None:
                    _compare(self._deciders, result.difference, entry, verdict)
                if not result.first:
                    result.first = at
                result.last = at
            if progress is not None and place - reported >= _REPORTED:
                reported = place
                progress(outcome.requests + result.skipped, sum(log.position for log in self._logs))


def _compare(deciders: Sequence[Decider], difference: Difference, entry: LogEntry, verdict: Verdict) -> None:
    """Decide on a request by the rules to compare with, and count how the verdict differs."""
    decider, against = deciders
    old = against.decide(entry)
    if old.allowed and not verdict.allowed:
        difference.newly_denied.add(decider.name_of(verdict, entry), entry.at)
    elif verdict.allowed and not old.allowed:
        difference.newly_allowed.add(against.name_of(old, entry), entry.at)


def _hits(template: str, requests: Requests) -> Callable[[LogEntry], bool]:
    """Return a function that returns True if the path of a request matches a template."""
    matcher = PathMatcher([(0, parse(template))])
    return lambda entry: bool(matcher.hits(requests.make(entry)))


def _check_rule(name: str | None, rules: Rules) -> None:
    """Raise ValueError if the rules have none with this name. None stands for all rules."""
    names = [rule.name for rule in rules.rules]
    if name is not None and name not in names:
        raise ValueError(f"--rule: there is no rule {name!r} ({nearest(name, names)})")


def _fields(simulations: Sequence[Simulation], readings: Sequence[Mapping[str, Reading]]) -> list[str]:
    """Return the fields of the logs that are read, in addition to those of every request."""
    found = {reading.field: None for each in readings for reading in each.values() if reading.field}
    names = list(found)
    if any(each.rules.settling for each in simulations):
        names.append("duration")
    return [*names, "status"]
