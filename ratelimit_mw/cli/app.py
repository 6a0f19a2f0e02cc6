"""The table of commands, and the command `schema`."""

import logging
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from ratelimit_mw.cli import counters, doctor, explain, operators, replay, routes, serve
from ratelimit_mw.cli.common import json_text
from ratelimit_mw.config.file import json_schema
from ratelimit_mw.deferral import command as deferral


def schema() -> None:
    """Print the JSON Schema of a rules file. Editors use it to complete and check the file.

    For example, run ratelimit-mw schema > ratelimits.schema.json, and begin the rules file with the comment that is
    printed to stderr.
    """
    typer.echo(json_text(json_schema()))
    typer.echo("note: save this as ratelimits.schema.json, and begin the rules file with this line:", err=True)
    typer.echo("# yaml-language-server: $schema=ratelimits.schema.json", err=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ratelimit-mw {version('ratelimit_mw')}")
        raise typer.Exit


app = typer.Typer(
    name="ratelimit-mw",
    help="Check rate limit rules, try them on a log, explain decisions, show and reset counters, and serve decisions.",
    epilog="Exit codes: 0 success; 1 errors in rules or a log, or nothing to change; 2 wrong usage; 3 store away.",
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
    log = logging.getLogger("ratelimit_mw")
    notes = _Notes(context.invoked_subcommand or "")
    log.addHandler(notes)
    context.call_on_close(lambda: log.removeHandler(notes))
    context.call_on_close(notes.print)


_TOPICS = {
    "secret": ("explain", "show", "top", "reset", "override", "worker"),  # they make or show keys
    "memory": ("explain",),  # it reads counters in memory
    "reload": ("worker",),  # it goes on while rules change
    "address": (),  # `explain` has a remedy of its own
}
"""Warnings that only some commands print."""


_LONG_RUNNING = ("worker", "serve")
"""The commands that run until they are stopped. They print warnings at once."""


class _Notes(logging.Handler):
    """Prints the warnings of the package to stderr, each once, after the output of the command.

    A warning is, for example, about a user's function that fails. `command` is the command that runs.
    """

    def __init__(self, command: str) -> None:
        super().__init__(logging.WARNING)
        self._command = command
        self._waiting: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        topic = getattr(record, "ratelimit_topic", None)
        if topic is None or self._command in _TOPICS[topic]:
            self._waiting[record.getMessage()] = None
            if self._command in _LONG_RUNNING:
                self.print()

    def print(self) -> None:
        """Print the warnings that wait."""
        for text in self._waiting:
            typer.echo(f"note: {text}", err=True)
        self._waiting = {}


_COMMANDS = (
    explain.check,
    doctor.doctor,
    explain.explain,
    routes.routes,
    replay.replay,
    replay.suggest,
    counters.show,
    counters.top,
    counters.reset,
    operators.switch,
    deferral.worker,
    serve.serve,
    serve.from_envoy_ratelimit,
)
for command in (*_COMMANDS, schema):
    app.command()(command)


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def ask(context: typer.Context) -> None:
    """Ask a running service over gRPC, as a proxy does. The request is charged."""
    from ratelimit_mw.cli.ask import ask as run  # `main` calls it, too, without typer

    raise typer.Exit(run(context.args))


for group in (operators.overrides, operators.rules, deferral.app):
    app.add_typer(group)
