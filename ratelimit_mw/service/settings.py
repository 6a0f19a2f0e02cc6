"""The settings of the service: each flag of `ratelimit-mw serve`, and how its text is read.

This module is internal, except for the names that `ratelimit_mw.service` exports.
"""

import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args

from ratelimit_mw.errors import ConfigurationError, Invalid, Problem, near, quoted
from ratelimit_mw.units import SECOND, parse_duration, parse_size

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


_ADDRESS = re.compile(r"(?:(?P<host>\[[0-9a-fA-F:.]+\]|[^:\[\]\s]+):)?(?P<port>[0-9]{1,5})")
_LAST_PORT = 65535
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
    if match is None or int(match["port"]) > _LAST_PORT:
        raise ValueError(f"{quoted(text)} is not HOST:PORT, PORT, unix:PATH or off")
    return Address((match["host"] or DEFAULT_HOST).strip("[]"), int(match["port"]))


def _seconds(text: str) -> float:
    if re.fullmatch(r"0+\s*(s|ms)?", text):
        return 0.0
    try:
        return parse_duration(text) / SECOND
    except Invalid as error:
        raise ValueError(f"{error} ({error.hint})") from None


def _age(text: str) -> float:
    return math.inf if text.lower() == OFF else _seconds(text)


def _message_size(text: str) -> int:
    size = parse_size(text)
    if size is None or not _SMALLEST_MESSAGE <= size <= _LARGEST_MESSAGE:
        raise ValueError(f"{quoted(text)} is not a size from 1KiB to 64MiB")
    return size


def _up_to(most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[1-9][0-9]{0,9}", text) or int(text) > most:
            raise ValueError(f"{quoted(text)} is not a number from 1 to {most}")
        return int(text)

    return read


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


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{quoted(text)} is not true or false")
    return text.lower() == "true"


class Flag(NamedTuple):
    """One flag of `ratelimit-mw serve`.

    Attributes:
        read: Returns the value that a text means. Raises ValueError.
        default: The text of the default. None if the flag is not given by default.
        value: What the help calls the value. "" for a switch, which has none.
        about: What the help says.
    """

    read: Callable[[str], object]
    default: str | None
    value: str
    about: str


def _flag(read: Callable[[str], object], default: str | None, value: str, about: str) -> Any:
    """Return the field of a setting, with its flag."""
    flag = Flag(read, default, value, about)
    return field(default=None if default is None else read(default), metadata={"flag": flag})


def _switch(about: str) -> Any:
    return _flag(_truth, "false", "", about)


_WHERE = "[HOST:]PORT, unix:PATH or off."


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the service, one for each flag of `ratelimit-mw serve`. Times are in seconds, sizes in bytes.

    This table makes the flags, their variables of the environment, and the help.
    """

    rules: str = _flag(_text, "ratelimits.yaml", "RULES", "The rules: a file, a folder or a Redis URL.")
    storage: str | None = _flag(_text, None, "URL", "The store, instead of the one in the rules.")
    # 8081 is the port of envoyproxy/ratelimit.
    grpc: Address | None = _flag(read_address, "127.0.0.1:8081", "ADDRESS", f"Where gRPC is served: {_WHERE}")
    http: Address | None = _flag(read_address, "127.0.0.1:8080", "ADDRESS", f"Where HTTP is served: {_WHERE}")
    admin: Address | None = _flag(read_address, "127.0.0.1:9090", "ADDRESS", f"Where metrics are served: {_WHERE}")
    headers: Headers = _flag(
        _one_of(*get_args(Headers)),
        "off",
        "off|rules|go",
        "The headers that gRPC responses add: those of the rules, or those of envoyproxy/ratelimit.",
    )
    body: bool = _switch("gRPC denials have the body of the middlewares.")
    tls_cert: Path | None = _flag(
        Path, None, "FILE", "The certificate chain of TCP ports, PEM. Unix sockets have no TLS."
    )
    tls_key: Path | None = _flag(Path, None, "FILE", "The key of the certificate, PEM.")
    client_ca: Path | None = _flag(
        Path, None, "FILE", "gRPC and HTTP require client certificates of these authorities, PEM."
    )
    token_file: Path | None = _flag(Path, None, "FILE", "The tokens that callers need.")
    allow_anyone: bool = _switch(
        "All callers may ask for decisions, without a token. Only for a network that other hosts cannot reach."
    )
    workers: int = _flag(
        _up_to(256),
        "1",
        "NUMBER",
        "The number of processes. Their ports are consecutive.",
    )
    max_message: int = _flag(_message_size, "64KiB", "SIZE", "The longest gRPC message.")
    max_connections: int = _flag(_up_to(1_000_000), "4096", "NUMBER", "The most connections of each port.")
    max_connection_age: float = _flag(
        _age, "off", "TIME", "The age at which gRPC connections end, so that clients find new processes."
    )
    drain: float = _flag(_seconds, "5s", "TIME", "After SIGTERM: how long not ready, but answering.")
    grace: float = _flag(_seconds, "10s", "TIME", "After --drain: how long requests under way may take.")
    near: float = _flag(_share, "0.8", "SHARE", "The share of a limit above which hits are near it, in the metrics.")
    strict_proxies: bool = _switch("/auth refuses proxies that are not in trusted_proxies.")
    ignore_unservable: bool = _switch("Start even if a service cannot serve some rules. /auth ignores most of them.")
    log_format: LogFormat = _flag(_one_of(*get_args(LogFormat)), "text", "text|json", "The log.")
    log_denials: bool = _switch("Log the denials, ten a minute for each rule. Those of shadow rules are always logged.")

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
                found[name] = FLAGS[name].read(text) if isinstance(text, str) else text
            except ValueError as error:
                problems.append(Problem(f"{flag_of(name)}: {error}", hint=getattr(error, "hint", "")))
        settings = cls(**found)  # type: ignore[arg-type]  # the readers return the types of the fields
        problems += _inconsistent(settings)
        if problems:
            raise ConfigurationError(problems)
        return settings

    @property
    def addresses(self) -> Mapping[str, Address]:
        """The ports that are served, by the names of their settings."""
        ports = {"grpc": self.grpc, "http": self.http, "admin": self.admin}
        return {name: address for name, address in ports.items() if address is not None}


def of_workers(settings: Settings) -> tuple[Settings, ...]:
    """Return the settings of each of the `workers` processes. Their ports follow each other, and paths get a number."""
    if settings.workers == 1:
        return (settings,)
    parts: list[Settings] = []
    for number in range(settings.workers):
        addresses: dict[str, Any] = {name: _numbered(each, number) for name, each in settings.addresses.items()}
        parts.append(replace(settings, workers=1, **addresses))
    return tuple(parts)


def _numbered(address: Address, number: int) -> Address:
    if address.path:
        return address._replace(path=f"{address.path}.{number + 1}")
    return address._replace(port=address.port + number) if address.port else address


FLAGS: Mapping[str, Flag] = {setting.name: setting.metadata["flag"] for setting in fields(Settings)}
"""The flags by the names of their settings."""


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
    found = [each for part in of_workers(settings) for each in part.addresses.values()]
    if len({*found}) < len([each for each in found if each.port or each.path]):
        row = f"{settings.workers} ports of its own in a row, for example from 8181, 8581 and 9090"
        own = "an address of its own" if settings.workers == 1 else row
        problems.append(Problem(f"--grpc, --http and --admin: each needs {own}"))
    if any(each.port > _LAST_PORT for each in found):
        problems.append(Problem(f"--workers: the last ports of {settings.workers} processes are above {_LAST_PORT}"))
    if not settings.addresses:
        problems.append(Problem("--grpc, --http and --admin: all of them are off"))
    for name, address in settings.addresses.items():
        if address.loopback or settings.token_file is not None:
            continue
        if name == "admin":
            problems.append(Problem(f"--admin: {address} is not loopback, so it needs --token-file"))
        elif settings.client_ca is None and not settings.allow_anyone:
            needed = "--token-file or --client-ca, or --allow-anyone on a network that other hosts cannot reach"
            problems.append(Problem(f"--{name}: {address} is not loopback, so it needs {needed}"))
    return problems
