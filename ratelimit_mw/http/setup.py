"""What the middlewares do when they are made: the choice of the limiter, and the checks of the setup."""

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

from ratelimit_mw import RateLimiter
from ratelimit_mw.errors import ConfigurationError, Problem, quoted
from ratelimit_mw.identity.app_routes import knows_routes
from ratelimit_mw.identity.path_forms import apps_inside
from ratelimit_mw.identity.request import Request
from ratelimit_mw.logs import Once, logger
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.rules.inline import InlineLimit
from ratelimit_mw.stores import Store


def limiter_for(
    config: str | os.PathLike[str] | Mapping[str, object] | None,
    limiter: RateLimiter | None,
    storage: str | Store | None,
) -> RateLimiter:
    """The limiter of a middleware: `limiter`, or a new one from `config` and `storage`.

    Raises:
        TypeError: both `config` and `limiter` are given, or neither; or `storage` is given with a limiter.
        ConfigurationError: the rules cannot be used.
    """
    if (config is None) is (limiter is None):
        raise TypeError("RateLimitMiddleware takes either a config or a limiter: exactly one of them")
    if config is not None:
        limiter = RateLimiter(config, storage=storage)
    elif storage is not None:
        raise TypeError("RateLimitMiddleware takes storage with a config only: a limiter has its own")
    if not isinstance(limiter, RateLimiter):
        raise TypeError(f"limiter takes a RateLimiter, not {type(limiter).__name__}; rules are given as config")
    names = limiter.engine.planner.names
    if not names.serving:
        names.serving = True
        limiter.require(_warning_of_missing_users())
    return limiter


def refuse_awaited(rules: Rules) -> None:
    """Raise ConfigurationError if the rules have async functions. For servers without an event loop."""
    if rules.attributes.awaited:
        names = ", ".join(name for name, _ in rules.attributes.awaited)
        raise ConfigurationError(
            [Problem(f"async functions can't be awaited under WSGI: {names}", hint="write them as plain functions")]
        )


def _warning_of_missing_users() -> Callable[[Rules], None]:
    """A check that warns of rules by user without a source for the user. Django's middleware needs no source."""
    once = Once()

    def warn(rules: Rules) -> None:
        for problem in (problem for part in rules.parts for problem in part.without_user):
            once(logger.warning, "%s", problem, about=problem.message)

    return warn


def require_routes(app: object) -> Callable[[Rules], None]:
    """Return a check that refuses rules by the app's own routes if the routes of `app` cannot be read."""
    readable = knows_routes(app)

    def check(rules: Rules) -> None:
        unread = [] if readable else [rule for part in rules.parts for rule in part.compiled if rule.needs_routes]
        if unread:
            hint = "add match.path, or count by path"
            raise ConfigurationError(
                [_without_routes(f"rule {quoted(rule.rule.name)}", " without match.path", hint) for rule in unread]
            )

    return check


def require_routes_of(request: Request, limit: InlineLimit, rules: Rules) -> None:
    """Refuse a limit in code that counts by route if the routes of the app that the middleware wraps are unknown.

    The limit would have nothing to count by. At the start, the views of such an app are unknown, too.

    Raises:
        ConfigurationError: The routes are needed and unknown.
    """
    if type(request).app_route is not Request.app_route:
        return
    rule = rules.parts[0].inline.rules.get(limit)  # None while the rules are still to be read from their database
    if rule is not None and rule.needs_routes:
        hint = "put the middleware around the app itself, or count by path, as in by='ip+path'"
        raise ConfigurationError([_without_routes(f"limit {quoted(limit.limit)} of {limit.name}", "", hint)])


def _without_routes(limit: str, how: str, hint: str) -> Problem:
    return Problem(
        f"the {limit} counts by route{how}, but the routes of this app can't be read: it is not an app of "
        "Starlette, FastAPI, Flask or Django",
        hint=hint,
    )


def built_by_starlette(app: object) -> bool:
    """Whether Starlette builds a middleware around `app`. It does so when its app gets the first scope, a lifespan.

    It puts all middlewares around one that handles exceptions.
    """
    kinds = [kind for each in apps_inside(app) for kind in type(each).__mro__]
    return any(kind.__module__ == "starlette.middleware.exceptions" for kind in kinds)


def refuse_wsgi_app(app: object) -> None:
    """Raise TypeError if `app` is known to be a WSGI app. For the ASGI middleware."""
    if not _is_coroutine(app) and _takes(app, 2) and not _takes(app, 3):
        raise TypeError(_mistaken(app, "asgi", "wsgi"))


def refuse_asgi_app(app: object) -> None:
    """Raise TypeError if `app` is known to be an ASGI app, or a Flask object. For the WSGI middleware."""
    if _is_coroutine(app) or (_takes(app, 3) and not _takes(app, 2)):
        raise TypeError(_mistaken(app, "wsgi", "asgi"))
    if hasattr(app, "wsgi_app") and hasattr(app, "view_functions"):
        raise TypeError(
            "a Flask object can't be wrapped, only its wsgi_app: write "
            "app.wsgi_app = RateLimitMiddleware(app.wsgi_app, …)"
        )


def _is_coroutine(app: object) -> bool:
    method = inspect.getattr_static(type(app), "__call__", None)
    return inspect.iscoroutinefunction(app) or inspect.iscoroutinefunction(method)


def _takes(app: Any, count: int) -> bool:
    """Whether `app` can be called with this many arguments. False if that is unknown."""
    try:
        inspect.signature(app).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def _mistaken(app: object, used: str, needed: str) -> str:
    name = getattr(app, "__qualname__", None) or type(app).__qualname__
    return (
        f"ratelimit_mw.{used}.RateLimitMiddleware is for {used.upper()} apps, but {quoted(name)} is one for "
        f"{needed.upper()}: use ratelimit_mw.{needed}.RateLimitMiddleware"
    )
