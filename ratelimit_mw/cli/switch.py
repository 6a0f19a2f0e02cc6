"""`ratelimit-mw switch`."""

import os
from typing import Annotated

import typer

from ratelimit_mw.cli.operators import Author, Comment, Lasting, author_of, shared, told, until
from ratelimit_mw.cli.options import DEFAULT_CONFIG, Config, Json, Storage
from ratelimit_mw.cli.output import say, say_json
from ratelimit_mw.decision.kill_switch import SWITCH
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.sources.setting import Setting


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
            found = told(limiter.switch.kept)
        else:
            found = told(lambda: limiter.switch.set(word, duration=lasting, comment=comment, author=author_of(author)))
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
