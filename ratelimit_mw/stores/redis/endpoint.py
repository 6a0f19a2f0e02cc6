"""Storage URLs, and the endpoints that they name: one server (`Direct`) or a master known to Sentinels.

redis-py reads the URLs of servers, and connects with all their options. Only this file uses private attributes of its
connections. Commands are sent and replies are read by `connection`, because redis-py's own reading has no deadline over
several reads.
"""

import asyncio
import contextlib
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import redis.asyncio.connection
import redis.connection
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from ratelimit_mw.errors import ErrorReply, PermanentFault, StoreUnavailable
from ratelimit_mw.stores.redis.codec import Command
from ratelimit_mw.stores.redis.connection import (
    HANDSHAKE_TIMEOUT,
    BlockingConnection,
    Replies,
    StreamingConnection,
)
from ratelimit_mw.stores.redis.faults import mismatch, refusal, unavailable

T = TypeVar("T")

_URL = re.compile(
    r"(?P<scheme>[^:/?#]*)://(?:(?P<credentials>[^/?#]*)@)?(?P<hosts>[^/?#@]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?"
)


def split(url: str) -> re.Match[str]:
    """The parts of `scheme://credentials@hosts/path?query`, not decoded. Raises ValueError if the URL is malformed.

    `urllib.parse.urlsplit` cannot be used: it refuses several hosts if one of them is an IPv6 address.
    """
    found = _URL.match(url)
    if not found:
        raise ValueError(f"it must be scheme://host:port, not {url!r}")
    return found


def shown(url: str) -> str:
    """The URL without its user, password and options, for logs."""
    parts = split(url)
    return f"{parts['scheme']}://{parts['hosts']}{parts['path']}"


Address = tuple[str, int]
"""Host and port."""

_YES = ("1", "true", "yes", "on")


def redirection(error: str) -> Address | None:
    """The address in a redirection such as `MOVED slot host:port`; None if there is none."""
    host, _, port = error.rpartition(" ")[2].rpartition(":")
    if error.count(" ") != 2 or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65_536):
        return None
    return host, int(port)


def first_answer(addresses: Iterable[Address], ask: Callable[[Address], T]) -> T:
    """What `ask` returns for the first address for which it does not raise StoreUnavailable.

    Raises StoreUnavailable, for the last address, if there is none.
    """
    failure = StoreUnavailable("there is no address")
    for address in addresses:
        try:
            return ask(address)
        except StoreUnavailable as error:
            failure = error
    raise failure


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

    def connect(self) -> Self:
        """Connect, authenticate and select the database."""
        try:
            self._connection.connect()
        except (RedisError, OSError, ValueError) as error:  # ValueError: an invalid host name
            self.close()
            raise unavailable(error) from error
        self._socket = self._connection._sock  # noqa: SLF001  redis-py's own reading has no deadline over several reads
        if self._introduction:
            try:
                _check_handshake(self.ask_all(self._introduction, self._patience))
            except BaseException:
                self.close()
                raise
        self._used = time.monotonic()
        return self

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

    async def connect(self) -> Self:
        """Connect, authenticate and select the database."""
        try:
            await self._connection.connect()
        except BaseException as error:
            with contextlib.suppress(RuntimeError):  # the event loop is closed, and its transports with it
                await self._connection.disconnect(nowait=True)
            if isinstance(error, RedisError | OSError | ValueError):
                raise unavailable(error) from error
            raise
        self._transport = self._connection._writer.transport  # noqa: SLF001  its streams would wake a task each time
        self._transport.set_protocol(self)
        if self._transport.is_closing() or self._connection._reader.at_eof():  # noqa: SLF001  only the streams were told
            reason = StoreUnavailable("the server closed the connection")
            self.close(reason)
            raise reason
        if self._introduction:
            await self._introduce(self._introduction, _check_handshake)
        return self

    def close(self, reason: StoreUnavailable) -> None:
        """See `StreamingConnection`."""
        super().close(reason)
        # Otherwise redis-py warns that it was never closed.
        self._connection._reader = self._connection._writer = None  # noqa: SLF001  see above


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


class Endpoint(ABC):
    """Makes connections to a server. Both methods raise StoreUnavailable and may take seconds."""

    @abstractmethod
    def connect(self) -> BlockingConnection:
        """A connection for threads, ready for use."""

    @abstractmethod
    async def aconnect(self) -> StreamingConnection:
        """A connection for the running event loop, ready for use."""

    def explained(self, error: StoreUnavailable) -> StoreUnavailable:
        """The failure, or a `PermanentFault` if its reason is a port with TLS, or one without. Takes half a second."""
        return error


class Direct(Endpoint):
    """One server.

    Args:
        url: the URL of the server, as redis-py reads it.
        patience: seconds for each step of connecting.
        address: replaces the host and port of the URL.

    Raises:
        ValueError: redis-py cannot read the URL.
    """

    def __init__(self, url: str, patience: float = HANDSHAKE_TIMEOUT, address: Address | None = None) -> None:
        self._url = url
        self._patience = patience
        self._place: dict[str, str | int] = dict(zip(("host", "port"), address, strict=True)) if address else {}
        Blocking(url, patience, **self._place)  # raises for a malformed URL

    def connect(self) -> Blocking:
        """See `Endpoint`."""
        return Blocking(self._url, self._patience, **self._place).connect()

    async def aconnect(self) -> Streaming:
        """See `Endpoint`."""
        return await Streaming(self._url, self._patience, self._place).connect()

    def explained(self, error: StoreUnavailable) -> StoreUnavailable:
        """See `Endpoint`."""
        return mismatch(self._url, Blocking(self._url, self._patience, **self._place).address, str(error)) or error


class Spread(NamedTuple):
    """The parts of a URL with several addresses. `options` are those of its query."""

    addresses: tuple[Address, ...]
    path: tuple[str, ...]
    options: dict[str, str]
    scheme: str
    credentials: str

    @classmethod
    def parse(cls, url: str, port: int) -> "Spread":
        """Split `…://user:password@host:port,host:port/path?options`.

        Args:
            url: the URL. Its option `tls=true` enables TLS to every server.
            port: the port of an address without one.

        Raises:
            ValueError: the URL is malformed.
        """
        parts = split(url)
        addresses = []
        for text in parts["hosts"].split(","):
            place = urlsplit(f"//{text}")
            if not place.hostname:
                raise ValueError(f"a host is missing in {parts['hosts']!r}: it must be host:port,host:port")
            addresses.append((place.hostname, place.port or port))
        query = parts["query"] or ""
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
        scheme = "rediss" if options.pop("tls", "").lower() in _YES else "redis"
        path = tuple(part for part in parts["path"].split("/") if part)
        return cls(tuple(addresses), path, options, scheme, parts["credentials"] or "")

    def url(self, database: str = "0") -> str:
        """The URL of one server, with a placeholder for its address (see `Direct`)."""
        query = f"?{urlencode(self.options)}" if self.options else ""
        credentials = f"{self.credentials}@" if self.credentials else ""
        return f"{self.scheme}://{credentials}localhost/{database}{query}"


SCHEME = "redis+sentinel://"
"""The scheme of the URLs that `Sentinels` reads."""

_PORT = 26379

_NO_MASTER = "no Sentinel names a master"

_DOWN = frozenset({"s_down", "o_down"})
"""The flags of a master that is down, as seen by this Sentinel or by a majority."""


class Sentinels(Endpoint):
    """The current master of one service, as the Sentinels name it.

    Args:
        url: `redis+sentinel://user:password@host:port,host:port/service/database?options`. The user, the password
            and the options are those of the master. The options `sentinel_username` and `sentinel_password` are for
            the Sentinels; `tls=true` and the options that begin with `ssl_` are for both.
        patience: seconds for each step of connecting.

    Raises:
        ValueError: the URL is malformed.
    """

    def __init__(self, url: str, patience: float = HANDSHAKE_TIMEOUT) -> None:
        spread = Spread.parse(url, _PORT)
        service, *database = spread.path or ("",)
        if not service or len(database) > 1:
            raise ValueError("a Sentinel URL ends with the service's name, and a database: …/mymaster/0")
        user, password = (quote(spread.options.pop(f"sentinel_{name}", ""), "") for name in ("username", "password"))
        tls = {name: value for name, value in spread.options.items() if name.startswith("ssl_")}
        watch = spread._replace(options=tls, credentials=f"{user}:{password}" if user or password else "")
        self.url = spread.url(*database)
        self._patience = patience
        self._service = service
        self.watch = watch.url()
        self.addresses = spread.addresses
        Direct(self.url, patience)  # raises for a malformed URL

    def connect(self) -> Blocking:
        """See `Endpoint`."""
        return Direct(self.url, self._patience, self._master()).connect()

    async def aconnect(self) -> Streaming:
        """See `Endpoint`. The Sentinels are asked in a thread."""
        master = await asyncio.to_thread(self._master)
        return await Direct(self.url, self._patience, master).aconnect()

    def _master(self) -> Address:
        """The address of the master. Raises StoreUnavailable if no Sentinel names one that is up."""
        try:
            return first_answer(self.addresses, self._named_by)
        except PermanentFault as error:
            raise PermanentFault(f"{_NO_MASTER}: {error}", error.remedy) from error
        except StoreUnavailable as error:
            raise StoreUnavailable(f"{_NO_MASTER}: {error}") from error

    def _named_by(self, sentinel: Address) -> Address:
        # Half of the time, so that a Sentinel that failed with the master does not use it all.
        with contextlib.closing(Direct(self.watch, self._patience / 2, sentinel).connect()) as connection:
            return _address(connection.ask((b"SENTINEL", b"MASTER", self._service.encode()), self._patience / 2))


def _address(rows: Any) -> Address:
    """The address in a Sentinel's description of a master, a list of names and values.

    Raises StoreUnavailable if the description is malformed or if the master is down.
    """
    try:
        texts: Sequence[str] = [text.decode() for text in rows]
        fields = dict(zip(texts[::2], texts[1::2], strict=True))
        host, port, flags = fields["ip"], int(fields["port"]), fields["flags"].split(",")
    except (TypeError, ValueError, AttributeError, KeyError):
        raise StoreUnavailable(f"unexpected reply to SENTINEL MASTER: {rows!r:.80}") from None
    if "master" not in flags or not _DOWN.isdisjoint(flags):
        raise StoreUnavailable(f"the master at {host}:{port} is {fields['flags']}")
    return host, port
