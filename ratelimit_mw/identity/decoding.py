"""How bytes become text, as servers and frameworks read them: paths, header values, hosts, cookies."""

import posixpath
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, unquote_to_bytes, urlparse

# Possessive, so that time is linear in the header's length.
_PAIR = re.compile(
    r"""[ \t]*+ ([^ \t=";]++) (?:[ \t]*+ = [ \t]*+ ("(?:[^\\"]|\\.)*+"|[^ \t";]*+))? [ \t]*+ (?:;|\Z)""", re.VERBOSE
)
_QUOTED = re.compile(r'\s*+("(?:[^\\"]|\\.)*+")\s*+(?:;|\Z)', re.ASCII)
_WORD = r"\w!#%&'~`><@,:/$*+\-.^|)(?}{"
_MORSEL_END = r"\s* (?: \s+ | ; | \Z )"
_MORSEL = re.compile(
    rf"""
    \s*+ ([{_WORD}=][{_WORD}]*+)
    (?: \s*+ = \s*+ ("(?:[^\\"]|\\.)*+" | \w{{3}},\s[\w\s-]{{9,11}}\s[\d:]{{8}}\sGMT | [{_WORD}=\[\]]*+) )?+
    {_MORSEL_END}
    """,
    re.ASCII | re.VERBOSE,
)
# A quoted value behind several "=": there, all but the last belong to the name. Apart, so that time stays linear.
_QUOTED_MORSEL = re.compile(
    rf"""\s*+ ([{_WORD}=]+) \s*+ = \s*+ ("(?:[^\\"]|\\.)*+") {_MORSEL_END}""", re.ASCII | re.VERBOSE
)
_ATTRIBUTES = frozenset(
    "expires path comment domain max-age secure httponly version samesite partitioned".split()  # noqa: SIM905
)
_FLAGS = frozenset(("secure", "httponly", "partitioned"))
_ESCAPE = re.compile(r"\\([0-3][0-7]{2}|.)", re.DOTALL)
_ESCAPED_BYTE = re.compile(rb"\\([0-3][0-7]{2}|.)", re.DOTALL)
_PLAIN = re.compile(r"[!#$&'()*+,\-./0-9:<=>?@A-Z\[\]^_`a-z{|}~]*+")


def plain_cookie(name: str, header: str) -> tuple[str | None] | None:
    """The value of a cookie that every framework reads alike, or None for a header that has to be read by each.

    That is a cookie which is not there, or is there once, in printable ASCII, without a quote, a percent sign or a
    blank, in a header without any of what some frameworks decode or strip.
    """
    at = header.find(name)
    if at < 0:
        return (None,) if name.isascii() else None
    start = at + len(name) + 1
    if header.find(name, start) >= 0 or header[start - 1 : start] != "=" or '"' in header or not header.isascii():
        return None
    if header[max(at - 2, 0) : at] not in ("", "; ") and header[at - 1] != ";":
        return None
    end = header.find(";", start)
    value = header[start:] if end < 0 else header[start:end]
    return (value,) if _PLAIN.fullmatch(value) else None


def cookies_named(name: str, header: str) -> list[str]:
    """As Starlette, Litestar, Falcon and Django read it: every ";" ends a cookie, blanks of any script are stripped."""
    if name not in header:
        return []
    pairs = (pair.partition("=") for pair in header.split(";"))
    return [_unquoted(value.strip()) for key, equals, value in pairs if equals and key.strip() == name]


def cookies_as_flask(name: str, header: str) -> list[str]:
    """As Werkzeug reads it from 3.1 on: a quoted ";" ends no cookie, and what is malformed is passed over."""
    values: list[str] = []
    position = 0 if name in header else len(header)
    while True:
        pair = _PAIR.match(header, position)
        if pair is not None:
            position = pair.end()
            if pair[1] == name:
                values.append(_unquoted_as_bytes(pair[2] or ""))
        else:
            position = header.find(";", position) + 1
            if position == 0:
                break
    return values


def cookies_as_old_flask(name: str, header: str) -> list[str]:
    """As Werkzeug 3.0 reads it: a quoted ";" ends no cookie, blanks of any script are stripped."""
    values: list[str] = []
    position, end = 0 if name in header else len(header), len(header)
    while position < end:
        semicolon = header.find(";", position)
        stop = end if semicolon < 0 else semicolon
        equals = header.find("=", position, stop)
        key = header[position : stop if equals < 0 else equals].strip()
        value = ""
        if equals >= 0:
            quoted = _QUOTED.match(header, equals + 1)
            if quoted is not None:
                value, stop = quoted[1], quoted.end() - (header[quoted.end() - 1] == ";")
            else:
                value = header[equals + 1 : stop].strip()
        if key == name:
            values.append(_unquoted_as_bytes(value))
        position = stop + 1
    return values


def cookies_as_bottle(name: str, header: str) -> list[str]:
    """As Python's SimpleCookie reads it, which Bottle uses: what is malformed ends the header, or voids all of it."""
    values: list[str] = []
    position = 0 if name in header else len(header)
    begun = False
    while position < len(header):
        morsel = _MORSEL.match(header, position) or _QUOTED_MORSEL.match(header, position)
        if morsel is None:
            break
        position = morsel.end()
        key, value = morsel[1], morsel[2]
        if key[0] == "$":
            continue
        if key.lower() in _ATTRIBUTES:
            if not begun or (value is None and key.lower() not in _FLAGS):
                return []
        elif value is None:
            return []
        else:
            begun = True
            if key == name:
                values.append(_unquoted(value))
    return values


def parameters_named(name: str, query: str) -> list[str]:
    """The values of all parameters of that name in a query string, in order, percent-decoded."""
    return [value for key, value in parse_qsl(query, keep_blank_values=True) if key == name] if query else []


def utf8(text: str) -> str:
    """Text that a server read as latin-1, as UTF-8. What is not UTF-8 becomes U+FFFD."""
    if text.isascii():
        return text
    try:
        return text.encode("latin-1").decode("utf-8", "replace")
    except UnicodeEncodeError:  # a server that decoded it already
        return text


def utf8_or_latin1(text: str) -> str:
    """The same, as Django decodes a query string under WSGI: all of it is latin-1 where some of it is not UTF-8."""
    try:
        return text.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return text


def _unquoted(value: str, unescaped: Callable[[str], str] | None = None) -> str:
    """A value without its quotes and escapes; an octal escape is a character, as for Python's http.cookies."""
    if len(value) < 2 or value[0] != '"' or value[-1] != '"':
        return value
    return unescaped(value[1:-1]) if unescaped else _ESCAPE.sub(lambda escape: _character(escape[1]), value[1:-1])


def _unquoted_as_bytes(value: str) -> str:
    """The same, for Werkzeug: an octal escape is a byte of UTF-8."""
    return _unquoted(value, _unescaped_bytes)


def _unescaped_bytes(value: str) -> str:
    if "\\" not in value:
        return value
    encoded = value.encode("utf-8", "replace")
    return _ESCAPED_BYTE.sub(lambda escape: _byte(escape[1]), encoded).decode("utf-8", "replace")


def _character(escape: str) -> str:
    return escape if len(escape) == 1 else chr(int(escape, 8))


def _byte(escape: bytes) -> bytes:
    return escape if len(escape) == 1 else bytes((int(escape, 8),))


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


Lines = Callable[[Sequence[str]], str]


class Framework(NamedTuple):
    """How one framework reads what can be read in more than one way.

    `lines` makes one text of the lines of the Cookie header, `cookies` finds the cookies of a name in it, and `cookie`
    and `query` say which counts of several: 0, the first, or -1, the last. `header` makes one text of the lines of any
    other header.
    """

    cookies: Callable[[str, str], list[str]]
    cookie: int
    query: int
    lines: Lines
    header: Lines
    host: Callable[[str], str | None]
    cookies_utf8: bool = False
    query_text: Callable[[str], str] = utf8
    percent: bool = False
    semicolons: bool = False
    underscores: bool = False

    def read_cookie(self, name: str, lines: Sequence[str]) -> str | None:
        """A cookie; None where there is none of that name."""
        text = self.lines(lines)
        values = self.cookies(name, utf8(text) if self.cookies_utf8 else text)
        if not values:
            return None
        value = values[self.cookie]
        return unquote(value) if self.percent and "%" in value else value

    def read_query(self, name: str, query: str) -> str | None:
        """A query parameter; None where there is none of that name."""
        text = query.replace(";", "&") if self.semicolons else query
        values = parameters_named(name, self.query_text(text))
        return values[self.query] if values else None


def host_name(host: str) -> str | None:
    """A Host header's name, lower-case, less the port and the root's dot."""
    name = host.strip().lower()
    head, colon, port = name.rpartition(":")
    if colon and (not port or (port.isascii() and port.isdigit())) and (":" not in head or head.endswith("]")):
        name = head
    return name.rstrip(".") or None


def host_is_plain(host: str) -> bool:
    """True of a Host header that every framework reads alike: a name or an IPv4 address, perhaps with a port."""
    name, _, port = host.partition(":")
    return name[-1:] != "." and ":" not in port and (not port or (port.isascii() and port.isdigit()))


def _host_with_dot(host: str) -> str | None:
    """As Starlette reads it today: the root's dot stays."""
    name = host.strip().lower()
    head, colon, port = name.rpartition(":")
    dotted = (head if colon and port.isdigit() else name).endswith(".")
    return f"{host_name(host) or ''}." if dotted else host_name(host)


def _host_up_to_a_colon(host: str) -> str | None:
    """As Starlette read it at first: whatever follows the first colon is a port."""
    return host.partition(":")[0].strip().lower() or None


def _first(lines: Sequence[str]) -> str:
    return lines[0]


def _last(lines: Sequence[str]) -> str:
    return lines[-1]


STARLETTE = Framework(cookies_named, -1, -1, "; ".join, _first, _host_with_dot, query_text=str)
OLD_STARLETTE = Framework(cookies_named, -1, -1, _first, _first, _host_up_to_a_colon, query_text=str)
LITESTAR = Framework(cookies_named, -1, 0, _first, _first, host_name, query_text=str, percent=True)
DJANGO = Framework(cookies_named, -1, -1, ",".join, ",".join, host_name)
OLD_DJANGO = DJANGO._replace(underscores=True)
QUART = Framework(cookies_as_flask, 0, 0, ";".join, _first, host_name)
OLD_QUART = QUART._replace(cookies=cookies_as_old_flask)
# `dict(scope["headers"])`, which many middlewares write, has the last line of a header, too.
FALCON = Framework(cookies_named, 0, -1, _last, _last, host_name)

ASGI = (STARLETTE, OLD_STARLETTE, LITESTAR, DJANGO, OLD_DJANGO, QUART, OLD_QUART, FALCON)
"""Rows for ASGI. The first is what is read where all agree.

Older versions of Starlette, and Litestar, know the first Cookie line alone; Django joins the lines by a comma, and its
older versions take `X_User` for `X-User`; Quart reads as Werkzeug does; Falcon knows the last Cookie line alone.
"""

FLASK = QUART
OLD_FLASK = OLD_QUART._replace(host=_host_up_to_a_colon)  # the host as `environ["HTTP_HOST"].split(":")[0]`, too
WSGI_DJANGO = DJANGO._replace(cookies_utf8=True, query_text=utf8_or_latin1)
WSGI_FALCON = FALCON
BOTTLE = Framework(cookies_as_bottle, -1, -1, _first, _first, host_name, semicolons=True)

WSGI = (FLASK, OLD_FLASK, WSGI_DJANGO, WSGI_FALCON, BOTTLE)
"""Rows for WSGI, whose servers have joined the lines of a header."""
