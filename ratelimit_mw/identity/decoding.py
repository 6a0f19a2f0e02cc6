"""Decode cookies, queries and hosts as servers and web frameworks decode them.

Frameworks differ. A limit must hold for the value that the app reads, so this module knows each framework's way.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote

# One pair of Werkzeug's cookie parser. Possessive quantifiers make the time linear in the length of the header.
_PAIR = re.compile(
    r"""[ \t]*+ ([^ \t=";]++) (?:[ \t]*+ = [ \t]*+ ("(?:[^\\"]|\\.)*+"|[^ \t";]*+))? [ \t]*+ (?:;|\Z)""", re.VERBOSE
)
_QUOTED = re.compile(r'\s*+("(?:[^\\"]|\\.)*+")\s*+(?:;|\Z)', re.ASCII)
# The pattern of Python's `http.cookies`, with possessive quantifiers.
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
# A quoted value after several "=". All but the last "=" belong to the name. It has its own pattern, because one
# pattern for both forms would backtrack.
_QUOTED_MORSEL = re.compile(
    rf"""\s*+ ([{_WORD}=]+) \s*+ = \s*+ ("(?:[^\\"]|\\.)*+") {_MORSEL_END}""", re.ASCII | re.VERBOSE
)
# Attributes of a cookie, which are not cookies. A flag has no value.
_ATTRIBUTES = frozenset(
    "expires path comment domain max-age secure httponly version samesite partitioned".split()  # noqa: SIM905
)
_FLAGS = frozenset(("secure", "httponly", "partitioned"))
_ESCAPE = re.compile(r"\\([0-3][0-7]{2}|.)", re.DOTALL)
_ESCAPED_BYTE = re.compile(rb"\\([0-3][0-7]{2}|.)", re.DOTALL)
# Values that no framework decodes, strips or unquotes.
_PLAIN = re.compile(r"[!#$&'()*+,\-./0-9:<=>?@A-Z\[\]^_`a-z{|}~]*+")


def plain_cookie(name: str, header: str) -> tuple[str | None] | None:
    """Return a tuple with the value of a cookie if every framework reads it alike, or None if they may differ.

    This is the fast path. The value in the tuple is None if the cookie is absent. Frameworks read a cookie alike if
    its name occurs at most once in the header, its value is printable ASCII without a quote, a percent sign or a
    blank, and the header is ASCII without a quote.
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
    """Return all cookies of a name as Starlette, Litestar, Falcon and Django read them.

    Every ";" ends a cookie. Unicode blanks are stripped.
    """
    if name not in header:
        return []
    pairs = (pair.partition("=") for pair in header.split(";"))
    return [_unquoted(value.strip()) for key, equals, value in pairs if equals and key.strip() == name]


def cookies_as_flask(name: str, header: str) -> list[str]:
    """Return all cookies of a name as Werkzeug 3.1 and later reads them.

    A ";" inside quotes does not end a cookie. Malformed pairs are skipped.
    """
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
    """Return all cookies of a name as Werkzeug 3.0 reads them.

    A ";" inside quotes does not end a cookie. Unicode blanks are stripped.
    """
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
    """Return all cookies of a name as Bottle reads them, with Python's `SimpleCookie`.

    A malformed pair ends the header. A misplaced attribute, or a pair without a value, discards all cookies.
    """
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
    """Return the values of all parameters of that name in a query string, in order, percent-decoded."""
    return [value for key, value in parse_qsl(query, keep_blank_values=True) if key == name] if query else []


def utf8(text: str) -> str:
    """Decode as UTF-8 a text that a server decoded as latin-1. Bytes that are not UTF-8 become U+FFFD."""
    if text.isascii():
        return text
    try:
        return text.encode("latin-1").decode("utf-8", "replace")
    except UnicodeEncodeError:  # the server decoded it as UTF-8 already
        return text


def utf8_or_latin1(text: str) -> str:
    """Decode a text as Django decodes a query string under WSGI.

    The whole text stays latin-1 if any byte is not UTF-8.
    """
    try:
        return text.encode("latin-1").decode("utf-8")
    except UnicodeError:
        return text


def _unquoted(value: str, unescape: Callable[[str], str] | None = None) -> str:
    """Remove the quotes and the escapes of a value.

    An octal escape is a character, as in Python's `http.cookies`, unless `unescape` is given.
    """
    if len(value) < 2 or value[0] != '"' or value[-1] != '"':
        return value
    return unescape(value[1:-1]) if unescape else _ESCAPE.sub(lambda escape: _character(escape[1]), value[1:-1])


def _unquoted_as_bytes(value: str) -> str:
    """Remove the quotes and the escapes of a value as Werkzeug does: an octal escape is a byte of UTF-8."""
    return _unquoted(value, _unescape_bytes)


def _unescape_bytes(value: str) -> str:
    if "\\" not in value:
        return value
    encoded = value.encode("utf-8", "replace")
    return _ESCAPED_BYTE.sub(lambda escape: _byte(escape[1]), encoded).decode("utf-8", "replace")


def _character(escape: str) -> str:
    return escape if len(escape) == 1 else chr(int(escape, 8))


def _byte(escape: bytes) -> bytes:
    return escape if len(escape) == 1 else bytes((int(escape, 8),))


JoinLines = Callable[[Sequence[str]], str]


class Framework(NamedTuple):
    """How one framework reads the values that frameworks read differently."""

    find_cookies: Callable[[str, str], list[str]]
    """Finds all cookies of a name in the text of the Cookie header."""
    cookie_index: int
    """Which of several cookies of one name counts: 0 for the first, -1 for the last."""
    query_index: int
    """Which of several query parameters of one name counts: 0 for the first, -1 for the last."""
    join_cookie_lines: JoinLines
    """Makes one text of the lines of the Cookie header."""
    join_lines: JoinLines
    """Makes one text of the lines of any other header."""
    host: Callable[[str], str | None]
    """Finds the host's name in a Host header."""
    cookies_utf8: bool = False
    """The Cookie header is UTF-8, not latin-1."""
    decode_query: Callable[[str], str] = utf8
    """Decodes a query string that was decoded as latin-1."""
    percent: bool = False
    """Cookies are percent-decoded."""
    semicolons: bool = False
    """A ";" separates query parameters, as "&" does."""
    underscores: bool = False
    """The header `X_User` is read as `X-User`."""

    def read_cookie(self, name: str, lines: Sequence[str]) -> str | None:
        """Return the value of a cookie, or None if no cookie has that name. `lines` are those of the Cookie header."""
        text = self.join_cookie_lines(lines)
        values = self.find_cookies(name, utf8(text) if self.cookies_utf8 else text)
        if not values:
            return None
        value = values[self.cookie_index]
        return unquote(value) if self.percent and "%" in value else value

    def read_query(self, name: str, query: str) -> str | None:
        """Return the value of a query parameter, or None if no parameter has that name."""
        text = query.replace(";", "&") if self.semicolons else query
        values = parameters_named(name, self.decode_query(text))
        return values[self.query_index] if values else None


def host_name(host: str) -> str | None:
    """Return the name in a Host header: lower case, without the port and the trailing dot. None if it is empty."""
    name = host.strip().lower()
    head, colon, port = name.rpartition(":")
    if colon and (not port or (port.isascii() and port.isdigit())) and (":" not in head or head.endswith("]")):
        name = head
    return name.rstrip(".") or None


def host_is_plain(host: str) -> bool:
    """Return True if every framework reads this Host header alike: a name or IPv4 address, with or without a port."""
    name, _, port = host.partition(":")
    return name[-1:] != "." and ":" not in port and (not port or (port.isascii() and port.isdigit()))


def _host_with_dot(host: str) -> str | None:
    """Return the host as current versions of Starlette read it: the trailing dot stays."""
    name = host.strip().lower()
    head, colon, port = name.rpartition(":")
    dotted = (head if colon and port.isdigit() else name).endswith(".")
    return f"{host_name(host) or ''}." if dotted else host_name(host)


def _host_up_to_colon(host: str) -> str | None:
    """Return the host as early versions of Starlette read it: the port starts at the first colon."""
    return host.partition(":")[0].strip().lower() or None


def _first(lines: Sequence[str]) -> str:
    return lines[0]


def _last(lines: Sequence[str]) -> str:
    return lines[-1]


STARLETTE = Framework(cookies_named, -1, -1, "; ".join, _first, _host_with_dot, decode_query=str)
OLD_STARLETTE = Framework(cookies_named, -1, -1, _first, _first, _host_up_to_colon, decode_query=str)
LITESTAR = Framework(cookies_named, -1, 0, _first, _first, host_name, decode_query=str, percent=True)
DJANGO = Framework(cookies_named, -1, -1, ",".join, ",".join, host_name)
OLD_DJANGO = DJANGO._replace(underscores=True)
QUART = Framework(cookies_as_flask, 0, 0, ";".join, _first, host_name)
OLD_QUART = QUART._replace(find_cookies=cookies_as_old_flask)
# Falcon reads the last line of a header. So do the many middlewares that write `dict(scope["headers"])`.
FALCON = Framework(cookies_named, 0, -1, _last, _last, host_name)

ASGI = (STARLETTE, OLD_STARLETTE, LITESTAR, DJANGO, OLD_DJANGO, QUART, OLD_QUART, FALCON)
"""All frameworks under ASGI. The first one reads a request; the others read it again if it is ambiguous.

Older versions of Starlette read only the first Cookie line, and so does Litestar. Django joins the lines with a comma,
and its older versions read `X_User` as `X-User`. Quart reads as Werkzeug does. Falcon reads only the last Cookie line.
"""

FLASK = QUART
OLD_FLASK = OLD_QUART._replace(host=_host_up_to_colon)  # many apps split `environ["HTTP_HOST"]` at the colon
WSGI_DJANGO = DJANGO._replace(cookies_utf8=True, decode_query=utf8_or_latin1)
WSGI_FALCON = FALCON
BOTTLE = Framework(cookies_as_bottle, -1, -1, _first, _first, host_name, semicolons=True)

WSGI = (FLASK, OLD_FLASK, WSGI_DJANGO, WSGI_FALCON, BOTTLE)
"""All frameworks under WSGI. The server has joined the lines of a header. The first framework reads a request."""
