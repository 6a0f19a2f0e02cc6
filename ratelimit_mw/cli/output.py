"""What commands print: text for people, JSON for programs, and how they end."""

import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDE = 200  # columns where nobody looks: a pipe's reader wants whole lines


class Exit(IntEnum):
    """How a command ends."""

    OK = 0
    PROBLEMS = 1
    USAGE = 2
    STORE_AWAY = 3


def say(text: str) -> None:
    """Print a line as it stands."""
    typer.echo(text)


def say_json(value: object) -> None:
    """Print `value` as JSON."""
    typer.echo(json.dumps(plain(value), indent=2, ensure_ascii=False))


def say_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table. A column whose name begins with ">" is one of numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        numbers = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, highlight=False, width=None if terminal else _WIDE)
    with console.capture() as captured:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def say_lines(lines: Iterable[str]) -> None:
    """Print lines as they stand."""
    typer.echo("\n".join(lines))


def fail(message: str, code: Exit) -> NoReturn:
    """Say on stderr what went wrong, and end."""
    typer.echo(f"ratelimit-mw: {message}", err=True)
    raise typer.Exit(code)


def plain(value: Any) -> Any:
    """`value` as JSON has it. What no number says, as a wait without end, is null there."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    named = getattr(value, "_asdict", None)
    if named is not None:
        return plain(named())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
