"""`ratelimit-mw override set | list | remove`."""

import getpass
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import typer

from ratelimit_mw.cli.engine import opened
from ratelimit_mw.cli.options import DEFAULT_CONFIG, Attribute, Config, Ip, Json, Storage, Tier, User, attributes
from ratelimit_mw.cli.output import Exit, fail, say, say_json, say_table
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.sources.override import Override
from ratelimit_mw.stores.records import MemoryRecords

T = TypeVar("T")

Rule = Annotated[str | None, typer.Option("--rule", "-r", metavar="NAME", help="The rule whose limit it is.")]
Domain = Annotated[str | None, typer.Option("--domain", help="The domain, where the rules have several.")]

app = typer.Typer(
    name="override",
    help="Another limit, a block or an exemption for one client, while the app runs.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command("set")
def set_(
    *,
    ip: Ip = None,
    user: User = None,
    tier: Tier = None,
    attribute: Attribute = None,
    rule: Rule = None,
    limit: Annotated[
        list[str] | None, typer.Option("--limit", "-l", metavar="LIMIT", help="As 100 per minute, or unlimited.")
    ] = None,
    block: Annotated[bool, typer.Option("--block", help="Answer 403 to everything.")] = False,
    exempt: Annotated[bool, typer.Option("--exempt", help="Count nothing.")] = False,
    lasting: Annotated[str | None, typer.Option("--for", metavar="TIME", help="As 30m, 2h or 7 days.")] = None,
    comment: Annotated[str, typer.Option("--comment", "-m", help="Why.")] = "",
    author: Annotated[str | None, typer.Option("--author", help="Who says so, if not the user of this shell.")] = None,
    domain: Domain = None,
    config: Config = DEFAULT_CONFIG,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Let another limit of a rule hold for a client, or block it, or exempt it.

    It holds until `--for` has passed or it is removed. A network, `--ip 192.0.2.0/24`, can be blocked or exempt.
    """
    client = attributes(ip, user, tier, attribute)
    limits = limit[0] if limit and len(limit) == 1 else limit or None
    with _shared(config, storage) as limiter:
        made = _told(
            lambda: limiter.overrides.set(
                client,
                rule=rule,
                limit=limits,
                block=block,
                exempt=exempt,
                duration=lasting,
                comment=comment,
                author=_user() if author is None else author,
                domain=domain,
            )
        )
    if as_json:
        say_json(made)
    else:
        say(f"{made.identity}: {_what(made)} {_until(made)}")


@app.command("list")
def list_(
    *, domain: Domain = None, config: Config = DEFAULT_CONFIG, storage: Storage = None, as_json: Json = False
) -> None:
    """List what holds now. Users and tokens are shown as they are kept: hashed."""
    with _shared(config, storage) as limiter:
        found = _told(lambda: limiter.overrides.list(domain=domain))
    if as_json:
        say_json(found)
    elif not found:
        say("no overrides")
    else:
        say_table(("client", "override", "until", "by", "comment"), map(_row, found))


@app.command("remove")
def remove(
    *,
    ip: Ip = None,
    user: User = None,
    tier: Tier = None,
    attribute: Attribute = None,
    rule: Rule = None,
    domain: Domain = None,
    config: Config = DEFAULT_CONFIG,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Remove a client's limit of a rule, or without `--rule` its block or exemption. Exit 1 where there is none."""
    client = attributes(ip, user, tier, attribute)
    with _shared(config, storage) as limiter:
        gone = _told(lambda: limiter.overrides.remove(client, rule=rule, domain=domain))
    if as_json:
        say_json({"removed": gone})
    else:
        say("removed" if gone else "there is none such")
    if not gone:
        raise typer.Exit(Exit.PROBLEMS)


def _shared(config: str, storage: str | None) -> RateLimiter:
    """A limiter whose overrides other processes see; or the end of the command."""
    limiter = opened(config, storage)
    if isinstance(limiter.overrides.records, MemoryRecords):
        fail(
            "overrides lie where the counters do, and these are in the memory of the app's processes; "
            "where they are in Redis, say --storage redis://…",
            Exit.USAGE,
        )
    return limiter


def _told(ask: Callable[[], T]) -> T:
    try:
        return ask()
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    except StoreUnavailable as error:
        fail(f"the store does not answer: {error}", Exit.STORE_AWAY)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return ""


def _row(override: Override) -> tuple[object, ...]:
    return override.identity, _what(override), _until(override), override.author, override.comment


def _what(override: Override) -> str:
    if override.kind != "limit":
        return {"block": "blocked", "exempt": "exempt"}[override.kind]
    limits = override.limit if isinstance(override.limit, list) else [override.limit]
    return f"{override.rule}: {', '.join(map(str, limits))}"


def _until(override: Override) -> str:
    if override.until is None:
        return "for good"
    return f"until {datetime.fromtimestamp(override.until, UTC):%Y-%m-%d %H:%M:%S} UTC"
