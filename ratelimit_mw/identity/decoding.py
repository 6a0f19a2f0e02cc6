"""Cookies and query parameters, decoded the way that frameworks do it.

The limiter must see one value where the app sees one: a spelling that the app undoes (quotes, escapes,
percent signs) would otherwise be a new identity for the same session.

Each function whose name starts with `cookies_` reads a Cookie header as one family of frameworks does. It gives the
values of all cookies of a name, in order. Names are case-sensitive. Each takes linear time.
"""

import re
from collections.abc import Callable
from urllib.parse import parse_qsl

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
