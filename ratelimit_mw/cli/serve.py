"""The command `ratelimit-mw serve`: the limiter as a service. It needs the extra `serve`."""

import json
import logging
import sys
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Annotated

import typer

from ratelimit_mw.cli.common import DEFAULT_CONFIG, Exit, diagnostics, fail, say_lines
from ratelimit_mw.errors import ConfigurationError, StoreUnavailable

_LIBRARIES = ("grpc", "grpc_health", "prometheus_client", "starlette", "uvicorn")
"""The modules of the extra `serve`."""


def _address(flag: str, what: str, default: str) -> typer.models.OptionInfo:
    return _option(flag, "ADDRESS", f"{what}: [HOST:]PORT, unix:PATH or off. [default: {default}]")


def _option(flag: str, value: str, text: str) -> typer.models.OptionInfo:
    variable = f"RATELIMIT_{flag.strip('-').replace('-', '_').upper()}"
    option: typer.models.OptionInfo = typer.Option(flag, metavar=value, envvar=variable, help=text)
    return option


def _switch(flag: str, text: str) -> typer.models.OptionInfo:
    variable = f"RATELIMIT_{flag.strip('-').replace('-', '_').upper()}"
    option: typer.models.OptionInfo = typer.Option(flag, envvar=variable, help=text)
    return option


def serve(
    *,
    rules: Annotated[
        str,
        typer.Option(
            "--rules",
            "--config",
            "-c",
            metavar="RULES",
            envvar=["RATELIMIT_RULES", "RATELIMIT_CONFIG"],
            help="The rules: a file, a folder or a Redis URL.",
        ),
    ] = DEFAULT_CONFIG,
    storage: Annotated[str | None, _option("--storage", "URL", "The store, instead of the one in the rules.")] = None,
    grpc: Annotated[str | None, _address("--grpc", "Where gRPC is served", "127.0.0.1:8081")] = None,
    http: Annotated[str | None, _address("--http", "Where HTTP is served", "127.0.0.1:8080")] = None,
    admin: Annotated[str | None, _address("--admin", "Where metrics are served", "127.0.0.1:9090")] = None,
    headers: Annotated[
        str | None, _option("--headers", "off|rules|go", "The headers that gRPC responses add. [default: off]")
    ] = None,
    body: Annotated[bool, _switch("--body", "gRPC denials have the body of the middlewares.")] = False,
    tls_cert: Annotated[str | None, _option("--tls-cert", "FILE", "The certificate chain of TCP ports, PEM.")] = None,
    tls_key: Annotated[str | None, _option("--tls-key", "FILE", "The key of the certificate, PEM.")] = None,
    client_ca: Annotated[
        str | None, _option("--client-ca", "FILE", "gRPC and HTTP require client certificates of these authorities.")
    ] = None,
    token_file: Annotated[str | None, _option("--token-file", "FILE", "The tokens that callers need.")] = None,
    max_message: Annotated[
        str | None, _option("--max-message", "SIZE", "The longest gRPC message. [default: 64KiB]")
    ] = None,
    max_connection_age: Annotated[
        str | None,
        _option("--max-connection-age", "TIME", "The age at which gRPC connections end. [default: off]"),
    ] = None,
    drain: Annotated[
        str | None,
        _option("--drain", "TIME", "After SIGTERM: how long not ready, but answering. [default: 5s]"),
    ] = None,
    grace: Annotated[
        str | None, _option("--grace", "TIME", "After --drain: how long requests under way may take. [default: 10s]")
    ] = None,
    near: Annotated[
        str | None,
        _option("--near", "SHARE", "The share of a limit above which hits are near it. [default: 0.8]"),
    ] = None,
    strict_proxies: Annotated[
        bool, _switch("--strict-proxies", "/auth refuses proxies that are not in trusted_proxies.")
    ] = False,
    ignore_unservable: Annotated[
        bool, _switch("--ignore-unservable", "Start even if a service cannot serve some rules.")
    ] = False,
    log_format: Annotated[str | None, _option("--log-format", "text|json", "The log. [default: text]")] = None,
) -> None:
    """Serve decisions to Envoy (gRPC), nginx (/auth) and apps in any language (HTTP).

    SIGTERM drains and ends the service, a second one ends it at once. SIGHUP looks for newer rules, and reads the
    token file.
    """
    texts = {name: value for name, value in locals().items() if value not in (None, False)}
    require_extra("serve")
    from ratelimit_mw.service import Settings
    from ratelimit_mw.service import serve as run

    log_to_stderr(as_json=log_format == "json")
    try:
        run(Settings.read(**texts))
    except ConfigurationError as error:
        say_lines(diagnostics([(problem, "error") for problem in error.problems]))
        fail("the service can't start", Exit.PROBLEMS)
    except StoreUnavailable as error:
        fail(f"the rules can't be fetched: {error}", Exit.STORE_AWAY)


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
