"""The commands of the rules database: `ratelimit-mw rules push | pull | list | diff | rollback`.

Versions are immutable and numbered from 1. `rollback` pushes an old version again under a new number. The database is
`reload.database.RulesDatabase`; this module only reads options and prints results.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from ratelimit_mw.cli import Exit
from ratelimit_mw.cli.common import (
    DEFAULT_CONFIG,
    RULES_VARIABLE,
    Json,
    Most,
    fail,
    fail_with,
    fail_without_store,
    say,
    say_json,
    say_lines,
    say_table,
)
from ratelimit_mw.cli.operators import Author, author_of
from ratelimit_mw.errors import ConfigurationError, StoreUnavailable, VersionConflict
from ratelimit_mw.reload.database import RulesDatabase

Database = Annotated[
    str,
    typer.Option(
        "--database",
        "-d",
        metavar="URL",
        envvar="RATELIMIT_DATABASE",
        help="The rules database: redis://…. Append #NAME to select one of several.",
    ),
]
Comment = Annotated[str, typer.Option("--comment", "-m", help="What changed, and why.")]

app = typer.Typer(
    name="rules",
    help="Manage the rules database, which keeps versions with their author, time and comment.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command()
def push(
    file: Annotated[
        str, typer.Argument(metavar="RULES", envvar=RULES_VARIABLE, help="A file, or a folder of files.")
    ] = DEFAULT_CONFIG,
    *,
    database: Database,
    comment: Comment = "",
    author: Author = None,
    base: Annotated[
        int | None, typer.Option("--base", metavar="VERSION", help="Fail if there is a newer version than this one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Push a file or a folder as the newest version.

    If its rules can't be loaded, nothing is pushed and the exit code is 1.
    """
    with _database(database) as rules:
        number = rules.push(file, author=author_of(author), comment=comment, base=base)
    _print_version(number, as_json=as_json)


@app.command()
def pull(
    version: Annotated[int | None, typer.Argument(help="The version. Default: the newest.")] = None,
    *,
    database: Database,
    to: Annotated[Path | None, typer.Option("--to", metavar="FOLDER", help="Write the files to this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Print the rules of a version, or write them to a folder."""
    with _database(database) as rules:
        documents = rules.pull(version)
    files = {name: content for name, content in documents if isinstance(content, bytes)}
    if to is not None:
        to.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            # Only the last part of the name is used: a name in the database must not lead out of the folder.
            (to / Path(name).name).write_bytes(content)
    if as_json:
        say_json({"files": {name: content.decode() for name, content in files.items()}})
    elif to is not None:
        say_lines(str(to / Path(name).name) for name in files)
    else:
        for name, content in files.items():
            say((f"# {name}\n" if len(files) > 1 else "") + content.decode().rstrip("\n"))


@app.command("list")
def list_(*, database: Database, most: Most = 20, as_json: Json = False) -> None:
    """List the newest versions. The newest is the first."""
    with _database(database) as rules:
        found = rules.list(most)
    if as_json:
        say_json({"versions": found})
    elif not found:
        say("no rules have been pushed yet")
    else:
        columns = (">version", "pushed", "by", "files", "comment")
        rows = (
            (
                version.number,
                f"{datetime.fromtimestamp(version.at, UTC):%Y-%m-%d %H:%M:%S} UTC",
                version.author,
                ", ".join(version.files),
                version.comment,
            )
            for version in found
        )
        say_table(columns, rows)


@app.command()
def diff(
    old: Annotated[int, typer.Argument(help="The old version.")],
    new: Annotated[int | None, typer.Argument(help="The new version. Default: the newest.")] = None,
    *,
    database: Database,
    as_json: Json = False,
) -> None:
    """Show the changes between two versions, as `diff -u` does."""
    with _database(database) as rules:
        changed = rules.diff(old, new)
    if as_json:
        say_json({"diff": changed})
    elif changed:
        say(changed.rstrip("\n"))


@app.command()
def rollback(
    version: Annotated[int, typer.Argument(help="The version to restore.")],
    *,
    database: Database,
    comment: Comment = "",
    author: Author = None,
    as_json: Json = False,
) -> None:
    """Push an earlier version again, as the newest version."""
    with _database(database) as rules:
        number = rules.rollback(version, author=author_of(author), comment=comment)
    _print_version(number, as_json=as_json)


def _print_version(number: int, *, as_json: bool) -> None:
    """Print the number of the version that was pushed."""
    if as_json:
        say_json({"version": number})
    else:
        say(f"version {number}")


@contextmanager
def _database(url: str) -> Iterator[RulesDatabase]:
    """Yield the database, and close it afterwards. An error ends the command with a message."""
    try:
        database = RulesDatabase(url)
    except ValueError as error:
        fail(f"--database: {error}", Exit.USAGE)
    try:
        yield database
    except VersionConflict as conflict:
        fail(f"version {conflict.version} was pushed first: pull it, add your changes, and push again", Exit.PROBLEMS)
    except LookupError as error:
        fail(str(error.args[0]), Exit.PROBLEMS)
    except ConfigurationError as error:
        fail_with(error, "these rules can't be loaded, so nothing was pushed")
    except StoreUnavailable as error:
        fail_without_store(error, "the rules database")
    finally:
        database.close()
