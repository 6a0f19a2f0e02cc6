"""The admin app of the service: metrics, the rules in force, and the state of the process.

In the text of the rules, the line of a descriptor is as envoyproxy/ratelimit writes it. A rule has its limits in words,
as on the live page.

The names and labels of `ratelimit_service_rate_limit_*` are those of envoyproxy/ratelimit, as its mapping for
Prometheus makes them. No label has a value that a client chose, so the number of series is bounded by the rules file.

This module is internal: its names may change in any release.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime
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
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ratelimit_mw.decision.explanation import limit_in_words
from ratelimit_mw.envoy.tree import DEFAULT, DescriptorLimit
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.operations.live import Outline
from ratelimit_mw.reload.watcher import State
from ratelimit_mw.service.access import Right
from ratelimit_mw.service.api import probes, refused_caller
from ratelimit_mw.service.settings import Address
from ratelimit_mw.service.state import Service
from ratelimit_mw.telemetry.prometheus import export
from ratelimit_mw.units import UNITS

_UNIT_NAMES = {period: name.upper() for name, period in UNITS.items() if name != "millisecond"}


def admin_app(service: Service) -> Starlette:
    """Return the app that is served at `--admin`. With a token file, all but the probes need an admin token."""
    metrics = Metrics(service)
    settings, admin = service.settings, service.settings.admin
    right: Right = "check" if settings.token_file is None else "admin"  # without tokens, this port is on loopback
    # A browser reads this port for a page of the web if the name of that page leads to this machine (DNS rebinding).
    # It sends no Origin then, but the name as the Host. Tokens and certificates prevent this, too.
    by_local_name = settings.token_file is None and settings.tls_cert is None and admin is not None and not admin.path

    async def show_metrics(_request: Request) -> Response:
        """`/metrics`: the metrics, as Prometheus reads them."""
        return Response(metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def show_rules(_request: Request) -> Response:
        """`/rlconfig`: the rules in force."""
        return PlainTextResponse(rules_text(service.limiter))

    async def show_state(_request: Request) -> Response:
        """`/stats`: the counts of envoyproxy/ratelimit."""
        return PlainTextResponse(metrics.stats())

    def guarded(endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            refusal = refused_caller(service, request, right)
            if refusal is None and by_local_name and not _is_local(request.headers.get("host", "")):
                service.refuse("host")
                refusal = JSONResponse({"problems": [_NOT_LOCAL]}, 421)
            return refusal or await endpoint(request)

        return answer

    endpoints = {"/metrics": show_metrics, "/rlconfig": show_rules, "/stats": show_state}
    routes = [Route(path, guarded(endpoint)) for path, endpoint in endpoints.items()]
    return Starlette(routes=[*routes, *probes(service)])


_NOT_LOCAL = "the Host of a request must be localhost or a loopback address, or the service needs a token file"


def _is_local(host: str) -> bool:
    """True if a header `Host`, with or without a port, is `localhost` or a loopback address."""
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return Address(name.lower()).loopback


def rules_text(limiter: RateLimiter) -> str:
    """Return the rules of a limiter, one line for each limit."""
    state, rules = limiter.state, limiter.rules
    since = datetime.fromtimestamp(state.loaded_at, UTC).isoformat(timespec="seconds")
    lines = [f"# version {state.version}, since {since}"]
    if state.error is not None:
        lines.append("# newer rules cannot be used; the reason is in the log")
    shown = Outline(rules).rules
    for part in rules.parts:
        if part.shadow:
            lines.append(f"# the domain {part.domain} is in shadow: nothing is enforced")
        for rule in part.compiled:
            limits, shadow = shown[part.domain, rule.rule.name]
            words = " and ".join(limits) or "no limit"
            more = "; other limits by tier" * bool(rule.tiers) + "; shadow" * shadow
            lines.append(f"{part.domain}.{rule.rule.name}: {words}{more}")
        descriptors = part.descriptors.limits if part.descriptors is not None else ()
        lines += [f"{part.domain}.{limit.rule.name}: {_of_descriptor(limit)}" for limit in descriptors]
    return "\n".join(lines) + "\n"


def _of_descriptor(limit: DescriptorLimit) -> str:
    quota, rule = limit.quota, limit.rule
    if quota is None:
        return "unlimited"
    flags = f"shadow_mode: {str(rule.shadow).lower()}, quota_mode: {str(bool(rule.quota_group)).lower()}"
    unit = _UNIT_NAMES.get(quota.period)
    if unit is None or quota.algorithm != DEFAULT:
        return f"{limit_in_words(quota)} ({quota.algorithm}), {flags}"
    return f"unit={unit} requests_per_unit={quota.limit}, {flags}"


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

    def exposition(self) -> bytes:
        """Return the metrics as text of the type `CONTENT_TYPE_LATEST`."""
        return generate_latest(self._registry)

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
        yield _family(
            CounterMetricFamily,
            "ratelimit_service_requests",
            "The requests by endpoint. Refused ones count.",
            "endpoint",
            service.asked,
        )
        yield _family(
            CounterMetricFamily,
            "ratelimit_service_refused",
            "The requests that could not be decided, by reason.",
            "reason",
            service.refused,
        )
        yield CounterMetricFamily(
            "ratelimit_service_unknown_domains",
            "The requests that passed because the rules do not have their domain.",
            service.unknown_domains,
        )
        yield GaugeMetricFamily("ratelimit_service_ready", "1 if the service takes requests.", float(service.ready))
        # The names of envoyproxy/ratelimit do not end in _total, so they cannot be counters of the client library.
        yield _family(
            UnknownMetricFamily,
            "ratelimit_service_total_requests",
            "The gRPC requests by method.",
            "grpc_method",
            {_METHOD: service.asked[_METHOD]},
        )
        yield _family(
            UnknownMetricFamily,
            "ratelimit_service_should_rate_limit_error",
            "The calls that could not be decided.",
            "err_type",
            service.errors,
        )
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


def _family(
    kind: type[CounterMetricFamily | UnknownMetricFamily],
    name: str,
    about: str,
    label: str,
    numbers: Mapping[str, float],
) -> Metric:
    """Return a metric with one series for each value of its label."""
    metric = kind(name, about, labels=[label])
    for value, number in sorted(numbers.items()):
        metric.add_metric([value], number)
    return metric


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
