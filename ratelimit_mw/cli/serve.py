"""The commands `serve`, the limiter as a service, and `ask`, which asks it as a proxy does. Extra `serve`."""

import json
import logging
import sys
from contextlib import closing
from datetime import UTC, datetime
from importlib.util import find_spec
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ratelimit_mw.cli.common import Exit, Json, fail, fail_with, say, say_json, say_table
from ratelimit_mw.decision.denials import DENIAL_FIELDS, DENIALS
from ratelimit_mw.errors import ConfigurationError, StoreUnavailable
from ratelimit_mw.service import Settings, go_environment
from ratelimit_mw.service import serve as run
from ratelimit_mw.service.settings import FLAGS, Flag, flag_of, variable_of

if TYPE_CHECKING:
    from ratelimit_mw.service.client import DescriptorAnswer

_LIBRARIES = ("grpc", "grpc_health", "prometheus_client", "starlette", "uvicorn")
"""The modules of the extra `serve`."""


def serve(**texts: str | bool | None) -> None:
    """Serve decisions to Envoy (gRPC), nginx (/auth) and apps in any language (HTTP).

    SIGTERM drains and ends the service, a second one ends it at once. SIGHUP looks at once for
    newer rules, certificates and tokens.
    """
    require_extra("serve")
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


def require_extra(command: str) -> None:
    """End the command if a library of the extra `serve` is not installed."""
    for name in _LIBRARIES:
        if find_spec(name) is None:
            fail(f"{command} needs {name}: pip install 'ratelimit_mw[serve]'", Exit.USAGE)


def log_to_stderr(*, as_json: bool, denials: bool) -> None:
    """Log to stderr: the package from WARNING on, the service itself and what shadow rules would deny from INFO on.

    Args:
        as_json: Write each record as JSON.
        denials: Log the denials, too.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if as_json else _TextLines())
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


class _TextLines(logging.Formatter):
    """One line for each record: time, level and message."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{_time(record)} {record.levelname} {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _JsonLines(logging.Formatter):
    """One JSON object for each record."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.name == DENIALS.name:
            fields |= {name: getattr(record, name) for name in DENIAL_FIELDS}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


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
    say(go_environment.command_for(environ))
    for note in go_environment.notes_on(environ):
        typer.echo(f"note: {note}", err=True)


UNLIMITED = 2**32 - 1


def ask(
    descriptors: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE[,KEY=VALUE…]", help="Descriptors. Write commas between the entries of one."),
    ] = None,
    *,
    grpc: Annotated[
        str, typer.Option("--grpc", metavar="ADDRESS", envvar="RATELIMIT_GRPC", help="[HOST:]PORT or unix:PATH.")
    ] = "127.0.0.1:8081",
    domain: Annotated[str | None, typer.Option("--domain", "-d", help="The domain of the rules.")] = None,
    hits: Annotated[
        int | None,
        typer.Option("--hits", help="The hits of each descriptor, as of Envoy. 0 only asks, and -3 gives 3 back."),
    ] = None,
    health: Annotated[bool, typer.Option("--health", help="Ask whether the service takes requests.")] = False,
    token: Annotated[
        str | None, typer.Option("--token", envvar="RATELIMIT_TOKEN", help="The token that the service requires.")
    ] = None,
    server_ca: Annotated[
        Path | None,
        typer.Option(
            "--server-ca",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Use TLS and trust these authorities, PEM.",
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option("--cert", metavar="FILE", exists=True, dir_okay=False, help="The certificate of the client, PEM."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", metavar="FILE", exists=True, dir_okay=False, help="Its key, PEM.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=0.01, help="Seconds to wait for the answer.")] = 5.0,
    as_json: Json = False,
) -> None:
    """Ask a running service over gRPC, as a proxy does. The request is charged.

    Exit codes: 0 the request passes (with `--health`: the service takes requests); 1 it is over a limit (with
    `--health`: the service takes no requests); 2 wrong usage; 3 the service does not answer, or refuses the request.
    """
    require_extra("ask")
    from ratelimit_mw.service.client import Client, Unanswered
    from ratelimit_mw.service.settings import read_address

    if not health and (not descriptors or domain is None):
        fail("write a --domain and the descriptors to ask for, or --health", Exit.USAGE)
    if (certificate is None) != (key is None) or (certificate is not None and server_ca is None):
        fail("--cert needs --key and --server-ca", Exit.USAGE)
    try:
        address = read_address(grpc)
        if address is None:
            fail("--grpc: there is no service at 'off'", Exit.USAGE)
        client = Client(address, timeout, token=token, server_ca=server_ca, certificate=certificate, key=key)
        with closing(client):
            if health:
                serving = client.serving()
                say_json({"serving": serving}) if as_json else say("serving" if serving else "not serving")
                raise typer.Exit(Exit.OK if serving else Exit.PROBLEMS)
            passes, asked = client.ask(domain or "", descriptors or (), hits)
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    except Unanswered as error:
        fail(f"{grpc}: {error}", Exit.STORE_AWAY)
    if as_json:
        say_json({"allowed": passes, "descriptors": asked})
    else:
        say("OK" if passes else "OVER_LIMIT")
        say_table(("descriptor", "code", "limit", ">remaining", ">seconds"), map(_row, asked))
    if not passes:
        raise typer.Exit(Exit.PROBLEMS)


def _row(asked: "DescriptorAnswer") -> tuple[object, ...]:
    limit = "" if asked.limit is None else f"{asked.limit} per {asked.unit}"
    if asked.remaining == UNLIMITED:
        limit = "unlimited"
    seconds = "" if asked.seconds is None else asked.seconds
    remaining = asked.remaining if asked.limit is not None else ""
    return asked.descriptor, "OK" if asked.allowed else "OVER_LIMIT", limit, remaining, seconds
