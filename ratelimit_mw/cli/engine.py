"""The rules and the store that a command works with."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from ratelimit_mw.cli.output import Exit, fail, say_lines
from ratelimit_mw.cli.quotation import quotations
from ratelimit_mw.errors import ConfigurationError, StoreUnavailable
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.stores import Store, open_store
from ratelimit_mw.stores.shards import Shards

T = TypeVar("T")

_PATIENCE = 2.0
"""Seconds that a command waits for the store. No request of the app's waits with it."""


def opened(config: str, storage: str | None) -> RateLimiter:
    """The limiter of an app with these rules, the run-time overrides included; or the end of the command."""
    try:
        limiter = RateLimiter(config, storage=storage)
    except ConfigurationError as error:
        say_lines(quotations([(problem, "error") for problem in error.problems]))
        fail(f"{config}: these rules would not load", Exit.PROBLEMS)
    except StoreUnavailable as error:
        fail(f"the rules can't be fetched: {error}", Exit.STORE_AWAY)
    with suppress(StoreUnavailable, ConfigurationError):  # an override more or less; the store is asked in any case
        limiter.reload()
    return limiter


def shared_store(rules: Rules, storage: str | None) -> Store:
    """The store whose counters all processes see; or the end of the command."""
    url = storage or rules.storage.url
    if url.startswith("memory:"):
        fail(
            "the counters are in the memory of the app's processes, where no other process can see them; "
            "where they are in Redis, say --storage redis://…",
            Exit.USAGE,
        )
    # One who looks is not to see that a counter is spread over shards.
    return Shards(open_store(replace(rules.storage, url=url, timeout=_PATIENCE)))


def patiently(ask: Callable[[], T]) -> T:
    """What the store says, asked again for a while; or the end of the command."""
    give_up = time.monotonic() + _PATIENCE
    while True:
        try:
            return ask()
        except StoreUnavailable as error:
            if time.monotonic() > give_up:
                fail(f"the store does not answer: {error}", Exit.STORE_AWAY)
        time.sleep(0.1)
