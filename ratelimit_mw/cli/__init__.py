"""The command line, `ratelimit-mw`: a file for each command or group of commands. It needs the extra `cli`.

This package is internal: its names may change in any release.
"""

import errno
import sys
from enum import IntEnum

_EXTRAS = {
    "httpx": "worker",
    "rich": "cli",
    "typer": "cli",
    **dict.fromkeys(("google", "grpc", "grpc_health", "httptools", "prometheus_client", "starlette"), "serve"),
    **dict.fromkeys(("uvicorn", "uvloop"), "serve"),
}
"""The extras that have the modules which commands need."""


class Exit(IntEnum):
    """The exit codes of commands."""

    OK = 0
    PROBLEMS = 1
    USAGE = 2
    STORE_AWAY = 3


def main() -> None:
    """Run the command that `sys.argv` names, and exit with its code."""
    try:
        _run()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stderr.write(f"ratelimit-mw: the output can't be written: {error}\n")
        raise SystemExit(Exit.PROBLEMS) from None
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS:
            raise
        sys.stderr.write(f"ratelimit-mw needs {missing}: pip install 'ratelimit_mw[{_EXTRAS[missing]}]'\n")
        raise SystemExit(Exit.USAGE) from None


def _run() -> None:
    if sys.argv[1:2] == ["ask"]:
        from ratelimit_mw.cli.ask import ask

        raise SystemExit(ask(sys.argv[2:]))
    from ratelimit_mw.cli.app import app

    app()
