"""The parts that the commands about access logs share: their options, and the values of these options."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer

from ratelimit_mw.cli import Exit
from ratelimit_mw.cli.common import console_of, fail, fail_with
from ratelimit_mw.errors import ConfigurationError, Invalid, StoreUnavailable
from ratelimit_mw.foresight.logs.formats import WORDS, UnusableLog
from ratelimit_mw.foresight.logs.inputs import STANDARD_INPUT
from ratelimit_mw.foresight.logs.times import any_time
from ratelimit_mw.foresight.wording import printable

Names = Literal["plain", "hashed"]

Logs = Annotated[
    list[str], typer.Argument(metavar="LOG…", help="Access logs, which may be compressed. - is standard input.")
]
FormatOption = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="FORMAT",
        help=f"{', '.join(WORDS)}, or the log_format of nginx or the LogFormat of Apache.",
    ),
]
Field = Annotated[
    list[str] | None,
    typer.Option(
        "--field",
        metavar="NAME=PLACE",
        help="Where the log has a field: a name in JSON or CSV, or a variable of the format. Repeatable.",
    ),
]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Use requests from this time on.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Use requests before this time.")]
Lenient = Annotated[bool, typer.Option("--lenient", help="Accept a log of which more than 10 % cannot be read.")]
ClientNames = Annotated[Names, typer.Option("--names", help="Show clients as in the log, or as hashes.")]

_MOST_UNREADABLE = 0.1
"""The share of unreadable lines above which the result is not trusted, without `--lenient`."""


def require_readable(unreadable: int, lines: int, *, lenient: bool) -> None:
    """End the command if too many of all `lines` could not be read to trust a result."""
    if not lenient and unreadable > _MOST_UNREADABLE * max(lines, 1):
        fail("more than 10 % of the lines can't be read; see --format and --lenient", Exit.PROBLEMS)


@contextmanager
def errors_shown() -> Iterator[None]:
    """End the command, with a message, if the block raises an error about its logs, rules or options."""
    try:
        yield
    except ConfigurationError as error:
        fail_with(error, "these rules can't be loaded")
    except StoreUnavailable as error:
        fail(f"the rules can't be fetched: {error}", Exit.STORE_AWAY)
    except UnusableLog as error:
        fail(_printable(error), Exit.USAGE if error.usage else Exit.PROBLEMS)
    except Invalid as error:
        fail(f"--match: {error}", Exit.USAGE)
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    except OSError as error:
        fail(f"the log can't be read: {error}", Exit.PROBLEMS)


def _printable(error: Exception) -> str:
    """Return a message of several lines in which each line is printable."""
    return "\n".join(map(printable, str(error).split("\n")))


def require_one_standard_input(logs: list[str]) -> None:
    """Raise typer.BadParameter if standard input is named twice."""
    if logs.count(STANDARD_INPUT) > 1:
        raise typer.BadParameter("standard input can be read once only", param_hint="LOG…")


def time_of(text: str | None, option: str) -> int | None:
    """Return the value of `--since` or `--until`, in microseconds since the epoch. Raises typer.BadParameter."""
    if text is None:
        return None
    try:
        return any_time(text)
    except (ValueError, OverflowError):
        hint = "write 2026-03-01T12:00:00Z, the form of the log, or seconds since the epoch"
        raise typer.BadParameter(f"{text!r} is not a time; {hint}", param_hint=option) from None


def places_of(fields: list[str] | None) -> dict[str, str]:
    """Return the places of fields in the log, by the names of the fields. Raises typer.BadParameter."""
    found: dict[str, str] = {}
    for each in fields or ():
        name, equals, place = each.partition("=")
        if not equals or not name.strip() or not place.strip():
            raise typer.BadParameter(f"{each!r} is not NAME=PLACE", param_hint="--field")
        name = name.strip()
        found[name.lower() if name.lower().startswith("header:") else name] = place.strip()
    return found


@contextmanager
def progress_of(command: str, logs: list[str]) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function that shows the progress on a terminal. None if stderr is not a terminal.

    The arguments of the function are the numbers of lines and of bytes that were read.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    known = STANDARD_INPUT not in logs
    total = sum(Path(log).stat().st_size for log in logs if Path(log).is_file()) if known else None
    columns = (TextColumn(command), BarColumn(), TextColumn("{task.fields[done]}"), TimeRemainingColumn())
    begun = time.monotonic()
    with Progress(*columns, console=console_of(sys.stderr), transient=True) as progress:
        task = progress.add_task(command, total=total, done="")

        def show(lines: int, position: int) -> None:
            speed = lines / max(time.monotonic() - begun, 0.001)
            progress.update(task, completed=position, done=f"{lines:,} lines, {speed:,.0f} lines/s")

        yield show
