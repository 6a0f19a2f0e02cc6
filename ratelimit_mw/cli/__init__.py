"""The command line, `ratelimit-mw`: one file for each command. It needs the extra `cli`.

This package is internal: its names may change in any release.
"""

import sys


def main() -> None:
    """Run the command that `sys.argv` names, and exit with its code."""
    try:
        from ratelimit_mw.cli.app import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("rich", "typer"):
            raise
        sys.stderr.write(f"ratelimit-mw needs {missing}: pip install 'ratelimit_mw[cli]'\n")
        raise SystemExit(2) from None
    app()
