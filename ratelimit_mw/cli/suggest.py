"""`ratelimit-mw suggest` proposes limits for the traffic of a log, each with its reason."""

from typing import Annotated

import typer

from ratelimit_mw.cli.common import say_json
from ratelimit_mw.cli.lint import check
from ratelimit_mw.cli.log_options import (
    ClientNames,
    Field,
    FormatOption,
    Lenient,
    Logs,
    Since,
    Until,
    errors_shown,
    places_of,
    progress_of,
    require_one_standard_input,
    require_readable,
    time_of,
)
from ratelimit_mw.foresight.logs.entry import check_fields
from ratelimit_mw.foresight.suggest.proposal import propose
from ratelimit_mw.foresight.suggest.text import ProposalSource, as_mapping, as_yaml
from ratelimit_mw.foresight.suggest.traffic import Traffic


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
    names: ClientNames = "plain",
    json: Annotated[bool, typer.Option("--json", help="Print what was found, and the rules, as JSON.")] = False,
) -> None:
    """Propose limits for the traffic of an access log: a rules file in which each number has its reason.

    The rules are shadow rules: they count and report, but deny nothing. Write them to a file, and run it over the log
    with `replay` next.

    The exit code is 1 if the log cannot be read, or has fewer than 1,000 requests or 20 clients.
    """
    require_one_standard_input(logs)
    traffic = Traffic(time_of(since, "--since") or 0, time_of(until, "--until"))
    with errors_shown():
        places = places_of(field)
        check_fields(places)
        with progress_of("suggest", logs) as on_progress:
            traffic.read(logs, form, places, on_progress, lenient=lenient)
        require_readable(traffic.unreadable, traffic.lines, lenient=lenient)
        proposal = propose(traffic, check, enforce=enforce)
    options = [*([] if form == "auto" else ["--format", form])]
    for option, values in (("--field", field or []), ("--since", [since]), ("--until", [until])):
        options += [word for value in values if value is not None for word in (option, value)]
    source = ProposalSource(logs=logs, options=options, enforce=enforce, hashed=names == "hashed")
    if json:
        say_json(as_mapping(proposal, traffic, source))
    else:
        typer.echo(as_yaml(proposal, traffic, source), nl=False)
