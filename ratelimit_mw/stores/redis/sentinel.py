"""A master that Sentinels watch: asked for at each connect, so that a failover is followed."""

import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.stores.redis.blocking import Blocking
from ratelimit_mw.stores.redis.connecting import HANDSHAKE_TIMEOUT
from ratelimit_mw.stores.redis.endpoint import Address, Direct, Spread
from ratelimit_mw.stores.redis.replies import ErrorReply
from ratelimit_mw.stores.redis.streaming import Streaming

SCHEME = "redis+sentinel://"
"""How such a URL begins."""

_PORT = 26379

_MOST_FIELDS = 1_000
"""Names and values in a Sentinel's description of a master. There are about sixty."""

_DOWN = frozenset({"s_down", "o_down"})
"""What a Sentinel says of a master that is not to be used."""


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
        user, password = (quote(spread.options.pop(f"sentinel_{name}", ""), "") for name in ("username", "password"))
        tls = {name: value for name, value in spread.options.items() if name.startswith("ssl_")}
        watch = spread._replace(options=tls, credentials=f"{user}:{password}" if user or password else "")
        self._url = spread.url(*database)
        self._patience = patience
        self._service = service
        self._watch = watch.url()
        self._addresses = spread.addresses
        Direct(self._url, patience)  # what can't be read raises here, at start

    def connect(self) -> Blocking:
        """See `Endpoint`."""
        failure = StoreUnavailable("there is none")
        for address in self._addresses:
            try:
                master = self._named_by(address)
            except StoreUnavailable as error:
                failure = error
            else:
                return Direct(self._url, self._patience, master).connect()
        raise _unknown(failure)

    async def aconnect(self) -> Streaming:
        """See `Endpoint`."""
        failure = StoreUnavailable("there is none")
        for address in self._addresses:
            try:
                master = await self._anamed_by(address)
            except StoreUnavailable as error:
                failure = error
            else:
                return await Direct(self._url, self._patience, master).aconnect()
        raise _unknown(failure)

    def _named_by(self, sentinel: Address) -> Address:
        """The master that this Sentinel knows to be in service. Raises StoreUnavailable where it knows none."""
        # Half the time: a Sentinel that is gone with its master must not take all of it.
        connection = Direct(self._watch, self._patience / 2, sentinel).connect()
        try:
            rows = connection.carry(_question(self._service), time.monotonic() + self._patience / 2)
        finally:
            connection.close()
        return _address(rows)

    async def _anamed_by(self, sentinel: Address) -> Address:
        """The awaitable twin of `_named_by`."""
        host, port = sentinel
        connection = Streaming(self._watch, self._patience / 2, {"host": host, "port": port}, items=_MOST_FIELDS)
        await connection.connect()
        try:
            rows = await connection.ask(_question(self._service))
        finally:
            connection.close(StoreUnavailable("it has been asked"))
        return _address(rows)


def _unknown(failure: StoreUnavailable) -> StoreUnavailable:
    return StoreUnavailable(f"no Sentinel names a master: {failure}")


def _question(service: str) -> Any:
    (reply,) = yield ((b"SENTINEL", b"MASTER", service.encode()),)
    if isinstance(reply, ErrorReply):
        raise StoreUnavailable(str(reply))
    return reply


def _address(rows: Any) -> Address:
    """The address in a Sentinel's description of a master, a list of names and values. Raises StoreUnavailable."""
    try:
        texts: Sequence[str] = [text.decode() for text in rows]
        said = dict(zip(texts[::2], texts[1::2], strict=True))
        host, port, flags = said["ip"], int(said["port"]), said["flags"].split(",")
    except (TypeError, ValueError, AttributeError, KeyError):
        raise StoreUnavailable(f"no description of a master: {rows!r:.80}") from None
    if "master" not in flags or not _DOWN.isdisjoint(flags):
        raise StoreUnavailable(f"the master at {host}:{port} is {said['flags']}")
    return host, port
