"""The routes of the app itself, for `by: route` in rules without `match.path`: which of them serves a request.

The app's own router is asked, so a request has the route that it will have in the app. All requests without a route
share `NO_ROUTE`. Frameworks are known by what their objects have; none is imported.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ratelimit_mw.identity.path_forms import apps_inside
from ratelimit_mw.identity.request import Request

_K = TypeVar("_K", bound=type[Request])

Find = Callable[[Request], str]
"""Returns the template of the route that serves a request."""

NO_ROUTE = "-"


def routed(kind: _K, app: Any) -> _K:
    """Return the class of the requests of `app`, which know the app's routes. It is `kind` if they cannot be read."""
    find = next(filter(None, map(_finder, apps_inside(app))), None)
    if find is None:
        return kind
    routes = find  # not None

    class Routed(kind):  # type: ignore[valid-type, misc]  # mypy knows no base class that is a variable
        __slots__ = ()

        def app_route(self) -> str | None:
            return routes(self)

    made: Any = Routed
    return made  # type: ignore[no-any-return]  # it is a subclass of `kind`


def knows_routes(app: Any) -> bool:
    """Return True if the routes of `app`, or of an app inside it, can be read."""
    return any(map(_finder, apps_inside(app)))


def _finder(app: Any) -> Find | None:
    """Return what finds the routes of this app. None if it is no app of a known framework."""
    if hasattr(app, "wsgi_app") and hasattr(app, "url_map"):
        return lambda request: _of_flask(app.url_map, request.context)
    if any(kind.__module__ == "django.core.handlers.base" for kind in type(app).__mro__):
        return lambda request: of_django(request.path)
    routes = getattr(app, "routes", None)
    if isinstance(routes, Sequence) and all(hasattr(route, "matches") for route in routes):
        return _Starlette(app)
    return None


def _of_flask(url_map: Any, environ: Mapping[str, Any]) -> str:
    adapter = url_map.bind_to_environ(environ)
    method = None
    for _ in range(2):
        try:
            rule, _arguments = adapter.match(method=method, return_rule=True)
        except Exception as error:  # noqa: BLE001 - NotFound, RequestRedirect, or MethodNotAllowed with the right methods
            method = next(iter(getattr(error, "valid_methods", None) or ()), None)
            if method is None:
                return NO_ROUTE
        else:
            return str(rule.rule)
    return NO_ROUTE


def of_django(path: str, urlconf: Any = None) -> str:
    """Return the route of a path in the URL configuration of the Django project."""
    urls: Any = sys.modules["django.urls"]  # the handlers of Django have imported it
    try:
        return f"/{urls.resolve(path, urlconf).route}"
    except Exception:  # noqa: BLE001 - Resolver404, or anything that a converter of the project raises
        return NO_ROUTE


class _Starlette:
    """The routes of an app of Starlette or FastAPI. They are listed again when their number has changed."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._listed: tuple[int, list[Any]] = 0, []

    def __call__(self, request: Request) -> str:
        routes = self._app.routes
        try:
            if self._listed[0] != len(routes):
                self._listed = len(routes), list(flat(routes))
            return _of_starlette(self._listed[1], request.context) or NO_ROUTE
        except Exception:  # noqa: BLE001 - a converter of the app may raise anything
            return NO_ROUTE


def flat(routes: Iterable[Any]) -> Iterable[Any]:
    """Return routes with those of included routers, which newer versions of FastAPI list separately."""
    fastapi = sys.modules.get("fastapi.routing")
    flat: Callable[[Iterable[Any]], Iterable[Any]] = getattr(fastapi, "iter_route_contexts", iter)
    return flat(routes)


def _of_starlette(routes: Iterable[Any], scope: Mapping[str, Any]) -> str:
    """Return the template of the first route that serves the path by this method, otherwise by another; "" for none."""
    other = ""
    for route in routes:
        match, child = route.matches(scope)
        if not match.value:
            continue
        inner = getattr(route, "original_route", route)
        template = getattr(route, "path", "") or ""
        if hasattr(inner, "routes"):  # a Mount or a Host; without routes of its own, it serves everything below
            below = _of_starlette(flat(inner.routes), {**scope, **child}) if inner.routes else "/*"
            return f"{template}{below}" if below else ""
        if match.value > 1:
            return template or NO_ROUTE
        other = other or template
    return other
