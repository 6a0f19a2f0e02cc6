"""`ratelimit-mw worker`."""

import asyncio
import importlib
import logging
import signal
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ratelimit_mw.cli.deferred import deferring
from ratelimit_mw.cli.options import DEFAULT_CONFIG, Storage
from ratelimit_mw.cli.output import Exit, fail, say
from ratelimit_mw.limiter import RateLimiter

if TYPE_CHECKING:
    from ratelimit_mw.worker.targets import Target

_STOPS = (signal.SIGTERM, signal.SIGINT)


def worker(
    config: Annotated[str, typer.Argument(metavar="RULES", help="A file, a folder or a Redis URL.")] = DEFAULT_CONFIG,
    *,
    app: Annotated[
        str | None, typer.Option("--app", metavar="MODULE:APP", help="Carry them out in this process, by this app.")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="URL", help="Send them to the app that is served there.")
    ] = None,
    at_once: Annotated[int, typer.Option("--at-once", min=1, help="How many are under way at most.")] = 8,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, max=3600, help="Seconds until a response is given up.")
    ] = 30.0,
    storage: Storage = None,
) -> None:
    """Carry out deferred requests, when their limits allow it and the app has time.

    Several workers share the work. SIGTERM lets what is under way end, and stops.
    """
    if (app is None) == (to is None):
        fail("say --app package.module:app, or --to http://host:port: exactly one of them", Exit.USAGE)
    try:
        from ratelimit_mw.worker.targets import in_process, over_http
    except ModuleNotFoundError as error:
        if error.name != "httpx":
            raise
        fail("a worker needs httpx: pip install 'ratelimit_mw[worker]'", Exit.USAGE)
    if to is not None and not to.startswith(("http://", "https://")):
        fail(f"{to!r} is no URL of an app: --to http://host:port", Exit.USAGE)
    _log_everything()
    with deferring(config, storage) as limiter:
        target = over_http(to) if to is not None else in_process(_imported(str(app)))
        try:
            asyncio.run(_work(limiter, target, at_once, timeout))
        except RuntimeError as error:  # the app's startup
            fail(str(error), Exit.PROBLEMS)


async def _work(
    limiter: RateLimiter, opening: "AbstractAsyncContextManager[Target]", at_once: int, patience: float
) -> None:
    from ratelimit_mw.worker.worker import Worker

    async with opening as target:
        worker = Worker(limiter, target, at_once=at_once, timeout=patience)
        loop = asyncio.get_running_loop()
        for number in _STOPS:
            loop.add_signal_handler(number, worker.stop)
        say("worker: ready")
        await worker.run()
        say("worker: stopped")


def _imported(name: str) -> Any:
    """The app at `package.module:attribute`; or the end of the command."""
    module, colon, attribute = name.partition(":")
    if not colon:
        fail(f"{name!r} is no app: --app package.module:app", Exit.USAGE)
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        fail(f"the app {name!r} can't be imported: {error}", Exit.USAGE)
    if not callable(found):
        fail(f"{name!r} is no app: it can't be called", Exit.USAGE)
    return found


def _log_everything() -> None:
    log = logging.getLogger("ratelimit_mw")
    log.setLevel(min(log.getEffectiveLevel(), logging.INFO))
