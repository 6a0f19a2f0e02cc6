"""The original request, from the headers with which a proxy asks `/auth`.

A proxy sends the method and the URI of its client's request in one of these sets of headers:

1. `X-Original-Method` and `X-Original-URI` (nginx);
2. `X-Forwarded-Method`, `X-Forwarded-Uri` and perhaps `X-Forwarded-Host` (Traefik, Caddy).

All other headers of the request to `/auth` are those of the original request.

A proxy overwrites the headers of its own set only, so those of the other set may come from the client. With them, a
client could claim another path than that of its request. If both sets are present, they must therefore agree.

This module is internal: its names may change in any release.
"""

from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from starlette.types import Scope

MAX_URI = 16 * 1024
"""The longest URI of an original request, in bytes."""

_METHOD, _URI, _FORWARDED_METHOD, _FORWARDED_URI, _HOST = range(5)
_PLACES = {
    b"x-original-method": _METHOD,
    b"x-original-uri": _URI,
    b"x-forwarded-method": _FORWARDED_METHOD,
    b"x-forwarded-uri": _FORWARDED_URI,
    b"x-forwarded-host": _HOST,
}


class Unanswerable(NamedTuple):
    """A request to `/auth` without a usable original request.

    Attributes:
        status: The status of the answer.
        reason: The name under which it is counted.
        message: The answer, as one sentence without anything that a client sent.
        by_client: Whether a client can cause it. The proxy must then not let the client's request pass.
    """

    status: int
    reason: str
    message: str
    by_client: bool


NO_ORIGINAL = Unanswerable(
    400,
    "no_original_request",
    "The headers X-Original-Method and X-Original-URI (nginx), or X-Forwarded-Method and X-Forwarded-Uri (Traefik, "
    "Caddy), are missing: set both in the proxy.",
    by_client=False,
)
TOO_LONG = Unanswerable(
    414, "uri_too_long", f"The URI of the original request is longer than {MAX_URI} bytes.", by_client=True
)
CONTRADICTION = Unanswerable(
    403,
    "contradicting_headers",
    "The headers X-Original-* and X-Forwarded-* name different requests: the client may have sent one of them.",
    by_client=True,
)


def original_scope(scope: Scope) -> Scope | Unanswerable:
    """Return the ASGI scope of the original request.

    The peer of this scope is the proxy that asks, as it is the peer of an app behind this proxy. The method with which
    the proxy asks is ignored.

    Args:
        scope: The scope of the request to `/auth`. The server writes the names of headers in lower case.
    """
    found: list[bytes | None] = [None] * 5
    for name, value in scope["headers"]:
        place = _PLACES.get(name)
        if place is not None:
            if found[place] is not None and found[place] != value:
                return CONTRADICTION
            found[place] = value
    method, uri, forwarded_method, forwarded_uri, host = found
    headers = scope["headers"]
    if forwarded_method is not None or forwarded_uri is not None:
        if method is None and uri is None:
            method, uri = forwarded_method, forwarded_uri
            if host:
                headers = [pair for pair in headers if pair[0] != b"host"]
                headers.append((b"host", host))
        elif (method, uri) != (forwarded_method, forwarded_uri):
            return CONTRADICTION
    if not method or not uri:
        return NO_ORIGINAL
    if len(uri) > MAX_URI:
        return TOO_LONG
    raw, query = _path_and_query(uri)
    path = unquote_to_bytes(raw) if b"%" in raw else raw
    return {
        "type": "http",
        "asgi": scope["asgi"],
        "http_version": scope.get("http_version", "1.1"),
        "method": method.decode("latin-1").upper(),
        "scheme": scope.get("scheme", "http"),
        "path": path.decode("utf-8", "replace"),
        "raw_path": raw,
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": scope.get("client"),
        "server": scope.get("server"),
    }


def _path_and_query(uri: bytes) -> tuple[bytes, bytes]:
    """Return the path and the query, without the fragment. A scheme and a host stay, as servers leave them to apps."""
    if b"#" in uri:  # servers do not give a fragment to the app
        uri = uri.partition(b"#")[0]
    path, _, query = uri.partition(b"?")
    return path, query
