"""What the middlewares do when they are made: they choose the limiter, and check the setup and the views of the app.

The rules that the views ask for in their decorators are found without an import of their framework: Flask's views by
`view_functions`, those of Starlette and FastAPI by `routes`.
"""

import inspect
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from ratelimit_mw.errors import ConfigurationError, Problem, collecting, quoted
from ratelimit_mw.http.limits_in_code import LIMITED_AS, RULES_OF_VIEW, LimitInCode, Placed, name_of_view, wrapped_by
from ratelimit_mw.identity.path_forms import apps_inside
from ratelimit_mw.identity.request import flat
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.logs import logger
from ratelimit_mw.rules.domains import Rules, UsedNames, require_named
from ratelimit_mw.rules.inline import InlineLimit, two_limits
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
    return limiter


def refuse_awaited(rules: Rules) -> None:
    """Raise ConfigurationError if the rules have async functions. For servers without an event loop."""
    if rules.attributes.awaited:
        names = ", ".join(name for name, _ in rules.attributes.awaited)
        raise ConfigurationError(
            [Problem(f"async functions can't be awaited under WSGI: {names}", hint="write them as plain functions")]
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


class Found(NamedTuple):
    """A rule that a view asks for.

    Attributes:
        owner: What asks for it.
        rule: The name of the rule, or an inline limit. Its text is empty if a function returns it.
        limit: The arguments of `limited`.
    """

    owner: object
    rule: str | InlineLimit
    limit: LimitInCode


class MisplacedLimits:
    """Logs an error for each view of an app that `limited` does not reach.

    The decorator of a route registers what is below it. So a `limited` above it only changes the name in the module.
    """

    def __init__(self) -> None:
        self._logged: list[object] = []

    def look(self, views: Iterable[object]) -> None:
        """Log the views that are registered without their limit, each once.

        Args:
            views: All views of the app.
        """
        registered = list(views)
        reached = {id(below) for view in registered for below in wrapped_by(view)}
        for view in registered:
            for limited in _limited_names(view):
                if id(limited) not in reached and limited not in self._logged:
                    self._logged.append(limited)
                    logger.error(
                        "limited(%r) has no effect on the view %s: write it below the decorator of the route, which "
                        "registers only what is below itself (logged once)",
                        getattr(limited, RULES_OF_VIEW)[0].limit.text,
                        name_of_view(view),
                    )


def _limited_names(view: Any) -> Iterator[Any]:
    """What `limited` made of a view, if its name stands for it. A function may well have a limit elsewhere only."""
    module, name = sys.modules.get(getattr(view, "__module__", "")), getattr(view, "__qualname__", "")
    named = [id(each) for each in wrapped_by(getattr(module, name, None))]
    for below, limited in getattr(view, LIMITED_AS, ()):
        if below is view and ("<locals>" in name or id(limited) in named):
            yield limited


def rules_of_view(view: Any) -> Iterator[Found]:
    """What the decorators of a view ask for: of a function, or of a class and its methods."""
    while isinstance(view, partial):
        view = view.func
    kind = view
    if not isinstance(view, type):  # Flask and Django set `view_class`, view sets of Django REST framework set `cls`
        kind = getattr(view, "view_class", None) or getattr(view, "cls", None)
    marks: list[Placed] = list(getattr(view, RULES_OF_VIEW, ()))
    for name in dir(kind) if isinstance(kind, type) else ():
        marks += getattr(inspect.getattr_static(kind, name, None), RULES_OF_VIEW, ())
    for placed in marks:
        yield Found(placed.view, placed.of(kind), placed.limit)


def rules_of_throttles(view: Any) -> Iterator[str | InlineLimit]:
    """What the throttles of a view of Django REST framework ask for: those that are a `RateLimitThrottle`.

    Args:
        view: A view as the framework puts it into the URL configuration. Any other view has no throttles.
    """
    kind, given = getattr(view, "cls", None), getattr(view, "initkwargs", None) or {}
    scope = given.get("throttle_scope", getattr(kind, "throttle_scope", None))
    for throttle in given.get("throttle_classes", getattr(kind, "throttle_classes", None)) or ():
        rule = throttle.rule_of(kind, scope) if hasattr(throttle, "rule_of") else None
        if rule is not None:
            yield rule


def views_of_flask(app: object) -> list[object]:
    """The views that a Flask app has now. `app` is the Flask app or its `wsgi_app`. Other apps have none."""
    views: Mapping[str, object] = getattr(getattr(app, "__self__", app), "view_functions", None) or {}
    return list(views.values())


def register_names(limiter: RateLimiter, views: Iterable[object]) -> None:
    """Register what the decorators of these views ask for. Reloads keep it from now on."""
    found = (each.rule for view in views for each in rules_of_view(view))
    limiter.engine.planner.names.register(limiter.rules, found)


def require_names(limiter: RateLimiter, found: Iterable[Found]) -> None:
    """Refuse rules that lack one of these names, or in which it depends on the response, now and at a reload.

    Inline limits that cannot be used or told apart are refused as well.

    Raises:
        ConfigurationError: The rules in force are refused.
    """
    needed, names = tuple(found), limiter.engine.planner.names
    names.registered.update(each.rule for each in needed if isinstance(each.rule, str))
    if needed:
        limiter.require(partial(_require, names, needed))


def _require(names: UsedNames, found: tuple[Found, ...], rules: Rules) -> None:
    if rules.asking is not None and any(each.limit.refund_when is not None for each in found):
        message = "refund_when can't be used: the service at storage.url refunds nothing"
        raise ConfigurationError([Problem(message, hint="remove it")])
    if rules.source is None:  # otherwise the rules are still to be read from their database
        require_named(rules, {each.rule for each in found if isinstance(each.rule, str)})
        _require_limits(names, found, rules)


def _require_limits(names: UsedNames, found: Iterable[Found], rules: Rules) -> None:
    """Compile the inline limits. Two views must not have one limit, unless it is shared."""
    owners: dict[InlineLimit, object] = {}
    problems: list[Problem] = []
    for owner, limit, _ in found:
        if isinstance(limit, str):
            continue
        if owners.setdefault(limit, owner) != owner and not limit.shared:
            problems.append(two_limits(limit, limit))
            continue
        with collecting(problems):
            names.name_of(rules, limit)
    if problems:
        raise ConfigurationError(list(dict.fromkeys(problems)))


def routes_below(app: Any, middleware: type) -> Iterator[Any]:
    """The routes of an ASGI app and of the apps that are mounted in it.

    Args:
        app: The app, or a middleware around it whose attribute `app` leads to it.
        middleware: The class of our middleware. An app that has one of its own is left out, because that one may have
            other rules.
    """
    routes = _routes(app, middleware)
    yield from flat(routes)
    for route in routes:
        if hasattr(route, "routes"):
            yield from routes_below(getattr(route, "app", None), middleware)


def _routes(app: Any, middleware: type) -> list[Any]:
    while not hasattr(app, "routes"):
        if isinstance(app, middleware) or getattr(app, "app", app) is app:
            return []
        app = app.app
    kinds = [getattr(each, "cls", None) for each in getattr(app, "user_middleware", ())]
    if any(isinstance(kind, type) and issubclass(kind, middleware) for kind in kinds):
        return []
    return list(app.routes) if isinstance(app.routes, Iterable) else []  # another framework's may be a method
