"""The original request, from the headers with which a proxy asks `/auth`.

A proxy sends the method and the URI of its client's request in one of these sets of headers:

* `original`: `X-Original-Method` and `X-Original-URI` (nginx);
* `original-url`: `X-Original-Method` and `X-Original-URL` with the scheme and the host (ingress-nginx);
* `forwarded`: `X-Forwarded-Method`, `X-Forwarded-Uri` and perhaps `X-Forwarded-Host` (Traefik, Caddy).

All other headers of the request to `/auth` are those of the original request.

A proxy overwrites the headers of its own set only, so those of another set may come from the client. With them, a
client could claim another path than that of its request. `?headers=` names the set of the proxy, and the others are
ignored. Without it, a request with headers of more than one set is refused.

This module is internal: its names may change in any release.
"""

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from starlette.types import Scope

MAX_URI = 16 * 1024
"""The longest URI of an original request, in bytes."""

_METHOD, _URI, _URL, _FORWARDED_METHOD, _FORWARDED_URI, _HOST, _NONE = range(7)
_PLACES = {
    b"x-original-method": _METHOD,
    b"x-original-uri": _URI,
    b"x-original-url": _URL,
    b"x-forwarded-method": _FORWARDED_METHOD,
    b"x-forwarded-uri": _FORWARDED_URI,
    b"x-forwarded-host": _HOST,
}
ORIGINAL, ORIGINAL_URL, FORWARDED = "original", "original-url", "forwarded"
SETS = {
    ORIGINAL: (_METHOD, _URI, _NONE),
    ORIGINAL_URL: (_METHOD, _URL, _NONE),
    FORWARDED: (_FORWARDED_METHOD, _FORWARDED_URI, _HOST),
}
"""The headers of each set: those of the method, of the URI and of the host. No request has `_NONE`."""


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
    "Caddy), are missing: set both in the proxy. X-Original-URL (ingress-nginx) needs ?headers=original-url.",
    by_client=False,
)
TOO_LONG = Unanswerable(
    414, "uri_too_long", f"The URI of the original request is longer than {MAX_URI} bytes.", by_client=True
)
CONTRADICTION = Unanswerable(
    403,
    "contradicting_headers",
    "There are headers of more than one proxy (X-Original-URI, X-Original-URL, X-Forwarded-Uri), or one of them twice: "
    "the client may have sent one. Name the set of the proxy, as in /auth?headers=original.",
    by_client=True,
)


def original_scope(scope: Scope, named: str | None = None) -> Scope | Unanswerable:
    """Return the ASGI scope of the original request.

    The peer of this scope is the proxy that asks, as it is the peer of an app behind this proxy. The method with which
    the proxy asks is ignored.

    Args:
        scope: The scope of the request to `/auth`. The server writes the names of headers in lower case.
        named: The set of headers to read. None for the only one that is present.
    """
    found: list[bytes | None] = [None] * (_NONE + 1)
    repeated = []
    for name, value in scope["headers"]:
        place = _PLACES.get(name)
        if place is not None:
            if found[place] is not None and found[place] != value:
                repeated.append(place)
            found[place] = value
    used = named or _only_set(found)
    if used is None or (repeated and not set(SETS[used]).isdisjoint(repeated)):
        return CONTRADICTION
    method_at, uri_at, host_at = SETS[used]
    method, uri, host = found[method_at], found[uri_at], found[host_at]
    headers, scheme = scope["headers"], scope.get("scheme", "http")
    if uri and uri_at == _URL:
        uri, scheme, host = _path_of(uri, scheme)
    if host:
        headers = [pair for pair in headers if pair[0] != b"host"]
        headers.append((b"host", host))
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
        "scheme": scheme,
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


def _only_set(found: Sequence[bytes | None]) -> str | None:
    """Return the name of the set of which there are headers, or None for several. `X-Original-URL` must be named."""
    original = found[_METHOD] is not None or found[_URI] is not None
    forwarded = found[_FORWARDED_METHOD] is not None or found[_FORWARDED_URI] is not None
    if (original and forwarded) or (found[_URL] is not None and (forwarded or found[_URI] is not None)):
        return None
    return FORWARDED if forwarded else ORIGINAL


def _path_of(url: bytes, scheme: str) -> tuple[bytes, str, bytes | None]:
    """Return the path and the query of a URL, its scheme and its host. `scheme` is that of a URL without one.

    The host ends at the first slash: with a `?` in the header Host, a client could otherwise cut off the path.
    """
    before, mark, rest = url.partition(b"://")
    if not mark or b"/" in before:
        return url, scheme, None
    host, slash, path = rest.partition(b"/")
    return slash + path or b"/", before.decode("latin-1").lower(), host
