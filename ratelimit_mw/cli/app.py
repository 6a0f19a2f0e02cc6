"""The commands, and what they have in common."""

import logging
import sys
from pathlib import Path

import typer

from ratelimit_mw.cli import check, deferred, demo, explain, override, reset, rules, schema, show, switch, top, worker

app = typer.Typer(
    name="ratelimit-mw",
    help="Check rate limit rules, explain decisions, look at counters and reset them.",
    epilog="Exit codes: 0 fine; 1 problems in the rules, or a question answered with no; 2 wrong usage; 3 store away.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def prepare() -> None:
    """Run before every command."""
    # `python:` sources are found as the app would find them, from the folder that it is started in.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    log = logging.getLogger("ratelimit_mw")
    if not any(isinstance(handler, _Notes) for handler in log.handlers):
        log.addHandler(_Notes(logging.WARNING))


class _Notes(logging.Handler):
    """Says on stderr what the package logs, as a user's function that fails."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"note: {record.getMessage()}", err=True)


_COMMANDS = (check.check, explain.explain, show.show, top.top, reset.reset, switch.switch, worker.worker)
for command in (*_COMMANDS, schema.schema, demo.demo):
    app.command()(command)
for group in (override.app, rules.app, deferred.app):
    app.add_typer(group)
