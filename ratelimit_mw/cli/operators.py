"""Commands of operators: `override` for single clients, the kill switch `switch`, and the rules database `rules`.

Versions in the rules database are immutable and numbered from 1. `rules rollback` pushes an old version again under a
new number.
"""

import getpass
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ratelimit_mw.cli import Exit
from ratelimit_mw.cli.common import (
    DEFAULT_CONFIG,
    RULES_VARIABLE,
    Attribute,
    Config,
    IpOrNetwork,
    Json,
    Most,
    Storage,
    Tier,
    User,
    attributes,
    fail,
    fail_with,
    fail_without_store,
    moment,
    open_limiter,
    say_list,
    say_result,
)
from ratelimit_mw.decision.kill_switch import SWITCH
from ratelimit_mw.errors import ConfigurationError, StoreUnavailable, VersionConflict
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.reload.controls import Override, Setting
from ratelimit_mw.reload.database import RulesDatabase
from ratelimit_mw.stores.base import MemoryRecords

Duration = Annotated[
    str | None, typer.Option("--for", metavar="TIME", help="How long it lasts, such as 30m, 2h or 7 days.")
]
Comment = Annotated[str, typer.Option("--comment", "-m", help="A comment for other operators.")]
Author = Annotated[str | None, typer.Option("--author", help="Who makes the change. Default: the user of this shell.")]


@contextmanager
def shared(config: str, storage: str | None, what: str, instead: str = "") -> Iterator[RateLimiter]:
    """Yield a limiter whose records other processes can read.

    Without such records, the command ends with an error that begins with `what` and ends with `instead`.
    """
    with open_limiter(config, storage) as limiter:
        if isinstance(limiter.overrides.records, MemoryRecords):
            fail(
                f"{what} stored with the counters, which are in the memory of the app's processes; "
                f"if the app has another store, name it with --storage{instead}",
                Exit.USAGE,
            )
        try:
            yield limiter
        except ValueError as error:
            fail(str(error), Exit.USAGE)


def author_of(option: str | None) -> str:
    """Return the author of a change: the option, or the user of this shell."""
    if option is not None:
        return option
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return ""


def until(end: float | None) -> str:
    """Return when a setting ends, as text."""
    return "without end" if end is None else f"until {moment(end)}"


_OVERRIDES_ARE = "overrides are"

Rule = Annotated[str | None, typer.Option("--rule", "-r", metavar="NAME", help="The rule whose limit is replaced.")]
Domain = Annotated[str | None, typer.Option("--domain", help="The domain, if the rules have several.")]

overrides = typer.Typer(
    name="override",
    help="Set another limit, a block or an exemption for one client, while the app runs.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@overrides.command("set")
def set_(
    *,
    ip: IpOrNetwork = None,
    user: User = None,
    tier: Tier = None,
    attribute: Attribute = None,
    rule: Rule = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            "--limit",
            "-l",
            metavar="LIMIT",
            help="The client's limit, such as 100 per minute or unlimited. Repeatable.",
        ),
    ] = None,
    block: Annotated[bool, typer.Option("--block", help="Deny all requests of the client with 403.")] = False,
    exempt: Annotated[bool, typer.Option("--exempt", help="Do not count requests of the client.")] = False,
    duration: Duration = None,
    comment: Comment = "",
    author: Author = None,
    domain: Domain = None,
    config: Config = DEFAULT_CONFIG,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Set another limit of a rule for a client, or block the client, or exempt it.

    It lasts for the time of `--for`, or until it is removed. A network, such as `--ip 192.0.2.0/24`, can be blocked or
    exempt.
    """
    client = attributes(ip, user, tier, attribute)
    limits = limit[0] if limit and len(limit) == 1 else limit or None
    with shared(config, storage, _OVERRIDES_ARE) as limiter:
        made = limiter.overrides.set(
            client,
            rule=rule,
            limit=limits,
            block=block,
            exempt=exempt,
            duration=duration,
            comment=comment,
            author=author_of(author),
            domain=domain,
        )
    say_result(made, f"{made.identity}: {_describe(made)} {until(made.until)}", as_json=as_json)


@overrides.command("list")
def list_overrides(
    *, domain: Domain = None, config: Config = DEFAULT_CONFIG, storage: Storage = None, as_json: Json = False
) -> None:
    """List the overrides that apply now. Users and tokens are shown as hashes."""
    with shared(config, storage, _OVERRIDES_ARE) as limiter:
        found = limiter.overrides.list(domain=domain)
    columns = ("client", "override", "until", "by", "comment")
    say_list({"overrides": found}, columns, map(_row, found), empty="no overrides", as_json=as_json)


@overrides.command("remove")
def remove(
    *,
    ip: IpOrNetwork = None,
    user: User = None,
    tier: Tier = None,
    attribute: Attribute = None,
    rule: Rule = None,
    domain: Domain = None,
    config: Config = DEFAULT_CONFIG,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Remove an override: with `--rule` a client's limit, otherwise its block or exemption. Exit 1 if there is none."""
    client = attributes(ip, user, tier, attribute)
    with shared(config, storage, _OVERRIDES_ARE) as limiter:
        removed = limiter.overrides.remove(client, rule=rule, domain=domain)
    say_result({"removed": removed}, "removed" if removed else "no such override", as_json=as_json)
    if not removed:
        raise typer.Exit(Exit.PROBLEMS)


def _row(override: Override) -> tuple[object, ...]:
    return override.identity, _describe(override), until(override.until), override.author, override.comment


def _describe(override: Override) -> str:
    if override.kind != "limit":
        return {"block": "blocked", "exempt": "exempt"}[override.kind]
    limits = override.limit if isinstance(override.limit, list) else [override.limit]
    return f"{override.rule}: {', '.join(map(str, limits))}"


def switch(
    word: Annotated[
        str | None,
        typer.Argument(metavar="[off|shadow|on]", help="The new setting. Without it, the present setting is shown."),
    ] = None,
    *,
    duration: Duration = None,
    comment: Comment = "",
    author: Author = None,
    config: Config = DEFAULT_CONFIG,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Turn rate limiting off, to shadow or on, in every process within a second. Or show the present setting.

    With `off`, all requests pass and are not counted, also those of blocked clients. With `shadow`, all requests are
    counted, but none is denied or delayed. In a process that has `RATELIMIT_MW` in its environment, that takes
    precedence.
    """
    with shared(config, storage, "the switch is", f"; otherwise start the app with {SWITCH}=off") as limiter:
        found = limiter.switch.kept()
        if word is not None:
            found = limiter.switch.set(word, duration=duration, comment=comment, author=author_of(author))
        domains = [part.domain for part in limiter.rules.parts]
    say_result({"domains": domains, **found._asdict()}, _line(domains, found), as_json=as_json)
    if fixed := os.environ.get(SWITCH):
        typer.echo(f"note: {SWITCH}={fixed} is set here; a process with this variable ignores the switch", err=True)


def _line(domains: Sequence[str], found: Setting) -> str:
    begin = f"{', '.join(domains)}: {found.word}"
    if found.word == "on":
        return begin
    by = f", by {found.author}" if found.author else ""
    return f"{begin} {until(found.until)}{by}{f' ({found.comment})' if found.comment else ''}"


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
Change = Annotated[str, typer.Option("--comment", "-m", help="What changed, and why.")]

rules = typer.Typer(
    name="rules",
    help="Manage the rules database, which keeps versions with their author, time and comment.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@rules.command()
def push(
    file: Annotated[
        str, typer.Argument(metavar="RULES", envvar=RULES_VARIABLE, help="A file, or a folder of files.")
    ] = DEFAULT_CONFIG,
    *,
    database: Database,
    comment: Change = "",
    author: Author = None,
    base: Annotated[
        int | None, typer.Option("--base", metavar="VERSION", help="Fail if there is a newer version than this one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Push a file or a folder as the newest version.

    If its rules can't be loaded, nothing is pushed and the exit code is 1.
    """
    with _database(database) as opened:
        number = opened.push(file, author=author_of(author), comment=comment, base=base)
    say_result({"version": number}, f"version {number}", as_json=as_json)


@rules.command()
def pull(
    version: Annotated[int | None, typer.Argument(help="The version. Default: the newest.")] = None,
    *,
    database: Database,
    to: Annotated[Path | None, typer.Option("--to", metavar="FOLDER", help="Write the files to this folder.")] = None,
    as_json: Json = False,
) -> None:
    """Print the rules of a version, or write them to a folder."""
    with _database(database) as opened:
        documents = opened.pull(version)
    files = {name: content for name, content in documents if isinstance(content, bytes)}
    if to is not None:
        to.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            # Only the last part of the name is used: a name in the database must not lead out of the folder.
            (to / Path(name).name).write_bytes(content)
    texts = {name: content.decode() for name, content in files.items()}
    if to is not None:
        shown = [str(to / Path(name).name) for name in texts]
    else:
        shown = [(f"# {name}\n" if len(texts) > 1 else "") + text.rstrip("\n") for name, text in texts.items()]
    say_result({"files": texts}, "\n".join(shown), as_json=as_json)


@rules.command("list")
def list_versions(*, database: Database, most: Most = 20, as_json: Json = False) -> None:
    """List the newest versions. The newest is the first."""
    with _database(database) as opened:
        found = opened.list(most)
    say_list(
        {"versions": found},
        (">version", "pushed", "by", "files", "comment"),
        [(each.number, moment(each.at), each.author, ", ".join(each.files), each.comment) for each in found],
        empty="no rules have been pushed yet",
        as_json=as_json,
    )


@rules.command()
def diff(
    old: Annotated[int, typer.Argument(help="The old version.")],
    new: Annotated[int | None, typer.Argument(help="The new version. Default: the newest.")] = None,
    *,
    database: Database,
    as_json: Json = False,
) -> None:
    """Show the changes between two versions, as `diff -u` does."""
    with _database(database) as opened:
        changed = opened.diff(old, new)
    say_result({"diff": changed}, changed.rstrip("\n"), as_json=as_json)


@rules.command()
def rollback(
    version: Annotated[int, typer.Argument(help="The version to restore.")],
    *,
    database: Database,
    comment: Change = "",
    author: Author = None,
    as_json: Json = False,
) -> None:
    """Push an earlier version again, as the newest version."""
    with _database(database) as opened:
        number = opened.rollback(version, author=author_of(author), comment=comment)
    say_result({"version": number}, f"version {number}", as_json=as_json)


@contextmanager
def _database(url: str) -> Iterator[RulesDatabase]:
    """Yield the database, and close it afterwards. An error ends the command with a message."""
    try:
        database = RulesDatabase(url)
    except ValueError as error:
        fail(f"--database must be the URL of a Redis, such as redis://localhost:6379/0: {error}", Exit.USAGE)
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
