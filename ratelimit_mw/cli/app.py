"""The table of commands, and the commands `demo` and `schema`."""

import logging
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.cli import ask, counters, explain, operators, replay, routes, rules, serve, suggest
from ratelimit_mw.cli.common import HELD_NOTES, Json, say, say_json, say_table, show_notes
from ratelimit_mw.clock import ManualClock
from ratelimit_mw.config.file import json_schema
from ratelimit_mw.deferral import command as deferral
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import Decision

REQUESTS = (7.0, 7.5, 8.0, 8.5, 9.0, 9.5, 10.0, 10.5, 12.0, 14.0, 17.0, 18.0)
"""The times of the requests in the demonstration, in seconds."""

_START = 1_700_000_000.0  # a window of ten seconds begins here


def demo(*, as_json: Json = False) -> None:
    """Compare the algorithms: show which of twelve requests pass a limit of five requests per ten seconds.

    The clock is simulated. The command needs neither an app nor a store.
    """
    clock = ManualClock(_START)
    names = [name for name, algorithm in ALGORITHMS.items() if not algorithm.queue and not algorithm.in_flight]
    limiters = [RateLimiter(_rules(name), clock=clock) for name in names]
    rows: list[tuple[float, list[Decision]]] = []
    for second in REQUESTS:
        clock.set(_START + second)
        rows.append((second, [limiter.check({"ip": "192.0.2.1"}) for limiter in limiters]))
    if as_json:
        say_json(
            [{"second": second, **dict(zip(names, decided, strict=True))} for second, decided in rows],
        )
        return
    say("A client sends twelve requests. Its limit is 5 per 10 seconds.\n")
    say_table((">second", *names), ((f"{second:g}", *map(_cell, decided)) for second, decided in rows))
    passed = [sum(decided[place].allowed for _, decided in rows) for place in range(len(names))]
    say(f"\npassed: {', '.join(f'{name} {count}' for name, count in zip(names, passed, strict=True))}")
    say("A fixed window does not count earlier requests, so twice the limit may pass around its end.")


def _rules(algorithm: str) -> dict[str, Any]:
    rule = {"name": "demo", "by": "ip", "limit": "5 per 10 seconds", "algorithm": algorithm}
    return {"domain": "demo", "rules": [rule]}


def _cell(decision: Decision) -> str:
    return f"passes, {decision.remaining} left" if decision.allowed else f"429, retry in {decision.retry_after:.1f} s"


def schema() -> None:
    """Print the JSON Schema of a rules file. Editors use it to complete and check the file.

    For example, run ratelimit-mw schema > ratelimits.schema.json, and begin the rules file with the comment that is
    printed to stderr.
    """
    say_json(json_schema())
    typer.echo("note: save this as ratelimits.schema.json, and begin the rules file with this line:", err=True)
    typer.echo("# yaml-language-server: $schema=ratelimits.schema.json", err=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"ratelimit-mw {version('ratelimit_mw')}")
        raise typer.Exit


app = typer.Typer(
    name="ratelimit-mw",
    help="Check rate limit rules, explain decisions, show counters and reset them.",
    epilog="Exit codes: 0 success; 1 errors in the rules, or nothing to remove; 2 wrong usage; 3 store unavailable.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def prepare(
    context: typer.Context,
    *,
    show_version: Annotated[  # noqa: ARG001 - typer calls `_print_version`
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Run before every command."""
    # `python:` sources are imported from the current folder, as in an app that is started there.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    HELD_NOTES.clear()
    context.call_on_close(show_notes)
    log = logging.getLogger("ratelimit_mw")
    for handler in [each for each in log.handlers if isinstance(each, _Notes)]:
        log.removeHandler(handler)
    log.addHandler(_Notes(context.invoked_subcommand or ""))


_TOPICS = {
    "secret": ("explain", "show", "top", "reset", "override", "worker"),  # they make or show keys
    "memory": ("explain",),  # it reads counters in memory
    "reload": ("worker",),  # it goes on while rules change
}
"""Warnings that only some commands print."""


class _Notes(logging.Handler):
    """Prints the warnings of the package to stderr, for example about a user's function that fails.

    `command` is the command that runs.
    """

    def __init__(self, command: str) -> None:
        super().__init__(logging.WARNING)
        self._command = command

    def emit(self, record: logging.LogRecord) -> None:
        topic = getattr(record, "ratelimit_topic", None)
        note = f"note: {record.getMessage()}"
        if topic == "secret" and self._command in _TOPICS[topic]:  # it comes before the command can refuse the rules
            HELD_NOTES.append(note)
        elif topic is None or self._command in _TOPICS[topic]:
            typer.echo(note, err=True)


_COMMANDS = (
    explain.check,
    explain.explain,
    routes.routes,
    replay.replay,
    suggest.suggest,
    counters.show,
    counters.top,
    counters.reset,
    operators.switch,
    deferral.worker,
    serve.serve,
    ask.ask,
)
for command in (*_COMMANDS, schema, demo):
    app.command()(command)
for group in (operators.app, rules.app, deferral.app):
    app.add_typer(group)
