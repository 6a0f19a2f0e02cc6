"""The names of clients in the output of a replay."""

from collections.abc import Callable
from urllib.parse import unquote

from ratelimit_mw.identity.request import Request
from ratelimit_mw.identity.sources import SOURCES
from ratelimit_mw.rules.domains import Rules

_EVERYONE = "all clients"
_LONGEST = 80
"""The most characters of a value that a client has written."""

Namer = Callable[[str, Request], str]
"""Returns the name of a client: its arguments are the identity of a counter, and the request that was denied."""


def namer(rules: Rules, *, hashed: bool) -> Namer:
    """Return a function that names a client.

    A plain name has the address, and the user as the log has it. What may be a secret (a header, a cookie, a query
    parameter, or a user that is read from one of them) is a hash, as in the key of the counter.

    Args:
        rules: The rules.
        hashed: Every name is a hash.
    """
    digest = rules.parts[0].attributes.digest
    if hashed:
        return lambda identity, _request: digest(identity)
    secret = _is_secret(rules.client.user)

    def name(identity: str, request: Request) -> str:
        if identity == "*":
            return _EVERYONE
        parts = [part.partition("=") for part in identity.split("+")]
        return "+".join(f"{unquote(key)}={_value(key, value, request, secret=secret)}" for key, _, value in parts)

    return name


def _value(key: str, value: str, request: Request, *, secret: bool) -> str:
    if key == "user" and not secret:
        value = request.values.get("user") or value
    elif key == "path":
        value = request.values.get("path") or value
    return printable(value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…")


def printable(text: str) -> str:
    """Return a text that a client has written without characters that a terminal or a spreadsheet would obey.

    Control characters, and those that change the direction of writing, are shown as escapes.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def _is_secret(source: str | None) -> bool:
    """Return True if the user is read from what a client sends, and may therefore be a token."""
    return source is not None and source.partition(":")[0].strip() in SOURCES
