"""The connection of threads, and what it shares with that of tasks."""

import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hiredis
import redis.connection
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from ratelimit_mw.errors import ErrorReply, NoAnswer, StoreUnavailable
from ratelimit_mw.model import Reply
from ratelimit_mw.stores.redis.codec import Command, Conversation

PENDING = object()
"""What `Replies.get` returns until the next reply is there as a whole."""

MOST_ITEMS = 1_000_000
"""Items of one reply, at all depths together. The largest that is asked for is a cluster's table of slots."""

_MOST_BYTES = 64 * 1024 * 1024
"""Bytes of one text. The largest that is asked for is a file of rules."""

_LONGEST_LINE = 64 * 1024
_DEEPEST = 8

_TEXT, _ARRAY, _NUMBER, _STATUS, _ERROR = b"$*:+-"


class Replies:
    """Takes bytes as they arrive, and gives the replies in them, one at a time.

    `items` is how many items the arrays of one reply may have together; 0 takes no arrays at all.
    """

    def __init__(self, items: int = MOST_ITEMS) -> None:
        self._items = items
        self._data = bytearray()
        self._open: list[tuple[list[object], int]] = []
        """The arrays that are not complete, the outermost first, and how many items each is to have."""
        self._left = items

    def only(self, data: bytes) -> bytes | None:
        """The text that these bytes are, as nearly always where one reply is awaited; else None, and they are fed."""
        if data[:1] == b"$" and not self._data and not self._open:
            start = data.find(b"\r\n", 1, 12) + 2
            if (
                1 < start < len(data) - 1
                and data[1 : start - 2] == b"%d" % (len(data) - start - 2)
                and data[-2:] == b"\r\n"
            ):
                return data[start:-2]
        self._data += data
        return None

    def feed(self, data: bytes) -> None:
        """Take more bytes."""
        self._data += data

    def get(self) -> object:
        """The next reply, an error as an ErrorReply; or PENDING. Raises StoreUnavailable for what is no reply."""
        if not self._data:
            return PENDING
        while True:
            value = self._next()
            if value is PENDING:
                return PENDING
            if type(value) is _Header:
                if self._begin(value.items):
                    continue
                value = []
            while self._open:
                items, wanted = self._open[-1]
                items.append(value)
                if len(items) < wanted:
                    break
                self._open.pop()
                value = items
            else:
                self._left = self._items
                return value

    def _begin(self, items: int) -> bool:
        """Open an array; False for one that is empty, and so complete."""
        self._left -= items
        if self._left < 0 or len(self._open) >= _DEEPEST:
            raise StoreUnavailable(f"the server sent an array of {items} items, which nothing has asked for")
        if items:
            self._open.append(([], items))
        return items > 0

    def _next(self) -> object:
        """The next text, number, error or nil, the header of the next array, or PENDING."""
        data = self._data
        end = data.find(b"\r\n")
        if end < 0:
            # What no reply begins with is refused at once: a line of it may never end.
            if len(data) > _LONGEST_LINE or (data and data[0] not in b"$*:+-"):
                raise self._garbled()
            return PENDING
        kind = data[0]
        if kind == _TEXT:
            size = self._size(end, _MOST_BYTES)
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
            size = self._size(end, MOST_ITEMS)
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
            return int(self._data[1:end])
        except ValueError:
            raise self._garbled() from None

    def _garbled(self) -> StoreUnavailable:
        return StoreUnavailable(f"the server sent something that is no reply: {bytes(self._data[:40])!r}")


class _Header:
    """The beginning of an array."""

    __slots__ = ("items",)

    def __init__(self, items: int) -> None:
        self.items = items


GRACE = 0.01
"""Seconds a deadline is held open for a reply that lies unread because the process itself was held up."""

HANDSHAKE_TIMEOUT = 1.0
"""Seconds that each step of connecting may take. No request waits that long: connecting goes on beside it."""

FIRST_CONNECTION = 1.0
"""Seconds that requests may wait for the very first connection of a process: it has the most to do."""

_OF_POOLS = ("max_connections", "timeout")
"""What a URL may say to redis-py's pools alone; there is none here."""

_pack: Callable[[Command], bytes] = hiredis.pack_command  # type: ignore[assignment]  # it takes any tuple of bytes


def connection(url: str, module: Any, patience: float, place: Mapping[str, str | int]) -> tuple[Any, list[Command]]:
    """redis-py's connection, of one of its modules, not connected yet; and what to tell the server at first.

    Raises ValueError for a URL that redis-py can't read.
    """
    options = module.parse_url(url) | place
    kind = options.pop("connection_class", module.Connection)
    for name in _OF_POOLS:
        options.pop(name, None)
    options |= {
        "socket_timeout": patience,
        "socket_connect_timeout": patience,
        # A retry of redis-py's would count a request again whose reply was lost after the commit.
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "retry_on_error": [],
        "health_check_interval": 0,
        "decode_responses": False,
        "protocol": 2,
        "redis_connect_func": _say_nothing,
    }
    try:
        return kind(**options), _introduction(options)
    except TypeError as error:  # an option after the "?" that no connection has
        raise ValueError(str(error)) from None


def socket_of(connected: Any) -> Any:
    """The socket of a blocking connection of redis-py's; None where it is closed."""
    return connected._sock  # noqa: SLF001  redis-py's own reading has no deadline over several reads


def transport_of(connected: Any) -> Any:
    """The transport of an awaitable connection of redis-py's, which is connected."""
    return connected._writer.transport  # noqa: SLF001  its streams would wake a task for each reply


def forget_streams(connected: Any) -> None:
    """Have an awaitable connection of redis-py's know that it is closed; else it warns that it never was."""
    connected._reader = connected._writer = None  # noqa: SLF001


def unavailable(error: Exception) -> StoreUnavailable:
    """What a failure of redis-py's or of the socket's is to the rest of the package."""
    return StoreUnavailable(str(error) or type(error).__name__)


def packed(volley: Sequence[Command]) -> bytes:
    """Some commands, as they go over the wire."""
    return b"".join(map(_pack, volley))


def introduced(replies: Sequence[object]) -> None:
    """Raises StoreUnavailable where the server refuses what it was told at first."""
    for reply in replies:
        if isinstance(reply, ErrorReply):
            raise StoreUnavailable(str(reply))


def _introduction(options: Mapping[str, Any]) -> list[Command]:
    """Who asks and for which database: all in one volley, so that it takes one round trip, and none if it is empty."""
    username, password = options.get("username"), options.get("password")
    volley: list[Command] = []
    if username:
        volley.append((b"AUTH", username.encode(), (password or "").encode()))
    elif password:
        volley.append((b"AUTH", password.encode()))
    if name := options.get("client_name"):
        volley.append((b"CLIENT", b"SETNAME", name.encode()))
    if database := options.get("db"):
        volley.append((b"SELECT", b"%d" % database))
    return volley


def _say_nothing(_connected: object) -> None:
    """In the place of redis-py's own handshake."""


_IDLE = 0.05
"""Seconds after which a connection is looked at before it is used: the server may have closed it meanwhile."""


_NO_ANSWER = "no answer within the deadline"

_OURS = ("ratelimit_mw", "socket", "ssl", "gevent", "eventlet")
"""The packages that raise what a socket has to say."""


_MUCH = (65536,)
"""Bytes to be read at once, as an argument."""


class Exchange:
    """A conversation on its way: what was sent and received of it, in order.

    `converse` begins the conversation, each time the same one. So an exchange that was interrupted can be carried on.
    """

    __slots__ = ("began", "connection", "converse", "received", "sent")

    def __init__(self, converse: Callable[[], Conversation]) -> None:
        self.converse = converse
        self.connection: Blocking | None = None
        self.began = False
        self.sent: list[None] = []
        self.received: list[bytes] = []


class Blocking:
    """A connection for threads; one at a time may use it. Every failure is a StoreUnavailable.

    Raises ValueError for a URL that redis-py can't read. `patience`: seconds for each step of connecting. A `host`
    and a `port` win over the URL's.
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
        except (RedisError, OSError, ValueError) as error:  # ValueError: a host name that is none
            self.close()
            raise unavailable(error) from error
        if self._introduction:
            try:
                introduced(self.carry(_say(self._introduction), time.monotonic() + self._patience))
            except BaseException:
                self.close()
                raise
        self._used = time.monotonic()

    def carry(self, conversation: Conversation, deadline: float) -> list[Reply | StoreUnavailable]:
        """Hold `conversation` with the server, and return its result. `deadline` is monotonic seconds."""
        return self.carry_on(Exchange(lambda: conversation), deadline)

    def carry_on(self, exchange: "Exchange", deadline: float) -> list[Reply | StoreUnavailable]:
        """As `carry`; where `exchange` was interrupted, go on after what was sent and received already."""
        if exchange.began:
            self._replies = Replies()
            for chunk in exchange.received:
                self._replies.feed(chunk)
        exchange.began = True
        conversation = exchange.converse()
        volley = next(conversation)
        number = 0
        try:
            while True:
                volley = conversation.send(self._exchange(exchange, number, volley, deadline))
                number += 1
        except StopIteration as end:
            result: list[Reply | StoreUnavailable] = end.value
            return result

    def _exchange(self, exchange: "Exchange", number: int, volley: Sequence[Command], deadline: float) -> list[object]:
        """Send some commands in one write and return their replies, an error reply as a value."""
        sock, received = self._socket, exchange.received
        late = False
        replies: list[object] = []
        try:
            if len(exchange.sent) == number:
                sock.settimeout(max(deadline - time.monotonic(), GRACE))
                # Done and written down in one step of C: an exception that comes from elsewhere comes before or after.
                exchange.sent.extend(map(sock.sendall, (packed(volley),)))
            while len(replies) < len(volley):
                if (reply := self._replies.get()) is not PENDING:
                    replies.append(reply)
                    continue
                left = deadline - time.monotonic()
                if left <= GRACE:
                    if late:
                        raise NoAnswer(_NO_ANSWER)
                    late, left = True, GRACE  # once: a reply that drips in is not waited for
                sock.settimeout(left)
                received.extend(map(sock.recv, _MUCH))
                if not received[-1]:
                    raise ConnectionError("the server closed the connection")
                only = self._replies.only(received[-1])
                if only is not None:
                    replies.append(only)
        except OSError as error:
            if _is_foreign(error):
                raise
            raise (NoAnswer(_NO_ANSWER) if isinstance(error, TimeoutError) else unavailable(error)) from error
        except AttributeError:  # there is no socket: closed by another thread
            raise StoreUnavailable("the connection was closed") from None
        self._used = time.monotonic()
        return replies

    @property
    def usable(self) -> bool:
        """False where the server is seen to have closed it while it was idle."""
        sock = self._socket
        if sock is None or sock.fileno() < 0:
            return False
        if time.monotonic() - self._used < _IDLE:
            return True
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ)
            return not selector.select(0)  # nobody asked it anything: readable means closed

    @property
    def _socket(self) -> Any:
        return socket_of(self._connection)

    def close(self) -> None:
        """Close the socket. A thread that waits for its reply finds that out at once."""
        self._connection.disconnect()


def _say(volley: Sequence[Command]) -> Any:
    """The conversation that is one volley. Its result is the replies."""
    return (yield volley)


def _is_foreign(error: BaseException) -> bool:
    """True of what a signal's handler raised: many raise TimeoutError, and the store has no part in that."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in _OURS
