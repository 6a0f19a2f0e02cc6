"""What the two kinds of connection share: redis-py makes them from a URL, with none of its retries."""

from collections.abc import Mapping, Sequence
from typing import Any

import hiredis
from redis.backoff import NoBackoff
from redis.retry import Retry

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.stores.redis.wire import Command

GRACE = 0.01
"""Seconds a deadline is held open for a reply that lies unread because the process itself was held up."""

HANDSHAKE_TIMEOUT = 1.0
"""Seconds that each step of connecting may take. No request waits that long: connecting goes on beside it."""

_OF_POOLS = ("max_connections", "timeout")
"""What a URL may say to redis-py's pools alone; there is none here."""

_pack: Any = hiredis.pack_command  # its own annotation knows commands of one word only


def connection(url: str, module: Any, patience: float, place: Mapping[str, str | int]) -> Any:
    """redis-py's own connection, of one of its modules; not connected. Raises ValueError for a URL it can't read."""
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


def unavailable(error: Exception) -> StoreUnavailable:
    """What a failure of redis-py's or of the socket's is to the rest of the package."""
    return StoreUnavailable(str(error) or type(error).__name__)


def packed(volley: Sequence[Command]) -> bytes:
    """Some commands, as they go over the wire."""
    return b"".join(map(_pack, volley))
