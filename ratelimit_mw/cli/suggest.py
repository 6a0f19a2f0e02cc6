"""`ratelimit-mw suggest` proposes limits for the traffic of a log, each with its reason."""

from pathlib import Path
from typing import Annotated

import typer

from ratelimit_mw.cli.common import Exit, fail
from ratelimit_mw.cli.lint import check
from ratelimit_mw.cli.log_options import (
    TOO_MANY_UNREADABLE,
    ClientNames,
    Field,
    Lenient,
    LogFormat,
    Logs,
    Since,
    Until,
    mostly_unreadable,
    places_of,
    printable_lines,
    progress_of,
    require_one_standard_input,
    time_of,
)
from ratelimit_mw.errors import near
from ratelimit_mw.foresight.logs.entry import FIELDS
from ratelimit_mw.foresight.logs.formats import UnknownFormat
from ratelimit_mw.foresight.suggest.proposal import propose
from ratelimit_mw.foresight.suggest.text import Source, as_yaml
from ratelimit_mw.foresight.suggest.traffic import Traffic, UnsuitableLog


def suggest(
    logs: Logs,
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this new file, instead of the standard output."),
    ] = None,
    enforce: Annotated[
        bool, typer.Option("--enforce", help="Propose rules that deny requests. Default: shadow rules.")
    ] = False,
    form: LogFormat = "auto",
    field: Field = None,
    since: Since = None,
    until: Until = None,
    lenient: Lenient = False,
    names: ClientNames = "plain",
) -> None:
    """Propose limits for the traffic of an access log: a rules file in which each number has its reason.

    The rules are shadow rules: they count and report, but deny nothing. Run them over the log with `replay` next.

    The exit code is 1 if the log cannot be read, or has fewer than 1,000 requests or 20 clients.
    """
    require_one_standard_input(logs)
    places = places_of(field)
    _require_known(places)
    if output is not None and output.exists():
        raise typer.BadParameter(f"{str(output)!r} exists already", param_hint="--output")
    traffic = Traffic(time_of(since, "--since") or 0, time_of(until, "--until"))
    try:
        with progress_of("suggest", logs) as on_progress:
            traffic.read(logs, form, places, on_progress)
        if not lenient and mostly_unreadable(traffic.unreadable, traffic.lines):
            fail(TOO_MANY_UNREADABLE, Exit.PROBLEMS)
        proposal = propose(traffic, check)
    except UnknownFormat as error:
        fail(printable_lines(str(error)), Exit.USAGE if error.usage else Exit.PROBLEMS)
    except UnsuitableLog as error:
        fail(printable_lines(str(error)), Exit.PROBLEMS)
    except OSError as error:
        fail(f"the log can't be read: {error}", Exit.PROBLEMS)
    options = [*([] if form == "auto" else ["--format", form])]
    for option, values in (("--field", field or []), ("--since", [since]), ("--until", [until])):
        options += [word for value in values if value is not None for word in (option, value)]
    source = Source(
        logs=logs,
        options=options,
        file=str(output) if output is not None else "ratelimits.yaml",
        enforce=enforce,
        hashed=names == "hashed",
    )
    _write(as_yaml(proposal, traffic, source), output)


def _require_known(places: dict[str, str]) -> None:
    """Raise typer.BadParameter for a field that no log can have."""
    for name in places:
        if name not in FIELDS and not name.startswith(("header:", "cookie:")):
            hint = near(name, FIELDS) or f"known: {', '.join(FIELDS)}"
            raise typer.BadParameter(f"there is no field {name!r} ({hint})", param_hint="--field")


def _write(text: str, output: Path | None) -> None:
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise typer.BadParameter(str(error), param_hint="--output") from None
