"""The metrics and the spans of `telemetry.opentelemetry`, read through the SDK."""

import re
from importlib.metadata import version

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.telemetry import MEASURES
from ratelimit_mw.telemetry.opentelemetry import export


@pytest.fixture
def limiter():
    rules = [
        {"name": "all", "by": "ip", "limit": "2 per 10 years"},
        {"name": "queue", "by": "ip", "limit": "1 per second", "algorithm": "leaky_bucket", "match": {"path": "/q"}},
    ]
    config = {"domain": "d", "rules": rules, "exempt": [{"path": "/health"}]}
    with RateLimiter(config, clock=ManualClock()) as each:
        yield each


@pytest.fixture
def reader(limiter):
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    export(limiter, provider)
    yield reader
    provider.shutdown()


def collected(reader):
    """The points of each metric by their attributes, as text."""
    data = reader.get_metrics_data()
    (resource,) = data.resource_metrics
    (scope,) = resource.scope_metrics
    return {
        metric.name: {
            ",".join(f"{k}={v}" for k, v in point.attributes.items()): point for point in metric.data.data_points
        }
        for metric in scope.metrics
    }


def test_a_collection_has_the_counts_of_the_limiter(limiter, reader):
    for _ in range(3):
        limiter.check({"ip": "192.0.2.1"})
    found = collected(reader)
    assert found["ratelimit.requests"]["ratelimit.outcome=allowed"].value == 2
    assert found["ratelimit.denials"]["ratelimit.rule=all,ratelimit.reason=limited"].value == 1
    assert found["ratelimit.switch"][""].value == 2
    assert found["ratelimit.late_requests"][""].value == 0
    assert found["ratelimit.rules_info"][f"ratelimit.version={limiter.state.version}"].value == 1
    assert found["ratelimit.decision.duration"]["ratelimit.store=memory"].count == 1
    assert found["ratelimit.utilization"]["ratelimit.rule=all"].sum == 0.5
    assert found.keys() <= {each.instrument for each in MEASURES}


def test_names_and_units_follow_the_semantic_conventions(limiter, reader):
    limiter.check({"ip": "192.0.2.1"})
    ((scope,),) = [each.scope_metrics for each in reader.get_metrics_data().resource_metrics]
    assert (scope.scope.name, scope.scope.version) == ("ratelimit_mw", version("ratelimit_mw"))
    units = {metric.name: metric.unit for metric in scope.metrics}
    assert (
        units.items()
        >= {
            "ratelimit.requests": "{request}",
            "ratelimit.decision.duration": "s",
            "ratelimit.utilization": "1",
            "ratelimit.counters": "{counter}",
        }.items()
    )
    names = [each.instrument for each in MEASURES]
    assert all(re.fullmatch(r"ratelimit(\.[a-z]+(_[a-z]+)*)+", name) for name in names)
    assert not [name for name in names if name.endswith(("_total", "_seconds", "_ratio"))]  # Prometheus adds them
    used = {*names, *(f"ratelimit.{label}" for each in MEASURES for label in each.labels)}
    assert not [name for name in used if any(other.startswith(f"{name}.") for other in used)]  # none is a namespace


def test_a_value_of_a_histogram_is_exported_once(limiter, reader):
    for _ in range(33):
        limiter.check({"ip": "192.0.2.1"})
    assert collected(reader)["ratelimit.decision.duration"]["ratelimit.store=memory"].count == 3
    assert collected(reader)["ratelimit.decision.duration"]["ratelimit.store=memory"].count == 3


def test_rules_of_several_domains_have_their_domain_in_front(tmp_path):
    for domain in ("one", "two"):
        (tmp_path / f"{domain}.yaml").write_text(f"domain: {domain}\nrules: [{{name: a, limit: 1 per day}}]\n", "utf-8")
    made = InMemoryMetricReader()
    provider = MeterProvider([made])
    with RateLimiter(tmp_path, clock=ManualClock()) as several:
        export(several, provider)
        several.check({"ip": "192.0.2.1"}, domain="two")
        found = collected(made)
        provider.shutdown()
    assert found["ratelimit.rule_requests"]["ratelimit.rule=two/a,ratelimit.outcome=allowed"].value == 1
    assert found["ratelimit.utilization"].keys() == {"ratelimit.rule=two/a"}


def test_a_span_that_records_has_the_decision(limiter, reader):
    tracer = TracerProvider().get_tracer("test")
    for _ in range(3):
        with tracer.start_as_current_span("request") as span:
            limiter.check({"ip": "192.0.2.1"})
    attributes = dict(span.attributes)
    assert attributes.pop("ratelimit.retry_after") > 0
    assert attributes == {
        "ratelimit.allowed": False,
        "ratelimit.rule": "all",
        "ratelimit.limit": 2,
        "ratelimit.remaining": 0,
        "ratelimit.reason": "limited",
    }
    assert collected(reader)["ratelimit.requests"]["ratelimit.outcome=denied"].value == 1


def test_a_span_of_a_request_without_a_limit_has_the_decision(limiter, reader):
    with TracerProvider().get_tracer("test").start_as_current_span("request") as span:
        limiter.check({"ip": "192.0.2.1", "path": "/health"})
    assert dict(span.attributes) == {"ratelimit.allowed": True}


def test_a_span_that_does_not_record_has_no_attributes(limiter, reader):
    tracer = TracerProvider(sampler=ALWAYS_OFF).get_tracer("test")
    with tracer.start_as_current_span("request") as span:
        assert limiter.check({"ip": "192.0.2.1"}).allowed
    assert not span.is_recording()
    assert collected(reader)["ratelimit.requests"]["ratelimit.outcome=allowed"].value == 1


def test_the_counts_of_requests_are_the_same_with_spans(limiter, reader):
    for _ in range(40):
        limiter.check({"ip": "192.0.2.1", "path": "/other"})
    found = collected(reader)
    assert found["ratelimit.decision.duration"]["ratelimit.store=memory"].count == 3
    assert found["ratelimit.requests"]["ratelimit.outcome=denied"].value == 38
