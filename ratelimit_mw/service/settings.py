"""The settings of the service: each flag of `ratelimit-mw serve`, and how its text is read.

This module is internal, except for the names that `ratelimit_mw.service` exports.
"""

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, NamedTuple, Self, get_args

from ratelimit_mw.errors import ConfigurationError, DurationError, Problem, near, quoted
from ratelimit_mw.units import SECOND, parse_duration

DEFAULT_HOST = "127.0.0.1"
OFF = "off"

Headers = Literal["off", "rules", "go"]
LogFormat = Literal["text", "json"]


class Address(NamedTuple):
    """Where a port of the service is: a host and a port, or the path of a unix socket.

    Attributes:
        host: The address or name of the host. "" for a unix socket.
        port: The port. 0 lets the system choose one.
        path: The path of the unix socket, or "".
    """

    host: str = DEFAULT_HOST
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """True if only this machine can connect."""
        if self.path or self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:  # another name
            return False


_GRPC = Address(port=8081)  # the port of envoyproxy/ratelimit
_HTTP = Address(port=8080)
_ADMIN = Address(port=9090)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the service, one for each flag of `ratelimit-mw serve`.

    Args:
        rules: The rules: the path of a YAML file or of a folder, or the URL of a rules database.
        storage: The URL of the store of the counters. None: the one in the rules.
        grpc: Where gRPC is served. None: nowhere.
        http: Where HTTP is served. None: nowhere.
        admin: Where metrics, the rules in force and the state are served. None: nowhere.
        headers: The headers that a gRPC response has for the client: `off` for none, `rules` for those of the
            `response` section in the rules, `go` for those of envoyproxy/ratelimit.
        body: A gRPC denial has the body of the middlewares.
        tls_cert: The file of the certificate chain, PEM. With it, TCP ports speak TLS. Unix sockets never do.
        tls_key: The file of its key, PEM.
        client_ca: The file of the authorities whose client certificates gRPC and HTTP require, PEM.
        token_file: The file of the tokens that callers need.
        max_message: The longest gRPC message, in bytes.
        max_connection_age: The seconds after which a gRPC connection is asked to end, so that clients find new
            processes. `inf`: never.
        drain: The seconds after a SIGTERM in which the service says that it is not ready and still takes requests.
        grace: The seconds after `drain` in which requests under way may end.
        near: The share of a limit from which a request counts as near it in the metrics.
        strict_proxies: `/auth` refuses proxies that are not in `trusted_proxies`.
        ignore_unservable: The service starts with rules that it cannot serve. `/auth` ignores most of them.
        log_format: `text` or `json`.
    """

    rules: str
    storage: str | None = None
    grpc: Address | None = _GRPC
    http: Address | None = _HTTP
    admin: Address | None = _ADMIN
    headers: Headers = "off"
    body: bool = False
    tls_cert: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None
    token_file: Path | None = None
    max_message: int = 65536
    max_connection_age: float = math.inf
    drain: float = 5.0
    grace: float = 10.0
    near: float = 0.8
    strict_proxies: bool = False
    ignore_unservable: bool = False
    log_format: LogFormat = "text"

    @classmethod
    def read(cls, **texts: str | bool | None) -> Self:
        """Read settings as they are written on the command line, such as `Settings.read(rules="r.yaml", grpc="8081")`.

        Args:
            texts: The settings by name. None, and a setting that is not given, mean the default.

        Raises:
            ConfigurationError: A text cannot be used. The error has every problem found.
        """
        found: dict[str, object] = {}
        problems: list[Problem] = []
        for name, text in texts.items():
            if text is None:
                continue
            try:
                found[name] = _READERS[name](text) if isinstance(text, str) else text
            except ValueError as error:
                problems.append(Problem(f"{flag_of(name)}: {error}", hint=getattr(error, "hint", "")))
        settings = cls(**{"rules": "", **found})  # type: ignore[arg-type]  # the readers return the types of the fields
        problems += _inconsistent(settings)
        if problems:
            raise ConfigurationError(problems)
        return settings

    @property
    def addresses(self) -> Mapping[str, Address]:
        """The ports that are served, by the names of their settings."""
        ports = {"grpc": self.grpc, "http": self.http, "admin": self.admin}
        return {name: address for name, address in ports.items() if address is not None}


def flag_of(name: str) -> str:
    """Return the flag of a setting, such as `--tls-cert`."""
    return f"--{name.replace('_', '-')}"


def variable_of(name: str) -> str:
    """Return the environment variable of a setting, such as `RATELIMIT_TLS_CERT`."""
    return f"RATELIMIT_{name.upper()}"


def _inconsistent(settings: Settings) -> list[Problem]:
    """Return the problems of settings that cannot be combined, or that name files which cannot be read."""
    problems = []
    if (settings.tls_cert is None) != (settings.tls_key is None):
        problems.append(Problem("--tls-cert and --tls-key: give both or neither"))
    if settings.client_ca is not None and settings.tls_cert is None:
        problems.append(Problem("--client-ca: needs --tls-cert and --tls-key"))
    for name in ("tls_cert", "tls_key", "client_ca", "token_file"):
        path = getattr(settings, name)
        if path is not None and not os.access(path, os.R_OK):
            problems.append(Problem(f"{flag_of(name)}: {quoted(str(path))} can't be read"))
    addresses = list(settings.addresses.values())
    if len({*addresses}) < len([each for each in addresses if each.port or each.path]):
        problems.append(Problem("--grpc, --http and --admin: each needs an address of its own"))
    if not addresses:
        problems.append(Problem("--grpc, --http and --admin: all of them are off"))
    for name, address in settings.addresses.items():
        if address.loopback or settings.token_file is not None:
            continue
        if name == "admin":
            problems.append(Problem(f"--admin: {address} is not loopback, so it needs --token-file"))
        elif settings.client_ca is None:
            problems.append(Problem(f"--{name}: {address} is not loopback, so it needs --token-file or --client-ca"))
    return problems


_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.]+\]|[^:\[\]\s]+):)?(?P<port>[0-9]{1,5})")
_SIZE = re.compile(r"([0-9]{1,9})\s*(B|KiB|MiB|kB|MB)?", re.IGNORECASE)
_SIZES = {"b": 1, "kib": 1024, "mib": 1024**2, "kb": 1000, "mb": 1000**2}
_SMALLEST_MESSAGE = 1024
_LARGEST_MESSAGE = 64 * 1024**2


def read_address(text: str) -> Address | None:
    """Return the address in a text: HOST:PORT, PORT or unix:PATH. None for "off". Raises ValueError."""
    if text.lower() == OFF:
        return None
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path:
            raise ValueError("'unix:' needs the path of a socket, such as unix:/run/ratelimit.sock")
        return Address("", 0, path)
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"{quoted(text)} is not HOST:PORT, PORT, unix:PATH or off")
    return Address((match["host"] or DEFAULT_HOST).strip("[]"), int(match["port"]))


def _seconds(text: str) -> float:
    if re.fullmatch(r"0+\s*(s|ms)?", text):
        return 0.0
    try:
        return parse_duration(text) / SECOND
    except DurationError as error:
        raise ValueError(f"{error} ({error.hint})") from None


def _age(text: str) -> float:
    return math.inf if text.lower() == OFF else _seconds(text)


def _message_size(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    size = 0 if match is None else int(match[1]) * _SIZES[(match[2] or "B").lower()]
    if not _SMALLEST_MESSAGE <= size <= _LARGEST_MESSAGE:
        raise ValueError(f"{quoted(text)} is not a size from 1KiB to 64MiB")
    return size


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ValueError(f"{quoted(text)} is not a number above 0 and at most 1")
    return share


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            hint = near(text, words)
            raise ValueError(f"{quoted(text)} is not {', '.join(words[:-1])} or {words[-1]}{f' ({hint})' * bool(hint)}")
        return text

    return read


def _text(text: str) -> str:
    if not text:
        raise ValueError("the value is empty")
    return text


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{quoted(text)} is not true or false")
    return text.lower() == "true"


_READERS: Mapping[str, Callable[[str], object]] = {
    "rules": _text,
    "storage": _text,
    "grpc": read_address,
    "http": read_address,
    "admin": read_address,
    "headers": _one_of(*get_args(Headers)),
    "body": _flag,
    "tls_cert": Path,
    "tls_key": Path,
    "client_ca": Path,
    "token_file": Path,
    "max_message": _message_size,
    "max_connection_age": _age,
    "drain": _seconds,
    "grace": _seconds,
    "near": _share,
    "strict_proxies": _flag,
    "ignore_unservable": _flag,
    "log_format": _one_of(*get_args(LogFormat)),
}
"""How the text of each setting is read. A reader raises ValueError."""

NAMES = tuple(field.name for field in fields(Settings))
"""The names of all settings."""
