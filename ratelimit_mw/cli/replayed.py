"""What `ratelimit-mw replay` prints: the result as text and as JSON."""

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from ratelimit_mw.cli.common import bars, say_table
from ratelimit_mw.foresight.results import MINUTE, Bars, Curve, DeniedClient, Difference, Result, RuleResult
from ratelimit_mw.foresight.wording import (
    CAVEAT,
    changes,
    client_cells,
    limit_cells,
    notes,
    printable,
    rule_cells,
    sentence,
    utc,
)

UNITS = {"minute": 1, "hour": 60, "day": 1440}
"""The minutes of each unit of `--by`."""

_WIDEST = 32
"""The most characters of a sparkline."""

_MOST_CURVES = 3
"""The most limits whose what-if is shown, those that deny most."""


def say_result(result: Result, logs: Sequence[str], *, by: str, most: int, rule: str | None) -> None:
    """Print the result of a replay.

    Args:
        result: The result.
        logs: The paths of the logs.
        by: The unit of time of a character in a sparkline.
        most: The most clients to show.
        rule: The only rule to show. None: all rules.
    """
    outcome = result.outcome
    for log, form in zip(logs, result.formats, strict=True):
        typer.echo(f"{printable(log)}: {form}")
    if result.first:
        typer.echo(f"{utc(result.first)} to {utc(result.last)} UTC\n")
    typer.echo(sentence(result))
    rules = _shown(result, rule)
    if any(each.asked for each in rules):
        typer.echo("")
        _say_rules(result, rules, by)
    clients = outcome.most_limited(most, rule)
    if clients:
        typer.echo("\nmost limited clients")
        _say_clients(clients)
    _say_what_if(result, most)
    if result.difference is not None:
        _say_difference(result.difference, most)
    gaps = [gap.text for gap in result.gaps if rule is None or gap.rule in ("", rule)]
    if gaps:
        typer.echo("\nnot replayed, or not as in production")
        for text in gaps:
            typer.echo(f"  - {printable(text)}")
    lines = notes(result)
    if lines:
        typer.echo("\n" + "\n".join(lines))


def _shown(result: Result, rule: str | None) -> list[RuleResult]:
    return [each for each in result.outcome.rules.values() if rule is None or each.name == rule]


def _say_rules(result: Result, rules: Sequence[RuleResult], by: str) -> None:
    columns, cells = rule_cells(result.outcome, rules)
    rows = [
        (_marked(each.name, shadow=each.shadow), *row, sparkline(each, result.first, result.last, UNITS[by]))
        for each, row in zip(rules, cells, strict=True)
    ]
    say_table(("rule", *columns, "denials over time"), rows)
    if any(each.shadow for each in rules):
        typer.echo("○ a shadow rule: it denies nothing, and would have denied these requests")


def _marked(rule: str, *, shadow: bool) -> str:
    return f"{'○ ' if shadow else ''}{rule}"


def sparkline(rule: RuleResult, first: int, last: int, minutes: int) -> str:
    """Return the denials of a rule over time, one character for so many minutes, or for several times as many."""
    begin, end = first // MINUTE // minutes, last // MINUTE // minutes
    each = -(-(end - begin + 1) // _WIDEST)  # how many units share a character
    spans = Bars(begin * minutes, each * minutes, (end - begin) // each + 1)
    return bars(spans.heights(rule.minutes))


def _say_clients(clients: Sequence[DeniedClient]) -> None:
    rows = [(each.client, _marked(each.rule, shadow=each.shadow), *client_cells(each)) for each in clients]
    say_table(("client", "rule", ">denied", "first denial", "last denial"), rows)


_HIT = ("client", ">peak", ">requests", "paths", "statuses", "user agent", "like a")


def _say_what_if(result: Result, most: int) -> None:
    by_denials = sorted(result.curves, key=lambda curve: -curve.denied[curve.in_force])
    for curve in by_denials[:_MOST_CURVES]:
        how = f"replayed, because {curve.why_replayed}" if curve.why_replayed else "exact"
        name = _marked(curve.rule, shadow=curve.shadow)
        typer.echo(f"\nwhat if {printable(name)} had another limit than {curve.quota} ({printable(how)})")
        cells = limit_cells(curve)
        cells[curve.in_force][0] = f"→ {cells[curve.in_force][0]}"
        rows = [cells[place] for place in rows_to_show(curve)]
        say_table((">limit", ">denied", ">of requests", ">limited", ">of clients"), rows)
        hit = [each for each in curve.hit if each.last >= curve.in_force][:most]
        if hit:
            typer.echo(f"\nclients that {printable(name)} limits")
            say_table(
                _HIT, [(each.client, *map(str, each[2:4]), *each[4:7], f"{each.kind}: {each.reason}") for each in hit]
            )
    further = len(by_denials) - _MOST_CURVES
    if further > 0:
        several = "limits have" if further > 1 else "limit has"
        typer.echo(f"\n{further:,} more {several} a what-if: --rule NAME shows that of one rule")
    if result.without_curve:
        typer.echo("\n" + "\n".join(printable(text) for text in result.without_curve))


def rows_to_show(curve: Curve) -> list[int]:
    """Return the indices of about seven limits for a short table: up to the first that denies nothing, evenly chosen.

    The limit in force is one of them.
    """
    harmless = next((place for place, number in enumerate(curve.denied) if not number), len(curve.limits) - 1)
    last = max(harmless, curve.in_force)
    return sorted({curve.in_force, *range(last, -1, -max(last // 6, 1))})


def _say_difference(difference: Difference, most: int) -> None:
    typer.echo("\ncompared with the rules of --against")
    for change in changes(difference, most):
        typer.echo(f"  newly {change.word}: {change.requests} of {change.clients}")
        for client, requests in change.most:
            typer.echo(f"    {printable(client)}: {requests}")


def as_markdown(result: Result, most: int) -> str:
    """Return the summary of a replay in Markdown, as for a merge request. What clients wrote is text there.

    Args:
        result: The result.
        most: The most clients to name of each change.
    """
    lines = ["### Replay of the rules on a log", "", sentence(result)]
    hit = sorted((each for curve in result.curves for each in curve.hit), key=lambda each: each.requests)
    kinds = {each.client: f"{each.kind}: {each.reason}" for each in hit}  # by the rule that saw most of the client
    for change in changes(result.difference, most) if result.difference is not None else ():
        lines += ["", f"**newly {change.word}: {change.clients}**, {change.requests}"]
        if change.most:
            lines += ["", "| client | requests | like a |", "|---|---:|---|"]
        for client, requests in change.most:
            cells = client, requests, kinds.get(client, "")
            lines.append(f"| {' | '.join(_inert(printable(cell)) for cell in cells)} |")
        if change.further:
            lines += ["", f"and {change.further:,} more clients"]
    lines += ["", *(f"- {_inert(printable(gap.text))}" for gap in result.gaps), "", CAVEAT, ""]
    return "\n".join(lines)


def _inert(text: str) -> str:
    """Return a text in which Markdown sees neither markup nor a link."""
    return "".join(each if each.isalnum() or each in " .,-=≥%" else f"&#{ord(each)};" for each in text)


def as_mapping(result: Result, *, by: str, most: int, rule: str | None) -> dict[str, Any]:
    """Return the result of a replay for JSON. See `say_result` for the arguments."""
    outcome = result.outcome
    mapping: dict[str, Any] = {
        "formats": result.formats,
        "first": utc(result.first, exact=True) if result.first else None,
        "last": utc(result.last, exact=True) if result.first else None,
        "requests": outcome.requests,
        "denied": outcome.denied,
        "clients_denied": len(outcome.limited),
        "shadow_denied": outcome.shadow_denied,
        "clients_shadow_denied": len(outcome.shadowed),
        "exact": not outcome.clients.full,
        "reasons": dict(sorted(outcome.reasons.items())),
        "rules": [_rule_as_mapping(each, UNITS[by]) for each in _shown(result, rule)],
        "most_limited": [_client_as_mapping(each) for each in outcome.most_limited(most, rule)],
        "curves": result.curves,
        "without_curve": result.without_curve,
        "gaps": [gap for gap in result.gaps if rule is None or gap.rule in ("", rule)],
        "lines": {
            "all": result.lines,
            "skipped": result.skipped,
            "unreadable": result.unreadable.count,
            "shown": [printable(line) for line in result.unreadable.shown],
            "without_request": result.unreadable.without_request,
            "late": result.late,
            "status_429": result.limited_before,
        },
    }
    if result.difference is not None and result.against is not None:
        mapping["against"] = {
            "denied": result.against.denied,
            **{
                name: {
                    "requests": clients.total,
                    "clients": len(clients),
                    "most": {printable(client): seen.at_least for client, seen in clients.most(most)},
                }
                for name, clients in vars(result.difference).items()
            },
        }
    return mapping


def _rule_as_mapping(rule: RuleResult, minutes: int) -> Mapping[str, Any]:
    series: dict[str, int] = {}
    for minute in sorted(rule.minutes):
        begin = utc(minute // minutes * minutes * MINUTE, exact=True)
        series[begin] = series.get(begin, 0) + rule.minutes[minute]
    worst = rule.worst
    return {
        "rule": rule.name,
        "shadow": rule.shadow,
        "requests": rule.asked,
        "denied": rule.denied,
        "clients": rule.clients,
        "delayed": rule.delayed,
        "over": rule.over,
        "worst_minute": None if worst is None else {"denied": worst[0], "at": utc(worst[1], exact=True)},
        "denials": series,
    }


def _client_as_mapping(client: DeniedClient) -> Mapping[str, Any]:
    return {
        **client._asdict(),
        "first": utc(client.first, exact=True),
        "last": utc(client.last, exact=True),
    }
