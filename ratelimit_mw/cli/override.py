"""`ratelimit-mw override set | list | remove`."""

from typing import Annotated

import typer

from ratelimit_mw.cli.operators import Author, Comment, Lasting, author_of, shared, told, until
from ratelimit_mw.cli.options import (
    DEFAULT_CONFIG,
    Attribute,
    Config,
    IpOrNetwork,
    Json,
    Storage,
    Tier,
    User,
    attributes,
)
from ratelimit_mw.cli.output import Exit, say, say_json, say_table
from ratelimit_mw.sources.override import Override

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
        made = told(
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
        found = told(lambda: limiter.overrides.list(domain=domain))
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
        gone = told(lambda: limiter.overrides.remove(client, rule=rule, domain=domain))
    if as_json:
        say_json({"removed": gone})
    else:
        say("removed" if gone else "there is none such")
    if not gone:
        raise typer.Exit(Exit.PROBLEMS)


def _row(override: Override) -> tuple[object, ...]:
    return override.identity, _what(override), until(override.until), override.author, override.comment


def _what(override: Override) -> str:
    if override.kind != "limit":
        return {"block": "blocked", "exempt": "exempt"}[override.kind]
    limits = override.limit if isinstance(override.limit, list) else [override.limit]
    return f"{override.rule}: {', '.join(map(str, limits))}"
