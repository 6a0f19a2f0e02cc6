"""The connection for the tasks of an event loop (`Streaming`)."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import redis.asyncio.connection
from redis.exceptions import RedisError

from ratelimit_mw.errors import ErrorReply, StoreUnavailable
from ratelimit_mw.model import Reply
from ratelimit_mw.stores.redis.codec import Command, Conversation, only_text, packed
from ratelimit_mw.stores.redis.connection import (
    HANDSHAKE_TIMEOUT,
    PENDING,
    Replies,
    check_handshake,
    connection,
    forget_streams,
    transport_of,
    unavailable,
)

Done = Callable[[list[Reply | StoreUnavailable] | StoreUnavailable], None]
"""Receives the result of a conversation, or the failure that ended it."""


class Streaming:
    """A connection for the tasks of one event loop. Several conversations may be under way at once.

    redis-py connects, with all options of the URL. Its streams, which would wake a task for each reply, are then
    replaced by a protocol that passes each reply to its conversation.

    Args:
        url: the URL of the server, as redis-py reads it.
        patience: seconds for each step of connecting.
        place: `host` and `port`, which replace those of the URL.
        items: the most items in the arrays of one reply; 0 because a decision is one text.
    """

    def __init__(
        self,
        url: str,
        patience: float = HANDSHAKE_TIMEOUT,
        place: Mapping[str, str | int] | None = None,
        *,
        items: int = 0,
    ) -> None:
        self._connection, self._introduction = connection(url, redis.asyncio.connection, patience, place or {})
        self._patience = patience
        self._line = _Line(items)

    async def connect(self) -> None:
        """Connect, authenticate and select the database."""
        try:
            await self._connection.connect()
        except BaseException as error:
            with contextlib.suppress(RuntimeError):  # the event loop is closed, and its transports with it
                await self._connection.disconnect(nowait=True)
            if isinstance(error, RedisError | OSError | ValueError):
                raise unavailable(error) from error
            raise
        transport = transport_of(self._connection)
        self._line.transport = transport
        transport.set_protocol(self._line)
        if self._introduction:
            await self.ask(_introduction(self._introduction))

    def carry(self, conversation: Conversation, done: Done) -> None:
        """Carry out `conversation` with the server. `done` is called with its result or with the failure."""
        self._line.begin(conversation, done)

    @property
    def usable(self) -> bool:
        """Whether the connection is open."""
        return self._line.ended is None

    def close(self, reason: StoreUnavailable) -> None:
        """Close the socket without waiting. Conversations under way fail with `reason`."""
        self._line.end(reason)
        forget_streams(self._connection)

    async def ask(self, conversation: Conversation) -> Any:
        """The result of `conversation`, for commands outside of requests. A failure closes the connection."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(result: list[Reply | StoreUnavailable] | StoreUnavailable) -> None:
            if answered.done():
                return
            if isinstance(result, StoreUnavailable):
                answered.set_exception(result)
            else:
                answered.set_result(result)

        self.carry(conversation, done)
        try:
            async with asyncio.timeout(self._patience):
                return await answered
        except BaseException as error:
            silent = StoreUnavailable("the server does not answer a new connection")
            reason = error if isinstance(error, StoreUnavailable) else silent
            self.close(reason)
            if isinstance(error, TimeoutError):
                raise reason from error
            raise


def _introduction(pipeline: Sequence[Command]) -> Conversation:
    check_handshake((yield pipeline))
    return []


class _Ongoing:
    """A conversation under way, with the replies so far to its last pipeline of `asked` commands."""

    __slots__ = ("asked", "conversation", "done", "replies")

    def __init__(self, conversation: Conversation, done: Done) -> None:
        self.conversation = conversation
        self.done = done
        self.asked = 0
        self.replies: list[object] = []


class _Line(asyncio.Protocol):
    """The conversations on one connection. The server replies in the order of the commands."""

    def __init__(self, items: int) -> None:
        self.transport: Any = None
        self.ended: StoreUnavailable | None = None
        self._replies = Replies(items)
        self._ongoing: deque[_Ongoing] = deque()

    def begin(self, conversation: Conversation, done: Done) -> None:
        """Start a conversation and send its first pipeline."""
        if self.ended:
            done(self.ended)
        else:
            self._send(next(conversation), _Ongoing(conversation, done))

    def end(self, error: StoreUnavailable) -> None:
        """Close the connection and fail all conversations under way."""
        if self.ended is None:
            self.ended = error
            with contextlib.suppress(RuntimeError):  # the event loop is closed, and its transports with it
                self.transport.abort()
            while self._ongoing:
                self._ongoing.popleft().done(error)

    def data_received(self, data: bytes) -> None:
        """Pass each complete reply to its conversation."""
        try:
            text = None if self._replies.data or self._replies.open else only_text(data)
            if text is not None:
                self._replies.begun = True
                self._receive(text)
                return
            self._replies.feed(data)
            while self.ended is None and (reply := self._replies.get()) is not PENDING:
                self._receive(reply)
        except StoreUnavailable as error:
            self.end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all conversations: the connection is closed."""
        self.end(unavailable(exc) if exc else StoreUnavailable("the server closed the connection"))

    def _send(self, pipeline: Sequence[Command], ongoing: _Ongoing) -> None:
        ongoing.asked, ongoing.replies = len(pipeline), []
        self._ongoing.append(ongoing)
        self.transport.write(packed(pipeline))

    def _receive(self, reply: object) -> None:
        if not self._ongoing:
            # A server with too many clients, for example, sends an error unasked and closes the connection.
            text = str(reply) if isinstance(reply, ErrorReply) else "unexpected reply from the server"
            self.end(StoreUnavailable(text))
            return
        ongoing = self._ongoing[0]
        ongoing.replies.append(reply)
        if len(ongoing.replies) < ongoing.asked:
            return
        self._ongoing.popleft()
        try:
            pipeline = ongoing.conversation.send(ongoing.replies)
        except StopIteration as last:
            ongoing.done(last.value)
        except StoreUnavailable as error:
            ongoing.done(error)
        else:
            self._send(pipeline, ongoing)
