"""The commands `ratelimit-mw worker` and `ratelimit-mw deferred`.

`worker` replays the queued requests until it is stopped. `deferred list` and `deferred retry` are for an operator: they
show and queue again what the worker gave up. All need the rules file and the Redis of the app.
"""

import asyncio
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ratelimit_mw.cli import Exit
from ratelimit_mw.cli.common import (
    DEFAULT_CONFIG,
    Config,
    ConfigArgument,
    Json,
    Storage,
    fail,
    moment,
    open_limiter,
    say_result,
    say_table,
)
from ratelimit_mw.deferral import deferrals_of
from ratelimit_mw.deferral.queue import DeferredStatus
from ratelimit_mw.errors import ConfigurationError
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.model import SECOND

if TYPE_CHECKING:
    from ratelimit_mw.deferral.worker import Target, Worker

app = typer.Typer(
    name="deferred",
    help="Deferred requests that were given up, or whose result is not known.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@contextmanager
def deferring(config: str, storage: str | None) -> Iterator[RateLimiter]:
    """Yield a limiter whose rules defer requests. End the command if no rule defers."""
    with open_limiter(config, storage) as limiter:
        try:
            limiter.require(deferrals_of(limiter).require)
        except ConfigurationError as error:
            fail(f"{config}: {error}", Exit.USAGE)
        if not limiter.rules.deferring:
            fail(f"{config}: no rule says on_limit: defer", Exit.USAGE)
        yield limiter


@app.command("list")
def list_(*, config: Config = DEFAULT_CONFIG, storage: Storage = None, as_json: Json = False) -> None:
    """List the parked requests, the oldest first. What a client sent is not shown."""
    with deferring(config, storage) as limiter:
        queue = deferrals_of(limiter).queue(limiter.rules)
        waiting, found = queue.length(), queue.parked()
    parked = [
        {"id": name, **{key: value for key, value in status._asdict().items() if key != "answer"}}
        for name, status in found.items()
    ]
    say_result(
        {"queued": waiting, "parked": parked}, f"{waiting} queued or running, {len(found)} parked", as_json=as_json
    )
    if found and not as_json:
        say_table(("request", "since", "state", "reason", ">attempts", ">status"), map(_row, found.items()))


@app.command("retry")
def retry(
    requests: Annotated[list[str] | None, typer.Argument(metavar="REQUEST", help="Ids from `deferred list`.")] = None,
    *,
    everything: Annotated[bool, typer.Option("--all", help="Retry all parked requests, but no unknown ones.")] = False,
    config: Config = DEFAULT_CONFIG,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Queue parked requests again. A request whose result is not known may be applied twice."""
    if bool(requests) == everything:
        fail("write the ids of the requests, or --all", Exit.USAGE)
    with deferring(config, storage) as limiter:
        queue = deferrals_of(limiter).queue(limiter.rules)
        if everything:
            requests = [name for name, status in queue.parked().items() if status.state == "parked"]
        done = {name: queue.retry(name) for name in requests or ()}
    lines = [f"{name}: {'queued again' if queued else 'is not parked'}" for name, queued in done.items()]
    say_result({"queued": done}, "\n".join(lines), as_json=as_json)
    if not all(done.values()):
        raise typer.Exit(Exit.PROBLEMS)


def _row(item: tuple[str, DeferredStatus]) -> tuple[object, ...]:
    """Return the cells of one parked request for the table of `list`."""
    name, status = item
    return name, moment(status.since / SECOND), status.state, status.reason, status.attempts, status.status or ""


_STOPS = (signal.SIGTERM, signal.SIGINT)


def worker(
    config: ConfigArgument = DEFAULT_CONFIG,
    *,
    to: Annotated[str, typer.Option("--to", metavar="URL", help="Send the requests to the app at this URL.")],
    at_once: Annotated[int, typer.Option("--at-once", min=1, help="The most requests in progress at once.")] = 8,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, max=3600, help="Seconds to wait for a response.")
    ] = 30.0,
    storage: Storage = None,
) -> None:
    """Replay deferred requests when their limits allow it and the app has capacity.

    Several workers share the work. After SIGTERM, a worker finishes the requests in progress and stops.
    """
    from ratelimit_mw.deferral.worker import Target, Worker  # imported late: it needs httpx

    if not to.startswith(("http://", "https://")):
        fail(f"{to!r} is not the URL of an app; write --to http://host:port", Exit.USAGE)
    log = logging.getLogger("ratelimit_mw")
    log.setLevel(min(log.getEffectiveLevel(), logging.INFO))
    with deferring(config, storage) as limiter:
        target = Target(to)
        asyncio.run(_run(Worker(limiter, target, at_once=at_once, timeout=timeout), target))


async def _run(worker: "Worker", target: "Target") -> None:
    """Run a worker until a signal stops it."""
    loop = asyncio.get_running_loop()
    for number in _STOPS:
        loop.add_signal_handler(number, worker.stop)
    typer.echo("worker: ready")
    await worker.run()
    await target.close()
    typer.echo("worker: stopped")
