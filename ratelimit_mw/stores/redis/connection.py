"""The connection for threads (`Blocking`), and the setup of redis-py that connections for tasks also use.

redis-py makes the connection; its private attributes are used only in this file. Commands are sent and replies are
read here, because redis-py's own reading has no deadline over several reads.
"""

import selectors
import time
from collections.abc import Mapping, Sequence
from typing import Any

import redis.connection
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from ratelimit_mw.errors import ErrorReply, NoAnswer, StoreUnavailable
from ratelimit_mw.model import Reply
from ratelimit_mw.stores.redis.codec import Command, Conversation, only_text, packed
from ratelimit_mw.stores.redis.faults import refusal, stranger

GRACE = 0.01
"""Seconds by which a deadline is extended, for a reply that has arrived while the process itself was delayed."""

HANDSHAKE_TIMEOUT = 1.0
"""Seconds that each step of connecting may take. Requests do not wait for it: connecting goes on in the background."""

FIRST_CONNECTION = 1.0
"""Seconds that requests may wait for the very first connection of a process, which takes longest."""

_POOL_OPTIONS = ("max_connections", "timeout")
"""Options of a URL that are for redis-py's connection pools, which are not used here."""


def connection(url: str, module: Any, patience: float, place: Mapping[str, str | int]) -> tuple[Any, list[Command]]:
    """An unconnected connection of redis-py, and the commands that must be sent first.

    Args:
        url: the URL, as redis-py reads it.
        module: `redis.connection` or `redis.asyncio.connection`.
        patience: seconds for each step of connecting.
        place: `host` and `port`, which replace those of the URL; may be empty.

    Raises:
        ValueError: redis-py cannot read the URL.
    """
    options = module.parse_url(url) | place
    kind = options.pop("connection_class", module.Connection)
    for name in _POOL_OPTIONS:
        options.pop(name, None)
    options |= {
        "socket_timeout": patience,
        "socket_connect_timeout": patience,
        # A retry would charge a request twice if only its reply was lost.
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "retry_on_error": [],
        "health_check_interval": 0,
        "decode_responses": False,
        "protocol": 2,
        "redis_connect_func": _skip_handshake,
    }
    try:
        return kind(**options), _introduction(options)
    except TypeError as error:  # an unknown option in the query of the URL
        raise ValueError(str(error)) from None


def socket_of(connected: Any) -> Any:
    """The socket of a blocking connection of redis-py; None if it is closed."""
    return connected._sock  # noqa: SLF001  redis-py's own reading has no deadline over several reads


def transport_of(connected: Any) -> Any:
    """The transport of a connected asyncio connection of redis-py."""
    return connected._writer.transport  # noqa: SLF001  its streams would wake a task for each reply


def forget_streams(connected: Any) -> None:
    """Mark an asyncio connection of redis-py as closed, because otherwise it warns that it was never closed."""
    connected._reader = connected._writer = None  # noqa: SLF001


def unavailable(error: Exception) -> StoreUnavailable:
    """The StoreUnavailable for an exception of redis-py or of the socket."""
    return refusal(str(error) or type(error).__name__)


def check_handshake(replies: Sequence[object]) -> None:
    """Raise StoreUnavailable if the server refuses one of the handshake commands."""
    for reply in replies:
        if isinstance(reply, ErrorReply):
            raise refusal(str(reply))


def _introduction(options: Mapping[str, Any]) -> list[Command]:
    """The handshake commands: AUTH, CLIENT SETNAME and SELECT, as needed. They are sent in one round trip."""
    username, password = options.get("username"), options.get("password")
    pipeline: list[Command] = []
    if username:
        pipeline.append((b"AUTH", username.encode(), (password or "").encode()))
    elif password:
        pipeline.append((b"AUTH", password.encode()))
    if name := options.get("client_name"):
        pipeline.append((b"CLIENT", b"SETNAME", name.encode()))
    if database := options.get("db"):
        pipeline.append((b"SELECT", b"%d" % database))
    return pipeline


def _skip_handshake(_connected: object) -> None:
    """Replaces redis-py's own handshake, which takes several round trips."""


PENDING = object()
"""What `Replies.get` returns until the next reply is complete."""

MAX_ITEMS = 1_000_000
"""The most items in one reply, at all depths together. The largest expected reply is a cluster's map of slots."""

_MAX_BYTES = 64 * 1024 * 1024
"""The most bytes in one text. The largest expected text is a file of rules."""

_LONGEST_LINE = 64 * 1024
_DEEPEST = 8

_TEXT, _ARRAY, _NUMBER, _STATUS, _ERROR = b"$*:+-"


class Replies:
    """An incremental parser of the Redis protocol (RESP2): takes bytes as they arrive and returns whole replies.

    `items` is the most items that the arrays of one reply may have together; with 0, arrays are refused.

    Attributes:
        data: the bytes that are not read yet.
        begun: whether a whole reply has come. Before that, the server may be no Redis at all.
        open: the incomplete arrays, the outermost first, each with its expected number of items.
    """

    def __init__(self, items: int = MAX_ITEMS) -> None:
        self._items = items
        self.data = bytearray()
        self.open: list[tuple[list[object], int]] = []
        self._left = items
        self.begun = False

    def feed(self, data: bytes) -> None:
        """Add more bytes."""
        self.data += data

    def get(self) -> object:
        """The next reply, or PENDING. An error reply is returned as an ErrorReply.

        Raises StoreUnavailable if the bytes are not a valid reply.
        """
        if not self.data:
            return PENDING
        while True:
            value = self._next()
            if value is PENDING:
                return PENDING
            if type(value) is _Header:
                if self._begin(value.items):
                    continue
                value = []
            while self.open:
                items, wanted = self.open[-1]
                items.append(value)
                if len(items) < wanted:
                    break
                self.open.pop()
                value = items
            else:
                self._left = self._items
                self.begun = True
                return value

    def _begin(self, items: int) -> bool:
        """Open an array. Returns False if it is empty, and so complete."""
        self._left -= items
        if self._left < 0 or len(self.open) >= _DEEPEST:
            raise StoreUnavailable(f"the server sent an unexpected array of {items} items")
        if items:
            self.open.append(([], items))
        return items > 0

    def _next(self) -> object:
        """The next text, number, error or nil, the header of the next array, or PENDING."""
        data = self.data
        end = data.find(b"\r\n")
        if end < 0:
            # Refuse an invalid first byte at once, because its line may never end.
            if len(data) > _LONGEST_LINE or (data and data[0] not in b"$*:+-"):
                raise self._garbled()
            return PENDING
        kind = data[0]
        if kind == _TEXT:
            size = self._size(end, _MAX_BYTES)
            if size < 0:
                del data[: end + 2]
                return None
            start = end + 2
            end = start + size
            if len(data) < end + 2:
                return PENDING
            if data[end : end + 2] != b"\r\n":
                raise self._garbled()
            value: object = bytes(data[start:end])
        elif kind == _ARRAY:
            size = self._size(end, MAX_ITEMS)
            value = _Header(size) if size >= 0 else None
        elif kind == _NUMBER:
            value = self._number(end)
        elif kind == _STATUS:
            value = bytes(data[1:end])
        elif kind == _ERROR:
            value = ErrorReply(data[1:end].decode(errors="replace"))
        else:
            raise self._garbled()
        del data[: end + 2]
        return value

    def _size(self, end: int, most: int) -> int:
        size = self._number(end)
        if not -1 <= size <= most:
            raise self._garbled()
        return size

    def _number(self, end: int) -> int:
        try:
            return int(self.data[1:end])
        except ValueError:
            raise self._garbled() from None

    def _garbled(self) -> StoreUnavailable:
        if not self.begun:
            return stranger(bytes(self.data[:40]))
        return StoreUnavailable(f"the server sent an invalid reply: {bytes(self.data[:40])!r}")


class _Header:
    """The header of an array, with its number of items."""

    __slots__ = ("items",)

    def __init__(self, items: int) -> None:
        self.items = items


_IDLE = 0.05
"""Seconds of idleness after which a connection is checked before use, because the server may have closed it."""


NO_ANSWER = "no answer within the deadline"
NO_CONNECTION = "no connection within the deadline"

_SOCKET_PACKAGES = ("ratelimit_mw", "socket", "ssl", "gevent", "eventlet")
"""The packages whose exceptions come from the socket."""


_READ_SIZE = 65_536
"""The most bytes to read at once."""


class Blocking:
    """A connection for threads. Only one thread may use it at a time. Every failure is a StoreUnavailable.

    Args:
        url: the URL of the server, as redis-py reads it.
        patience: seconds for each step of connecting.
        place: `host` and `port`, which replace those of the URL.

    Raises:
        ValueError: redis-py cannot read the URL.
    """

    def __init__(self, url: str, patience: float = HANDSHAKE_TIMEOUT, **place: str | int) -> None:
        self._connection, self._introduction = connection(url, redis.connection, patience, place)
        self._patience = patience
        self._replies = Replies()
        self._used = 0.0

    def connect(self) -> None:
        """Connect, authenticate and select the database."""
        try:
            self._connection.connect()
        except (RedisError, OSError, ValueError) as error:  # ValueError: an invalid host name
            self.close()
            raise unavailable(error) from error
        if self._introduction:
            try:
                check_handshake(self.carry(_one_pipeline(self._introduction), time.monotonic() + self._patience))
            except BaseException:
                self.close()
                raise
        self._used = time.monotonic()

    def carry(self, conversation: Conversation, deadline: float) -> list[Reply | StoreUnavailable]:
        """Carry out `conversation` with the server and return its result. `deadline` is by the monotonic clock.

        If this is interrupted, the connection must be closed, because a reply may still come.
        """
        pipeline = next(conversation)
        try:
            while True:
                pipeline = conversation.send(self._exchange(pipeline, deadline))
        except StopIteration as end:
            result: list[Reply | StoreUnavailable] = end.value
            return result

    def _exchange(self, pipeline: Sequence[Command], deadline: float) -> list[object]:
        """Send a pipeline of commands in one write and return the replies. Error replies are returned as values."""
        sock = self.socket
        late = False
        replies: list[object] = []
        try:
            sock.settimeout(max(deadline - time.monotonic(), GRACE))
            sock.sendall(packed(pipeline))
            while len(replies) < len(pipeline):
                if (reply := self._replies.get()) is not PENDING:
                    replies.append(reply)
                    continue
                left = deadline - GRACE - time.monotonic()
                if left <= 0:
                    if late:
                        raise NoAnswer(NO_ANSWER)
                    late, left = True, GRACE  # only once, because a slow reply could extend it again and again
                sock.settimeout(left)
                try:
                    data = sock.recv(_READ_SIZE)
                except TimeoutError as error:
                    if late or _is_foreign(error):
                        raise
                    continue  # with the grace: what has come is read, also if this process was delayed
                if not data:
                    raise ConnectionError("the server closed the connection")
                parser = self._replies
                text = None if parser.data or parser.open else only_text(data)
                if text is None:
                    parser.feed(data)
                else:
                    parser.begun = True
                    replies.append(text)
        except OSError as error:
            if _is_foreign(error):
                raise
            raise (NoAnswer(NO_ANSWER) if isinstance(error, TimeoutError) else unavailable(error)) from error
        except AttributeError:  # the socket is None: another thread closed the connection
            raise StoreUnavailable("the connection was closed") from None
        self._used = time.monotonic()
        return replies

    @property
    def usable(self) -> bool:
        """Whether the connection is open; False if the server has closed it while it was idle."""
        sock = self.socket
        if sock is None or sock.fileno() < 0:
            return False
        if time.monotonic() - self._used < _IDLE:
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ)
            return not selector.select(0)  # no reply is expected, so readable means closed

    @property
    def socket(self) -> Any:
        """The socket; None if the connection is closed."""
        return socket_of(self._connection)

    @property
    def address(self) -> tuple[str, int] | None:
        """The host and the port; None for a Unix socket."""
        host = getattr(self._connection, "host", None)
        return None if host is None else (host, self._connection.port)

    def close(self) -> None:
        """Close the socket. A thread that waits for its reply fails at once."""
        self._connection.disconnect()


def _one_pipeline(pipeline: Sequence[Command]) -> Any:
    """A conversation of one pipeline, whose result is the list of replies."""
    return (yield pipeline)


def _is_foreign(error: BaseException) -> bool:
    """Whether a signal handler raised the exception. Many raise TimeoutError, which is not a failure of the store."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in _SOCKET_PACKAGES
