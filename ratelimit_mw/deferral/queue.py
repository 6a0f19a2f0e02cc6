"""The queue of deferred requests in Redis: a request as it is stored, the tokens that name it, and its status.

The script `queue.lua` describes the keys and the operations of the queue.
"""

import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from hmac import compare_digest
from importlib.resources import files
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

from ratelimit_mw.clock import Clock
from ratelimit_mw.identity.fields import Values
from ratelimit_mw.identity.path_forms import Forms
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import SECOND
from ratelimit_mw.rules.compiled import key_of_domain
from ratelimit_mw.settings import DeferSettings


class QueueEntry(NamedTuple):
    """An entry of the stream: the id and the lane of a request, and the number of the entry in Redis."""

    id: str
    lane: str
    number: str


class QueuedRequest(NamedTuple):
    """A queued request. `age` is the time in microseconds since it was queued, by the store's clock."""

    state: str
    request: "StoredRequest"
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

    def read(self, text: str) -> tuple[str, str] | None:
        """Return the id and the ticket in the header of a replay, or None if they are not genuine."""
        request, dot, ticket = text.partition(".")
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
    target = path or "/"
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


GROUP = "workers"
"""The consumer group of all workers."""

_TTL_MARGIN = 60  # seconds
_LISTEN_MARGIN = 5.0  # seconds; an entry in a reply that comes after the timeout would be lost for a while
_STATUS_FIELDS = ("state", "status", "type", "answer", "reason", "since", "attempts")


class Queue:
    """The queue of `domain` at a storage URL. Every method blocks and may raise StoreUnavailable.

    Any thread may use it, but `next` blocks all other callers of the same object. If `clock` is given, it replaces the
    server's clock. Raises ValueError if the URL is invalid.
    """

    def __init__(self, url: str, domain: str, settings: DeferSettings, clock: Clock | None = None) -> None:
        from ratelimit_mw.stores.redis.records import CommandClient  # imported late: redis-py is slow to import

        self._client = CommandClient(url)
        # The key of a counter never begins with a brace, because the domain in it is escaped.
        self._prefix = f"{{{key_of_domain(domain)}:deferred}}:"
        self._stream = f"{self._prefix}stream"
        self._settings = settings
        self._clock = clock

    def put(self, request: str, lane: str, fields: Mapping[str, str | bytes]) -> bool:
        """Queue a request at the end of its lane. Return False if the queue or the lane is full."""
        settings = self._settings
        parts = [part for pair in fields.items() for part in pair]
        return bool(self._do("put", request, lane, settings.max_length, settings.max_each, *parts))

    def status(self, request: str) -> DeferredStatus | None:
        """Return the status of a request, or None if it is unknown or expired. Raises ValueError if unreadable."""
        key = self._key(request)
        found = self._client.ask(key, "HMGET", key, *_STATUS_FIELDS)
        return None if found[0] is None else _status(dict(zip(_STATUS_FIELDS, found, strict=True)))

    def arrive(self, request: str, ticket: str) -> StoredRequest | None:
        """Return the stored request for a ticket, or None if the ticket is not valid. A ticket is valid once.

        Raises ValueError if the request is unreadable.
        """
        found = self._do("arrive", request, ticket)
        return None if found is None else unpacked(found)

    def promote(self) -> float | None:
        """Advance the lanes whose waiting time has passed.

        Return the seconds until the next lane is due, or None if no lane waits.
        """
        left = self._do("promote")
        return None if left < 0 else left / SECOND

    def next(self, consumer: str, seconds: float) -> QueueEntry | None:
        """Wait at most `seconds` for the next request that may be tried."""
        command = ("XREADGROUP", "GROUP", GROUP, consumer, "COUNT", 1, "BLOCK", max(int(seconds * 1000), 1))
        found = self._client.ask(self._stream, *command, "STREAMS", self._stream, ">", within=seconds + _LISTEN_MARGIN)
        return _entry(found[0][1]) if found else None

    def pending(self, consumer: str) -> list[QueueEntry]:
        """Return the pending entries of a worker: those that it was given and has not settled."""
        command = ("XREADGROUP", "GROUP", GROUP, consumer, "COUNT", 100, "STREAMS", self._stream, "0")
        found = self._client.ask(self._stream, *command)
        return [entry for item in found[0][1] if (entry := _entry([item])) is not None] if found else []

    def claim(self, consumer: str, idle: float) -> QueueEntry | None:
        """Take over an entry that another worker was given at least `idle` seconds ago and has not settled."""
        command = ("XAUTOCLAIM", self._stream, GROUP, consumer, int(idle * 1000), "0", "COUNT", 1)
        return _entry(self._client.ask(self._stream, *command)[1])

    def load(self, request: str) -> QueuedRequest | None:
        """Return a request to be tried, or None if it has expired. Raises ValueError if it is unreadable."""
        now, state, content, body, attempts, since = self._do("load", request)
        if not content:
            return None
        age = int(now) - int(since or 0)
        return QueuedRequest(state.decode(), unpacked(content), body or b"", int(attempts or 0), age)

    def begin(self, entry: QueueEntry, ticket: str) -> int:
        """Begin an attempt and return its number, or 0 if another worker was faster."""
        return int(self._do("begin", entry.id, entry.number, ticket))

    def postpone(self, entry: QueueEntry, seconds: float, *, counted: bool = True) -> bool:
        """End an attempt and let the lane wait for `seconds`. An attempt that is not `counted` does not count."""
        return bool(self._do("postpone", entry.id, entry.number, int(seconds * SECOND), int(counted)))

    def settle(self, entry: QueueEntry, state: str, fields: Mapping[str, str | bytes | int]) -> bool:
        """Set the final state of a request. Return False if another worker has already done so."""
        keep = int(self._settings.keep * 1000)
        parts = [part for pair in fields.items() for part in pair]
        return bool(self._do("settle", entry.id, entry.number, state, keep, self._settings.max_length, *parts))

    def forget(self, entry: QueueEntry) -> None:
        """Remove an entry that is no longer the current entry of its request."""
        self._do("forget", entry.id, entry.number, entry.lane)

    def retry(self, request: str) -> bool:
        """Queue a parked request again. Return False if it is not parked."""
        return bool(self._do("retry", request))

    def parked(self) -> dict[str, DeferredStatus]:
        """Return the status of the parked requests by id, the oldest first."""
        key = f"{self._prefix}parked"
        found: dict[str, DeferredStatus] = {}
        for name in self._client.ask(key, "ZRANGE", key, 0, -1):
            status = self.status(name.decode())
            if status is not None:
                found[name.decode()] = status
        return found

    def length(self) -> int:
        """Return the number of requests that are queued or running."""
        key = f"{self._prefix}open"
        return int(self._client.ask(key, "ZCARD", key))

    def leave(self, consumer: str) -> None:
        """Remove a worker from the group. It must have no pending entries, because they would be lost."""
        self._client.ask(self._stream, "XGROUP", "DELCONSUMER", self._stream, GROUP, consumer)

    def close(self) -> None:
        """Close the connections. It may be called twice."""
        self._client.close()

    def _key(self, request: str) -> str:
        return f"{self._prefix}request:{request}"

    def _do(self, command: str, *arguments: str | bytes | int) -> Any:
        ttl = int(2 * self._settings.keep + _TTL_MARGIN) * 1000
        now = "" if self._clock is None else str(self._clock.now())
        return self._client.ask(self._stream, "EVAL", _script(), 1, self._stream, command, ttl, now, *arguments)


@cache
def _script() -> str:
    return files("ratelimit_mw.deferral").joinpath("queue.lua").read_text(encoding="utf-8")


def _entry(found: Any) -> QueueEntry | None:
    for item in found:
        if item is not None and item[1] is not None:  # Redis 6.2 also claims deleted entries
            number, fields = item
            return QueueEntry(fields[1].decode(), fields[3].decode(), number.decode())
    return None


def _status(found: Mapping[str, bytes | None]) -> DeferredStatus:
    text = {name: (value or b"").decode("utf-8", "replace") for name, value in found.items() if name != "answer"}
    return DeferredStatus(
        text["state"],
        int(text["status"] or 0),
        text["type"],
        found["answer"],
        text["reason"],
        int(text["since"] or 0),
        int(text["attempts"] or 0),
    )
