"""The connection of an event loop's tasks."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import redis.asyncio.connection
from redis.exceptions import RedisError

from ratelimit_mw.errors import ErrorReply, StoreUnavailable
from ratelimit_mw.model import Reply
from ratelimit_mw.stores.redis.codec import Command, Conversation
from ratelimit_mw.stores.redis.connection import (
    HANDSHAKE_TIMEOUT,
    PENDING,
    Replies,
    connection,
    forget_streams,
    introduced,
    packed,
    transport_of,
    unavailable,
)

Done = Callable[[list[Reply | StoreUnavailable] | StoreUnavailable], None]
"""Takes what a conversation came to, or what ended it."""


class Streaming:
    """A connection for the tasks of one event loop; several conversations may be under way at once.

    redis-py connects, with all that a URL may ask for. Then its streams, which wake a task for each reply, give way
    to a protocol that hands each reply to whom it belongs. `items` is how many items a reply may have: a decision is
    one text.
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
            with contextlib.suppress(RuntimeError):  # its event loop is closed, and so is all that it held
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
        """Hold `conversation` with the server; `done` gets its result, or the StoreUnavailable that ended it."""
        self._line.begin(conversation, done)

    @property
    def usable(self) -> bool:
        """False where the server is seen to have closed it."""
        return self._line.ended is None

    def close(self, reason: StoreUnavailable) -> None:
        """Close the socket, without waiting; what is under way ends with `reason`."""
        self._line.end(reason)
        forget_streams(self._connection)

    async def ask(self, conversation: Conversation) -> Any:
        """What `conversation` comes to, off the path of requests. A failure closes the connection."""
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


def _introduction(volley: Sequence[Command]) -> Conversation:
    introduced((yield volley))
    return []


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

    def __init__(self, items: int) -> None:
        self.transport: Any = None
        self.ended: StoreUnavailable | None = None
        self._replies = Replies(items)
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
            only = self._replies.only(data)
            if only is not None:
                self._hear(only)
                return
            while self.ended is None and (reply := self._replies.get()) is not PENDING:
                self._hear(reply)
        except StoreUnavailable as error:
            self.end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end is gone."""
        self.end(unavailable(exc) if exc else StoreUnavailable("the server closed the connection"))

    def _say(self, volley: Sequence[Command], talk: _Talk) -> None:
        talk.asked, talk.replies = len(volley), []
        self._talks.append(talk)
        self.transport.write(packed(volley))

    def _hear(self, reply: object) -> None:
        if not self._talks:
            # A server that has too many clients, say, tells a new one so and hangs up.
            text = str(reply) if isinstance(reply, ErrorReply) else "unexpected reply from the server"
            self.end(StoreUnavailable(text))
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
