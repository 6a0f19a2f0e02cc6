"""Commands of operators: overrides for single clients, and the kill switch."""

import getpass
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import typer

from ratelimit_mw.cli.common import (
    DEFAULT_CONFIG,
    Attribute,
    Config,
    Exit,
    IpOrNetwork,
    Json,
    Storage,
    Tier,
    User,
    attributes,
    fail,
    opened,
    say,
    say_json,
    say_table,
)
from ratelimit_mw.decision.kill_switch import SWITCH
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.reload.controls import Override
from ratelimit_mw.reload.database import Setting
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.stores.records import MemoryRecords

T = TypeVar("T")

Lasting = Annotated[str | None, typer.Option("--for", metavar="TIME", help="As 30m, 2h or 7 days.")]
Comment = Annotated[str, typer.Option("--comment", "-m", help="Why.")]
Author = Annotated[str | None, typer.Option("--author", help="Who says so, if not the user of this shell.")]


def shared(config: str, storage: str | None, what: str, instead: str = "") -> RateLimiter:
    """Return a limiter whose records other processes see, or end the command with an error.

    `what` begins the sentence of the error, and `instead` ends it.
    """
    limiter = opened(config, storage)
    if isinstance(limiter.overrides.records, MemoryRecords):
        fail(
            f"{what} where the counters do, and these are in the memory of the app's processes; "
            f"if they are in Redis, use --storage redis://…{instead}",
            Exit.USAGE,
        )
    return limiter


def result_of(ask: Callable[[], T]) -> T:
    """Return the result of `ask`, or end the command if it fails."""
    try:
        return ask()
    except ValueError as error:
        fail(str(error), Exit.USAGE)
    except StoreUnavailable as error:
        fail(f"the store does not answer: {error}", Exit.STORE_AWAY)


def author_of(given: str | None) -> str:
    """Who says so."""
    if given is not None:
        return given
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return ""


def until(moment: float | None) -> str:
    """Until when something holds, in words."""
    return "for good" if moment is None else f"until {datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S} UTC"


_KEPT = "overrides lie"

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
    ip: IpOrNetwork = None,
    user: User = None,
    tier: Tier = None,
    attribute: Attribute = None,
    rule: Rule = None,
    limit: Annotated[
        list[str] | None, typer.Option("--limit", "-l", metavar="LIMIT", help="As 100 per minute, or unlimited.")
    ] = None,
    block: Annotated[bool, typer.Option("--block", help="Answer 403 to everything.")] = False,
    exempt: Annotated[bool, typer.Option("--exempt", help="Count nothing.")] = False,
    lasting: Lasting = None,
    comment: Comment = "",
    author: Author = None,
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
    with shared(config, storage, _KEPT) as limiter:
        made = result_of(
            lambda: limiter.overrides.set(
                client,
                rule=rule,
                limit=limits,
                block=block,
                exempt=exempt,
                duration=lasting,
                comment=comment,
                author=author_of(author),
                domain=domain,
            )
        )
    if as_json:
        say_json(made)
    else:
        say(f"{made.identity}: {_what(made)} {until(made.until)}")


@app.command("list")
def list_(
    *, domain: Domain = None, config: Config = DEFAULT_CONFIG, storage: Storage = None, as_json: Json = False
) -> None:
    """List what holds now. Users and tokens are shown as they are kept: hashed."""
    with shared(config, storage, _KEPT) as limiter:
        found = result_of(lambda: limiter.overrides.list(domain=domain))
    if as_json:
        say_json(found)
    elif not found:
        say("no overrides")
    else:
        say_table(("client", "override", "until", "by", "comment"), map(_row, found))


@app.command("remove")
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
    """Remove a client's limit of a rule, or without `--rule` its block or exemption. Exit 1 where there is none."""
    client = attributes(ip, user, tier, attribute)
    with shared(config, storage, _KEPT) as limiter:
        gone = result_of(lambda: limiter.overrides.remove(client, rule=rule, domain=domain))
    if as_json:
        say_json({"removed": gone})
    else:
        say("removed" if gone else "no such override")
    if not gone:
        raise typer.Exit(Exit.PROBLEMS)


def _row(override: Override) -> tuple[object, ...]:
    return override.identity, _what(override), until(override.until), override.author, override.comment


def _what(override: Override) -> str:
    if override.kind != "limit":
        return {"block": "blocked", "exempt": "exempt"}[override.kind]
    limits = override.limit if isinstance(override.limit, list) else [override.limit]
    return f"{override.rule}: {', '.join(map(str, limits))}"


def switch(
    word: Annotated[str | None, typer.Argument(metavar="[off|shadow|on]", help="What to turn it to.")] = None,
    *,
    lasting: Lasting = None,
    comment: Comment = "",
    author: Author = None,
    config: Config = DEFAULT_CONFIG,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Turn rate limiting off, or to shadow, or on again, in every process within a second; or show how it stands.

    Off, everything passes uncounted, blocked clients as well. In shadow all is counted, and nothing denied or delayed.
    `RATELIMIT_MW` in the environment of a process wins there.
    """
    with shared(config, storage, "the switch lies", f"; else start the app with {SWITCH}=off") as limiter:
        if word is None:
            found = result_of(limiter.switch.kept)
        else:
            found = result_of(
                lambda: limiter.switch.set(word, duration=lasting, comment=comment, author=author_of(author))
            )
        rules = limiter.rules
    if as_json:
        say_json({"domains": [part.domain for part in rules.parts], **found._asdict()})
    else:
        say(_line(rules, found))
    if fixed := os.environ.get(SWITCH):
        typer.echo(f"note: {SWITCH}={fixed} is set here; a process that has it goes by that alone", err=True)


def _line(rules: Rules, found: Setting) -> str:
    domains = ", ".join(part.domain for part in rules.parts)
    if found.word == "on":
        return f"{domains}: on"
    by = f", by {found.author}" if found.author else ""
    return f"{domains}: {found.word} {until(found.until)}{by}{f' ({found.comment})' if found.comment else ''}"
