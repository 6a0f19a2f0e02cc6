"""The engine that a project's settings ask for."""

import os
import threading
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from ratelimit_mw.limiter import RateLimiter

_lock = threading.Lock()
_made: tuple[Any, RateLimiter, bool] | None = None  # one for a process: middlewares are made anew for each test client


def limiter() -> RateLimiter:
    """The engine of `settings.RATELIMIT`: rules, as RateLimiter takes them, or a limiter of your own.

    A limiter is given as it is, or by its place, as "python:mysite.limits:limiter". Raises ImproperlyConfigured where
    the setting is missing or of another type, and ConfigurationError with every problem of the rules.
    """
    global _made
    wanted = getattr(settings, "RATELIMIT", None)
    with _lock:
        if _made is None or _made[0] is not wanted:
            before, _made = _made, (wanted, *_limiter_of(wanted))
            if before is not None and before[2]:
                before[1].close()
        return _made[1]


def _limiter_of(wanted: Any) -> tuple[RateLimiter, bool]:
    """The limiter that the setting means, and whether it was made for it."""
    if isinstance(wanted, str) and wanted.startswith("python:"):
        wanted = import_string(wanted.removeprefix("python:").replace(":", "."))
    if isinstance(wanted, RateLimiter):
        return wanted, False
    if isinstance(wanted, str | os.PathLike | Mapping):
        return RateLimiter(wanted), True
    raise ImproperlyConfigured(
        f"RATELIMIT is {'missing' if wanted is None else type(wanted).__name__}: it has to be the path of the rules, "
        "a mapping of the same shape, or a RateLimiter, in settings.py or by its place, python:mysite.limits:limiter"
    )
