"""A deferred request as it is stored, the tokens that name it, and its status."""

import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from hmac import compare_digest
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

from ratelimit_mw.identity.fields import Values
from ratelimit_mw.identity.path_forms import Forms
from ratelimit_mw.identity.request import Request


class QueueEntry(NamedTuple):
    """An entry of the stream: the id and the lane of a request, and the number of the entry in Redis."""

    id: str
    lane: str
    number: str


class QueuedRequest(NamedTuple):
    """A queued request. `age` is the time in microseconds since it was queued, by the store's clock."""

    state: str
    request: bytes
    body: bytes
    attempts: int
    age: int


class DeferredStatus(NamedTuple):
    """The status of a deferred request.

    `state` is `queued`, `running`, `done`, `parked`, or `unknown` (the request may have been applied). `status`, `kind`
    (the Content-Type) and `answer` (the body, or None if it was too long) are those of the response. `since` is the
    time of arrival, in microseconds since the epoch.
    """

    state: str
    status: int = 0
    kind: str = ""
    answer: bytes | None = None
    reason: str = ""
    since: int = 0
    attempts: int = 0


HEADER = "x-ratelimit-deferred"
"""In a replay: the id of the request and its ticket. In a response to a replay: why it did not reach the app."""

_RANDOM = 24  # characters of 6 bits each
_PROOF = 12


class Tokens:
    """Makes and checks the tickets of one rule set. `digest` is the keyed hash of the rule set.

    A ticket is random, and ends with a proof: the hash of its purpose and its random part. A client cannot forge one.
    """

    def __init__(self, digest: Callable[[str], str]) -> None:
        self._digest = digest

    def ticket(self, request: str) -> str:
        """Make a ticket for one attempt to replay a request."""
        token = random_id()
        return token + self._proof(request, token)

    def read(self, text: str | None) -> tuple[str, str] | None:
        """Return the id and the ticket in the header of a replay, or None if they are not genuine."""
        request, dot, ticket = (text or "").partition(".")
        if not dot or not ticket.isascii():
            return None
        genuine = compare_digest(ticket[_RANDOM:], self._proof(request, ticket[:_RANDOM]))
        return (request, ticket) if genuine else None

    def _proof(self, request: str, token: str) -> str:
        return self._digest(f"replay of {request} {token}")[:_PROOF]


def random_id() -> str:
    """Make the id of a request. Anyone who knows the id may read the status of the request."""
    return secrets.token_urlsafe(_RANDOM * 3 // 4)


def replay_header(request: str, ticket: str) -> str:
    """Return the value of `HEADER` in a replay."""
    return f"{request}.{ticket}"


_UNQUOTED = "/!$&'()*+,;=:@~"
_MAX_TARGET = 16384
_TARGET = re.compile(r"/[!\"$-~]*")  # printable ASCII without # or a space
_DOTS = re.compile(r"/\.\.?(?:/|\Z)")
_CONNECTION_HEADERS = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te"),
        *("trailer", "transfer-encoding", "upgrade", "http2-settings"),
        *("expect", "content-length", "accept-encoding", HEADER),
    )
)
"""Headers that belong to the original connection. They are not replayed.

The list is fixed. The header `Connection` can name further headers, but it is ignored, because any client can write it:
`Connection: x-forwarded-for, authorization` would remove from the replay what a trusted proxy has added.
"""


class StoredRequest(NamedTuple):
    """A stored request without its body.

    `target` is the percent-encoded path and query, as the server received them. `path` is the path as rules see it.
    `values` are the attributes that the rules have read. They are stored because the replay has another client.
    `headers` keep their order and have names in lower case. `peer` is the address of the connection's other end.
    `several` has all values of the attributes that have several, and `forms` those of its path, see
    `identity.request.Request`.
    """

    method: str
    scheme: str
    target: str
    headers: tuple[tuple[str, str], ...]
    peer: str | None
    path: str
    values: Mapping[str, str | None]
    several: Mapping[str, Values] = MappingProxyType({})
    forms: Forms | None = None

    def packed(self) -> bytes:
        """Encode it for the queue."""
        fields = self._asdict()
        fields["several"] = dict(self.several)
        return json.dumps(fields, separators=(",", ":")).encode()

    def replayable(self) -> bool:
        """Return True if an HTTP client sends this target unchanged. Clients refuse or normalise some targets."""
        path = self.target.partition("?")[0]
        return (
            len(self.target) <= _MAX_TARGET
            and _TARGET.fullmatch(self.target) is not None
            and _DOTS.search(path) is None
        )

    def restore(self, replay: Request) -> None:
        """Give a replay what the rules have read of the original request, because a worker has sent the replay."""
        replay.peer, replay.path, replay.forms = self.peer, self.path, self.forms
        replay.values, replay.several = dict(self.values), dict(self.several)

    def header(self, name: str) -> str | None:
        """Return the first line of a header. `name` is in lower case."""
        return next((value for key, value in self.headers if key == name), None)


def unpacked(packed: bytes) -> StoredRequest:
    """Decode a stored request. Raises ValueError if it is unreadable."""
    try:
        fields = json.loads(packed)
        headers = tuple((str(name), str(value)) for name, value in fields.pop("headers"))
        several = {name: tuple(values) for name, values in fields.pop("several", {}).items()}
        forms = fields.pop("forms")
        every = Forms(*map(tuple, forms)) if forms is not None else None
        return StoredRequest(headers=headers, several=several, forms=every, **fields)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a deferred request: {error}") from None


def of_asgi(request: Request, headers: Collection[str] | None) -> StoredRequest:
    """Make the stored request of an ASGI request, with these headers (None: all)."""
    scope = request.context
    lines = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope.get("headers") or ()]
    raw = scope.get("raw_path")
    path = _ascii(raw) if raw else _quoted((scope.get("path") or "/").encode("utf-8", "replace"))
    # A server that has a root path adds it to each path, so it is cut off here. The mount path of a framework stays.
    root = _quoted(scope.get("app_root_path", scope.get("root_path") or "").encode("utf-8", "replace"))
    if root and path.startswith(f"{root}/"):
        path = path[len(root) :]
    query = (scope.get("query_string") or b"").decode("latin-1")
    return _stored_request(request, scope.get("scheme", "http"), path, query, _kept(lines, headers))


def of_wsgi(request: Request, headers: Collection[str] | None) -> StoredRequest:
    """Make the stored request of a WSGI request, with these headers (None: all)."""
    environ: Mapping[str, Any] = request.context
    lines = [
        (name.removeprefix("HTTP_").replace("_", "-").lower(), str(value))
        for name, value in environ.items()
        if name.startswith("HTTP_") or (name == "CONTENT_TYPE" and value)
    ]
    path = f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}".encode("latin-1", "replace")
    query = environ.get("QUERY_STRING") or ""
    return _stored_request(request, environ.get("wsgi.url_scheme", "http"), _quoted(path), query, _kept(lines, headers))


def _stored_request(
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
        dict(request.several),
        request.forms,
    )


def _ascii(raw: bytes) -> str:
    return "".join(chr(byte) if 33 <= byte < 127 and byte != 35 else f"%{byte:02X}" for byte in raw)  # 35 is #


def _quoted(path: bytes) -> str:
    return quote(path, safe=_UNQUOTED)


def _kept(lines: Iterable[tuple[str, str]], wanted: Collection[str] | None) -> tuple[tuple[str, str], ...]:
    return tuple(
        (name, value)
        for name, value in lines
        if name not in _CONNECTION_HEADERS and (wanted is None or name in wanted or name == "host")
    )
