"""The text in which a process reports what it did, for the processes that show it."""

import json
import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from ratelimit_mw.operations.history import MOST_LIMITED, STEPS, LimitedClient, Report, RuleReport, Series

_PARTS = 1_000
"""Rates are whole numbers in a text, of this part of a request a second. They take less time than fractions."""

_LARGEST = 10**15
"""The largest number that is read. Every browser reads it exactly, and sums of it stay finite."""

_LONGEST = 1_000_000
"""The most bytes of a text that is read."""

_MOST_RULES = 2_000
"""The most rules of a text that are read. A process reports about half of them at most."""

_LONGEST_NAME = 500
"""The most characters of a name that are read."""

_FORM = 1
"""The number of the form of a text. A text of another form is of another release, and is not read."""


class ProcessReport(NamedTuple):
    """What one limiter of one process reports.

    Attributes:
        process: A random name of the process. Several limiters of a process have the same.
        version: The version of the rules in force.
        switch: The setting of the kill switch.
        latency_ms: The time of a round trip to the store, in milliseconds. None if it is unknown.
        report: What the process did.
    """

    process: str
    version: str
    switch: str
    latency_ms: float | None
    report: Report


def text_of(told: ProcessReport) -> str:
    """Return the text of a report. That of 1 000 rules has 50 to 80 kB."""
    report = told.report
    return json.dumps(
        {
            "form": _FORM,
            "process": told.process,
            "version": told.version,
            "switch": told.switch,
            "latency_ms": told.latency_ms,
            "load": report.load,
            "rates": [round(report.requests, 3), round(report.denials, 3)],
            "steps": [_packed(series) for series in report.steps],
            "rules": [
                (*rule, [round(rate * _PARTS) for rate in did.rates], did.bans, _packed(did.denials))
                for rule, did in report.rules.items()
            ],
            "limited": report.limited,
        },
        separators=(",", ":"),
    )


def report_in(text: str | bytes) -> ProcessReport | None:
    """Return the report in a text. None if it cannot be read: another release or program may have written it.

    The numbers, the names and their count are bounded, so that no text makes a page or a terminal unusable.
    """
    if len(text) > _LONGEST:
        return None
    try:
        told = json.loads(text, parse_float=_finite, parse_constant=_finite)
        if told["form"] != _FORM:
            return None
        requests, denials = map(float, _bounded(told["rates"]))
        first, second = told["steps"]
        rules = told["rules"][:_MOST_RULES]
        # All at once, which takes a third of the time.
        _bounded([0, *chain.from_iterable([rule[2] for rule in rules]), *[rule[3] for rule in rules]])
        report = Report(
            requests,
            denials,
            (_unpacked(first), _unpacked(second)),
            {
                (_name(domain), _name(rule)): RuleReport(
                    (a / _PARTS, b / _PARTS, c / _PARTS, d / _PARTS, e / _PARTS), _unpacked(series), int(bans)
                )
                for domain, rule, (a, b, c, d, e), bans, series in rules
            },
            tuple([_client(client) for client in told["limited"][:MOST_LIMITED]]),
            _optional(told["load"]),
        )
        latency = _optional(told["latency_ms"])
        return ProcessReport(_name(told["process"]), _name(told["version"]), _name(told["switch"]), latency, report)
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
