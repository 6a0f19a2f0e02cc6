"""Rate limiting for Python web apps: exact, shared through Redis, configured in YAML.

The middlewares are in `ratelimit_mw.asgi` and `ratelimit_mw.wsgi`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratelimit_mw.clock import ManualClock
    from ratelimit_mw.errors import ConfigurationError
    from ratelimit_mw.limiter import RateLimiter
    from ratelimit_mw.model import Decision, EntryList
else:  # type checkers would take every name for one of this module

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used. Say in which modules the names of frameworks are."""
        if name in _PUBLIC:
            return globals().setdefault(name, getattr(import_module(_PUBLIC[name]), name))
        if name not in _ELSEWHERE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        lines = [f"from ratelimit_mw.{module} import {name}" for module in _ELSEWHERE[name]]
        raise ImportError(f"{name} is in the module of your framework: {' | '.join(lines)}")


__all__ = ["ConfigurationError", "Decision", "EntryList", "ManualClock", "RateLimiter"]

_PUBLIC = {
    "ConfigurationError": "ratelimit_mw.errors",
    "Decision": "ratelimit_mw.model",
    "EntryList": "ratelimit_mw.model",
    "ManualClock": "ratelimit_mw.clock",
    "RateLimiter": "ratelimit_mw.operations",  # which lets its rules say whether it reports
}
"""The modules of the public names. They are imported late: `ratelimit-mw ask` uses none of them."""

_ELSEWHERE = {
    "RateLimitMiddleware": ("asgi", "wsgi", "django"),
    "add_rate_limits": ("fastapi",),
    "limited": ("fastapi", "starlette", "flask", "django"),
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
