"""Encodes the report of a process as JSON text, and decodes those of others."""

import json
import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from ratelimit_mw.operations.activity import MOST_LIMITED, STEPS, Activity, LimitedClient, RuleActivity, Series

_PARTS = 1_000
"""Rates are encoded as whole numbers of 1/1000 request a second, which takes less time than fractions."""

_LARGEST = 10**15
"""The largest number that is read. Every browser reads it exactly, and sums of it stay finite."""

_LONGEST = 1_000_000
"""The most bytes of a text that is read."""

_MOST_RULES = 2_000
"""The most rules of a text that are read. A process reports about half of them at most."""

_LONGEST_NAME = 500
"""The most characters of a name that are read."""

_FORM = 1
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
    """Return the report in a text. None if it cannot be decoded: another release or program may have written it.

    The numbers, the names and their count are bounded, so that no text makes a page or a terminal unusable.
    """
    if len(text) > _LONGEST:
        return None
    try:
        found = json.loads(text, parse_float=_finite, parse_constant=_finite)
        if found["form"] != _FORM:
            return None
        requests, denials = map(float, _bounded(found["rates"]))
        first, second = found["steps"]
        rules = found["rules"][:_MOST_RULES]
        # All at once, which takes a third of the time.
        _bounded([0, *chain.from_iterable([rule[2] for rule in rules]), *[rule[3] for rule in rules]])
        activity = Activity(
            requests,
            denials,
            (_unpacked(first), _unpacked(second)),
            {
                (_name(domain), _name(rule)): RuleActivity(
                    (a / _PARTS, b / _PARTS, c / _PARTS, d / _PARTS, e / _PARTS), _unpacked(series), int(bans)
                )
                for domain, rule, (a, b, c, d, e), bans, series in rules
            },
            tuple([_client(client) for client in found["limited"][:MOST_LIMITED]]),
            _optional(found["load"]),
        )
        latency = _optional(found["latency_ms"])
        return ProcessReport(
            _name(found["process"]), _name(found["version"]), _name(found["switch"]), latency, activity
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
        return None


def _packed(series: Series) -> list[int]:
    """Return the number of the first step, and then the counts of it and of all steps up to the last one."""
    if not series:
        return []
    first = min(series)
    return [first, *[series.get(step, 0) for step in range(first, max(series) + 1)]]


def _unpacked(packed: Sequence[Any]) -> Series:
    if not packed:
        return {}
    first, *counts = map(int, _bounded(packed[: STEPS + 2]))
    return {step: count for step, count in enumerate(counts, first) if count}


def _finite(number: str) -> float:
    """Return a number. Raise ValueError for NaN and the infinite numbers, which browsers cannot read in JSON."""
    found = float(number)
    if not math.isfinite(found):
        raise ValueError("JSON has no such number")
    return found


def _bounded(numbers: Sequence[Any]) -> Sequence[Any]:
    """Return the numbers. Raise ValueError if one is negative or too large, and TypeError for a text."""
    if not 0 <= min(numbers) <= max(numbers) <= _LARGEST:
        raise ValueError("the number is out of bounds")
    return numbers


def _name(value: Any) -> str:
    """Return a name without its end if it is too long, and without what cannot be written as UTF-8."""
    text = str(value)
    if text.isascii() and len(text) <= _LONGEST_NAME:
        return text
    return text[:_LONGEST_NAME].encode("utf-8", "replace").decode()


def _optional(value: Any) -> float | None:
    return None if value is None else float(_bounded([value])[0])


def _client(fields: Sequence[Any]) -> LimitedClient:
    client, domain, rule, reason, denials, since, until = fields
    _bounded([denials, since])
    return LimitedClient(
        _name(client), _name(domain), _name(rule), _name(reason), int(denials), float(since), _optional(until)
    )
