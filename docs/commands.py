"""Write commands.md, the reference of all commands and their options, from the commands. Sphinx runs this."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from ratelimit_mw.cli.app import app

PAGE = Path(__file__).with_name("commands.md")

_HEAD = """\
# Commands and options

Every command of `ratelimit-mw` with its arguments and options. This page is made from the commands, as is their
`--help`. [Command line](cli.md) shows how to use them, and what the exit codes mean.
"""


def page() -> str:
    """The page: one section for each command."""
    return "\n".join([_HEAD, *(_section(name, command) for name, command in commands())])


def commands() -> Iterator[tuple[str, Any]]:
    """All commands with their names: `check`, `rules push`."""
    for name, command in get_command(app).commands.items():
        within = getattr(command, "commands", None)
        if within is None:
            yield name, command
        else:
            yield from ((f"{name} {inner}", each) for inner, each in within.items())


def write() -> None:
    """Write the page, if it has changed."""
    text = page()
    if not PAGE.exists() or PAGE.read_text("utf-8") != text:
        PAGE.write_text(text, "utf-8")


def _section(name: str, command: Any) -> str:
    rows = [_row(parameter) for parameter in command.params if not parameter.hidden]
    table = ["| argument or option | meaning | default |", "|---|---|---|", *rows, ""] if rows else []
    return "\n".join([f"## {name}", "", (command.help or "").strip(), "", *table])


def _row(parameter: Any) -> str:
    value = parameter.metavar or ("" if getattr(parameter, "is_flag", False) else parameter.name.upper())
    if parameter.param_type_name == "argument":
        shown = f"`{value}`"
    else:
        shown = " ".join(f"`{option}`" for option in parameter.opts) + (f" `{value}`" if value else "")
    return f"| {shown} | {_cell(parameter.help or '')} | {_cell(_default(parameter))} |"


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = "–" if parameter.default in (None, False, "") else f"`{parameter.default}`"
    variable = getattr(parameter, "envvar", None)
    return f"`${variable}`, or {default}" if variable else default


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    write()
