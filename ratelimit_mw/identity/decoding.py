"""Cookies and query parameters, decoded the way that frameworks do it.

The limiter must see one value where the app sees one: a spelling that the app undoes (quotes, escapes,
percent signs) would otherwise be a new identity for the same session.
"""

import re
from urllib.parse import parse_qsl

# Possessive, so that time is linear in the header's length.
_PAIR = re.compile(
    r"""[ \t]*+ ([^ \t=";]++) (?:[ \t]*+ = [ \t]*+ ("(?:[^\\"]|\\.)*+"|[^ \t";]*+))? [ \t]*+ (?:;|\Z)""", re.VERBOSE
)
_ESCAPE = re.compile(r"\\([0-3][0-7]{2}|.)", re.DOTALL)


def cookies_named(name: str, header: str) -> list[str]:
    """The values of all cookies of that name in a Cookie header, in order. Names are case-sensitive.

    As Starlette and Django read it: every ";" ends a cookie.
    """
    if name not in header:
        return []
    pairs = (pair.partition("=") for pair in header.split(";"))
    return [_unquoted(value.strip()) for key, equals, value in pairs if equals and key.strip() == name]


def cookies_as_flask(name: str, header: str) -> list[str]:
    """As `cookies_named`, but as Flask reads it: a quoted ";" ends no cookie, and what is malformed is passed over."""
    values: list[str] = []
    position = 0 if name in header else len(header)
    while True:
        pair = _PAIR.match(header, position)
        if pair is not None:
            position = pair.end()
            if pair[1] == name:
                values.append(_unquoted(pair[2] or ""))
        else:
            position = header.find(";", position) + 1
            if position == 0:
                break
    return values


def parameters_named(name: str, query: str) -> list[str]:
    """The values of all parameters of that name in a query string, in order, percent-decoded."""
    return [value for key, value in parse_qsl(query, keep_blank_values=True) if key == name] if query else []


def _unquoted(value: str) -> str:
    if len(value) < 2 or value[0] != '"' or value[-1] != '"':
        return value
    return _ESCAPE.sub(lambda escape: _character(escape[1]), value[1:-1])


def _character(escape: str) -> str:
    return escape if len(escape) == 1 else chr(int(escape, 8))
