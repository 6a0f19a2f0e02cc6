"""The connection of threads."""

import selectors
import time
from collections.abc import Sequence
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
from ratelimit_mw.stores.redis.replies import PENDING, Replies
from ratelimit_mw.stores.redis.wire import Command, Conversation

_IDLE = 0.05
"""Seconds after which a connection is looked at before it is used: the server may have closed it meanwhile."""


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
                introduced(self._exchange(self._introduction, time.monotonic() + self._patience))
            except BaseException:
                self.close()
                raise
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
            sock.sendall(packed(volley))
            while len(replies) < len(volley):
                if (reply := self._replies.get()) is not PENDING:
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
                self._replies.feed(received)
        except TimeoutError:
            raise StoreUnavailable("no answer within the deadline") from None
        except OSError as error:
            raise unavailable(error) from error
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
