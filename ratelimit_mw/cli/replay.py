"""The commands about access logs: `replay` runs one through the rules, and `suggest` proposes rules for its traffic."""

import csv
import gc
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from ratelimit_mw.cli import Exit
from ratelimit_mw.cli.common import DEFAULT_CONFIG, Config, Json, Most, console_of, fail, fail_with, pairs_of, say_json
from ratelimit_mw.cli.lint import check
from ratelimit_mw.cli.replayed import as_mapping, as_markdown, say_result
from ratelimit_mw.errors import ConfigurationError, Invalid, StoreUnavailable
from ratelimit_mw.foresight.logs import STANDARD_INPUT
from ratelimit_mw.foresight.logs.entry import any_time, check_fields
from ratelimit_mw.foresight.logs.formats import WORDS, UnusableLog
from ratelimit_mw.foresight.replay import Options
from ratelimit_mw.foresight.replay import replay as replayed
from ratelimit_mw.foresight.results import DeniedRequest, Result
from ratelimit_mw.foresight.suggest import propose
from ratelimit_mw.foresight.suggest.text import as_mapping as proposal_as_mapping
from ratelimit_mw.foresight.suggest.text import as_yaml
from ratelimit_mw.foresight.suggest.traffic import Traffic
from ratelimit_mw.foresight.wording import printable, utc

Logs = Annotated[
    list[str], typer.Argument(metavar="LOG…", help="Access logs, which may be compressed. - is standard input.")
]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help=f"{', '.join(WORDS)}, or the text of nginx's log_format or Apache's LogFormat.",
    ),
]
Field = Annotated[
    list[str] | None,
    typer.Option(
        "--field",
        metavar="NAME=PLACE",
        help="Where the log has a field: a name in JSON or CSV, or a variable of the format. Repeatable.",
    ),
]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Use requests from this time on.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Use requests before this time.")]
Lenient = Annotated[bool, typer.Option("--lenient", help="Accept a log of which more than 10 % cannot be read.")]

_MOST_UNREADABLE = 0.1
"""The share of unreadable lines above which the result is not trusted, without `--lenient`."""


def require_readable(unreadable: int, lines: int, *, lenient: bool) -> None:
    """End the command if too many of all `lines` could not be read to trust a result."""
    if not lenient and unreadable > _MOST_UNREADABLE * max(lines, 1):
        fail("more than 10 % of the lines can't be read; see --format and --lenient", Exit.PROBLEMS)


@contextmanager
def errors_shown() -> Iterator[None]:
    """End the command, with a message, if the block raises an error about its logs, rules or options."""
    try:
        yield
    except ConfigurationError as error:
        fail_with(error, "these rules can't be loaded")
    except StoreUnavailable as error:
        fail(f"the rules can't be fetched: {error}", Exit.STORE_AWAY)
    except UnusableLog as error:
        fail(_printable(error), Exit.USAGE if error.usage else Exit.PROBLEMS)
    except Invalid as error:
        fail(f"--match: {error}", Exit.USAGE)
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    except OSError as error:
        fail(f"the log can't be read: {error}", Exit.PROBLEMS)


def _printable(error: Exception) -> str:
    """Return a message of several lines in which each line is printable."""
    return "\n".join(map(printable, str(error).split("\n")))


def time_of(text: str | None, option: str) -> int | None:
    """Return the value of `--since` or `--until`, in microseconds since the epoch. Raises typer.BadParameter."""
    if text is None:
        return None
    try:
        return any_time(text)
    except (ValueError, OverflowError):
        hint = "write 2026-03-01T12:00:00Z, the form of the log, or seconds since the epoch"
        raise typer.BadParameter(f"{text!r} is not a time; {hint}", param_hint=option) from None


def places_of(fields: list[str] | None) -> dict[str, str]:
    """Return the places of fields in the log, by the names of the fields. Raises typer.BadParameter."""
    given = pairs_of(fields, "NAME=PLACE", "--field", empty=False)
    return {name.lower() if name.lower().startswith("header:") else name: place.strip() for name, place in given}


@contextmanager
def progress_of(command: str, logs: list[str]) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function that shows the progress on a terminal. None if stderr is not a terminal.

    The arguments of the function are the numbers of lines and of bytes that were read.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    known = STANDARD_INPUT not in logs
    total = sum(Path(log).stat().st_size for log in logs if Path(log).is_file()) if known else None
    columns = (TextColumn(command), BarColumn(), TextColumn("{task.fields[done]}"), TimeRemainingColumn())
    begun = time.monotonic()
    with Progress(*columns, console=console_of(sys.stderr), transient=True) as progress:
        task = progress.add_task(command, total=total, done="")

        def show(lines: int, position: int) -> None:
            speed = lines / max(time.monotonic() - begun, 0.001)
            progress.update(task, completed=position, done=f"{lines:,} lines, {speed:,.0f} lines/s")

        yield show


_COLLECTED = 100_000
"""The new objects after which the garbage collector looks for cycles during a replay, which makes hardly any.

A replay keeps many plans, so looking as often as usual takes a tenth of the time.
"""


@contextmanager
def rarely_collecting() -> Iterator[None]:
    """Within the block, look for garbage less often: the process is that of the command."""
    usual = gc.get_threshold()
    gc.set_threshold(_COLLECTED)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


By = Literal["minute", "hour", "day"]

_PERCENT = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%\s*")


def replay(
    logs: Logs,
    *,
    rules: Config = DEFAULT_CONFIG,
    against: Annotated[
        str | None, typer.Option(metavar="RULES", help="Compare with these rules: what is newly denied or allowed.")
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            "--rule", metavar="NAME", help="Show only this rule, and try other limits for it. All rules are replayed."
        ),
    ] = None,
    form: FormatOption = "auto",
    field: Field = None,
    since: Since = None,
    until: Until = None,
    match: Annotated[
        str, typer.Option(metavar="PATH", help="Replay requests of this path, a template as in match.path.")
    ] = "",
    spread: Annotated[
        bool,
        typer.Option("--spread", help="Distribute the requests of each second over it."),
    ] = False,
    disorder: Annotated[
        int, typer.Option(min=0, max=86_400, metavar="SECONDS", help="By how much lines may be out of order.")
    ] = 60,
    lenient: Lenient = False,
    by: Annotated[By, typer.Option("--by", help="The unit of time of denials over time.")] = "hour",
    names: Annotated[
        Literal["plain", "hashed"], typer.Option("--names", help="Show clients as in the log, or as hashes.")
    ] = "plain",
    most: Most = 10,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the result as a page with charts, in one file.")
    ] = None,
    denials: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write each denial to a file: .csv or .jsonl.")
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the summary of --against as Markdown, for a merge request."),
    ] = None,
    fail_above: Annotated[
        str | None,
        typer.Option(metavar="PERCENT", help="Exit with 1 if more than this share of requests is denied, such as 1%."),
    ] = None,
    count_shadow: Annotated[
        bool, typer.Option("--count-shadow", help="For --fail-above, count what shadow rules would deny, too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run an access log through the rules: who would have been limited, when, and by which rule.

    The clock is that of the log. The counters are in memory: the storage, the overrides and the switch that the rules
    name are never opened. If a rule needs something that the log does not have, this is reported. Nothing is guessed.

    The exit code is 1 if the rules or the log cannot be read, if no rule applied, or above `--fail-above`.
    """
    limit = None if fail_above is None else _share(fail_above)
    taken = {os.path.realpath(each) for each in (*logs, rules, against or rules)}
    for option, path in (("--html", html), ("--markdown", markdown), ("--denials", denials)):
        if path is not None:
            if not path.parent.is_dir() or path.is_dir():
                raise typer.BadParameter(f"{str(path)!r} is not a file in a folder that exists", param_hint=option)
            if os.path.realpath(path) in taken:
                raise typer.BadParameter(f"{str(path)!r} is also an input or another output", param_hint=option)
            taken.add(os.path.realpath(path))
    with _denials_to(denials, rule) as on_denial, errors_shown(), progress_of("replay", logs) as on_progress:
        options = Options(
            logs=logs,
            rules=rules,
            against=against,
            form=form,
            places=places_of(field),
            lenient=lenient,
            since=time_of(since, "--since") or 0,
            until=time_of(until, "--until"),
            match=match,
            disorder=disorder,
            spread=spread,
            hashed=names == "hashed",
            what_if=rule,
            on_denial=on_denial,
            on_progress=on_progress,
        )
        with rarely_collecting():
            result = replayed(options)
    if result.unaddressed and not lenient:
        fail(printable(result.unaddressed), Exit.PROBLEMS)
    if as_json:
        say_json(as_mapping(result, by=by, most=most, rule=rule))
    else:
        say_result(result, logs, by=by, most=most, rule=rule)
    if html is not None:
        from ratelimit_mw.foresight.report import page  # imported late: few replays need it

        with _writing(html):
            html.write_text(page(result, logs, most=most, rule=rule), "utf-8")
    if markdown is not None:
        with _writing(markdown):
            markdown.write_text(as_markdown(result, most), "utf-8")
    _conclude(result, limit, rule, lenient=lenient, count_shadow=count_shadow)


def _conclude(result: Result, limit: float | None, rule: str | None, *, lenient: bool, count_shadow: bool) -> None:
    """End the command with an exit code other than 0 if the result cannot be used, or if too much is denied."""
    require_readable(result.unreadable.count, result.lines, lenient=lenient)
    if not result.outcome.requests:
        fail("there is no request to replay", Exit.PROBLEMS)
    if result.unasked:
        fail("no rule applied to a request, so the result says nothing", Exit.PROBLEMS)
    outcome = result.outcome
    denied = outcome.denied + outcome.shadow_denied * count_shadow
    if rule is not None:
        rules = [each for each in outcome.rules.values() if each.name == rule]
        denied = sum(each.denied for each in rules if count_shadow or not each.shadow)
    if limit is not None and denied > limit * result.outcome.requests:
        share = 100 * denied / result.outcome.requests
        fail(f"{share:.4g} % of the requests would be denied, more than {100 * limit:g} %", Exit.PROBLEMS)


def _share(text: str) -> float:
    found = _PERCENT.fullmatch(text)
    if found is None or float(found[1]) > 100:
        raise typer.BadParameter(f"{text!r} is not a percentage such as 1% or 0.5%", param_hint="--fail-above")
    return float(found[1]) / 100


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """End the command if the file cannot be written."""
    try:
        yield
    except OSError as error:
        fail(f"{str(path)!r} can't be written: {error}", Exit.PROBLEMS)


@contextmanager
def _denials_to(path: Path | None, rule: str | None) -> Iterator[Callable[[DeniedRequest], None] | None]:
    """Yield a function that writes a denial to a file. None without a file."""
    if path is None:
        yield None
        return
    if path.suffix not in (".csv", ".jsonl"):
        raise typer.BadParameter(f"{path.name!r} must end in .csv or .jsonl", param_hint="--denials")
    with _writing(path), path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        if path.suffix == ".csv":
            table.writerow(("time", *DeniedRequest._fields[1:]))

        def write(denial: DeniedRequest) -> None:
            if rule not in (None, denial.rule):
                return
            row = _row(denial)
            with _writing(path):
                if path.suffix == ".csv":
                    table.writerow(map(_cell, row.values()))
                else:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")

        yield write


def _cell(value: object) -> object:
    """Return a value for CSV. A spreadsheet would run a text that begins with one of these characters as a formula."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(("=", "+", "-", "@")) else value
    return "" if value is None else value


def _row(denial: DeniedRequest) -> dict[str, object]:
    """Return the values of a denial by their names, without control characters."""
    cells = {name: printable(cell) if isinstance(cell, str) else cell for name, cell in denial._asdict().items()}
    del cells["at"]
    wait = denial.retry_after
    cells["retry_after"] = round(wait, 6) if math.isfinite(wait) else None
    return {"time": utc(denial.at, exact=True), **cells}


def suggest(
    logs: Logs,
    *,
    enforce: Annotated[
        bool, typer.Option("--enforce", help="Propose rules that deny requests. Default: shadow rules.")
    ] = False,
    form: FormatOption = "auto",
    field: Field = None,
    since: Since = None,
    until: Until = None,
    lenient: Lenient = False,
    as_json: Json = False,
) -> None:
    """Propose limits for the traffic of an access log: a rules file in which each number has its reason.

    The rules are shadow rules: they count and report, but deny nothing. Write them to a file, and run it over the log
    with `replay` next.

    The exit code is 1 if the log cannot be read, or has fewer than 1,000 requests or 20 clients.
    """
    traffic = Traffic(time_of(since, "--since") or 0, time_of(until, "--until"))
    with errors_shown():
        places = places_of(field)
        check_fields(places)
        with progress_of("suggest", logs) as on_progress:
            traffic.read(logs, form, places, on_progress, lenient=lenient)
        require_readable(traffic.unreadable.count, traffic.lines, lenient=lenient)
        proposal = propose(traffic, check, enforce=enforce)
    if as_json:
        say_json(proposal_as_mapping(proposal, traffic, enforce=enforce))
    else:
        typer.echo(as_yaml(proposal, traffic, logs, enforce=enforce), nl=False)
