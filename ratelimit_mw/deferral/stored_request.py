"""A deferred request as it is stored, the tokens that name it, and what became of it."""

import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from hmac import compare_digest
from typing import Any, NamedTuple
from urllib.parse import quote

from ratelimit_mw.identity.request import Alternative, Request


class Entry(NamedTuple):
    """A request's place in the stream: the worker that has it names it so."""

    id: str
    lane: str
    number: str


class Job(NamedTuple):
    """A request as it lies in the queue. `age` is how long it has lain there by the store's clock, in microseconds."""

    state: str
    request: bytes
    body: bytes
    attempts: int
    age: int


class DeferredStatus(NamedTuple):
    """What became of a request: `queued`, `running`, `done`, `parked`, or `unknown` (it may have been applied).

    `status`, `kind` (its Content-Type) and `answer` are of the response; `answer` is None where it was too long.
    """

    state: str
    status: int = 0
    kind: str = ""
    answer: bytes | None = None
    reason: str = ""
    since: int = 0
    attempts: int = 0


HEADER = "x-ratelimit-deferred"
"""In a replay: which request it is, and its ticket. In a response to one: that it did not reach the app, and why."""

_RANDOM = 24  # characters of 6 bits each
_PROOF = 12
_LENGTH = _RANDOM + _PROOF


class Tokens:
    """Makes and knows the names of one set of rules. `digest` is its keyed hash."""

    def __init__(self, digest: Callable[[str], str]) -> None:
        self._digest = digest

    def request(self) -> str:
        """A name for a request. Who knows it may read what became of the request."""
        return self._signed("deferred")

    def ticket(self, request: str) -> str:
        """A ticket for one attempt to replay a request."""
        return self._signed(f"replay of {request}")

    def is_request(self, text: str) -> bool:
        """True of what `request` has made."""
        return self._genuine(text, "deferred")

    def read(self, text: str | None) -> tuple[str, str] | None:
        """The request and the ticket in the header of a replay; None where they are not genuine."""
        request, dot, ticket = (text or "").partition(".")
        return (request, ticket) if dot and self._genuine(ticket, f"replay of {request}") else None

    def _signed(self, purpose: str) -> str:
        token = secrets.token_urlsafe(_RANDOM * 3 // 4)
        return token + self._proof(token, purpose)

    def _genuine(self, text: str, purpose: str) -> bool:
        if len(text) != _LENGTH or not text.isascii():
            return False
        return compare_digest(text[_RANDOM:], self._proof(text[:_RANDOM], purpose))

    def _proof(self, token: str, purpose: str) -> str:
        return self._digest(f"{purpose} {token}")[:_PROOF]


def written(request: str, ticket: str) -> str:
    """The header of a replay."""
    return f"{request}.{ticket}"


_AS_IT_STANDS = "/!$&'()*+,;=:@~"
_LONGEST_TARGET = 16384
_TARGET = re.compile(r"/[!\"$-~]*")  # printable ASCII without # or a space
_DOTS = re.compile(r"/\.\.?(?:/|\Z)")
_OF_ONE_CONNECTION = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te"),
        *("trailer", "transfer-encoding", "upgrade", "http2-settings"),
        *("expect", "content-length", "accept-encoding", HEADER),
    )
)
"""What is true of the connection that a request came on, and not of the one that it will be replayed on.

The list is fixed. `Connection` names further headers, but any client may write it: `Connection: x-forwarded-for,
authorization` would take from the replay what a trusted proxy has added.
"""


class StoredRequest(NamedTuple):
    """What is kept of a request, less its body.

    `target` is its path and query, percent-encoded, as the server got them; `path` is as the rules see it, and `values`
    are the attributes that they have read: whose request it is does not depend on who replays it. `headers` are in
    their order, names in lower case; `peer` is the address at the other end of its connection. `rows` are the ways in
    which frameworks read it, where they differ.
    """

    method: str
    scheme: str
    target: str
    headers: tuple[tuple[str, str], ...]
    peer: str | None
    path: str
    values: Mapping[str, str | None]
    rows: tuple[Alternative, ...] = ()

    def packed(self) -> bytes:
        """As it lies in the queue."""
        return json.dumps(self._asdict(), separators=(",", ":")).encode()

    def replayable(self) -> bool:
        """True where an HTTP client sends this target as it stands, and neither refuses nor tidies it up."""
        path = self.target.partition("?")[0]
        return (
            len(self.target) <= _LONGEST_TARGET
            and _TARGET.fullmatch(self.target) is not None
            and _DOTS.search(path) is None
        )

    def header(self, name: str) -> str | None:
        """The first line of a header, whose name is given in lower case."""
        return next((value for key, value in self.headers if key == name), None)


def unpacked(packed: bytes) -> StoredRequest:
    """The envelope that was packed. Raises ValueError for what is none."""
    try:
        fields = json.loads(packed)
        headers = tuple((str(name), str(value)) for name, value in fields.pop("headers"))
        rows = tuple(dict(row) for row in fields.pop("rows", ()))
        return StoredRequest(headers=headers, rows=rows, **fields)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"this is no deferred request: {error}") from None


def of_asgi(request: Request, headers: Collection[str] | None) -> StoredRequest:
    """What is kept of a request under ASGI; of its headers those named, None: all."""
    scope = request.context
    lines = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope.get("headers") or ()]
    raw = scope.get("raw_path")
    path = _ascii(raw) if raw else _quoted((scope.get("path") or "/").encode("utf-8", "replace"))
    # What a server was told to be mounted at is put before each path by that server; a framework's mount is part of it.
    root = _quoted(scope.get("app_root_path", scope.get("root_path") or "").encode("utf-8", "replace"))
    if root and path.startswith(f"{root}/"):
        path = path[len(root) :]
    query = (scope.get("query_string") or b"").decode("latin-1")
    return _envelope(request, scope.get("scheme", "http"), path, query, _kept(lines, headers))


def of_wsgi(request: Request, headers: Collection[str] | None) -> StoredRequest:
    """What is kept of a request under WSGI; of its headers those named, None: all."""
    environ: Mapping[str, Any] = request.context
    lines = [
        (name.removeprefix("HTTP_").replace("_", "-").lower(), str(value))
        for name, value in environ.items()
        if name.startswith("HTTP_") or (name == "CONTENT_TYPE" and value)
    ]
    path = f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}".encode("latin-1", "replace")
    query = environ.get("QUERY_STRING") or ""
    return _envelope(request, environ.get("wsgi.url_scheme", "http"), _quoted(path), query, _kept(lines, headers))


def _envelope(
    request: Request, scheme: str, path: str, query: str, headers: tuple[tuple[str, str], ...]
) -> StoredRequest:
    target = path if path.startswith("/") else f"/{path}"
    return StoredRequest(
        request.method,
        scheme,
        f"{target}?{query}" if query else target,
        headers,
        request.peer,
        request.path,
        dict(request.values),
        request.alternatives,
    )


def _ascii(raw: bytes) -> str:
    return "".join(chr(byte) if 33 <= byte < 127 and byte != 35 else f"%{byte:02X}" for byte in raw)  # 35 is #


def _quoted(path: bytes) -> str:
    return quote(path, safe=_AS_IT_STANDS)


def _kept(lines: Iterable[tuple[str, str]], wanted: Collection[str] | None) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, value)
        for name, value in lines
        if name not in _OF_ONE_CONNECTION and (wanted is None or name in wanted or name == "host")
    )
