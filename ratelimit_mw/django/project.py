"""The limiter of a Django project, and the check of its rules by `manage.py check`. This module is internal."""

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.urls import get_resolver
from django.utils.module_loading import import_string

from ratelimit_mw import RateLimiter
from ratelimit_mw.errors import ConfigurationError, Problem, collecting
from ratelimit_mw.http.setup import rules_of_throttles, rules_of_view
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


_NOT_A_VIEW = "django.utils.decorators:"
"""The beginning of the name of a function that `method_decorator` decorates in addition to the view."""


def wanted_by_views(problems: list[Problem]) -> list[str | InlineLimit]:
    """Return what the decorators and the throttles of the project's views ask for.

    The views are those of the URL configuration, which is imported. If that fails, there are none: Django reports it.

    Args:
        problems: Receives the mistakes in the scopes of throttles.
    """
    found: list[str | InlineLimit] = []
    views: list[Any] = []
    with suppress(Exception):
        views += _views_below(get_resolver())
    for view in views:
        rules = [each.rule for each in rules_of_view(view)]
        found += [rule for rule in rules if isinstance(rule, str) or not rule.name.startswith(_NOT_A_VIEW)]
        try:
            found += rules_of_throttles(view)
        except ConfigurationError as error:
            problems += [problem for problem in error.problems if problem not in problems]
    return found


def register_views(used: RateLimiter) -> None:
    """Register what the project's views ask for. Reloads keep it from now on."""
    used.engine.planner.names.register(used.rules, wanted_by_views([]))


def _views_below(resolver: Any) -> Iterator[Any]:
    for pattern in resolver.url_patterns:
        if hasattr(pattern, "url_patterns"):
            yield from _views_below(pattern)
        else:
            yield pattern.callback


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
    found = set(wanted_by_views(problems))
    if rules.source is not None:  # the rules are still to be read from their database
        return []
    known = rule_names(rules)
    unknown = sorted(rule for rule in found if isinstance(rule, str) and rule not in known and rules.asking is None)
    problems += [unknown_rule(name, known) for name in unknown]
    for limit in sorted(rule for rule in found if isinstance(rule, InlineLimit)):
        with collecting(problems):
            declare(rules, limit)
    return [checks.Error(str(problem), id="ratelimit_mw.E003") for problem in problems]


checks.register(_check)
