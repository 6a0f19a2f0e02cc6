"""The interface of a request as rules read it, the requests that `check()` makes of its arguments, and their routes.

For `by: route` in rules without `match.path`, the app's own router is asked which of its routes serves a request, so a
request has the route that it will have in the app. Frameworks are known by what their objects have; none is imported.
"""

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from ratelimit_mw.identity.fields import TOO_MANY, Cookie, Parameter, Values, header_values, host_values
from ratelimit_mw.identity.path_forms import Forms, apps_inside

METHODS = frozenset(("", "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY"))
"""The methods that are written as they are. A client may send any other text."""

Alternative = Mapping[str, str | None]
"""One value for each attribute that has several."""

_MOST_ALTERNATIVES = 16


class Request(Protocol):
    """One request, which is read lazily. No method raises, whatever the client sent.

    Several values may stand behind a name, as in a request with two cookies of the same name. Reading such an attribute
    notes all of them in `several`. The rules are then tried with each of them, see `alternatives`.
    """

    method: str
    """The method in upper case: "GET" for a WebSocket, "" if `check()` was given none."""
    path: str
    """The path as the app's router sees it: decoded once and without the mount's prefix. "" only in `check()`."""
    forms: Forms | None
    """All forms of the path that rules are matched with. None if `path` is the only one."""
    values: dict[str, str | None]
    """The attributes that were already read, by canonical name ("ip", "user", "header:x-plan")."""
    several: dict[str, Values]
    """All values of the attributes that were read and have several. All views of a request share it."""
    context: Any
    """The ASGI scope or the WSGI environ. None for attributes given to `check()`."""
    peer: str | None
    """The address of the connection's other end, as the server wrote it. None if there is no address."""

    __slots__ = ("context", "forms", "method", "path", "peer", "several", "values")

    @property
    def query_string(self) -> str:
        """The query string, decoded as latin-1."""
        return ""

    def header_lines(self, name: str) -> list[str]:
        """Return every line of a header, in order. `name` is lower-case. Of very many lines, the last ones."""
        ...

    def field_lines(self, name: str) -> list[str] | None:
        """Return every line behind a name: also those of `X_User` for `x-user`. None if there are too many.

        Without a Host header, the line is the name of the server.
        """
        ...

    def fields(self, _read: Any) -> Sequence[Any]:
        """Return what plans depend on in the headers, for a request of a server. See `http_request.ReadFields`."""
        return ()

    def header(self, name: str) -> str | None:
        """Return the first of the header's lines. None if the header is absent."""
        lines = self.header_lines(name)
        return lines[0] if lines else None

    def headers(self, name: str) -> Values:
        """Return all values of a header."""
        lines = self.field_lines(name)
        if lines is None or len(lines) < 2:
            return header_values(lines)
        return header_values(lines, lines, self.header_lines(name))

    def cookies(self, cookie: Cookie) -> Values:
        """Return all values of a cookie."""
        return cookie.values(self.field_lines("cookie"))

    def parameters(self, parameter: Parameter) -> Values:
        """Return all values of a query parameter."""
        return parameter.values(self.query_string)

    def app_route(self) -> str | None:
        """Return the template of the app's own route. None if the app's routes cannot be read."""
        return None

    def hosts(self) -> Values:
        """Return all names that the Host header may have."""
        return host_values(self.field_lines("host"))


def alternatives(several: Mapping[str, Values]) -> list[Alternative]:
    """Return each combination of the values. If there are too many, all names have the values `TOO_MANY`."""
    if prod(map(len, several.values())) > _MOST_ALTERNATIVES:
        return [dict.fromkeys(several, value) for value in TOO_MANY]
    return [dict(zip(several, row, strict=True)) for row in product(*several.values())]


def views(request: Request, chosen: Iterable[Alternative]) -> Iterator[Request]:
    """Yield a view of a request for each alternative: one object, whose `values` change.

    Attributes that have one value are read once for all.
    """
    view = copy.copy(request)
    for alternative in chosen:
        view.values = {**view.values, **alternative}
        yield view
        request.values.update((name, value) for name, value in view.values.items() if name not in alternative)


class MappingRequest(Request):
    """A request made of the attributes that are passed to `check()`. All other attributes are absent.

    Args:
        values: the attributes by canonical name.
        raw: the headers, cookies and query parameters among them. Sources read them as they read any request:
            `tier: header:X-Plan` reads the attribute "header:X-Plan".
        method: the method in upper case, or "".
        path: the path, or "".
    """

    __slots__ = ("raw",)

    def __init__(
        self,
        values: dict[str, str | None],
        raw: Mapping[str, str] = MappingProxyType({}),
        *,
        method: str = "",
        path: str = "",
    ) -> None:
        self.context = None
        self.peer = None  # an address that was given is in `values`
        self.several: dict[str, Values] = {}
        self.values = values
        self.raw = raw
        self.method = method
        self.path = path
        self.forms: Forms | None = None

    def header_lines(self, name: str) -> list[str]:
        """Return a header as one line, if it was given as "header:N"."""
        return list(self._given(f"header:{name}"))

    field_lines = header_lines

    def headers(self, name: str) -> Values:
        """Return a header, if it was given as "header:N"."""
        return self._given(f"header:{name}")

    def cookies(self, cookie: Cookie) -> Values:
        """Return a cookie, if it was given as "cookie:N"."""
        return self._given(f"cookie:{cookie.name}")

    def parameters(self, parameter: Parameter) -> Values:
        """Return a query parameter, if it was given as "query:N"."""
        return self._given(f"query:{parameter.name}")

    def _given(self, name: str) -> Values:
        value = self.raw.get(name)
        return (value,) if value else ()


Entry = tuple[str, str]
"""The key and the value of one entry of a descriptor."""

Arguments = Mapping[str, str] | Sequence[Entry]
"""What `check()` takes: a mapping of attribute names to values, or one Envoy descriptor as a list of entries."""


class EntriesRequest(MappingRequest):
    """A request made of the ordered (key, value) pairs of one Envoy descriptor. It has no other attributes.

    Raises ValueError for an entry that is not a (key, value) pair.
    """

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[Sequence[str | None]]) -> None:
        super().__init__({})
        self.entries: tuple[Entry, ...] = tuple([_entry(entry) for entry in entries])


def _entry(entry: object) -> Entry:
    if isinstance(entry, str) or not isinstance(entry, Sequence) or len(entry) != 2:
        raise ValueError(f"entries must be (key, value) pairs, but one is {entry!r:.80}")
    key, value = entry
    return str(key), "" if value is None else str(value)


# ------------------------------------------------------------------------------------------- routes of the app itself

_K = TypeVar("_K", bound=type[Request])

Find = Callable[[Request], str]
"""Returns the template of the route that serves a request."""

NO_ROUTE = "-"
"""The route that all requests share that no route of the app serves."""


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
    method = None
    for _ in range(2):
        try:
            rule, _arguments = url_map.bind_to_environ(environ).match(method=method, return_rule=True)
        except Exception as error:  # noqa: BLE001 - NotFound, BadHost, or MethodNotAllowed with the right methods
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
