"""What the commands share that write where all processes read: who writes, where to, and until when."""

import getpass
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import typer

from ratelimit_mw.cli.engine import opened
from ratelimit_mw.cli.output import Exit, fail
from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.stores.records import MemoryRecords

T = TypeVar("T")

Lasting = Annotated[str | None, typer.Option("--for", metavar="TIME", help="As 30m, 2h or 7 days.")]
Comment = Annotated[str, typer.Option("--comment", "-m", help="Why.")]
Author = Annotated[str | None, typer.Option("--author", help="Who says so, if not the user of this shell.")]


def shared(config: str, storage: str | None, what: str, instead: str = "") -> RateLimiter:
    """A limiter whose records other processes see; or the end of the command.

    `what` begins the sentence, and `instead` ends it.
    """
    limiter = opened(config, storage)
    if isinstance(limiter.overrides.records, MemoryRecords):
        fail(
            f"{what} where the counters do, and these are in the memory of the app's processes; "
            f"where they are in Redis, say --storage redis://…{instead}",
            Exit.USAGE,
        )
    return limiter


def told(ask: Callable[[], T]) -> T:
    """What was asked for; or the end of the command."""
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
