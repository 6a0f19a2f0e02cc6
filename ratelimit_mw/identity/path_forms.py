"""The forms of a request's path. A rule counts a request if any form matches, whatever the framework is.

Frameworks cut prefixes off paths and clean paths in different ways. The rules do not imitate them: they know the path
as the server passes it on, the same path without each prefix that an app may cut off, and the spellings of both.
"""

import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlparse

_INVALID = "\N{REPLACEMENT CHARACTER}"  # what servers write for bytes that are not UTF-8

# CPython 3.11's normpath cuts a path at a NUL. Each NUL is therefore replaced by a noncharacter, which no template
# holds. Both are one character, because `str.replace` takes ten times as long if the lengths differ.
_NUL, _STAND_IN = "\0", "\uffff"

_INNER = ("app", "asgi_app", "wsgi_app", "application")  # attributes in which middlewares keep the app
_MAX_APPS = 32  # apps that `apps_inside` yields
_LONGEST_SCHEME = 32  # characters


is_clean = re.compile(r"/|(?:/[^/.][^/]*)+(?<!\n)").fullmatch
"""Tells quickly that a path is its own cleaned form. Of some paths that are, such as `/.env`, it does not know it."""


class Forms(NamedTuple):
    """The forms of one path. See `forms_of`."""

    every: tuple[str, ...]
    """All of them. The first is the one without a prefix, which `by: path` uses."""
    routed: tuple[str, ...]
    """Those by which the app may route the request. `exempt` and `replaces` need a match of each.

    Messages show the last one.
    """


class Routing(NamedTuple):
    """How an app cuts a prefix off paths."""

    root: str = ""
    """The app's own prefix. It takes the place of the server's `root_path`."""
    cuts: bool = True
    """False if the app routes by the whole path."""


PLAIN = Routing()


def decodings(path: str) -> tuple[str, ...]:
    """Return the decoded path, preceded by the path that has the bytes dropped that are not UTF-8."""
    return (path.replace(_INVALID, ""), path) if _INVALID in path else (path,)


def forms_of(paths: Iterable[str], prefixes: Iterable[str] = (), *, cuts: bool = True) -> Forms | None:
    """Return the forms of a path. None if it has only one.

    Args:
        paths: The path as the server passes it on. Several if it can be decoded in several ways.
        prefixes: What an app may cut off, none of them empty. The app routes without the last one.
        cuts: Whether the app routes without a prefix.
    """
    every: dict[str, None] = {}
    routed: dict[str, None] = {}
    for path in paths:
        whole = own = path if path.startswith("/") else path_of_target(path)
        for prefix in prefixes:
            before, found, rest = whole.partition(prefix)
            own = whole
            if found:
                every[rest or "/"] = None
                if cuts and not before and rest[:1] in ("", "/"):
                    own = rest or "/"
        every |= dict.fromkeys((own, whole, path))
        routed |= dict.fromkeys((own,) if whole == path else (path, own))
    return Forms(tuple(every), tuple(routed)) if len(every) > 1 else None


def spellings(path: str) -> tuple[str, ...]:
    """Return what routers may make of one form of a path: its cleaned form, the form itself, and two between them.

    Some routers drop repeated slashes or add a slash at the start, but accept `..` as the value of a parameter. For
    some, a line feed at the end is part of a value. Others ignore it.
    """
    clean = cleaned(path)
    if clean == path:
        return (path,)
    if path.startswith("/") and "/." not in path and path[-1] != "\n":
        return clean, path
    return tuple(dict.fromkeys((clean, path, _merged(path), _merged(path.removesuffix("\n")))))


def cleaned(path: str) -> str:
    """Return the path without empty segments, dot segments and a slash at its end. The result is at least "/".

    A line feed at the end is removed too, because `$` in a router's regular expression matches before it. Case and
    percent signs stay as they are: the server has decoded the path once, and no router decodes it again.
    """
    if is_clean(path):
        return path
    path = path.removesuffix("\n").lstrip("/")
    if _NUL in path:
        return posixpath.normpath("/" + path.replace(_NUL, _STAND_IN)).replace(_STAND_IN, _NUL)
    return posixpath.normpath("/" + path)


def _merged(path: str) -> str:
    """Return the path without its empty segments. Its dot segments stay."""
    path = "/" + path.strip("/")
    while "//" in path:  # each round halves the longest run of slashes
        path = path.replace("//", "/")
    return path


def path_of_target(target: str) -> str:
    """Return the path of a request target in absolute form, which has a scheme and a host."""
    if target.find(":") > _LONGEST_SCHEME:  # `urlparse` would look at each character before the colon
        return target
    try:
        return urlparse(target).path or "/"
    except ValueError:  # invalid brackets in the host
        return target


def routing_of(app: Any) -> Routing:
    """Return how the app cuts a prefix off paths. Call it once, because it looks at the apps inside middlewares."""
    root, cuts = "", True
    for each in apps_inside(app):
        packages = {kind.__module__.partition(".")[0] for kind in type(each).__mro__}
        if "fastapi" in packages:  # FastAPI(root_path="/api"). In other frameworks, `root_path` is a folder.
            root = getattr(each, "root_path", "") or root
        cuts = cuts and "falcon" not in packages
    return Routing(root, cuts)


def apps_inside(app: Any) -> Iterator[Any]:
    """Yield an app and the apps inside it. Middlewares are unwrapped if they keep the app in a usual attribute."""
    seen, queue = set[int](), [app]
    while queue and len(seen) < _MAX_APPS:
        each = getattr(queue[0], "__self__", queue.pop(0))  # a bound method, as `quart_app.asgi_app` is
        if not (id(each) in seen or isinstance(each, type) or each is None):
            seen.add(id(each))
            yield each
            queue += _inside(each)


def _inside(app: Any) -> Iterable[Any]:
    """Return the apps that a middleware keeps in the usual attributes."""
    held = getattr(app, "__dict__", None) or {}
    return [held[name] for name in _INNER if callable(held.get(name))]
