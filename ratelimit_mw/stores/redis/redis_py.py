"""Connections to a Redis server: redis-py reads the URLs, and connects with all their options.

Only this file uses private attributes of its connections. Commands are sent and replies are read by `connection`,
because redis-py's own reading has no deadline over several reads.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import redis.asyncio.connection
import redis.connection
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from ratelimit_mw.errors import ErrorReply, StoreUnavailable
from ratelimit_mw.stores.redis.codec import Command
from ratelimit_mw.stores.redis.connection import (
    HANDSHAKE_TIMEOUT,
    BlockingConnection,
    Replies,
    StreamingConnection,
)
from ratelimit_mw.stores.redis.faults import refusal, unavailable

_POOL_OPTIONS = ("max_connections", "timeout")
"""Options of a URL that are for redis-py's connection pools, which are not used here."""


class Blocking(BlockingConnection):
    """A connection to Redis for threads.

    Args:
        url: the URL of the server, as redis-py reads it.
        patience: seconds for each step of connecting.
        place: `host` and `port`, which replace those of the URL.

    Raises:
        ValueError: redis-py cannot read the URL.
    """

    def __init__(self, url: str, patience: float = HANDSHAKE_TIMEOUT, **place: str | int) -> None:
        super().__init__(Replies())
        self._connection, self._introduction = _connection(url, redis.connection, patience, place)
        self._patience = patience

    def connect(self) -> None:
        """Connect, authenticate and select the database."""
        try:
            self._connection.connect()
        except (RedisError, OSError, ValueError) as error:  # ValueError: an invalid host name
            self.close()
            raise unavailable(error) from error
        self._socket = _socket_of(self._connection)
        if self._introduction:
            try:
                _check_handshake(self.ask_all(self._introduction, self._patience))
            except BaseException:
                self.close()
                raise
        self._used = time.monotonic()

    @property
    def address(self) -> tuple[str, int] | None:
        """The host and the port; None for a Unix socket."""
        host = getattr(self._connection, "host", None)
        return None if host is None else (host, self._connection.port)

    def close(self) -> None:
        """See `BlockingConnection`."""
        self._socket = None
        self._connection.disconnect()


class Streaming(StreamingConnection):
    """A connection to Redis for the tasks of one event loop.

    redis-py connects, with all options of the URL. Its streams, which would wake a task for each reply, are then
    replaced by this protocol, which passes each reply to its conversation.

    Args:
        url: the URL of the server, as redis-py reads it.
        patience: seconds for each step of connecting.
        place: `host` and `port`, which replace those of the URL.
    """

    def __init__(self, url: str, patience: float, place: Mapping[str, str | int]) -> None:
        super().__init__(Replies(0), patience)  # a decision is one text
        self._connection, self._introduction = _connection(url, redis.asyncio.connection, patience, place)

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
        self._transport = _transport_of(self._connection)
        self._transport.set_protocol(self)
        if self._introduction:
            await self._introduce(self._introduction, _check_handshake)

    def close(self, reason: StoreUnavailable) -> None:
        """See `StreamingConnection`."""
        super().close(reason)
        _forget_streams(self._connection)


def _connection(url: str, module: Any, patience: float, place: Mapping[str, str | int]) -> tuple[Any, list[Command]]:
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


def _socket_of(connected: Any) -> Any:
    """The socket of a blocking connection of redis-py; None if it is closed."""
    return connected._sock  # noqa: SLF001  redis-py's own reading has no deadline over several reads


def _transport_of(connected: Any) -> Any:
    """The transport of a connected asyncio connection of redis-py."""
    return connected._writer.transport  # noqa: SLF001  its streams would wake a task for each reply


def _forget_streams(connected: Any) -> None:
    """Mark an asyncio connection of redis-py as closed, because otherwise it warns that it was never closed."""
    connected._reader = connected._writer = None  # noqa: SLF001


def _check_handshake(replies: Sequence[object]) -> None:
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
