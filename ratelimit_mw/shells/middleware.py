"""What the middlewares have in common: how they come by their limiter, and what rules those refuse that can't await."""

import os
from collections.abc import Mapping

from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.stores import Store


def given_or_made(
    config: str | os.PathLike[str] | Mapping[str, object] | None,
    limiter: RateLimiter | None,
    storage: str | Store | None,
) -> RateLimiter:
    """The limiter that a middleware is to use. Raises TypeError unless it gets exactly one of config and limiter."""
    if config is not None and limiter is None:
        return RateLimiter(config, storage=storage)
    if limiter is None or config is not None:
        raise TypeError("RateLimitMiddleware takes either a config or a limiter: exactly one of them")
    if storage is not None:
        raise TypeError("RateLimitMiddleware takes storage with a config only: a limiter has its own")
    if not isinstance(limiter, RateLimiter):
        raise TypeError(f"limiter takes a RateLimiter, not {type(limiter).__name__}; rules are given as config")
    return limiter


def refuse_awaited(rules: Rules) -> None:
    """Raises ConfigurationError where the rules need a loop: for shells that have none."""
    if rules.attributes.awaited:
        names = ", ".join(name for name, _ in rules.attributes.awaited)
        raise ConfigurationError(
            [Problem(f"async functions can't be awaited under WSGI: {names}", hint="write them as plain functions")]
        )
