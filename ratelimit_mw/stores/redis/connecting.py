"""What the two kinds of connection share. redis-py reads the URL and makes the socket, with TLS if it has to.

All else is done here: redis-py's own handshake takes a round trip for each of its commands, and its parser takes up
whatever a server announces. The private attributes of redis-py that are needed for this are named in this file alone.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import hiredis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.stores.redis.replies import ErrorReply
from ratelimit_mw.stores.redis.wire import Command

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
