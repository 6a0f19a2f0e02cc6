"""The connection of an event loop's tasks."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import hiredis
import redis.asyncio.connection
from redis.exceptions import RedisError

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.model import Reply
from ratelimit_mw.stores.redis.connecting import HANDSHAKE_TIMEOUT, connection, packed, unavailable
from ratelimit_mw.stores.redis.wire import Command, Conversation

Done = Callable[[list[Reply | StoreUnavailable] | StoreUnavailable], None]
"""Takes what a conversation came to, or what ended it."""


class Streaming:
    """A connection for the tasks of one event loop; several conversations may be under way at once.

    redis-py connects, with all that a URL may ask for. Then its streams, which wake a task for each reply, give way
    to a protocol that hands each reply to whom it belongs.
    """

    def __init__(self, url: str, patience: float = HANDSHAKE_TIMEOUT, **place: str | int) -> None:
        self._connection = connection(url, redis.asyncio.connection, patience, place)
        self._line = _Line()

    async def connect(self) -> None:
        """Connect, authenticate and select the database."""
        try:
            await self._connection.connect()
        except BaseException as error:
            with contextlib.suppress(RuntimeError):  # its event loop is closed, and so is all that it held
                await self._connection.disconnect(nowait=True)
            if isinstance(error, RedisError | OSError | ValueError):
                raise unavailable(error) from error
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
            self.end(unavailable(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end is gone."""
        self.end(unavailable(exc) if exc else StoreUnavailable("the server closed the connection"))

    def _say(self, volley: Sequence[Command], talk: _Talk) -> None:
        talk.asked, talk.replies = len(volley), []
        self._talks.append(talk)
        self.transport.write(packed(volley))

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
