"""The connection of threads."""

import selectors
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis.connection
from redis.exceptions import RedisError

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Reply
from ratelimit_mw.stores.redis.connecting import (
    GRACE,
    HANDSHAKE_TIMEOUT,
    connection,
    introduced,
    packed,
    socket_of,
    unavailable,
)
from ratelimit_mw.stores.redis.inquiry import NoAnswer
from ratelimit_mw.stores.redis.replies import PENDING, Replies
from ratelimit_mw.stores.redis.wire import Command, Conversation

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
