"""The forms of a request's path: how servers write it, and what routers make of it."""

import posixpath
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import unquote_to_bytes, urlparse

EMPTY_SEGMENT = "\ufdd0"
"""Replaces an empty segment of a path, because Falcon accepts it as a value. No template holds this noncharacter."""

# Older versions of CPython's normpath cut a path at a NUL. Each NUL is therefore replaced by a noncharacter, which no
# template holds. Both are one character, because `str.replace` takes ten times as long if the lengths differ.
_NUL, _STAND_IN = "\0", "\uffff"
_INVALID = "\ufffd"

_KNOWN = frozenset({"bottle", "django", "falcon", "fastapi", "flask", "litestar", "quart", "starlette"})
_INNER = ("app", "asgi_app", "wsgi_app", "application")  # attributes in which middlewares keep the app
_MAX_APPS = 32  # apps that `framework_of` looks at


def cleaned(path: str) -> str:
    """Return the path without empty segments, dot segments and a slash at its end. The result is at least "/".

    A line feed at the end is removed too, because `$` in a router's regular expression matches before it. Case and
    percent signs stay as they are: the server has decoded the path once, and no router decodes it again.
    """
    if path[-1:] not in ("/", "\n", "") and path[0] == "/" and "//" not in path and "/." not in path:
        return path
    if path == "/":
        return path
    path = path.removesuffix("\n").lstrip("/")
    if _NUL in path:
        return posixpath.normpath("/" + path.replace(_NUL, _STAND_IN)).replace(_STAND_IN, _NUL)
    return posixpath.normpath("/" + path)


def without_empty_segments(path: str) -> str:
    """Return the path without its empty segments. Its dot segments stay.

    Flask, Litestar and Falcon drop repeated slashes, but accept `..` as the value of a parameter.
    """
    return "/" + "/".join([segment for segment in path.split("/") if segment])


def readings(path: str, root: str, framework: str = "") -> tuple[str, ...]:
    """Return the ways in which routers may read a path, the shortest reading first.

    `root` is the prefix (`root_path`) that routers cut off. `framework` is the framework of the app, or "" if unknown.
    """
    bases = [path]
    if not path.startswith("/"):
        with suppress(ValueError):  # invalid brackets in the host; Quart raises it too, and answers 500
            bases.insert(0, urlparse(path).path)
    found: dict[str, None] = {}
    for base in bases:
        for each in _without_root(base, root, framework) if root else (base,):
            found[each if each.startswith("/") else "/" + each] = None
    return tuple(found)


def with_invalid_bytes_dropped(found: tuple[str, ...]) -> tuple[str, ...]:
    """Return the readings, preceded by each reading without U+FFFD.

    U+FFFD replaces bytes that are not UTF-8. Some servers drop these bytes instead.
    """
    if not any(_INVALID in each for each in found):
        return found
    return tuple(dict.fromkeys([*(each.replace(_INVALID, "") or "/" for each in found), *found]))


def without_invalid_bytes(path: str) -> str:
    """Decode a path of PEP 3333 (bytes as latin-1) as UTF-8, without the bytes that are not UTF-8. At least "/"."""
    try:
        return path.encode("latin-1").decode("utf-8", "ignore") or "/"
    except UnicodeEncodeError:  # the server decoded it as UTF-8 already
        return path


def is_utf8(raw: bytes | None) -> bool:
    """Return True if the raw path is known and is UTF-8. A U+FFFD in it was then sent by the client."""
    try:
        return bool(raw) and bool(unquote_to_bytes(raw or b"").decode("utf-8"))
    except UnicodeDecodeError:
        return False


def with_empty_values(found: tuple[str, ...]) -> tuple[str, ...]:
    """Return the readings, followed by each reading with `EMPTY_SEGMENT` in place of its empty segments.

    The slashes at the start of a path are not replaced.
    """
    filled = (
        "/" + "/".join([part or EMPTY_SEGMENT for part in each.lstrip("/").split("/")]) for each in found if each != "/"
    )
    return tuple(dict.fromkeys([*found, *filled]))


def _without_root(path: str, root: str, framework: str) -> tuple[str, ...]:
    """Cut the prefix off a path as the framework does. An unknown framework gets each way."""
    if framework == "falcon":
        return (path,)
    if path.startswith(root) and path[len(root) : len(root) + 1] in {"", "/"}:
        return (path[len(root) :],)
    if framework in {"starlette", "fastapi"}:
        return (path,)
    if framework == "django":
        return (path.removeprefix(root),)
    # Litestar and Quart before 0.21 cut this way. Later versions of Quart have no result that this one has not.
    rest = path.split(root, 1)[-1]
    return (rest,) if framework in {"litestar", "quart"} else (rest, path)


def framework_of(app: Any) -> str:
    """Return the framework whose router is inside `app`, as the name of its package, or "" if it is unknown."""
    found = ""
    for each in apps_inside(app):
        packages = (kind.__module__.partition(".")[0] for kind in type(each).__mro__)
        found = next((package for package in packages if package in _KNOWN), found)
    return found


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


def forced_root(framework: str) -> str:
    """Return Django's FORCE_SCRIPT_NAME, the prefix that its ASGI handler cuts off paths, or "" if it is not set."""
    conf = sys.modules.get("django.conf") if framework in {"django", ""} else None
    settings: Any = getattr(conf, "settings", None)
    configured = settings is not None and settings.configured
    return str(getattr(settings, "FORCE_SCRIPT_NAME", None) or "") if configured else ""
