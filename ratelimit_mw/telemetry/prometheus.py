"""Exports the metrics of a limiter to `prometheus_client`."""

import atexit
import os
import weakref
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from ratelimit_mw.errors import extra
from ratelimit_mw.logs import logger

with extra("prometheus"):
    from prometheus_client import (
        CONTENT_TYPE_LATEST,
        REGISTRY,
        CollectorRegistry,
        Counter,
        Gauge,
        Histogram,
        generate_latest,
    )
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.multiprocess import MultiProcessCollector
    from prometheus_client.registry import Collector

from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.process_local import Repeating, lazy, lock
from ratelimit_mw.snapshots import Distribution
from ratelimit_mw.tally import Cell
from ratelimit_mw.telemetry import MEASURES, ExportReading, Labels, Measure, label_of, points

__all__ = ["export"]


_EVERY = 1.0
"""Seconds between two updates of the real metrics, if several processes are exported together."""


def export(limiter: RateLimiter, registry: CollectorRegistry = REGISTRY) -> None:
    """Export the metrics of a limiter. Call it once for each limiter, where the limiter is made.

    The metrics are read when Prometheus scrapes the registry. A request costs no more than without the export.

    If the environment has `PROMETHEUS_MULTIPROC_DIR` (gunicorn with several processes), the files of prometheus_client
    are updated at the first request of a process, once a second, and when the limiter is closed. A process that serves
    no request, such as the one that forks the others, has no values. `ratelimit_rules_info` is left out, because
    prometheus_client cannot join it.

    Args:
        limiter: The limiter.
        registry: The registry of prometheus_client. It takes one limiter.

    Raises:
        ValueError: The registry already has these metrics.
    """
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        _Files(limiter, registry)
    else:
        registry.register(_AtScrape(limiter))


class _Names(Collector):
    """Reserves the names of the metrics in a registry, which refuses them from another limiter."""

    def describe(self) -> Iterable[Metric]:
        """Return the metrics without their values."""
        return [_family(measure, {}) for measure in MEASURES]

    def collect(self) -> Iterable[Metric]:
        """Return nothing."""
        return []


class _AtScrape(_Names):
    """Reads the limiter when the registry is scraped."""

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = weakref.ref(limiter)

    def collect(self) -> Iterable[Metric]:
        """Return the metrics with their values of this moment."""
        limiter = self._limiter()
        if limiter is None:
            return []
        reading = ExportReading(limiter)
        return [_family(measure, points(measure, reading)) for measure in MEASURES]


def _family(measure: Measure, values: dict[Labels, float | Distribution]) -> Metric:
    if measure.kind == "histogram":
        histogram = HistogramMetricFamily(measure.name, measure.about, labels=measure.labels)
        for labels, value in values.items():
            if isinstance(value, Distribution):
                histogram.add_metric(labels, _buckets(value), value.total)
        return histogram
    make = CounterMetricFamily if measure.kind == "counter" else GaugeMetricFamily
    family = make(measure.name, measure.about, labels=measure.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)  # type: ignore[arg-type]  # only histograms have distributions
    return family


def _buckets(value: Distribution) -> list[tuple[str, float]]:
    """Return the upper bound of each bucket and the number of values up to it."""
    return list(zip([*map(str, value.bounds), "+Inf"], accumulate(value.counts), strict=True))


class _Files:
    """Moves the counts of a limiter, until it is closed, into the real metrics, whose files all processes share.

    The real metrics are made at the first request of a process: a gauge of a process that only forks would stay 0. A
    thread moves the counts once a second.
    """

    _lock = lazy(lock)
    _moved = lazy(dict[tuple[str, Labels], float])
    """What was moved. In the child of a fork, the limiter counts from 0."""

    def __init__(self, limiter: RateLimiter, registry: CollectorRegistry) -> None:
        self._limiter = weakref.ref(limiter)
        self._store = limiter.engine.tally.store
        self._registry = registry
        self._names: _Names | None = _Names()
        registry.register(self._names)
        self._made = False
        self._moving = Repeating("metrics", self._turn, first=_EVERY)
        self._metrics: dict[str, Any] = {}
        limiter.engine.tally.watchers.append(self._observe)
        limiter.at_close(self._close)
        atexit.register(self._close)
        limiter.at_first_request(self._serve)

    def _serve(self) -> None:
        """Make the metrics of this process, unless it was forked by one that has them, and move the first counts."""
        try:
            if self._names is not None:
                names, self._names = self._names, None
                self._registry.unregister(names)
                self._make()
                self._made = True
            self._move()
            self._moving.start()  # if there is no thread, the counts are moved when the limiter is closed
        except OSError as error:  # the request must not fail
            logger.error("the metrics can't be written to PROMETHEUS_MULTIPROC_DIR: %s", error)  # noqa: TRY400  no trace

    def _make(self) -> None:
        for name, _, kind, labels, about, _, _, _, bounds in MEASURES:
            if kind == "counter":
                self._metrics[name] = Counter(name, about, labels, registry=self._registry)
            elif kind == "histogram":
                self._metrics[name] = Histogram(name, about, labels, registry=self._registry, buckets=bounds)

    def _set(self, measure: Measure, value: float) -> None:
        """Set a gauge. It is made at its first value, because prometheus_client shows a gauge without one as 0."""
        if measure.name not in self._metrics:
            mode: Any = measure.together  # one of the modes of prometheus_client
            self._metrics[measure.name] = Gauge(
                measure.name, measure.about, registry=self._registry, multiprocess_mode=mode
            )
        self._metrics[measure.name].set(value)

    def _observe(self, cell: Cell | None, value: float) -> None:
        """Observe a value of one request in 16. `cell` is that of a rule, or None for the time of the decision."""
        if not self._made:  # they could not be made
            return
        if cell is None:
            self._metrics["ratelimit_decision_seconds"].labels(self._store).observe(value)
        else:
            label = label_of(self._limiter(), cell.domain, cell.name)
            self._metrics["ratelimit_used_ratio"].labels(label).observe(value)

    def _turn(self) -> float | None:
        self._move()
        return None if self._limiter() is None else _EVERY

    def _close(self) -> None:
        self._moving.stop()
        self._move()

    def _move(self) -> None:
        """Add what was counted since the last call to the real counters, and set the gauges."""
        limiter = self._limiter()
        if limiter is None or not self._made:
            return
        with self._lock:
            reading = ExportReading(limiter)
            for measure in MEASURES:
                for labels, value in points(measure, reading).items():
                    if isinstance(value, Distribution):
                        continue
                    if measure.kind == "counter":
                        self._add(measure.name, labels, value)
                    elif measure.together:
                        self._set(measure, value)

    def _add(self, name: str, labels: Labels, value: float) -> None:
        before = self._moved.get((name, labels), 0.0)
        self._moved[name, labels] = value
        more = value - before if value >= before else value  # after a test has set the counts to 0
        if more:
            counter = self._metrics[name]
            (counter.labels(*labels) if labels else counter).inc(more)


class Exposition:
    """Writes the metrics of a limiter as text for the live page, from a registry of its own. It is internal.

    If the environment has `PROMETHEUS_MULTIPROC_DIR`, they are read from the files that the app's own `export(limiter)`
    fills in each process. A second export would add every request to these files twice.

    Args:
        limiter: The limiter.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, limiter: RateLimiter) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            self._registry.register(_OfAllProcesses())
        else:
            export(limiter, self._registry)

    def text(self) -> bytes:
        """Return the metrics in the text format of Prometheus. Empty if there are none."""
        return generate_latest(self._registry)


class _OfAllProcesses(Collector):
    """The metrics of this package among those of an app, summed over its processes."""

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of this moment."""
        every: Iterable[Metric] = MultiProcessCollector(CollectorRegistry()).collect()  # type: ignore[no-untyped-call]
        return [metric for metric in every if metric.name.startswith("ratelimit_")]
