"""The rules that the views of an app name in their decorators, so that unknown names are found when the app starts.

The views are found without an import of their framework: Flask's by `view_functions`, those of Starlette and FastAPI by
`routes`.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from ratelimit_mw.errors import ConfigurationError
from ratelimit_mw.http.handle import Handle
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.rules.domains import Rules, require_named, rule_names, unknown_rule

RULES_OF_VIEW = "ratelimit_rules"
"""The attribute of a decorated view that has the names of its rules."""

_V = TypeVar("_V")
_H = TypeVar("_H", bound=Handle)


def marked(view: _V, rule: str, decorated: object) -> _V:
    """`view`, with the name of `rule` in addition to the names of the view that it decorates."""
    setattr(view, RULES_OF_VIEW, (rule, *getattr(decorated, RULES_OF_VIEW, ())))
    return view


def names_of_view(view: Any) -> Iterator[str]:
    """The names of the rules in the decorators of a view: of a function, or of a class and its methods."""
    while isinstance(view, partial):
        view = view.func
    yield from getattr(view, RULES_OF_VIEW, ())
    kind = view if isinstance(view, type) else getattr(view, "view_class", None)  # Flask and Django set `view_class`
    for name in dir(kind) if isinstance(kind, type) else ():
        yield from getattr(inspect.getattr_static(kind, name), RULES_OF_VIEW, ())


def require_names_of_flask(limiter: RateLimiter, app: object) -> None:
    """Raise ConfigurationError if a view of a Flask app names a rule that does not exist.

    Only the views that the app has now are checked. `app` is the Flask app or its `wsgi_app`.
    """
    views: Mapping[str, object] = getattr(getattr(app, "__self__", app), "view_functions", None) or {}
    known, rules = rule_names(limiter.rules), limiter.rules
    names = {name for view in views.values() for name in names_of_view(view)}
    if names - known and rules.source is None:
        raise ConfigurationError([unknown_rule(name, known) for name in sorted(names - known)])


def require_names(limiter: RateLimiter, names: Iterable[str]) -> None:
    """Refuse rules that lack one of these names, or in which it depends on the response, now and at a reload.

    Raises:
        ConfigurationError: The rules in force are refused.
    """
    needed = frozenset(names)
    if needed:
        limiter.require(partial(_require, needed))


def _require(names: frozenset[str], rules: Rules) -> None:
    if rules.source is None:  # otherwise the rules are still to be read from their database
        require_named(rules, names)


def routes_below(app: Any, middleware: type, each: Callable[[Iterable[Any]], Iterable[Any]] = iter) -> Iterator[Any]:
    """The routes of an ASGI app and of the apps that are mounted in it.

    Args:
        app: The app, or a middleware around it whose attribute `app` leads to it.
        middleware: The class of our middleware. An app that has one of its own is left out, because that one may have
            other rules.
        each: Yields the routes of a list of routes, for frameworks that nest them.
    """
    routes = _routes(app, middleware)
    yield from each(routes)
    for route in routes:
        if hasattr(route, "routes"):
            yield from routes_below(getattr(route, "app", None), middleware, each)


def _routes(app: Any, middleware: type) -> list[Any]:
    while not hasattr(app, "routes"):
        if isinstance(app, middleware) or not hasattr(app, "app"):
            return []
        app = app.app
    kinds = [getattr(each, "cls", None) for each in getattr(app, "user_middleware", ())]
    if any(isinstance(kind, type) and issubclass(kind, middleware) for kind in kinds):
        return []
    return list(app.routes)


def handle_in(found: object, kind: type[_H], rule: str, advice: str) -> _H:
    """The handle of the current request.

    Args:
        found: What is where the middleware puts the handle.
        kind: The class of the handle.
        rule: The name of the rule that is asked for.
        advice: How to add the middleware.

    Raises:
        RuntimeError: There is no handle, because the middleware is not around the app.
    """
    if not isinstance(found, kind):
        raise RuntimeError(f"the rule {rule!r} cannot be used: {advice}")
    return found
