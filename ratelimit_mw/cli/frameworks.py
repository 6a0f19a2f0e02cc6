"""Reads the routes of an app: methods and path templates, of mounted apps, blueprints and includes, too.

`FRAMEWORKS` has one function for each framework. None of them imports a framework: an app has imported its own.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from ratelimit_mw.errors import Invalid
from ratelimit_mw.http.limits_in_code import RULES_OF_VIEW
from ratelimit_mw.http.setup import rules_of_throttles
from ratelimit_mw.identity.path_forms import apps_inside
from ratelimit_mw.identity.request import flat
from ratelimit_mw.rules.inline import InlineLimit
from ratelimit_mw.rules.path_templates import KINDS, Template, parse

ANY = "*"
"""The method of a route that takes every method."""

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")


Wanted = str | InlineLimit
"""What a decorator asks for: the name of a rule, or a limit."""


class AppRoute(NamedTuple):
    """One route of an app.

    Attributes:
        path: The path template, as the framework writes it, after the prefixes of what it is mounted in.
        template: The paths that the route serves, as rules write them. It matches further ones, too, if the framework's
            template has no equivalent in rules (a regular expression, for example).
        methods: Its methods, or `ANY`. HEAD is left out beside GET, and so is OPTIONS if the framework answers it.
        websocket: True if it serves WebSockets.
        asked: What its decorators and dependencies ask for: names of rules, and limits.
        typed: `template` with the types that the endpoint's own parameters have.
    """

    path: str
    template: Template
    methods: tuple[str, ...] = (ANY,)
    websocket: bool = False
    asked: tuple[Wanted, ...] = ()
    typed: Template = parse("/")


class _Prefix(NamedTuple):
    """What an app is mounted at: as its framework writes it, and as rules write it."""

    shown: str = ""
    text: str = ""


class UnknownApp(Exception):
    """The app is of no framework whose routes can be read."""


def routes_of(app: Any) -> list[AppRoute]:
    """Return the routes of an app, in the order of its router. Middlewares around the app are unwrapped.

    Raises UnknownApp.
    """
    found = _routes(app, _Prefix())
    if found is None:
        kind = type(app)
        raise UnknownApp(kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}")
    return list(found)


def _routes(app: Any, prefix: _Prefix) -> Iterator[AppRoute] | None:
    """The routes of an app, or None if it is of no known framework."""
    for each in apps_inside(app):
        for kind in type(each).__mro__:
            attribute, read = FRAMEWORKS.get(kind.__module__.partition(".")[0], ("", None))
            if read is not None and getattr(each, attribute, None) is not None:
                return read(each, prefix)
    return None


def _mounted(app: Any, prefix: _Prefix) -> Iterator[AppRoute]:
    """The routes of a mounted app. An app that cannot be read serves all paths below its prefix."""
    found = _routes(app, prefix)
    if found is not None:
        yield from found
    else:
        yield _route(prefix, "/*", "/*")


def _route(prefix: _Prefix, shown: str, text: str, **fields: Any) -> AppRoute:
    """Make a route. `text` is its template as rules write it, apart from the names of parameters."""
    template = _parsed(prefix.text + text)
    return AppRoute(prefix.shown + shown, template, **{"typed": template, **fields})


def _parsed(text: str) -> Template:
    """Parse a template. If rules cannot express it, return one that matches more."""
    numbers = count()
    text = re.sub(r"\{\w+", lambda _: f"{{p{next(numbers)}", text) or "/"  # a name may be there twice
    for each in (text, *_wider(text.split("/")[1:])):
        with suppress(Invalid):
            return parse(each)
    return parse("/*")


def _wider(pieces: list[str]) -> Iterator[str]:
    """Yield templates that match more and more. Several parameters of a segment lose their types, and then are one."""
    for pattern, wider in ((r"(\{\w+):\w+", r"\1"), (r".*?(\{\w+\}).*", r"\1")):
        several = [piece.count("{") > 1 and ":path}" not in piece for piece in pieces]
        pieces = [re.sub(pattern, wider, each) if more else each for each, more in zip(pieces, several, strict=True)]
        yield "/" + "/".join(pieces)
    yield from ("/" + "/".join([*pieces[:kept], "*"]) for kept in range(len(pieces) - 1, 0, -1))


def _methods(methods: Iterable[str] | None, *, automatic_options: bool = False) -> tuple[str, ...]:
    found = {method.upper() for method in methods or ()}
    found -= ({"HEAD"} if "GET" in found else set()) | ({"OPTIONS"} if automatic_options else set())
    return tuple(sorted(found)) or (ANY,)


def _asked(kind: Any, *views: Any) -> tuple[Wanted, ...]:
    """What the decorators and throttles of these views ask for. `kind` is the class that they belong to, if any."""
    found: dict[Wanted, None] = {}
    for view in views:
        while isinstance(view, partial):
            view = view.func  # noqa: PLW2901
        for placed in getattr(view, RULES_OF_VIEW, ()):
            found[placed.of(kind)] = None
        found |= dict.fromkeys(rules_of_throttles(view))
    return tuple(found)


def _by_method(kind: Any, allowed: Iterable[str], *views: Any) -> Iterator[tuple[tuple[str, ...], tuple[Wanted, ...]]]:
    """The methods of a class of views, in groups whose handlers ask for the same rules, and these rules."""
    groups: dict[tuple[Wanted, ...], list[str]] = {}
    for method in allowed:
        handler = getattr(kind, method.lower(), None)
        if handler is not None:
            groups.setdefault(_asked(kind, *views, handler), []).append(method)
    for asked, methods in groups.items():
        yield _methods(methods), asked


def _kind_of(pattern: str) -> str:
    """The kind of parameter whose values include all texts that a regular expression matches."""
    if pattern in (r"\d+", "[0-9]+", r"[\d]+"):
        return "int"
    try:
        matches = re.compile(pattern).fullmatch
    except re.error:
        return "path"
    return "path" if any(map(matches, ("x/x", "1/1", "x/x/x"))) else "str"


# ------------------------------------------------------------------------------------------ Starlette and FastAPI


def _starlette(app: Any, prefix: _Prefix) -> Iterator[AppRoute]:
    """Yield the routes of an app or a router of Starlette or FastAPI."""
    for route in flat(app.routes):
        original = getattr(route, "original_route", route)
        kinds = {kind.__name__ for kind in type(original).__mro__}
        path = getattr(route, "path", None)
        if "Mount" in kinds:
            yield from _mounted(route.app, _below(prefix, str(path), _from_starlette(route)))
        elif "Host" in kinds:
            yield from _mounted(route.app, prefix)
        elif path is not None:
            yield from _endpoint(route, prefix, str(path), websocket="WebSocketRoute" in kinds)


def _below(prefix: _Prefix, shown: str, text: str) -> _Prefix:
    return _Prefix(prefix.shown + shown.rstrip("/"), prefix.text + text.rstrip("/"))


def _from_starlette(route: Any, types: Mapping[str, str] = MappingProxyType({})) -> str:
    """The template of a route or a mount, with kinds of parameters that rules know. A `path` may be empty.

    `types` has the kinds of parameters that have none in the template.
    """

    def kind(found: re.Match[str]) -> str:
        known = (found[2] or types.get(found[1], "str")).lstrip(":")
        return f"{{p:{known if known in KINDS else _kind_of(route.param_convertors[found[1]].regex)}}}"

    text = _PARAMETER.sub(kind, str(route.path))
    return text.removesuffix("{p:path}") + "*" if text.endswith("/{p:path}") else text


_PARAMETER = re.compile(r"\{(\w+)(:\w+)?\}")


def _endpoint(route: Any, prefix: _Prefix, path: str, *, websocket: bool) -> Iterator[AppRoute]:
    view, text = getattr(route, "endpoint", None), _from_starlette(route)
    views = (getattr(view, "dispatch", None),) if isinstance(view, type) else (view,)
    asked = (*_dependencies(route, view), *_asked(view, *views))
    if isinstance(view, type) and not websocket and getattr(route, "methods", None) is None:
        for methods, own in _by_method(view, _METHODS, getattr(view, "dispatch", None)):
            yield _route(prefix, path, text, methods=methods, asked=own)
        return
    methods = ("GET",) if websocket else _methods(getattr(route, "methods", None))
    fields = [field for each in _dependants(route) for field in each.path_params]
    kinds = {field.alias: _KINDS_OF_TYPES.get(field.field_info.annotation, "") for field in fields}
    types = {name: kind for name, kind in kinds.items() if kind}
    typed = _parsed(prefix.text + _from_starlette(route, types))
    asked = tuple(dict.fromkeys(asked))
    yield _route(prefix, path, text, methods=methods, websocket=websocket, asked=asked, typed=typed)


_KINDS_OF_TYPES: Mapping[Any, str] = {int: "int", float: "float", UUID: "uuid"}


def _dependants(route: Any) -> Iterator[Any]:
    """Yield what FastAPI has found in the signatures of an endpoint and its dependencies."""
    waiting = [getattr(route, "dependant", None)]
    for each in waiting:
        if each is not None:
            waiting += each.dependencies
            yield each


def _dependencies(route: Any, endpoint: Any) -> Iterator[Wanted]:
    """Yield the rules in the dependencies of a FastAPI route: those of `ratelimit_mw.fastapi.limited`."""
    kind = getattr(sys.modules.get("ratelimit_mw.fastapi"), "Limited", ())
    return (each.call.of(endpoint) for each in _dependants(route) if isinstance(each.call, kind))


# ---------------------------------------------------------------------------------------------------------- Flask

_CONVERTER = re.compile(r"<(?:(\w+)(?:\((.*?)\))?:)?\w+>")


def _flask(app: Any, prefix: _Prefix) -> Iterator[AppRoute]:
    """Yield the routes of a Flask app, with those of its blueprints."""
    for rule in app.url_map.iter_rules():
        if rule.build_only:
            continue
        view = app.view_functions.get(rule.endpoint)
        automatic = getattr(view, "provide_automatic_options", None) is None and getattr(
            rule, "provide_automatic_options", True
        )
        methods = _methods(rule.methods, automatic_options=bool(automatic) and rule.methods != {"OPTIONS"})
        kind = getattr(view, "view_class", None)
        text = _CONVERTER.sub(partial(_from_werkzeug, app.url_map.converters), rule.rule)
        websocket = bool(getattr(rule, "websocket", False))
        asked = _asked(kind, view)
        route = _route(prefix, rule.rule, text, methods=methods, websocket=websocket, asked=asked)
        groups = list(_by_method(kind, methods, view)) if kind is not None else []
        yield from (route._replace(methods=own, asked=asked) for own, asked in groups) if groups else [route]


def _from_werkzeug(converters: Mapping[str, Any], found: re.Match[str]) -> str:
    """Return a parameter of werkzeug as rules write it."""
    name = {None: "str", "default": "str", "string": "str"}.get(found[1], found[1])
    return f"{{p:{name if name in KINDS else _kind_of(converters[name].regex)}}}"


# --------------------------------------------------------------------------------------------------------- Django


def _django(_app: Any, prefix: _Prefix) -> Iterator[AppRoute]:
    """Yield the routes of a Django project, from its URLconf."""
    resolver = import_module("django.urls").get_resolver()
    return _of_django(resolver.url_patterns, _Prefix(prefix.shown + "/", prefix.text + "/"))


def _of_django(patterns: Iterable[Any], prefix: _Prefix) -> Iterator[AppRoute]:
    for pattern in patterns:
        included = getattr(pattern, "url_patterns", None)
        shown, text = _from_django(pattern.pattern, whole=included is None)
        if included is not None:
            yield from _of_django(included, _Prefix(prefix.shown + shown, prefix.text + text))
            continue
        for methods, asked in _of_view(pattern.callback):
            yield _route(prefix, shown, text, methods=methods, asked=asked)


def _of_view(view: Any) -> Iterator[tuple[tuple[str, ...], tuple[Wanted, ...]]]:
    """The methods of a view, with the rules that they ask for. A function takes all methods, as far as is known."""
    kind = getattr(view, "view_class", None) or getattr(view, "cls", None)
    actions: Mapping[str, str] | None = getattr(view, "actions", None)
    if kind is None:
        yield (ANY,), _asked(None, view)
        return
    around = (view, getattr(kind, "dispatch", None))
    if actions is not None:  # a view set of REST framework: its methods are named after what they do
        for method, action in actions.items():
            yield _methods([method]), _asked(kind, *around, getattr(kind, action, None))
        return
    allowed = [method.upper() for method in getattr(kind, "http_method_names", _METHODS) if method != "options"]
    yield from _by_method(kind, allowed, *around)


def django_knows_users() -> bool:
    """Whether the app is a Django project with our middleware, which knows the user without `client.user`."""
    project: Any = sys.modules.get("ratelimit_mw.django.project")
    return project is not None and bool(project.settings.configured and project.has_middleware())


def session_cookies(app: Any) -> set[str]:
    """Return the names of the cookies in which an app keeps signed sessions. They change while their user stays."""
    found: set[str] = set()
    conf: Any = sys.modules.get("django.conf")
    if conf is not None and conf.settings.configured and conf.settings.SESSION_ENGINE.endswith("signed_cookies"):
        found.add(conf.settings.SESSION_COOKIE_NAME)
    for each in apps_inside(app):
        for middleware in getattr(each, "user_middleware", ()):  # of Starlette and FastAPI
            if middleware.cls.__name__ == "SessionMiddleware":
                found.add(middleware.kwargs.get("session_cookie", "session"))
        if (
            type(getattr(each, "session_interface", None)).__name__ == "SecureCookieSessionInterface"
            and each.secret_key
        ):
            found.add(each.config["SESSION_COOKIE_NAME"])  # of Flask
    return found


def _from_django(pattern: Any, *, whole: bool) -> tuple[str, str]:
    """A pattern of Django: how it is shown, and its template. `whole` is False for a prefix of other patterns."""
    shown = str(pattern)
    if any(kind.__name__ == "RegexPattern" for kind in type(pattern).__mro__):
        return re.sub(r"\A\^|(\$|\\Z)\Z", "", shown), _from_expression(shown, whole=whole)

    def kind(found: re.Match[str]) -> str:
        name = found[1] or "str"
        return f"{{p:{name if name in KINDS else _kind_of(pattern.converters[found[2]].regex)}}}"

    return shown, re.sub(r"<(?:(\w+):)?(\w+)>", kind, shown)


_EXPRESSION = re.compile(
    r"(?P<skip>\^|\$|\\Z|/\?\$?\Z)|\\(?P<escaped>[^\w])|\((?:\?P<\w+>)?(?P<group>(?:\\.|\[[^\]]*\]|[^()\\\[])*)\)(?![?*+{])"
    r"|(?P<text>[\w/@:~ ,;=!&%-])(?![?*+{])"
)


def _from_expression(expression: str, *, whole: bool) -> str:
    """The template of a regular expression. If it cannot be read to its end, the template matches all that may follow.

    Rules and templates of REST framework's routers are read completely.
    """
    text, place = "", 0
    while place < len(expression):
        found = _EXPRESSION.match(expression, place)
        group = found["group"] if found is not None else None
        if found is None or (group is not None and group.startswith("?")):
            return _with_anything(text)
        text += f"{{p:{_kind_of(group)}}}" if group is not None else found["escaped"] or found["text"] or ""
        place = found.end()
    return text if not whole or expression.endswith(("$", r"\Z")) else _with_anything(text)


def _with_anything(text: str) -> str:
    """A template of all paths that begin with `text`, or with what is before its last segment."""
    begun = text[text.rfind("/") + 1 :]
    return text + "{p:path}" if begun and "{" not in begun else text.removesuffix(begun) + "*"


FRAMEWORKS: Mapping[str, tuple[str, Callable[[Any, _Prefix], Iterator[AppRoute]]]] = {
    "fastapi": ("routes", _starlette),
    "starlette": ("routes", _starlette),
    "flask": ("url_map", _flask),
    "django": ("load_middleware", _django),
}
"""The readers of routes by the package of the framework, each after an attribute that apps of the framework have."""
