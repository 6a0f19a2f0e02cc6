"""What is used of redis-py: it reads the URLs, and connects with all their options.

Only this file uses private attributes of its connections. Commands are sent and replies are read by `connection`,
because redis-py's own reading has no deadline over several reads.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from redis.backoff import NoBackoff
from redis.retry import Retry

from ratelimit_mw.errors import ErrorReply, StoreUnavailable
from ratelimit_mw.stores.redis.codec import Command
from ratelimit_mw.stores.redis.faults import refusal

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
