"""Connections to Redis: made by redis-py from a URL, with none of its retries."""

import asyncio
import contextlib
import selectors
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hiredis
import redis.asyncio.connection
import redis.connection
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Reply
from ratelimit_mw.stores.redis.wire import Command, Conversation

GRACE = 0.01
"""Seconds a deadline is held open for a reply that lies unread because the process itself was held up."""

HANDSHAKE_TIMEOUT = 1.0
"""Seconds that each step of connecting may take. No request waits that long: connecting goes on beside it."""

_IDLE = 0.05
"""Seconds after which a connection is looked at before it is used: the server may have closed it meanwhile."""

_pack: Any = hiredis.pack_command  # its own annotation knows commands of one word only

_OF_POOLS = ("max_connections", "timeout")
"""What a URL may say to redis-py's pools alone; there is none here."""


class Blocking:
    """A connection for threads; one at a time may use it. Every failure is a StoreUnavailable.

    Raises ValueError for a URL that redis-py can't read. `patience`: seconds for each step of connecting. A `host`
    and a `port` win over the URL's.
    """

    def __init__(self, url: str, patience: float = HANDSHAKE_TIMEOUT, **place: str | int) -> None:
        self._connection = _connection(url, redis.connection, patience, place)
        self._reader = hiredis.Reader()
        self._used = 0.0

    def connect(self) -> None:
        """Connect, authenticate and select the database."""
        try:
            self._connection.connect()
        except (RedisError, OSError, ValueError) as error:  # ValueError: a host name that is none
            self.close()
            raise _unavailable(error) from error
        self._used = time.monotonic()

    def carry(self, conversation: Conversation, deadline: float) -> list[Reply | StoreUnavailable]:
        """Hold `conversation` with the server, and return its result. `deadline` is monotonic seconds."""
        volley = next(conversation)
        try:
            while True:
                volley = conversation.send(self._exchange(volley, deadline))
        except StopIteration as end:
            result: list[Reply | StoreUnavailable] = end.value
            return result

    def _exchange(self, volley: Sequence[Command], deadline: float) -> list[object]:
        """Send some commands in one write and return their replies, an error reply as a value."""
        sock = self._socket
        late = False
        replies: list[object] = []
        try:
            sock.settimeout(max(deadline - time.monotonic(), GRACE))
            sock.sendall(b"".join(map(_pack, volley)))
            while len(replies) < len(volley):
                if (reply := self._reader.gets()) is not False:
                    replies.append(reply)
                    continue
                left = deadline - time.monotonic()
                if left <= GRACE:
                    if late:
                        raise TimeoutError
                    late, left = True, GRACE  # once: a reply that drips in is not waited for
                sock.settimeout(left)
                received = sock.recv(65536)
                if not received:
                    raise ConnectionError("the server closed the connection")
                self._reader.feed(received)
        except TimeoutError:
            raise StoreUnavailable("no answer within the deadline") from None
        except (OSError, hiredis.HiredisError) as error:
            raise _unavailable(error) from error
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
        return self._connection._sock  # noqa: SLF001  redis-py's own reading has no deadline over several reads

    def close(self) -> None:
        """Close the socket. A thread that waits for its reply finds that out at once."""
        self._connection.disconnect()


Done = Callable[[list[Reply | StoreUnavailable] | StoreUnavailable], None]
"""Takes what a conversation came to, or what ended it."""


class Streaming:
    """A connection for the tasks of one event loop; several conversations may be under way at once.

    redis-py connects, with all that a URL may ask for. Then its streams, which wake a task for each reply, give way
    to a protocol that hands each reply to whom it belongs.
    """

    def __init__(self, url: str, patience: float = HANDSHAKE_TIMEOUT, **place: str | int) -> None:
        self._connection = _connection(url, redis.asyncio.connection, patience, place)
        self._line = _Line()

    async def connect(self) -> None:
        """Connect, authenticate and select the database."""
        try:
            await self._connection.connect()
        except BaseException as error:
            with contextlib.suppress(RuntimeError):  # its event loop is closed, and so is all that it held
                await self._connection.disconnect(nowait=True)
            if isinstance(error, RedisError | OSError | ValueError):
                raise _unavailable(error) from error
            raise
        transport = self._connection._writer.transport  # noqa: SLF001  the one way to it
        self._line.transport = transport
        transport.set_protocol(self._line)

    def carry(self, conversation: Conversation, done: Done) -> None:
        """Hold `conversation` with the server; `done` gets its result, or the StoreUnavailable that ended it."""
        self._line.begin(conversation, done)

    @property
    def usable(self) -> bool:
        """False where the server is seen to have closed it."""
        return self._line.ended is None

    def close(self) -> None:
        """Close the socket, without waiting; what is under way ends with StoreUnavailable."""
        self._line.end(StoreUnavailable("the connection was closed"))
        self._connection._reader = self._connection._writer = None  # noqa: SLF001  else it says it was never closed


class _Talk:
    """A conversation under way: the replies so far to its last volley of `asked` commands."""

    __slots__ = ("asked", "conversation", "done", "replies")

    def __init__(self, conversation: Conversation, done: Done) -> None:
        self.conversation = conversation
        self.done = done
        self.asked = 0
        self.replies: list[object] = []


class _Line(asyncio.Protocol):
    """The conversations on one connection: the server answers in the order in which it was asked."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.ended: StoreUnavailable | None = None
        self._reader = hiredis.Reader()
        self._talks: deque[_Talk] = deque()

    def begin(self, conversation: Conversation, done: Done) -> None:
        """Say the first volley."""
        if self.ended:
            done(self.ended)
        else:
            self._say(next(conversation), _Talk(conversation, done))

    def end(self, error: StoreUnavailable) -> None:
        """Hang up, and tell all who wait for an answer."""
        if self.ended is None:
            self.ended = error
            with contextlib.suppress(RuntimeError):  # its event loop is closed, and so is all that it held
                self.transport.abort()
            while self._talks:
                self._talks.popleft().done(error)

    def data_received(self, data: bytes) -> None:
        """Hand each whole reply on."""
        try:
            self._reader.feed(data)
            while self.ended is None and (reply := self._reader.gets()) is not False:
                self._hear(reply)
        except hiredis.HiredisError as error:
            self.end(_unavailable(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end is gone."""
        self.end(_unavailable(exc) if exc else StoreUnavailable("the server closed the connection"))

    def _say(self, volley: Sequence[Command], talk: _Talk) -> None:
        talk.asked, talk.replies = len(volley), []
        self._talks.append(talk)
        self.transport.write(b"".join(map(_pack, volley)))

    def _hear(self, reply: object) -> None:
        if not self._talks:
            self.end(StoreUnavailable("the server said something that nobody asked"))
            return
        talk = self._talks[0]
        talk.replies.append(reply)
        if len(talk.replies) < talk.asked:
            return
        self._talks.popleft()
        try:
            volley = talk.conversation.send(talk.replies)
        except StopIteration as last:
            talk.done(last.value)
        except StoreUnavailable as error:
            talk.done(error)
        else:
            self._say(volley, talk)


def _connection(url: str, module: Any, patience: float, place: Mapping[str, str | int]) -> Any:
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
    }
    try:
        return kind(**options)
    except TypeError as error:  # an option after the "?" that no connection has
        raise ValueError(str(error)) from None


def _unavailable(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(str(error) or type(error).__name__)
