"""Where a server is: how connections to it are made, and made again after it has gone elsewhere."""

from typing import NamedTuple, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit

from ratelimit_mw.stores.redis.blocking import Blocking
from ratelimit_mw.stores.redis.connecting import HANDSHAKE_TIMEOUT
from ratelimit_mw.stores.redis.streaming import Streaming
from ratelimit_mw.stores.redis.url import split

Address = tuple[str, int]
"""Host and port."""

_YES = ("1", "true", "yes", "on")


def redirection(error: str) -> Address | None:
    """The address in an error that sends elsewhere, `MOVED slot host:port`; None where it has none."""
    host, _, port = error.rpartition(" ")[2].rpartition(":")
    if error.count(" ") != 2 or not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65_536):
        return None
    return host, int(port)


class Endpoint(Protocol):
    """Makes connections. `connect` and `aconnect` raise StoreUnavailable, and may take seconds."""

    def connect(self) -> Blocking:
        """A connection for threads, ready for use."""
        ...

    async def aconnect(self) -> Streaming:
        """A connection for the running event loop, ready for use."""
        ...


class Direct:
    """The server that `url` names, or the one at `address` with all else that `url` says.

    Raises ValueError for a URL that redis-py can't read. `patience`: seconds for each step of connecting.
    """

    def __init__(self, url: str, patience: float = HANDSHAKE_TIMEOUT, address: Address | None = None) -> None:
        self._url = url
        self._patience = patience
        self._place: dict[str, str | int] = dict(zip(("host", "port"), address, strict=True)) if address else {}
        Blocking(url, patience, **self._place)  # what can't be read raises here, at start

    def connect(self) -> Blocking:
        """See `Endpoint`."""
        connection = Blocking(self._url, self._patience, **self._place)
        connection.connect()
        return connection

    async def aconnect(self) -> Streaming:
        """See `Endpoint`."""
        connection = Streaming(self._url, self._patience, self._place)
        await connection.connect()
        return connection


class Spread(NamedTuple):
    """A URL with several addresses, taken apart."""

    addresses: tuple[Address, ...]
    path: tuple[str, ...]
    options: dict[str, str]
    scheme: str
    credentials: str

    @classmethod
    def parse(cls, url: str, port: int) -> "Spread":
        """The parts of `…://user:password@host:port,host:port/path?options`. Raises ValueError.

        `port` is that of an address without one; `tls=true` among the options asks for TLS to every server.
        """
        parts = split(url)
        addresses = []
        for text in parts.hosts.split(","):
            place = urlsplit(f"//{text}")
            if not place.hostname:
                raise ValueError(f"a host is missing in {parts.hosts!r}: it has to be host:port,host:port")
            addresses.append((place.hostname, place.port or port))
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
        scheme = "rediss" if options.pop("tls", "").lower() in _YES else "redis"
        path = tuple(part for part in parts.path.split("/") if part)
        return cls(tuple(addresses), path, options, scheme, parts.credentials)

    def url(self, database: str = "0") -> str:
        """The URL of one server, at an address that is still to be told."""
        query = f"?{urlencode(self.options)}" if self.options else ""
        credentials = f"{self.credentials}@" if self.credentials else ""
        return f"{self.scheme}://{credentials}localhost/{database}{query}"
