"""The command `ratelimit-mw serve`: the limiter as a service. It needs the extra `serve`."""

import json
import logging
import sys
from datetime import UTC, datetime
from importlib.util import find_spec
from inspect import Parameter, Signature
from typing import Annotated

import typer

from ratelimit_mw.cli.common import Exit, fail, fail_with
from ratelimit_mw.errors import ConfigurationError, StoreUnavailable
from ratelimit_mw.service import Settings
from ratelimit_mw.service import serve as run
from ratelimit_mw.service.settings import FLAGS, Flag, flag_of, variable_of

_LIBRARIES = ("grpc", "grpc_health", "prometheus_client", "starlette", "uvicorn")
"""The modules of the extra `serve`."""


def serve(**texts: str | bool | None) -> None:
    """Serve decisions to Envoy (gRPC), nginx (/auth) and apps in any language (HTTP).

    SIGTERM drains and ends the service, a second one ends it at once. SIGHUP looks for newer rules, and reads the
    token file.
    """
    require_extra("serve")
    log_to_stderr(as_json=texts["log_format"] == "json")
    try:
        run(Settings.read(**texts))
    except ConfigurationError as error:
        fail_with(error, "the service can't start")
    except StoreUnavailable as error:
        fail(f"the rules can't be fetched: {error}", Exit.STORE_AWAY)


def _option(name: str, flag: Flag) -> Parameter:
    """Return the parameter of `serve` that typer makes a flag of."""
    variables = [variable_of(name), *(variable_of(also.strip("-")) for also in flag.also if also.startswith("--"))]
    option = typer.Option(flag_of(name), *flag.also, metavar=flag.value or None, envvar=variables, help=flag.about)
    kind, default = (str | None, flag.default) if flag.value else (bool, False)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])


# typer reads the flags from the signature.
serve.__signature__ = Signature([_option(*each) for each in FLAGS.items()])  # type: ignore[attr-defined]  # a function may have one


def require_extra(command: str) -> None:
    """End the command if a library of the extra `serve` is not installed."""
    for name in _LIBRARIES:
        if find_spec(name) is None:
            fail(f"{command} needs {name}: pip install 'ratelimit_mw[serve]'", Exit.USAGE)


def log_to_stderr(*, as_json: bool) -> None:
    """Log to stderr: the package from WARNING on, the service itself from INFO on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if as_json else _TextLines())
    for name, level in (("ratelimit_mw", logging.WARNING), ("ratelimit_mw.service", logging.INFO)):
        logging.getLogger(name).setLevel(level)
    for name in ("ratelimit_mw", "uvicorn", "grpc", "asyncio"):
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


class _TextLines(logging.Formatter):
    """One line for each record: time, level and message."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{_time(record)} {record.levelname} {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _JsonLines(logging.Formatter):
    """One JSON object for each record."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
