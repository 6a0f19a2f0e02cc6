"""`ratelimit-mw deferred list | retry`."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import typer

from ratelimit_mw.cli.engine import opened
from ratelimit_mw.cli.options import DEFAULT_CONFIG, Config, Json, Storage
from ratelimit_mw.cli.output import Exit, fail, say, say_json, say_table
from ratelimit_mw.deferral.fate import Fate
from ratelimit_mw.errors import ConfigurationError, StoreUnavailable
from ratelimit_mw.limiter import RateLimiter

T = TypeVar("T")

app = typer.Typer(
    name="deferred",
    help="Deferred requests that were given up, or of which nobody knows what became of them.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


def deferring(config: str, storage: str | None) -> RateLimiter:
    """A limiter whose rules defer into a queue that this process can reach; or the end of the command."""
    limiter = opened(config, storage)
    try:
        limiter.require(limiter.deferrals.require)
    except ConfigurationError as error:
        fail(f"{config}: {error}", Exit.USAGE)
    if not limiter.rules.deferring:
        fail(f"{config}: no rule says on_limit: defer", Exit.USAGE)
    return limiter


@app.command("list")
def list_(*, config: Config = DEFAULT_CONFIG, storage: Storage = None, as_json: Json = False) -> None:
    """List the parked requests, the oldest first. What a client sent is not shown."""
    with deferring(config, storage) as limiter:
        queue = limiter.deferrals.queue(limiter.rules)
        waiting, found = _told(queue.length), _told(queue.parked)
    if as_json:
        parked = [
            {"id": name, **{key: value for key, value in fate._asdict().items() if key != "answer"}}
            for name, fate in found.items()
        ]
        say_json({"queued": waiting, "parked": parked})
        return
    say(f"{waiting} queued or under way, {len(found)} parked")
    if found:
        say_table(("request", "since", "state", "why", ">attempts", ">status"), map(_row, found.items()))


@app.command("retry")
def retry(
    requests: Annotated[list[str] | None, typer.Argument(metavar="REQUEST", help="As `list` names them.")] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="All that are parked, but for the unknown ones.")] = False,
    config: Config = DEFAULT_CONFIG,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Queue parked requests again. One of which nobody knows what became of it may be applied a second time."""
    if bool(requests) == everything:
        fail("say which requests, or --all", Exit.USAGE)
    with deferring(config, storage) as limiter:
        queue = limiter.deferrals.queue(limiter.rules)
        if everything:
            requests = [name for name, fate in _told(queue.parked).items() if fate.state == "parked"]
        done = {name: _told(lambda name=name: queue.retry(name)) for name in requests or ()}  # type: ignore[misc]
    if as_json:
        say_json({"queued": done})
    else:
        for name, queued in done.items():
            say(f"{name}: {'queued again' if queued else 'is not parked'}")
    if not all(done.values()):
        raise typer.Exit(Exit.PROBLEMS)


def _told(ask: Callable[[], T]) -> T:
    try:
        return ask()
    except StoreUnavailable as error:
        fail(f"the queue does not answer: {error}", Exit.STORE_AWAY)


def _row(item: tuple[str, Fate]) -> tuple[object, ...]:
    name, fate = item
    since = datetime.fromtimestamp(fate.since / 1_000_000, UTC)
    return name, f"{since:%Y-%m-%d %H:%M:%S} UTC", fate.state, fate.reason, fate.attempts, fate.status or ""
