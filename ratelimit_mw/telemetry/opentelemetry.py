"""Exports the metrics of a limiter to OpenTelemetry, and its decisions to the current span. Needs only the API."""

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from importlib.metadata import version

from ratelimit_mw.errors import extra

with extra("opentelemetry"):
    from opentelemetry import trace
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter

from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import Decision
from ratelimit_mw.tally import Cell
from ratelimit_mw.telemetry import MEASURES, ExportReading, Measure, label_of, points

__all__ = ["export"]

_MOST_WAITING = 4096
"""The most values that wait for the next export. It is one request in 16, so the oldest of 65 000 requests go."""

_Callback = Callable[[CallbackOptions], Iterable[Observation]]


def export(limiter: RateLimiter, meter_provider: MeterProvider | None = None) -> None:
    """Export the metrics of a limiter, and describe each decision in the current span. Call it once for each limiter.

    Names, units and attributes follow the semantic conventions: `ratelimit.requests` in `{request}`, by
    `ratelimit.outcome`. The instruments are observable: they are read when the reader of the SDK collects. The values
    of histograms wait until then. If the current span is recording, each decision sets its attributes
    `ratelimit.allowed`, `ratelimit.rule`, `ratelimit.limit`, `ratelimit.remaining`, `ratelimit.reason`,
    `ratelimit.retry_after` (seconds) and `ratelimit.delay` (seconds). Those without a value are left out.

    Args:
        limiter: The limiter.
        meter_provider: The provider of meters. None: the global one.
    """
    meter = get_meter("ratelimit_mw", version("ratelimit_mw"), meter_provider)
    samples = _Samples(limiter, meter)
    limiter.engine.tally.watchers.append(samples.add)
    for measure in MEASURES:
        if measure.kind != "histogram":
            callback = _reader(weakref.ref(limiter), measure, samples)
            if measure.kind == "counter":
                meter.create_observable_counter(measure.instrument, [callback], measure.unit, measure.about)
            else:
                meter.create_observable_gauge(measure.instrument, [callback], measure.unit, measure.about)
    limiter.engine.tally.trace(_describe)


def _reader(limiter: "weakref.ref[RateLimiter]", measure: Measure, samples: "_Samples") -> _Callback:
    def read(_options: CallbackOptions) -> Iterable[Observation]:
        found = limiter()
        if found is None:
            return []
        samples.record()
        return [
            Observation(value, {f"ratelimit.{name}": label for name, label in zip(measure.labels, labels, strict=True)})
            for labels, value in points(measure, ExportReading(found)).items()
            if not isinstance(value, tuple)
        ]

    return read


class _Samples:
    """The values of histograms. They wait until the next export, because recording one takes longer than a decision."""

    def __init__(self, limiter: RateLimiter, meter: Meter) -> None:
        self._limiter = weakref.ref(limiter)
        self._store = {"ratelimit.store": limiter.engine.tally.store}
        self._waiting: deque[tuple[Cell | None, float]] = deque(maxlen=_MOST_WAITING)
        self._histograms = {
            measure.name: meter.create_histogram(
                measure.instrument,
                measure.unit,
                measure.about,
                explicit_bucket_boundaries_advisory=measure.bounds,
            )
            for measure in MEASURES
            if measure.bounds
        }

    def add(self, cell: Cell | None, value: float) -> None:
        """Keep a value. `cell` is that of a rule, or None for the time of a decision."""
        self._waiting.append((cell, value))

    def record(self) -> None:
        """Record all values that wait."""
        limiter = self._limiter()
        while True:
            try:
                cell, value = self._waiting.popleft()
            except IndexError:
                return
            if cell is None:
                self._histograms["ratelimit_decision_seconds"].record(value, self._store)
            else:
                rule = label_of(limiter, cell.domain, cell.name)
                self._histograms["ratelimit_used_ratio"].record(value, {"ratelimit.rule": rule})


def _describe(decision: Decision) -> None:
    """Set the attributes of the current span."""
    span = trace.get_current_span()
    if not span.is_recording():
        return
    denied = decision.reason is not None
    told = {
        "allowed": decision.allowed,
        "rule": decision.rule,
        "limit": decision.limit,
        "remaining": decision.remaining,
        "reason": decision.reason,
        "retry_after": decision.retry_after if denied else None,
        "delay": decision.delay or None,
    }
    span.set_attributes({f"ratelimit.{name}": value for name, value in told.items() if value is not None})
