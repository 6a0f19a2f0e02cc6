"""The metrics of the service, as Prometheus reads them.

The names and labels of `ratelimit_service_rate_limit_*` are those of envoyproxy/ratelimit, as its mapping for
Prometheus makes them. No label has a value that a client chose, so the number of series is bounded by the rules file.

This module is internal: its names may change in any release.
"""

import re
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.registry import Collector

from ratelimit_mw.reload.watcher import State
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

    def stats(self) -> str:
        """Return the counts as lines of text, by the names that envoyproxy/ratelimit gives them at `/stats`."""
        service, counts = self._service, {}
        self._look_at_rules()
        for hits in service.limiter.tally.snapshot().hits:
            place = ".".join([_sanitized(each) for each in (hits.domain, *hits.path)])
            for name, _ in _HITS:
                counts[f"ratelimit.service.rate_limit.{place}.{name}"] = getattr(hits, name)
        counts |= {f"ratelimit.service.call.should_rate_limit.{kind}": each for kind, each in service.errors.items()}
        counts["ratelimit.service.config_load_success"] = self._loads
        counts["ratelimit.service.config_load_error"] = self._failures
        counts["ratelimit.service.global_shadow_mode"] = service.shadowed
        counts[f"ratelimit_server.{_METHOD}.total_requests"] = service.asked[_METHOD]
        return "".join([f"{name}: {number}\n" for name, number in sorted(counts.items())])

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
        total.add_metric([_METHOD], service.asked[_METHOD])
        yield total
        errors = UnknownMetricFamily(
            "ratelimit_service_should_rate_limit_error", "The calls that could not be decided.", labels=["err_type"]
        )
        for kind, number in service.errors.items():
            errors.add_metric([kind], number)
        yield errors
        yield UnknownMetricFamily(
            "ratelimit_service_global_shadow_mode",
            "The calls that passed because the switch is at shadow.",
            service.shadowed,
        )
        seconds = HistogramMetricFamily(
            "ratelimit_service_response_time_seconds", "The time of gRPC calls by method.", labels=["grpc_method"]
        )
        buckets = zip(map(str, (*service.seconds.bounds, "+Inf")), accumulate(service.seconds.counts), strict=True)
        seconds.add_metric([_METHOD], list(buckets), service.seconds.total)
        yield seconds

    def _of_rules(self) -> Iterator[Metric]:
        """Yield what is known of the rules."""
        state = self._look_at_rules()
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
            "ratelimit_service_config_newest", "1 if no newer rules were refused.", float(state.error is None)
        )

    def _look_at_rules(self) -> State:
        """Count the changes of the rules. They are noticed when metrics are read."""
        state = self._service.limiter.state
        if state.version != self._version:
            self._version = state.version
            self._loads += 1
        error = state.error or ""
        if error != self._error:
            self._error = error
            self._failures += bool(error)
        return state

    def _of_descriptors(self) -> Iterator[Metric]:
        """Yield the hits of descriptors, by the names of envoyproxy/ratelimit.

        It has labels for two levels. The hits of deeper levels are counted for their second level, as it does.
        """
        found: dict[tuple[str, ...], list[int]] = {}
        for hits in self._service.limiter.tally.snapshot().hits:
            sums = found.setdefault(tuple(map(_sanitized, (hits.domain, *hits.path[:2]))), [0] * len(_HITS))
            for index, (name, _) in enumerate(_HITS):
                sums[index] += getattr(hits, name)
        for index, (name, about) in enumerate(_HITS):
            metric = Metric(f"ratelimit_service_rate_limit_{name}", about, "unknown")
            for place, sums in found.items():
                labels = dict(zip(_LABELS, place, strict=False))
                metric.add_sample(metric.name, labels, sums[index])
            yield metric


_METHOD = "ShouldRateLimit"

_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")


def _sanitized(text: str) -> str:
    """Return an entry as envoyproxy/ratelimit writes it into the name of a count."""
    return _ADDRESS.sub(lambda found: found[0].replace(".", "_"), text.replace(":", "_").replace("|", "_"))


_LABELS: tuple[str, ...] = ("domain", "key1", "key2")

_HITS = (
    ("total_hits", "The hits of a descriptor."),
    ("over_limit", "The hits above the limit."),
    ("near_limit", "The hits below the limit, but above the share --near of it."),
    ("within_limit", "The hits below the limit."),
    ("shadow_mode", "The hits above the limit that passed, because the limit is in shadow mode."),
    ("over_limit_with_local_cache", "The hits above the limit that were denied without a call to the store."),
)
"""The counts of a descriptor (the fields of a `HitsSnapshot`), and what they are."""
