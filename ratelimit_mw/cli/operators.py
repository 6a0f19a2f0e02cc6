"""Commands of operators: overrides for single clients, and the kill switch."""

import getpass
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import typer

from ratelimit_mw.cli import Exit
from ratelimit_mw.cli.common import (
    DEFAULT_CONFIG,
    Attribute,
    Config,
    IpOrNetwork,
    Json,
    Storage,
    Tier,
    User,
    attributes,
    fail,
    fail_without_store,
    open_limiter,
    say,
    say_json,
    say_table,
)
from ratelimit_mw.decision.kill_switch import SWITCH
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.reload.controls import Override, Setting
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.stores.records import MemoryRecords

T = TypeVar("T")

Lasting = Annotated[
    str | None, typer.Option("--for", metavar="TIME", help="How long it lasts, such as 30m, 2h or 7 days.")
]
Comment = Annotated[str, typer.Option("--comment", "-m", help="A note for people.")]
Author = Annotated[str | None, typer.Option("--author", help="Who makes the change. Default: the user of this shell.")]


def shared(config: str, storage: str | None, what: str, instead: str = "") -> RateLimiter:
    """Return a limiter whose records other processes can read, or end the command with an error.

    The error begins with `what` and ends with `instead`.
    """
    limiter = open_limiter(config, storage)
    if isinstance(limiter.overrides.records, MemoryRecords):
        fail(
            f"{what} stored with the counters, which are in the memory of the app's processes; "
            f"if the app has another store, name it with --storage{instead}",
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
        fail_without_store(error)


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
    return "without end" if end is None else f"until {datetime.fromtimestamp(end, UTC):%Y-%m-%d %H:%M:%S} UTC"


_OVERRIDES_ARE = "overrides are"

Rule = Annotated[str | None, typer.Option("--rule", "-r", metavar="NAME", help="The rule whose limit is replaced.")]
Domain = Annotated[str | None, typer.Option("--domain", help="The domain, if the rules have several.")]

app = typer.Typer(
    name="override",
    help="Set another limit, a block or an exemption for one client, while the app runs.",
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
    lasting: Lasting = None,
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
        say(f"{made.identity}: {_describe(made)} {until(made.until)}")


@app.command("list")
def list_(
    *, domain: Domain = None, config: Config = DEFAULT_CONFIG, storage: Storage = None, as_json: Json = False
) -> None:
    """List the overrides that apply now. Users and tokens are shown as hashes."""
    with shared(config, storage, _OVERRIDES_ARE) as limiter:
        found = result_of(lambda: limiter.overrides.list(domain=domain))
    if as_json:
        say_json({"overrides": found})
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
    """Remove an override: with `--rule` a client's limit, otherwise its block or exemption. Exit 1 if there is none."""
    client = attributes(ip, user, tier, attribute)
    with shared(config, storage, _OVERRIDES_ARE) as limiter:
        removed = result_of(lambda: limiter.overrides.remove(client, rule=rule, domain=domain))
    if as_json:
        say_json({"removed": removed})
    else:
        say("removed" if removed else "no such override")
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
    lasting: Lasting = None,
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
        before = result_of(limiter.switch.kept)
        found = before
        if word is not None:
            found = result_of(
                lambda: limiter.switch.set(word, duration=lasting, comment=comment, author=author_of(author))
            )
        rules = limiter.rules
    if as_json:
        say_json({"domains": [part.domain for part in rules.parts], **found._asdict()})
    else:
        say(_line(rules, found) if word is None else f"{_line(rules, found)}; {_done(before, found)}")
    if fixed := os.environ.get(SWITCH):
        typer.echo(f"note: {SWITCH}={fixed} is set here; a process with this variable ignores the switch", err=True)


def _done(before: Setting, after: Setting) -> str:
    """What a change of the switch has done."""
    if before.word == after.word:
        return f"it was {after.word} before"
    return f"it was {before.word}; {_EFFECTS[after.word]}"


_EFFECTS = {
    "on": "all processes enforce the limits again within a second",
    "off": "all processes let all requests pass within a second",
    "shadow": "all processes count requests within a second, and deny none",
}


def _line(rules: Rules, found: Setting) -> str:
    domains = ", ".join(part.domain for part in rules.parts)
    if found.word == "on":
        return f"{domains}: on"
    by = f", by {found.author}" if found.author else ""
    return f"{domains}: {found.word} {until(found.until)}{by}{f' ({found.comment})' if found.comment else ''}"
