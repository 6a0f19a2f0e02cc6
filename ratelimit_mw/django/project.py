"""The limiter of a Django project, and the check of its rules by `manage.py check`. This module is internal."""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.rules.domains import declare, rule_names, unknown_rule
from ratelimit_mw.rules.inline import InlineLimit


def switched_off() -> bool:
    """Whether the setting is None. A missing setting is a mistake."""
    return hasattr(settings, "RATELIMIT") and settings.RATELIMIT is None


_lock = threading.Lock()
_made: tuple[Any, RateLimiter, bool] | None = None  # one per process, because each test client makes a middleware


def limiter() -> RateLimiter:
    """Return the limiter that the setting `RATELIMIT` specifies.

    The setting has the rules, as for `RateLimiter`, or a limiter of your own. A limiter is given as an object or by its
    import path, as in "python:mysite.limits:limiter".

    Raises:
        ImproperlyConfigured: The setting is missing, is None or has another type.
        ConfigurationError: The rules cannot be used. The error has every problem found.
    """
    global _made
    wanted = getattr(settings, "RATELIMIT", None)
    with _lock:
        if _made is None or _made[0] is not wanted:
            before, _made = _made, (wanted, *_limiter_of(wanted))
            _made[1].engine.planner.names.serving = True
            if before is not None and before[2]:
                before[1].close()
        return _made[1]


def has_middleware() -> bool:
    """Whether the project has the middleware."""
    return any(name.startswith(f"{__package__}.") for name in settings.MIDDLEWARE)


def limiter_in_use() -> RateLimiter | None:
    """The limiter of the setting, or None if the project does not have the middleware."""
    return limiter() if has_middleware() else None


def _limiter_of(wanted: Any) -> tuple[RateLimiter, bool]:
    """The limiter for this value of the setting, and whether it was made here."""
    if isinstance(wanted, str) and wanted.startswith("python:"):
        wanted = import_string(wanted.removeprefix("python:").replace(":", "."))
    if isinstance(wanted, RateLimiter):
        return wanted, False
    if isinstance(wanted, str | os.PathLike | Mapping):
        return RateLimiter(wanted), True
    raise ImproperlyConfigured(
        f"RATELIMIT is {_named(wanted)}: it must be the path of the rules, "
        "a mapping with the rules, a RateLimiter, or the import path of one, as in python:mysite.limits:limiter"
    )


def _named(wanted: Any) -> str:
    """What a wrong setting is, in words."""
    if wanted is None:
        return "None, so there is no limiter" if hasattr(settings, "RATELIMIT") else "missing"
    return type(wanted).__name__


NAMES: set[str] = set()
"""The rule names in the decorators of this project."""

LIMITS: dict[InlineLimit, None] = {}
"""The limits in the decorators of this project."""

FINDERS: list[Callable[[list[Problem]], Iterable[str | InlineLimit]]] = []
"""Functions that find further rules and limits in the views of this project. They add the mistakes to the list."""


def _check(app_configs: object, **_options: object) -> list[checks.CheckMessage]:  # noqa: ARG001 - Django's interface
    """The system check: the rules can be used, and they have what the decorators of the views ask for."""
    if switched_off():
        return []
    try:
        rules = limiter().rules
    except ConfigurationError as error:
        return [checks.Error(str(problem), id="ratelimit_mw.E001") for problem in error.problems]
    except (ImproperlyConfigured, ImportError) as error:
        return [checks.Error(str(error), id="ratelimit_mw.E002")]
    problems: list[Problem] = []
    found: set[str | InlineLimit] = set().union(NAMES, LIMITS)
    with suppress(Exception):  # Django's own check of the URLs reports these errors
        import_module(settings.ROOT_URLCONF)
        found = set().union(NAMES, LIMITS, *(find(problems) for find in FINDERS))
    if rules.source is not None:  # the rules are still to be read from their database
        return []
    known = rule_names(rules)
    unknown = sorted(rule for rule in found if isinstance(rule, str) and rule not in known)
    problems += [unknown_rule(name, known) for name in unknown]
    for limit in sorted(rule for rule in found if isinstance(rule, InlineLimit)):
        try:
            declare(rules, limit)
        except ConfigurationError as error:
            problems += error.problems
    return [checks.Error(str(problem), id="ratelimit_mw.E003") for problem in problems]


checks.register(_check)
