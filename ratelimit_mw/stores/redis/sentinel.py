"""A master that Sentinels watch: asked for at each connect, so that a failover is followed."""

from typing import Any

import redis.asyncio.sentinel
import redis.connection
import redis.sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.stores.redis.blocking import Blocking
from ratelimit_mw.stores.redis.connecting import HANDSHAKE_TIMEOUT
from ratelimit_mw.stores.redis.endpoint import Direct, Spread
from ratelimit_mw.stores.redis.streaming import Streaming

SCHEME = "redis+sentinel://"
"""How such a URL begins."""

_PORT = 26379

# Without annotations in redis-py.
_parse_url: Any = redis.connection.parse_url
_Sentinel: Any = redis.sentinel.Sentinel
_AsyncSentinel: Any = redis.asyncio.sentinel.Sentinel


class Sentinels:
    """The master of one service: `redis+sentinel://user:password@host:port,host:port/service/database`.

    User, password and options are those of the master. `sentinel_username` and `sentinel_password` among the
    options go to the Sentinels, `tls=true` and what begins with `ssl_` to both. Raises ValueError for a URL that
    can't be read.
    """

    def __init__(self, url: str, patience: float = HANDSHAKE_TIMEOUT) -> None:
        spread = Spread.parse(url, _PORT)
        service, *database = spread.path or ("",)
        if not service or len(database) > 1:
            raise ValueError("a Sentinel URL ends with the service's name, and a database: …/mymaster/0")
        options = spread.options
        self._watch: dict[str, Any] = {
            "username": options.pop("sentinel_username", None),
            "password": options.pop("sentinel_password", None),
            # Half the time for each: one that is gone with its master must not take all of it.
            "socket_timeout": patience / 2,
            "socket_connect_timeout": patience / 2,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            "ssl": spread.scheme == "rediss",
        }
        self._url = spread.url(*database)
        self._patience = patience
        self._service = service
        self._addresses = spread.addresses
        Direct(self._url, patience)  # what can't be read raises here, at start
        self._watch |= {name: value for name, value in _parse_url(self._url).items() if name.startswith("ssl_")}

    def connect(self) -> Blocking:
        """See `Endpoint`."""
        sentinel = _Sentinel(self._addresses, sentinel_kwargs=self._watch)
        try:
            address = sentinel.discover_master(self._service)
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"no Sentinel names a master: {error}") from error
        finally:
            for client in sentinel.sentinels:
                client.close()
        return Direct(self._url, self._patience, address).connect()

    async def aconnect(self) -> Streaming:
        """See `Endpoint`."""
        sentinel = _AsyncSentinel(self._addresses, sentinel_kwargs=self._watch)
        try:
            address = await sentinel.discover_master(self._service)
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"no Sentinel names a master: {error}") from error
        finally:
            for client in sentinel.sentinels:
                await client.aclose()
        return await Direct(self._url, self._patience, address).aconnect()
