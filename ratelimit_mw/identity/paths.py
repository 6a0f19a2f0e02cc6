"""What a path is to the app's router: its cleaned form, and its readings where frameworks differ.

Almost every path has one reading, which is the path itself. Four kinds of paths have more:

* A path that does not start with a slash. Quart takes the path out of it as out of a URL, Litestar puts a slash
  before it.
* A path under a `root_path` that is not a plain prefix of it. Each framework cuts it in its own way.
* A path with bytes that are not UTF-8. Most frameworks replace them by U+FFFD, Bottle drops them.
* A path with empty segments under Falcon, which takes the empty text for the value of a parameter.
"""

import posixpath
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from urllib.parse import unquote_to_bytes, urlparse

EMPTY = "\ufdd0"
"""What stands for an empty segment that Falcon takes for a value: a noncharacter, which no template holds."""

# CPython's fast normpath once cut a path at a NUL, so it is given a noncharacter in its place, which no template holds.
# It is one for one: where the lengths differ, replacing takes ten times as long, and a client may send many.
_NUL, _STAND_IN = "\0", "\uffff"
_REPLACED = "\ufffd"

_KNOWN = frozenset({"bottle", "django", "falcon", "fastapi", "flask", "litestar", "quart", "starlette"})
_INNER = ("app", "asgi_app", "wsgi_app", "application")  # where middlewares keep the app that they wrap
_DEEPEST = 32


def cleaned(path: str) -> str:
    """The path without empty and dot segments and without a slash at its end; "/" at least.

    A line feed at the very end goes as well: to a router made of regular expressions, `$` stands before
    it. Case and percent signs are left alone: the server has decoded the path once, and a router would
    not do it again.
    """
    if path[-1:] not in ("/", "\n", "") and path[0] == "/" and "//" not in path and "/." not in path:
        return path
    if path == "/":
        return path
    path = path.removesuffix("\n").lstrip("/")
    if _NUL in path:
        return posixpath.normpath("/" + path.replace(_NUL, _STAND_IN)).replace(_STAND_IN, _NUL)
    return posixpath.normpath("/" + path)


def merged(path: str) -> str:
    """The path without empty segments, but with its dot segments.

    Flask, Litestar and Falcon drop slashes and take `..` for the value of a parameter.
    """
    return "/" + "/".join([segment for segment in path.split("/") if segment])


def readings(path: str, root: str, framework: str = "") -> tuple[str, ...]:
    """What routers may make of a path, the most reduced reading first. `root` is the prefix that they cut off."""
    bases = [path]
    if not path.startswith("/"):
        with suppress(ValueError):  # brackets that hold no address: Quart raises it, too, and answers 500
            bases.insert(0, urlparse(path).path)
    found: dict[str, None] = {}
    for base in bases:
        for each in _cut(base, root, framework) if root else (base,):
            found[each if each.startswith("/") else "/" + each] = None
    return tuple(found)


def with_dropped(found: tuple[str, ...]) -> tuple[str, ...]:
    """The readings, and before them those without the bytes that are not UTF-8, which `found` has as U+FFFD."""
    if not any(_REPLACED in each for each in found):
        return found
    return tuple(dict.fromkeys([*(each.replace(_REPLACED, "") or "/" for each in found), *found]))


def without_broken_bytes(path: str) -> str:
    """A path that PEP 3333 passes as bytes read as latin-1, without the bytes that are not UTF-8; "/" at least."""
    try:
        return path.encode("latin-1").decode("utf-8", "ignore") or "/"
    except UnicodeEncodeError:  # a server that decoded it already
        return path


def is_utf8(raw: bytes | None) -> bool:
    """Whether what a server has decoded, which is known, is UTF-8: then each U+FFFD in it is the client's own."""
    try:
        return bool(raw) and bool(unquote_to_bytes(raw or b"").decode("utf-8"))
    except UnicodeDecodeError:
        return False


def with_empty_values(found: tuple[str, ...]) -> tuple[str, ...]:
    """The readings, and those with `EMPTY` for each empty segment behind the first slashes."""
    filled = ("/" + "/".join([part or EMPTY for part in each.lstrip("/").split("/")]) for each in found if each != "/")
    return tuple(dict.fromkeys([*found, *filled]))


def _cut(path: str, root: str, framework: str) -> tuple[str, ...]:
    if framework == "falcon":
        return (path,)
    if path.startswith(root) and path[len(root) : len(root) + 1] in {"", "/"}:
        return (path[len(root) :],)
    if framework in {"starlette", "fastapi"}:
        return (path,)
    if framework == "django":
        return (path.removeprefix(root),)
    rest = path.split(root, 1)[-1]  # Litestar's cut, and that of Quart before 0.21, which covers the later one's
    return (rest,) if framework in {"litestar", "quart"} else (rest, path)


def framework_of(app: Any) -> str:
    """The framework whose router is inside `app`, by the name of its package; "" where it can't be told.

    Middlewares are looked through as long as they keep the app in one of the usual attributes.
    """
    found, seen = "", set[int]()
    waiting = [app]
    while waiting and len(seen) < _DEEPEST:
        each = waiting.pop(0)
        each = getattr(each, "__self__", each)  # a bound method, as `quart_app.asgi_app` is
        if id(each) in seen or isinstance(each, type) or each is None:
            continue
        seen.add(id(each))
        packages = (kind.__module__.partition(".")[0] for kind in type(each).__mro__)
        found = next((package for package in packages if package in _KNOWN), found)
        waiting += _inside(each)
    return found


def _inside(app: Any) -> Iterable[Any]:
    held = getattr(app, "__dict__", None) or {}
    return [held[name] for name in _INNER if callable(held.get(name))]


def forced_root(framework: str) -> str:
    """Django's FORCE_SCRIPT_NAME, which its ASGI handler cuts off paths; "" where it is not set."""
    conf = sys.modules.get("django.conf") if framework in {"django", ""} else None
    settings: Any = getattr(conf, "settings", None)
    if settings is None or not settings.configured:
        return ""
    return str(getattr(settings, "FORCE_SCRIPT_NAME", None) or "")
