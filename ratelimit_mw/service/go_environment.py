"""The environment variables of envoyproxy/ratelimit, and what takes their place here.

The service reads none of them. It does not start if one is set that would change its decisions, and warns of the
others. `ratelimit-mw from-envoy-ratelimit` makes flags of them. `_GROUPS` is the table that both read.

This module is internal: its names may change in any release.
"""

import logging
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ratelimit_mw.config.load import examine
from ratelimit_mw.decision.kill_switch import SWITCH
from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.service.settings import Settings, flag_of

logger = logging.getLogger("ratelimit_mw.service")

_FALSE = ("0", "f", "false")
_TRUE = ("1", "t", "true")

Environment = Mapping[str, str]


class Variable(NamedTuple):
    """What takes the place of a variable.

    Attributes:
        setting: The setting of `serve`, or "" if there is none.
        instead: What to write if there is no setting. "" if nothing takes its place.
        decides: Whether decisions are others if the variable is ignored.
        usual: The values, in lower case, with which it changes nothing here.
    """

    setting: str = ""
    instead: str = ""
    decides: bool = False
    usual: tuple[str, ...] = ()


_GROUPS: tuple[tuple[str, Variable], ...] = (
    ("GRPC_HOST GRPC_PORT GRPC_UDS", Variable("grpc")),
    ("HOST PORT", Variable("http")),
    ("DEBUG_HOST DEBUG_PORT", Variable("admin")),
    ("USE_PROMETHEUS PROMETHEUS_ADDR PROMETHEUS_PATH", Variable(instead="--admin always has /metrics")),
    ("GRPC_MAX_CONNECTION_AGE", Variable("max_connection_age")),
    ("GRPC_SERVER_USE_TLS GRPC_SERVER_TLS_CERT", Variable("tls_cert", usual=_FALSE)),
    ("GRPC_SERVER_TLS_KEY", Variable("tls_key")),
    ("GRPC_CLIENT_TLS_CACERT", Variable("client_ca")),
    ("LOG_FORMAT", Variable("log_format", usual=("text",))),
    ("RUNTIME_ROOT RUNTIME_SUBDIRECTORY RUNTIME_APPDIRECTORY", Variable("rules", decides=True)),
    ("CONFIG_TYPE", Variable("rules", decides=True, usual=("file",))),
    ("REDIS_URL REDIS_AUTH REDIS_SENTINEL_AUTH", Variable("storage", decides=True)),
    ("REDIS_TYPE", Variable("storage", decides=True, usual=("single",))),
    ("REDIS_TLS", Variable("storage", decides=True, usual=_FALSE)),
    ("BACKEND_TYPE", Variable("storage", decides=True, usual=("redis",))),
    ("REDIS_SOCKET_TYPE REDIS_TLS_*", Variable("storage", usual=(*_FALSE, "tcp", "unix"))),
    ("SHADOW_MODE", Variable(instead=f"{SWITCH}=shadow in the environment", decides=True, usual=_FALSE)),
    ("QUOTA_MODE", Variable(instead="quota_mode: true in each limit", decides=True, usual=_FALSE)),
    ("REDIS_TIMEOUT", Variable(instead="storage: {timeout: 100ms} in the rules")),
    ("NEAR_LIMIT_RATIO", Variable("near")),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", Variable("headers", usual=_FALSE)),
    ("LOCAL_CACHE_SIZE_IN_BYTES STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", Variable(instead="nothing: it is always so")),
    ("MERGE_DOMAIN_CONFIG", Variable(instead="each domain into one file", usual=_FALSE)),
    (
        (
            "CACHE_KEY_PREFIX CONFIG_GRPC_XDS_* DISABLE_STATS EXPIRATION_JITTER_MAX_SECONDS EXTRA_TAGS "
            "FORCE_START_WITHOUT_INITIAL_CONFIG GRPC_CLIENT_TLS_SAN GRPC_MAX_CONNECTION_AGE_GRACE "
            "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED LIMIT_LIMIT_HEADER LIMIT_REMAINING_HEADER LIMIT_RESET_HEADER "
            "LOG_LEVEL MEMCACHE_* PROMETHEUS_MAPPER_YAML PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS "
            "REDIS_CLUSTER_PIPELINE_PARALLELISM REDIS_HEALTH_CHECK_ACTIVE_CONNECTION REDIS_PERSECOND* "
            "REDIS_PIPELINE_* REDIS_POOL_* REDIS_STARTUP_* RESPONSE_DYNAMIC_METADATA RUNTIME_IGNOREDOTFILES "
            "RUNTIME_WATCH_ROOT STATSD_* STATS_FLUSH_INTERVAL TRACING_* USE_DOG_STATSD* USE_STATSD XDS_CLIENT_*"
        ),
        Variable(usual=_FALSE),
    ),
)

VARIABLES: Mapping[str, Variable] = {name: variable for names, variable in _GROUPS for name in names.split()}
"""The variables by their names. A name that ends with `*` stands for all that begin so."""

COPIED = {
    "NEAR_LIMIT_RATIO": "near",
    "GRPC_MAX_CONNECTION_AGE": "max_connection_age",
    "GRPC_SERVER_TLS_CERT": "tls_cert",
    "GRPC_SERVER_TLS_KEY": "tls_key",
    "GRPC_CLIENT_TLS_CACERT": "client_ca",
    "LOG_FORMAT": "log_format",
}
"""The settings whose texts are those of a variable."""


_LINE = re.compile(
    r"""(?:export\s+)?(?P<name>\w+)\s*=(?:\s*"(?P<double>[^"]*)"|\s*'(?P<single>[^']*)'|(?!\s*["'])(?P<plain>.*?))"""
    r"(?:\s+\#.*)?"
)


def read_file(path: Path) -> dict[str, str]:
    """Return the variables of a file with a `NAME=value` on each line, as Docker Compose and shells read it.

    Raises:
        ConfigurationError: A line cannot be read. A variable that is lost could change decisions. No value is quoted.
    """
    try:
        lines = path.read_text("utf-8-sig").split("\n")  # Windows begins a file with a mark
    except UnicodeDecodeError:
        raise ConfigurationError([Problem("the file is not UTF-8 text", str(path))]) from None
    found: dict[str, str] = {}
    problems: list[Problem] = []
    for number, text in enumerate(lines, 1):
        line = text.strip()
        if not line or line.startswith("#"):
            continue
        if (match := _LINE.fullmatch(line)) is None:
            problems.append(Problem(f"line {number} is not NAME=value", str(path)))
        else:
            found[match["name"]] = match["double"] or match["single"] or (match["plain"] or "").strip()
    if problems:
        raise ConfigurationError(problems)
    return found


def foreign(environ: Environment) -> dict[str, Variable]:
    """Return the variables of envoyproxy/ratelimit that are set to a value which changes something."""
    families = [name.removesuffix("*") for name in VARIABLES if name.endswith("*")]
    found = {}
    for name in environ:
        family = next((f"{family}*" for family in families if name.startswith(family)), name)
        variable = VARIABLES.get(name) or VARIABLES.get(family)
        if variable is not None and environ[name] and environ[name].lower() not in variable.usual:
            found[name] = variable
    return found


def problems_of(settings: Settings, environ: Environment = os.environ) -> list[Problem]:
    """Return the variables that are ignored and would change decisions. The others that are ignored are logged.

    A variable is not ignored if its flag is given, or if the rules file reads it.
    """
    usual = Settings()
    ignored = {
        name: variable
        for name, variable in foreign(environ).items()
        if not variable.setting or getattr(settings, variable.setting) == getattr(usual, variable.setting)
    }
    if environ.get(SWITCH):
        ignored.pop("SHADOW_MODE", None)
    read = _read_by(settings.rules, environ) if ignored else ()
    problems: dict[str, list[str]] = {}
    for name, variable in ignored.items():
        if name in read:
            continue
        remedy = _remedy(variable, environ)
        if variable.decides:
            problems.setdefault(remedy, []).append(name)
        else:
            logger.warning("%s of envoyproxy/ratelimit is ignored: %s", name, remedy)
    message = "{} of envoyproxy/ratelimit would be ignored, and decisions would differ"
    return [Problem(message.format(" and ".join(names)), hint=remedy) for remedy, names in problems.items()]


def _remedy(variable: Variable, environ: Environment) -> str:
    if variable.setting:
        text = flags_for(environ).get(variable.setting)
        return f"write {flag_of(variable.setting)} {text or '…'}, or unset it"
    return f"write {variable.instead}, or unset it" if variable.instead else "nothing takes its place"


class _Recorded(dict[str, str]):
    """An environment that remembers which variables were read."""

    def __init__(self, environ: Environment) -> None:
        super().__init__(environ)
        self.read: set[str] = set()

    def __contains__(self, name: object) -> bool:
        self.read.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: str | None = None) -> str | None:  # type: ignore[override]  # only of texts
        self.read.add(name)
        return super().get(name, default)


def _read_by(rules: str, environ: Environment) -> set[str]:
    """Return the variables that the rules read, as in `${REDIS_URL}`."""
    recorded = _Recorded(environ)
    examine(rules, environ=recorded)
    return recorded.read


def command_for(environ: Environment) -> str:
    """Return the `serve` command that does what a service of envoyproxy/ratelimit does with these variables."""
    shadow = "SHADOW_MODE" in foreign(environ)
    words = [f"{flag_of(setting)} {text}" for setting, text in flags_for(environ).items()]
    return " \\\n  ".join([f"{SWITCH}=shadow ratelimit-mw serve" if shadow else "ratelimit-mw serve", *words])


def flags_for(environ: Environment) -> dict[str, str]:
    """Return the texts of the settings, as they are written in a shell. Passwords stay in their variables."""
    made = {setting: make(environ) for setting, make in _MADE.items()}
    made |= {setting: environ.get(name) or None for name, setting in COPIED.items()}
    return {setting: text if "${" in text else shlex.quote(text) for setting, text in made.items() if text}


def _rules(environ: Environment) -> str | None:
    names = ("RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY")
    if not any(environ.get(name) for name in names):
        return None
    root, subdirectory, folder = (environ.get(name) for name in names)
    return "/".join(filter(None, ((root or "/srv/runtime_data/current").rstrip("/"), subdirectory, folder or "config")))


def _storage(environ: Environment) -> str | None:
    """Return the URL of the store. It refers to variables that have a password."""
    url = environ.get("REDIS_URL")
    if not url or environ.get("BACKEND_TYPE", "redis").lower() != "redis":
        return None
    if "://" in url:  # a URL as other programs write it, maybe with a password
        return '"${REDIS_URL}"'
    auth, kind = environ.get("REDIS_AUTH", ""), environ.get("REDIS_TYPE", "").lower()
    user = ("${REDIS_AUTH}@" if ":" in auth else ":${REDIS_AUTH}@") if auth else ""
    tls = environ.get("REDIS_TLS", "").lower() in _TRUE
    place, options = re.sub(r'(["\\$`])', r"\\\1", url), dict(_tls_options(environ)) if tls else {}
    if kind == "sentinel":
        master, _, sentinels = place.partition(",")
        text = f"redis+sentinel://{user}{sentinels}/{master}/0"
        if environ.get("REDIS_SENTINEL_AUTH"):
            options |= {"sentinel_password": "${REDIS_SENTINEL_AUTH}"}
    elif kind == "cluster":
        text = f"redis+cluster://{user}{place}"
    elif place.startswith("/"):
        text, tls = f"unix://{user}{place}", False
    else:
        text = f"{'rediss' if tls else 'redis'}://{user}{place}/0"
    if tls and kind in ("sentinel", "cluster"):
        options["tls"] = "true"
    text += "?" * bool(options) + "&".join(f"{name}={value}" for name, value in options.items())
    return f'"{text}"' if "${" in text else text


def _tls_options(environ: Environment) -> Iterator[tuple[str, str]]:
    for name, option in (
        ("REDIS_TLS_CACERT", "ssl_ca_certs"),
        ("REDIS_TLS_CLIENT_CERT", "ssl_certfile"),
        ("REDIS_TLS_CLIENT_KEY", "ssl_keyfile"),
    ):
        if environ.get(name):
            yield option, environ[name]
    if environ.get("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "").lower() in _TRUE:
        yield "ssl_check_hostname", "false"


def _address(host: str, port: str, usual: str, socket: str = "") -> Callable[[Environment], str | None]:
    def make(environ: Environment) -> str | None:
        if environ.get(socket):
            return f"unix:{environ[socket]}"
        if not environ.get(host) and not environ.get(port):
            return None
        name = environ.get(host) or "0.0.0.0"  # noqa: S104  the default of the Go service
        return f"{f'[{name}]' if ':' in name else name}:{environ.get(port) or usual}"

    return make


def _headers(environ: Environment) -> str | None:
    return "go" if environ.get("LIMIT_RESPONSE_HEADERS_ENABLED", "").lower() in _TRUE else None


_MADE: Mapping[str, Callable[[Environment], str | None]] = {
    "rules": _rules,
    "storage": _storage,
    "grpc": _address("GRPC_HOST", "GRPC_PORT", "8081", "GRPC_UDS"),
    "http": _address("HOST", "PORT", "8080"),
    "admin": _address("DEBUG_HOST", "DEBUG_PORT", "6070"),
    "headers": _headers,
}
"""The settings that are made of several variables."""


_NOT_IN_URL = re.compile(r"[/?#%&+\[\]]")
"""A password with one of these is another one in a URL."""


def notes_on(environ: Environment) -> Iterator[str]:
    """Yield what no flag of `command_for` does."""
    made = flags_for(environ)
    for name, variable in foreign(environ).items():
        if name == "SHADOW_MODE" or variable.setting in made:
            continue
        yield f"{name}: {_remedy(variable, environ).removesuffix(', or unset it')}"
    for name in ("REDIS_AUTH", "REDIS_SENTINEL_AUTH"):
        if f"${{{name}}}" in made.get("storage", "") and _NOT_IN_URL.search(environ[name]):
            yield f"{name}: a URL needs %2F, %3F, %23, %25, %26, %2B, %5B and %5D for its / ? # % & + [ and ]"
    for name in [name for name in ("grpc", "http", "admin") if name not in made]:
        yield f"{flag_of(name)} is on loopback by default, and there on all addresses"
