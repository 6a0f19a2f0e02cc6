"""Encodes the report of a process as JSON text, and decodes those of others."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from ratelimit_mw.operations.activity import Activity, LimitedClient, RuleActivity, Series

_PARTS = 1_000
"""Rates are encoded as whole numbers of 1/1000 request a second, which takes less time than fractions."""

_LARGEST = 1e15
"""No number of a report is larger. The browser has to read the sums of many reports."""

_FORM = 2
"""The version of the format. Texts of another version come from another release and are ignored."""


class ProcessReport(NamedTuple):
    """What one limiter of one process reports.

    Attributes:
        process: A random name of the process. Several limiters of a process have the same.
        version: The version of the rules in force.
        switch: The setting of the kill switch.
        latency_ms: The time of a round trip to the store, in milliseconds. None if it is unknown.
        activity: What the process did.
    """

    process: str
    version: str
    switch: str
    latency_ms: float | None
    activity: Activity


def encode_report(report: ProcessReport) -> str:
    """Return a report as text. A report of 1 000 rules has 50 to 80 kB."""
    return json.dumps(
        {
            "form": _FORM,
            "process": report.process,
            "version": report.version,
            "switch": report.switch,
            "latency_ms": report.latency_ms,
            "load": report.activity.load,
            "rates": [round(report.activity.requests, 3), round(report.activity.denials, 3)],
            "steps": [_packed(series) for series in report.activity.steps],
            "rules": [
                (*rule, [round(rate * _PARTS) for rate in did.rates], did.bans, _packed(did.denials))
                for rule, did in report.activity.rules.items()
            ],
            "limited": report.activity.limited,
        },
        separators=(",", ":"),
    )


def decode_report(text: str | bytes) -> ProcessReport | None:
    """Return the report in a text. None if it cannot be decoded: another release or program may have written it."""
    try:
        found = json.loads(text)
        if found["form"] != _FORM:
            return None
        requests, denials = found["rates"]
        first, second = found["steps"]
        activity = Activity(
            requests,
            denials,
            (_unpacked(first), _unpacked(second)),
            {
                (domain, rule): RuleActivity(
                    (a / _PARTS, b / _PARTS, c / _PARTS, d / _PARTS, e / _PARTS), _unpacked(series), bans
                )
                for domain, rule, (a, b, c, d, e), bans, series in found["rules"]
            },
            tuple([LimitedClient(*client) for client in found["limited"]]),
            found["load"],
        )
        report = ProcessReport(found["process"], found["version"], found["switch"], found["latency_ms"], activity)
        return report if _is_readable(report) else None
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
        return None


def _is_readable(report: ProcessReport) -> bool:
    """Return True if all numbers of a report are finite. Raises TypeError for a value that is no number or no text."""
    activity, limited = report.activity, report.activity.limited
    texts = [report.process, report.version, report.switch, *(text for rule in activity.rules for text in rule)]
    texts += [text for client in limited for text in (client.client, client.domain, client.rule, client.reason)]
    "".join(texts)  # a TypeError, unless all are texts
    numbers = [activity.requests, activity.denials]
    numbers += [number for number in (activity.load, report.latency_ms) if number is not None]
    for client in limited:
        numbers += [client.denials, client.shadow, client.since, client.since if client.until is None else client.until]
    for did in activity.rules.values():
        numbers += [*did.rates, did.bans, *did.denials.values()]
    numbers += [number for series in activity.steps for number in series.values()]
    return all(-_LARGEST < number < _LARGEST for number in numbers)


def _packed(series: Series) -> list[int]:
    """Return the number of the first step, and then the counts of it and of all steps up to the last one."""
    if not series:
        return []
    first = min(series)
    return [first, *[series.get(step, 0) for step in range(first, max(series) + 1)]]


def _unpacked(packed: Sequence[Any]) -> Series:
    if not packed:
        return {}
    first, *counts = packed
    return {step: count for step, count in enumerate(counts, first) if count}
