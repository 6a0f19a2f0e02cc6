"""Runs a log through the rules, by the log's own clock: who would have been limited, when, and by which rule."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from ratelimit_mw.errors import near
from ratelimit_mw.foresight.decider import Decider
from ratelimit_mw.foresight.gaps import Gap, answerable, find_gaps, needs_filter
from ratelimit_mw.foresight.logs.entry import BASIC, DURATIONS, FIELDS, Entry
from ratelimit_mw.foresight.logs.inputs import Log
from ratelimit_mw.foresight.logs.order import Order, merged
from ratelimit_mw.foresight.outcome import Denial, Difference, Outcome
from ratelimit_mw.foresight.requests import Reading, Requests, readings_of
from ratelimit_mw.foresight.simulation import Simulation, quiet
from ratelimit_mw.foresight.what_if.collection import NEEDS_NUMPY, collection_of
from ratelimit_mw.foresight.what_if.curve import Curve
from ratelimit_mw.rules.path_matcher import PathMatcher
from ratelimit_mw.rules.path_templates import parse

__all__ = ["Denial", "Difference", "Options", "Outcome", "Result", "replay"]

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
        since: The first time that is replayed, in microseconds since the epoch.
        until: The end: requests from this time on are not replayed.
        match: The template of the paths that are replayed. "" for all paths.
        disorder: The seconds by which a line may be behind the lines before it.
        spread: Distribute the requests of a second over it.
        hashed: Show clients only as hashes.
        what_if: The only rule to make what-if curves of. If its decisions may be coupled with others, it is replayed at
            further limits, which takes up to eight times as long. None: the curves of all rules that can be calculated.
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
    what_if: str | None = None
    on_denial: Callable[[Denial], None] | None = None
    on_progress: Callable[[int, int], None] | None = None


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
        deciders = [
            Decider(simulation, maker, hashed=options.hashed)
            for simulation, maker in zip(simulations, makers, strict=True)
        ]
        deciders[0].on_denial = options.on_denial
        deciders[0].collection = collection = collection_of(
            simulations[0].rules, options.what_if, lambda: Simulation(options.rules)
        )
        if collection is not None:
            stack.callback(collection.close)
        result = Result(formats=[form.name for form in formats], outcome=deciders[0].outcome)
        if len(deciders) > 1:
            result.against, result.difference = deciders[1].outcome, Difference()
        orders = [Order(options.disorder, spread=options.spread) for _ in logs]
        streams = [order.ordered(log.entries(fields)) for order, log in zip(orders, logs, strict=True)]
        _run(options, deciders, result, merged(streams), lambda: sum(log.position for log in logs))
        for log in logs:
            result.unreadable += log.unreadable.count
            result.shown += log.unreadable.shown
            result.without_request += log.unreadable.without_request
        result.shown = result.shown[:3]
        result.late = sum(order.late for order in orders)
        asked = {rule.name: rule.asked for rule in result.outcome.rules.values()}
        seen = makers[0].seen.__contains__
        result.gaps = find_gaps(simulations[0].rules, has, readings[0], seen, asked)
        if collection is None:
            result.without_curve = [NEEDS_NUMPY]
        else:
            result.curves, result.without_curve = collection.curves(result.outcome.rules)
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


_REPORTED = 10_000
"""The lines between two reports of the progress."""


def _run(
    options: Options,
    deciders: Sequence[Decider],
    result: Result,
    batches: Iterable[list[Entry]],
    position: Callable[[], int],
) -> None:
    """Take each request in order of time."""
    decider, against = deciders[0], deciders[1] if len(deciders) > 1 else None
    outcome, difference = result.outcome, result.difference
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
            if matcher is not None and not matcher.hits(decider.request_of(entry)):
                result.skipped += 1
                continue
            result.limited_before += entry[4] == 429
            verdict = decider.decide(entry)
            if against is not None and difference is not None:
                old = against.decide(entry)
                if old.allowed and not verdict.allowed:
                    difference.deny(decider.name_of(verdict, entry), at)
                elif verdict.allowed and not old.allowed:
                    difference.allow(against.name_of(old, entry), at)
            if not result.first:
                result.first = at
            result.last = at
        if progress is not None:
            done = outcome.requests + result.skipped
            if done - reported >= _REPORTED:
                reported = done
                progress(done, position())
