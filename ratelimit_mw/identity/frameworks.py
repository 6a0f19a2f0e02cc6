"""What frameworks read differently: cookies, parameters, headers and hosts that a client sends in an unusual way.

A client that knows the app's framework writes a request which the framework reads as one client and the limiter as
another, with a budget of its own. So where frameworks differ, a request is counted as each of them reads it. The
tables below have a row for each way of reading that is in use. Most requests are read by none but the first row: cheap
tests (`plain_cookie` and those in the request classes) say when all rows are bound to agree.

`X-Forwarded-Host` is not read here. A framework reads it where a setting or a middleware trusts the proxy that writes
it; `match: {"header:X-Forwarded-Host": ...}` is the way to follow it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import unquote

from ratelimit_mw.identity.decoding import (
    cookies_as_bottle,
    cookies_as_flask,
    cookies_as_old_flask,
    cookies_named,
    parameters_named,
    utf8,
    utf8_or_latin1,
)

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
