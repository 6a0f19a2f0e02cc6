"""Exports what a limiter counts: `telemetry.prometheus` and `telemetry.opentelemetry`, which both go by the table here.

Each of the two imports its library, which no other module needs, apart from the service. All else is internal.

The table has the names of the metrics, their labels, and how they are read. No label is an identity, a path or another
value that a client chose. Rules beyond the first 1 000 names are `other`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.snapshots import Distribution, RuleSnapshot
from ratelimit_mw.tally import SECONDS_BOUNDS, USED_BOUNDS

Labels = tuple[str, ...]
Value = float | Distribution
Point = tuple[Labels, Value]

_SWITCH = {"off": 0, "shadow": 1, "on": 2}


def label_of(limiter: RateLimiter | None, domain: str, name: str) -> str:
    """Return the label of a rule: its name, after its domain if the rules of the limiter have several domains."""
    return f"{domain}/{name}" if domain and limiter is not None and len(limiter.rules.parts) > 1 else name


class ExportReading:
    """What one export reads.

    Attributes:
        limiter: The limiter.
        counts: The snapshot of its tally.
    """

    def __init__(self, limiter: RateLimiter) -> None:
        self.limiter = limiter
        self.counts = limiter.tally.snapshot()

    def by_rule(self, read: Callable[[RuleSnapshot], Iterable[Point]]) -> Iterable[Point]:
        """Return the points of all rules. Each has the label of its rule in front."""
        for rule in self.counts.rules:
            label = label_of(self.limiter, rule.domain, rule.name)
            for labels, value in read(rule):
                yield (label, *labels), value


class Measure(NamedTuple):
    """One metric.

    Attributes:
        name: The name, as Prometheus shows it.
        instrument: The name of the instrument, by the semantic conventions of OpenTelemetry.
        kind: What the values are.
        labels: The names of the labels.
        about: A sentence for people.
        read: Returns the values, each with its labels. Values with the same labels are added.
        together: For a gauge, how the values of several processes are joined: a mode of prometheus_client. "" if this
            cannot be done.
        unit: The unit, by the same conventions.
        bounds: For a histogram, the upper bounds of its buckets.
    """

    name: str
    instrument: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: Labels
    about: str
    read: Callable[[ExportReading], Iterable[Point]]
    together: str = ""
    unit: str = "1"
    bounds: Sequence[float] = ()


def _counter(  # noqa: PLR0917  a row of the table
    name: str,
    instrument: str,
    labels: Labels,
    about: str,
    read: Callable[[ExportReading], Iterable[Point]],
    unit: str = "{request}",
) -> Measure:
    return Measure(name, instrument, "counter", labels, about, read, unit=unit)


def _gauge(  # noqa: PLR0917  a row of the table
    name: str,
    instrument: str,
    about: str,
    together: str,
    read: Callable[[ExportReading], float | None],
    unit: str = "1",
) -> Measure:
    def points(reading: ExportReading) -> Iterable[Point]:
        value = read(reading)
        return () if value is None else (((), value),)

    return Measure(name, instrument, "gauge", (), about, points, together, unit)


def _denials(reading: ExportReading) -> Iterable[Point]:
    yield from reading.by_rule(lambda rule: [((reason,), number) for reason, number in rule.denials.items() if number])
    for reason, number in reading.counts.denials.items():
        if number:
            yield ("", reason), number


def _load(reading: ExportReading) -> float | None:
    rules = reading.limiter.rules
    return reading.limiter.engine.load(rules) if rules.metered else None


MEASURES: tuple[Measure, ...] = (
    _counter(
        "ratelimit_requests_total",
        "ratelimit.requests",
        ("outcome",),
        "Decisions by outcome: allowed, over, delayed, denied, deferred, unlimited (no rule applies) or unchecked (the "
        "store was unavailable).",
        lambda reading: [((outcome,), number) for outcome, number in reading.counts.requests.items()],
    ),
    _counter(
        "ratelimit_rule_requests_total",
        "ratelimit.rule_requests",
        ("rule", "outcome"),
        "Requests by rule and by how the rule decided: allowed, over, delayed, denied or shadow_denied.",
        lambda reading: reading.by_rule(
            lambda rule: [((outcome,), number) for outcome, number in rule.outcomes.items()]
        ),
    ),
    _counter(
        "ratelimit_denials_total",
        "ratelimit.denials",
        ("rule", "reason"),
        "Denied requests by the rule that denies longest and by reason. The rule is empty for blocked, shed and "
        "unavailable.",
        _denials,
    ),
    Measure(
        "ratelimit_used_ratio",
        "ratelimit.utilization",
        "histogram",
        ("rule",),
        "The used share of a limit after a decision, for one request in 16.",
        lambda reading: reading.by_rule(lambda rule: [((), rule.used)]),
        bounds=USED_BOUNDS,
    ),
    Measure(
        "ratelimit_decision_seconds",
        "ratelimit.decision.duration",
        "histogram",
        ("store",),
        "How long a decision took, for one request in 16.",
        lambda reading: [((reading.limiter.engine.tally.store,), reading.counts.decisions)],
        unit="s",
        bounds=SECONDS_BOUNDS,
    ),
    _counter(
        "ratelimit_delay_seconds_total",
        "ratelimit.delay_time",
        ("rule",),
        "The sum of the delays of requests that waited for their turn.",
        lambda reading: reading.by_rule(lambda rule: [((), rule.delay)] if rule.delay else []),
        unit="s",
    ),
    _gauge(
        "ratelimit_store_up",
        "ratelimit.store_up",
        "1, or 0 if the last decision, or the check at start, found the store unavailable.",
        "livemin",
        lambda reading: int(reading.counts.store_up),
    ),
    _counter(
        "ratelimit_store_failures_total",
        "ratelimit.store_failures",
        (),
        "Decisions for which the store was unavailable.",
        lambda reading: [((), reading.counts.store_failures)],
    ),
    _counter(
        "ratelimit_late_total",
        "ratelimit.late_requests",
        (),
        "Requests that the store did not answer in time, while it answered others.",
        lambda reading: [((), reading.counts.late)],
    ),
    _counter(
        "ratelimit_local_denials_total",
        "ratelimit.local_denials",
        (),
        "Denials from the cache of denials, without a call to the store.",
        lambda reading: [((), reading.counts.local_denials)],
    ),
    _counter(
        "ratelimit_bans_total",
        "ratelimit.bans",
        ("rule", "enforced"),
        "Bans that began. A shadow rule's bans are not enforced.",
        lambda reading: [
            ((label_of(reading.limiter, domain, rule), "true" if enforced else "false"), number)
            for (domain, rule, enforced), number in reading.counts.bans.items()
        ],
        "{ban}",
    ),
    _counter(
        "ratelimit_shed_total",
        "ratelimit.shed_requests",
        ("priority",),
        "Requests that were shed under load, by priority.",
        lambda reading: [((priority,), number) for priority, number in reading.counts.shed.items()],
    ),
    _gauge(
        "ratelimit_load",
        "ratelimit.load",
        "The load of the process, from 0 to 1, if the rules measure it.",
        "livemax",
        _load,
    ),
    _counter(
        "ratelimit_deferred_total",
        "ratelimit.deferred_requests",
        ("rule", "fate"),
        "Deferred requests by fate: queued, refused, replayed or returned.",
        lambda reading: [
            ((label_of(reading.limiter, domain, rule), fate), number)
            for (domain, rule, fate), number in reading.counts.deferred.items()
        ],
    ),
    _gauge(
        "ratelimit_counters",
        "ratelimit.counters",
        "Counters in the memory of the process. Absent if they are on a server.",
        "livesum",
        lambda reading: reading.limiter.engine.tally.counters(),
        "{counter}",
    ),
    Measure(
        "ratelimit_rules_info",
        "ratelimit.rules_info",
        "gauge",
        ("version",),
        "1 for the version of the rules in force.",
        lambda reading: [((reading.limiter.state.version,), 1)],
    ),
    _gauge(
        "ratelimit_rules_refused",
        "ratelimit.rules_refused",
        "1 if newer rules were refused, so that older ones are in force.",
        "livemax",
        lambda reading: int(reading.limiter.state.error is not None),
    ),
    _gauge(
        "ratelimit_overrides",
        "ratelimit.overrides",
        "Overrides that are set at run time.",
        "livemax",
        lambda reading: reading.limiter.state.overrides,
        "{override}",
    ),
    _gauge(
        "ratelimit_switch",
        "ratelimit.switch",
        "The kill switch: 2 on (limits apply), 1 shadow, 0 off.",
        "livemin",
        lambda reading: _SWITCH[reading.limiter.switch.setting.word],
    ),
)
"""All metrics of a limiter."""


def points(measure: Measure, reading: ExportReading) -> dict[Labels, Value]:
    """Return the values of a metric by their labels. Those of rules with the same label are added."""
    found: dict[Labels, Value] = {}
    for labels, value in measure.read(reading):
        before = found.get(labels)
        found[labels] = value if before is None else _sum(before, value)
    return found


def _sum(one: Value, other: Value) -> Value:
    match one, other:
        case Distribution(), Distribution():
            return one.plus(other)
        case ((int() | float()), (int() | float())):
            return one + other
    raise TypeError("the values of a metric are numbers or distributions, not both")
