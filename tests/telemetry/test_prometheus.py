"""The metrics of `telemetry.prometheus`: their names, their values at a scrape, and under processes of gunicorn."""

import subprocess
import sys
import textwrap
import time
from random import Random

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.model import EntryList
from ratelimit_mw.telemetry import MEASURES
from ratelimit_mw.telemetry.prometheus import export
from tests.support.apps import ROOT, gunicorn

RULES = [
    {"name": "all", "by": "ip", "limit": "2 per 10 years"},
    {"name": "login", "by": ["user|ip", "path"], "limit": "2 per 10 years", "match": {"path": "/login/*"}},
    {"name": "trial", "by": "header:x-key", "limit": "1 per 10 years", "shadow": True},
]
PROMISED = """
    ratelimit_requests_total{outcome} ratelimit_rule_requests_total{rule,outcome}
    ratelimit_denials_total{rule,reason} ratelimit_used_ratio{rule} ratelimit_decision_seconds{store}
    ratelimit_delay_seconds_total{rule} ratelimit_store_up ratelimit_store_failures_total ratelimit_late_total
    ratelimit_local_denials_total ratelimit_bans_total{rule,enforced} ratelimit_shed_total{priority} ratelimit_load
    ratelimit_deferred_total{rule,fate} ratelimit_counters ratelimit_rules_info{version} ratelimit_rules_refused
    ratelimit_overrides ratelimit_switch
"""


def limiter(*rules, **file):
    config = {"domain": "d", "client": {"user": "header:x-user", "secret": "s"}, "rules": list(rules or RULES), **file}
    return RateLimiter(config, clock=ManualClock())


def exported(each):
    registry = CollectorRegistry()
    export(each, registry)
    return registry


def samples(registry):
    """The values of a scrape, by the name and the labels as text."""
    return {
        sample.name + "".join(f",{name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_the_names_and_labels_are_those_of_the_contract():
    made = {f"{each.name}{{{','.join(each.labels)}}}".removesuffix("{}") for each in MEASURES}
    assert made == set(PROMISED.split())


def test_a_scrape_has_the_counts_of_the_limiter():
    with limiter() as each:
        registry = exported(each)
        for _ in range(3):
            each.check({"ip": "192.0.2.1", "header:x-key": "k"})
        found = samples(registry)
    assert found["ratelimit_requests_total,outcome=allowed"] == 2
    assert found["ratelimit_requests_total,outcome=denied"] == 1
    assert found["ratelimit_rule_requests_total,outcome=denied,rule=all"] == 1
    assert found["ratelimit_rule_requests_total,outcome=shadow_denied,rule=trial"] == 2
    assert found["ratelimit_denials_total,reason=limited,rule=all"] == 1
    assert found["ratelimit_decision_seconds_count,store=memory"] == 1
    assert found["ratelimit_used_ratio_bucket,le=0.5,rule=all"] == 1
    assert found["ratelimit_used_ratio_bucket,le=0.25,rule=all"] == 0
    assert found["ratelimit_used_ratio_sum,rule=all"] == 0.5
    assert found["ratelimit_store_up"] == 1
    assert found["ratelimit_switch"] == 2
    assert found["ratelimit_rules_refused"] == found["ratelimit_overrides"] == 0
    assert found["ratelimit_counters"] == 2
    assert found[f"ratelimit_rules_info,version={each.state.version}"] == 1
    assert "ratelimit_load" not in found


def test_the_switch_the_load_and_overrides_are_gauges():
    load = {"capacity": 4}
    with limiter({**RULES[0], "priority": "low"}, load=load) as each:
        registry = exported(each)
        each.switch.set("shadow")
        each.overrides.set({"ip": "192.0.2.1"}, exempt=True)
        found = samples(registry)
        assert (found["ratelimit_switch"], found["ratelimit_overrides"], found["ratelimit_load"]) == (1, 1, 0)
        each.switch.set("off")
        assert samples(registry)["ratelimit_switch"] == 0


def test_refused_rules_are_seen(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("domain: d\nrules: [{name: a, limit: 1 per day}]\n", "utf-8")
    with RateLimiter(path) as each:
        registry = exported(each)
        path.write_text("domain: d\nrules: [{name: a, limit: many}]\n", "utf-8")
        with pytest.raises(ValueError, match="limit"):
            each.reload()
        assert samples(registry)["ratelimit_rules_refused"] == 1


def test_a_registry_takes_one_limiter():
    with limiter() as each, limiter() as other:
        registry = exported(each)
        with pytest.raises(ValueError, match="Duplicated"):
            export(other, registry)


def test_rules_of_several_domains_have_their_domain_in_front(tmp_path):
    for domain in ("one", "two"):
        (tmp_path / f"{domain}.yaml").write_text(f"domain: {domain}\nrules: [{{name: a, limit: 1 per day}}]\n", "utf-8")
    with RateLimiter(tmp_path, clock=ManualClock()) as each:
        registry = exported(each)
        each.check({"ip": "192.0.2.1"}, domain="one")
        each.check({"ip": "192.0.2.1"}, domain="two")
        found = samples(registry)
    assert found["ratelimit_rule_requests_total,outcome=allowed,rule=one/a"] == 1
    assert found["ratelimit_rule_requests_total,outcome=allowed,rule=two/a"] == 1
    assert found["ratelimit_used_ratio_count,rule=one/a"] == 1  # the first request of 16


def test_a_limiter_that_is_gone_has_no_metrics():
    registry = exported(limiter())
    assert samples(registry) == {}


DESCRIPTORS = [
    {"key": "user", "rate_limit": {"unit": "day", "requests_per_unit": 1}},
    {"key": "path", "value": "/a*", "rate_limit": {"unit": "day", "requests_per_unit": 1}},
]


def test_the_series_do_not_grow_with_10_000_identities():
    """Of a request: its address, user, path and header, and of a list: its values, its keys and its limit."""
    seen = set()
    with limiter(descriptors=DESCRIPTORS) as each:
        registry = exported(each)

        @given(st.integers(0, 2**32).map(Random))
        @settings(max_examples=5, deadline=None)
        def ask(random):
            for _ in range(2_000):
                text = "".join(random.choices('ab/{}"\n\\é=,', k=8))
                address = f"198.51.{random.randrange(256)}.{random.randrange(256)}"
                who = {"ip": address, "user": text, "path": f"/login/{text}", "header:x-key": text}
                each.check(who)
            for number in range(50):
                lists = [
                    [("user", text)],
                    [("path", f"/a{number}")],
                    EntryList([(f"k{number}{text}", text)], limit=(1, "day")),
                ]
                each.check_lists("d", lists)
            found = samples(registry)
            seen.update(found)
            assert not any(text in name for name in found for text in ("198.51.", "login/"))

        ask()
        assert sum(each.tally.snapshot().requests.values()) >= 10_000
    rules = {name.partition("rule=")[2] for name in seen if "rule=" in name}
    assert rules == {"all", "login", "trial", "user", "path=/a*", "(sent)"}
    assert len(seen) < 200


APP = """
    from flask import Flask, Response
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.multiprocess import MultiProcessCollector
    from ratelimit_mw import RateLimiter
    from ratelimit_mw.telemetry.prometheus import export
    from ratelimit_mw.wsgi import RateLimitMiddleware

    limiter = RateLimiter(
        {
            "domain": "d",
            "storage": {"timeout": "5s"},
            "rules": [
                {"name": "all", "by": "ip", "limit": "1 per 10 years", "match": {"path": "/limited"}},
                {"name": "free", "by": "global", "limit": "1000000 per 10 years", "match": {"path": "/"}},
            ],
        }
    )
    export(limiter)
    app = Flask(__name__)


    @app.get("/")
    def hello():
        return "hello"


    @app.get("/metrics")
    def metrics():
        registry = CollectorRegistry()
        MultiProcessCollector(registry)
        return Response(generate_latest(registry), mimetype="text/plain")


    app.wsgi_app = RateLimitMiddleware(app.wsgi_app, limiter=limiter)
"""


@pytest.mark.parametrize(
    "args",
    [pytest.param((), id="each loads", marks=pytest.mark.soak), pytest.param(("--preload",), id="preload")],
)
def test_two_processes_of_gunicorn_are_exported_together(tmp_path, args):
    (tmp_path / "counted.py").write_text(textwrap.dedent(APP), "utf-8")
    (tmp_path / "metrics").mkdir()
    env = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics"), "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    with gunicorn("counted:app", workers=2, env=env, cwd=tmp_path, args=args) as app:
        assert "\nratelimit_store_up 1.0\n" in httpx.get(f"{app.url}/metrics").text  # from the first request on
        for _ in range(40):  # each on its own connection, so that both processes serve
            assert httpx.get(f"{app.url}/").status_code == 200
        denied = sum(httpx.get(f"{app.url}/limited").status_code == 429 for _ in range(10))
        found = {}
        deadline = time.monotonic() + 60
        wanted = 'ratelimit_rule_requests_total{outcome="allowed",rule="free"} 40.0'
        while time.monotonic() < deadline and (wanted not in found or f" {denied}.0" not in found):
            time.sleep(0.2)
            found = httpx.get(f"{app.url}/metrics").text
        assert wanted in found
        assert f'ratelimit_denials_total{{reason="limited",rule="all"}} {denied}.0' in found
        assert f'ratelimit_requests_total{{outcome="denied"}} {denied}.0' in found
        assert 'ratelimit_decision_seconds_count{store="memory"}' in found
        assert "\nratelimit_store_up 1.0\n" in found
        assert "ratelimit_rules_info" not in found
        written = {path.stem.rpartition("_")[2] for path in (tmp_path / "metrics").iterdir()}
        assert len(written) <= 2  # the processes that serve; none is the one that forked them
        assert written <= set(map(str, app.pids))


def test_the_real_metrics_follow_a_limiter_until_it_is_closed(tmp_path):
    """In a process of its own, because prometheus_client decides when it is imported."""
    program = """
    from prometheus_client import REGISTRY
    from ratelimit_mw import RateLimiter
    from ratelimit_mw.telemetry.prometheus import export
    with RateLimiter({"domain": "d", "rules": [{"name": "a", "limit": "3 per 10 years"}]}) as limiter:
        export(limiter)
        for _ in range(5):
            limiter.check({"ip": "192.0.2.1"})
    read = REGISTRY.get_sample_value
    print([read("ratelimit_requests_total", {"outcome": outcome}) for outcome in ("denied", "allowed")])
    print([read(f"ratelimit_{gauge}") for gauge in ("counters", "load")])  # the rules measure no load
    """
    env = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[2.0, 3.0]\n[1.0, None]\n"


def test_a_folder_that_cannot_be_written_costs_the_metrics_and_no_request(tmp_path):
    program = """
    import logging
    from ratelimit_mw import RateLimiter
    from ratelimit_mw.telemetry.prometheus import export
    logging.basicConfig(format="%(levelname)s %(message)s")
    with RateLimiter({"domain": "d", "rules": [{"name": "a", "limit": "1 per 10 years"}]}) as limiter:
        export(limiter)
        print([limiter.check({"ip": "192.0.2.1"}).allowed for _ in range(2)])
    """
    env = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "missing"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[True, False]\n"
    assert "ERROR the metrics can't be written to PROMETHEUS_MULTIPROC_DIR" in done.stderr


def test_a_registry_takes_one_limiter_of_several_processes(tmp_path):
    program = """
    from prometheus_client import CollectorRegistry
    from ratelimit_mw import RateLimiter
    from ratelimit_mw.telemetry.prometheus import export
    registry = CollectorRegistry()
    for decided in (False, True):
        limiter = RateLimiter({"domain": "d", "rules": []})
        try:
            export(limiter, registry)
        except ValueError as error:
            print(str(error).partition(":")[0])
        limiter.check({})
    try:
        export(RateLimiter({"domain": "d", "rules": []}), registry)
    except ValueError as error:
        print(str(error).partition(":")[0])
    """
    env = {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "Duplicated timeseries in CollectorRegistry\n" * 2
