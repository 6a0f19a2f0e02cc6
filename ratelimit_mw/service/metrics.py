"""The metrics of the service, as Prometheus reads them.

The names and labels of `ratelimit_service_rate_limit_*` are those of envoyproxy/ratelimit, as its mapping for
Prometheus makes them. No label has a value that a client chose, so the number of series is bounded by the rules file.

This module is internal: its names may change in any release.
"""

from collections.abc import Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, UnknownMetricFamily
from prometheus_client.registry import Collector

from ratelimit_mw.service.state import Service
from ratelimit_mw.telemetry.prometheus import export


class Metrics(Collector):
    """Collects the metrics of a service.

    Args:
        service: The service.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        service.limiter.engine.tally.near = service.settings.near
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        export(service.limiter, self._registry)
        ProcessCollector(registry=self._registry)
        self._loads = self._failures = 0
        self._version = self._error = ""

    def exposition(self) -> tuple[bytes, str]:
        """Return the metrics as text, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics. Only the registry calls it."""
        yield from self._of_requests()
        yield from self._of_rules()
        yield from self._of_descriptors()

    def _of_requests(self) -> Iterator[Metric]:
        service = self._service
        asked = CounterMetricFamily(
            "ratelimit_service_requests", "The requests by endpoint. Refused ones count.", labels=["endpoint"]
        )
        for endpoint, number in sorted(service.asked.items()):
            asked.add_metric([endpoint], number)
        yield asked
        refused = CounterMetricFamily(
            "ratelimit_service_refused", "The requests that could not be decided, by reason.", labels=["reason"]
        )
        for reason, number in sorted(service.refused.items()):
            refused.add_metric([reason], number)
        yield refused
        yield CounterMetricFamily(
            "ratelimit_service_unknown_domains",
            "The requests that passed because the rules do not have their domain.",
            service.unknown_domains,
        )
        yield GaugeMetricFamily("ratelimit_service_ready", "1 if the service takes requests.", float(service.ready))
        yield GaugeMetricFamily("ratelimit_service_under_way", "The requests under way.", service.under_way)
        # The names of envoyproxy/ratelimit do not end in _total, so they cannot be counters of the client library.
        total = UnknownMetricFamily(
            "ratelimit_service_total_requests", "The gRPC requests by method.", labels=["grpc_method"]
        )
        total.add_metric(["ShouldRateLimit"], service.asked["ShouldRateLimit"])
        yield total

    def _of_rules(self) -> Iterator[Metric]:
        """Yield what is known of the rules. Changes are noticed when metrics are read."""
        state = self._service.limiter.state
        if state.version != self._version:
            self._version = state.version
            self._loads += 1
        error = state.error or ""
        if error != self._error:
            self._error = error
            self._failures += bool(error)
        yield UnknownMetricFamily(
            "ratelimit_service_config_load_success", "The versions of the rules that were in force.", self._loads
        )
        yield UnknownMetricFamily(
            "ratelimit_service_config_load_error", "The newer rules that could not be used.", self._failures
        )
        yield GaugeMetricFamily(
            "ratelimit_service_config_loaded_seconds", "When the rules came into force.", state.loaded_at
        )
        yield GaugeMetricFamily(
            "ratelimit_service_config_newest", "1 if no newer rules were refused.", float(not error)
        )

    def _of_descriptors(self) -> Iterator[Metric]:
        """Yield the hits of descriptors, by the names of envoyproxy/ratelimit.

        It has labels for two levels. The hits of deeper levels are counted for their second level, as it does.
        """
        found: dict[tuple[str, ...], list[int]] = {}
        for hits in self._service.limiter.tally.snapshot().hits:
            sums = found.setdefault((hits.domain, *hits.path[:2]), [0] * len(_HITS))
            for index, (name, _) in enumerate(_HITS):
                sums[index] += getattr(hits, name)
        for index, (name, about) in enumerate(_HITS):
            metric = Metric(f"ratelimit_service_rate_limit_{name}", about, "unknown")
            for place, sums in found.items():
                labels = dict(zip(_LABELS, place, strict=False))
                metric.add_sample(metric.name, labels, sums[index])
            yield metric


_LABELS: tuple[str, ...] = ("domain", "key1", "key2")

_HITS = (
    ("total_hits", "The hits of a descriptor."),
    ("over_limit", "The hits above the limit."),
    ("near_limit", "The hits below the limit, but above the share --near of it."),
    ("within_limit", "The hits below the limit."),
    ("shadow_mode", "The hits above the limit that passed, because the limit is in shadow mode."),
)
"""The counts of a descriptor (the fields of a `HitsSnapshot`), and what they are."""
