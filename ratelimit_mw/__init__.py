"""Rate limiting for Python web apps: exact, shared through Redis, configured in YAML.

The middlewares are in `ratelimit_mw.asgi` and `ratelimit_mw.wsgi`.
"""

from typing import TYPE_CHECKING

from ratelimit_mw.clock import ManualClock
from ratelimit_mw.errors import ConfigurationError
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.logs import install
from ratelimit_mw.model import Decision, EntryList
from ratelimit_mw.operations import register

__all__ = ["ConfigurationError", "Decision", "EntryList", "ManualClock", "RateLimiter"]

install()
register()


if not TYPE_CHECKING:  # type checkers would take every name for one of this module

    def __getattr__(name: str) -> object:
        """Say in which modules the names are that belong to a framework."""
        modules = _ELSEWHERE.get(name)
        if modules is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        lines = [f"from ratelimit_mw.{module} import {name}" for module in modules]
        raise ImportError(f"{name} is in the module of your framework: {' | '.join(lines)}")


_ELSEWHERE = {
    "RateLimitMiddleware": ("asgi", "wsgi", "django"),
    "add_rate_limits": ("fastapi",),
    "limited": ("fastapi", "starlette", "flask", "django"),
}
