"""The commands `serve`, the limiter as a service, and `from-envoy-ratelimit`. Extra `serve`."""

import json
import logging
import sys
from datetime import UTC, datetime
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated

import typer

from ratelimit_mw.cli import Exit
from ratelimit_mw.cli.common import fail, fail_with
from ratelimit_mw.decision.denials import DENIAL_FIELDS, DENIALS
from ratelimit_mw.errors import ConfigurationError, StoreUnavailable
from ratelimit_mw.service import Settings, go_environment
from ratelimit_mw.service import serve as run
from ratelimit_mw.service.settings import FLAGS, Flag, flag_of, variable_of


def serve(**texts: str | bool | None) -> None:
    """Serve decisions to Envoy (gRPC), nginx (/auth) and apps in any language (HTTP).

    SIGTERM drains and ends the service, a second one ends it at once. SIGHUP looks at once for
    newer rules, certificates and tokens.
    """
    log_to_stderr(as_json=texts["log_format"] == "json", denials=bool(texts["log_denials"]))
    try:
        run(Settings.read(**texts))
    except ConfigurationError as error:
        fail_with(error, "the service can't start")
    except StoreUnavailable as error:
        fail(f"the rules can't be fetched: {error}", Exit.STORE_AWAY)


def _option(name: str, flag: Flag) -> Parameter:
    """Return the parameter of `serve` that typer makes a flag of."""
    option = typer.Option(flag_of(name), metavar=flag.value or None, envvar=variable_of(name), help=flag.about)
    kind, default = (str | None, flag.default) if flag.value else (bool, False)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


# typer reads the flags from the signature.
serve.__signature__ = Signature([_option(*each) for each in FLAGS.items()])  # type: ignore[attr-defined]  # a function may have one


def log_to_stderr(*, as_json: bool, denials: bool) -> None:
    """Log to stderr: the package from WARNING on, the service itself and what shadow rules would deny from INFO on.

    Args:
        as_json: Write each record as JSON.
        denials: Log the denials, too.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if as_json else _Lines("%(asctime)s %(levelname)s %(message)s"))
    for name in ("ratelimit_mw.service", DENIALS.name):
        logging.getLogger(name).setLevel(logging.INFO)
    logging.getLogger("ratelimit_mw").setLevel(logging.WARNING)
    DENIALS.filters = [] if denials else [_would_be]
    for name in ("ratelimit_mw", "uvicorn", "grpc", "asyncio"):
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _would_be(record: logging.LogRecord) -> bool:
    return bool(getattr(record, "shadow", False))


class _Lines(logging.Formatter):
    """One line for each record. Times are in UTC."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: ARG002, N802 - as logging calls it
        """Return the time of a record."""
        time = datetime.fromtimestamp(record.created, UTC)
        return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _JsonLines(_Lines):
    """One JSON object for each record."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.name == DENIALS.name:
            fields |= {name: getattr(record, name) for name in DENIAL_FIELDS}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def from_envoy_ratelimit(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.env", exists=True, dir_okay=False, help="A file of NAME=value lines.")
    ],
) -> None:
    """Print the `serve` command for the environment variables of a service of envoyproxy/ratelimit.

    What no flag does is noted on stderr. A password stays in its variable, which a shell puts into the command.
    """
    try:
        environ = go_environment.read_file(file)
    except ConfigurationError as error:
        fail_with(error, "no command can be made of the file")
    typer.echo(go_environment.command_for(environ))
    for note in go_environment.notes_on(environ):
        typer.echo(f"note: {note}", err=True)
