"""The dashboard and the alerts in examples/observability: each metric, label and value in them exists in the code."""

import json
import re

import pytest
import yaml

from ratelimit_mw.model import Decision
from ratelimit_mw.tally import OUTCOMES, REASONS, Tally
from ratelimit_mw.telemetry import MEASURES
from tests.support.apps import ROOT

FOLDER = ROOT / "examples" / "observability"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
ALERTS = yaml.safe_load((FOLDER / "alerts.yaml").read_text("utf-8"))["groups"][0]["rules"]

LABELS = {
    series: {*measure.labels, *(["le"] if series.endswith("_bucket") else [])}
    for measure in MEASURES
    for series in (
        [f"{measure.name}_{part}" for part in ("bucket", "sum", "count")]
        if measure.kind == "histogram"
        else [measure.name]
    )
}
FROM_PROMETHEUS = {"job", "instance"}
VALUES = {"outcome": {*OUTCOMES, *Tally().snapshot().requests}, "reason": set(REASONS)}


def panels():
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield pytest.param(target["expr"], target["legendFormat"], id=f"panel: {panel['title']}-{target['refId']}")
    for each in DASHBOARD["annotations"]["list"]:
        yield pytest.param(each["expr"], "", id=f"annotation: {each['name']}")


def alerts():
    for alert in ALERTS:
        shown = " ".join(re.findall(r"\$labels\.(\w+)", str(alert["annotations"])))
        yield pytest.param(alert["expr"], "".join(f"{{{{{name}}}}}" for name in shown.split()), id=alert["alert"])


@pytest.mark.parametrize(("expression", "legend"), [*panels(), *alerts()])
def test_a_shipped_query_names_metrics_labels_and_values_of_the_code(expression, legend):
    series = re.findall(r"\b(ratelimit_\w+)", expression)
    assert series
    assert set(series) <= LABELS.keys()
    known = set.intersection(*(LABELS[each] for each in series)) | FROM_PROMETHEUS
    for name, selectors in re.findall(r"\b(ratelimit_\w+)\{([^}]*)\}", expression):
        for label, values in re.findall(r'(\w+)=~?"([^"]*)"', selectors):
            assert label in LABELS[name] | FROM_PROMETHEUS
            if label in VALUES:
                assert set(values.split("|")) <= VALUES[label]
    for labels in re.findall(r"\bby \(([^)]*)\)", expression):
        assert set(re.split(r",\s*", labels)) <= known
    assert set(re.findall(r"\{\{(\w+)\}\}", legend)) <= known
    assert expression.count("(") == expression.count(")")


def test_the_variable_of_the_dashboard_reads_a_metric_of_the_code():
    (query,) = [each["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]
    assert re.fullmatch(r"label_values\((\w+), job\)", query)[1] in LABELS


def test_every_metric_is_on_the_dashboard():
    shown = set(re.findall(r"ratelimit_\w+", json.dumps(DASHBOARD)))
    assert {re.sub("_(bucket|sum|count)$", "", name) for name in shown} == {measure.name for measure in MEASURES}


def test_there_is_an_alert_for_each_danger():
    assert [alert["alert"].removeprefix("RateLimit") for alert in ALERTS] == [
        "StoreAway",
        "Unchecked",
        "RulesRefused",
        "SwitchedOff",
        "DenialsHigh",
        "Slow",
        "ShadowWouldDeny",
        "RuleNeverDenies",
    ]


def test_panels_do_not_overlap():
    taken = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_the_reasons_are_those_of_a_decision():
    assert set(re.findall(r'"(\w+)"', Decision.__doc__.partition("reason: ")[2])) >= set(REASONS)
