"""Records in Redis: a hash for each key, changed by one script, which publishes that it did."""

import contextlib
import os
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ratelimit_mw.errors import Conflict, StoreUnavailable
from ratelimit_mw.stores.connection import HANDSHAKE_TIMEOUT, Blocking, shown
from ratelimit_mw.stores.endpoint import Address, Direct, Spread
from ratelimit_mw.stores.sentinel import SCHEME as SENTINEL
from ratelimit_mw.stores.sentinel import Sentinels

_VERSION = "version"
_REDIRECTIONS = 5
_CLUSTER = "redis+cluster://"

# Published in a pcall, for a user may lack the right: whoever listens looks from time to time as well.
_WRITE = """
local version = tonumber(redis.call('HGET', KEYS[1], 'version') or '0')
if ARGV[1] ~= '' and tonumber(ARGV[1]) ~= version then return {0, version} end
local dropped = tonumber(ARGV[2])
for i = 3, 2 + dropped do redis.call('HDEL', KEYS[1], ARGV[i]) end
for i = 3 + dropped, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('HSET', KEYS[1], 'version', string.format('%.0f', version + 1))
redis.pcall('PUBLISH', KEYS[1], string.format('%.0f', version + 1))
return {1, version + 1}
"""


class RedisRecords:
    """Texts in a hash for each key, at any storage URL but memory://. Raises ValueError for one that can't be read."""

    def __init__(self, url: str) -> None:
        self.name = shown(url)
        self._home, self._at = _ways(url)
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._connections: dict[Address | None, Blocking] = {}
        self._where: dict[str, Address] = {}

    def version(self, key: str) -> int:
        """See `Records`."""
        return int(self._ask(key, "HGET", key, _VERSION) or 0)

    def read(self, key: str, names: Sequence[str] | None = None) -> tuple[int, dict[str, str]]:
        """See `Records`."""
        if names is None:
            flat = self._ask(key, "HGETALL", key)
            found = dict(zip(flat[::2], flat[1::2], strict=True))
        else:
            wanted = (_VERSION, *names)
            texts = self._ask(key, "HMGET", key, *wanted)
            found = {name.encode(): text for name, text in zip(wanted, texts, strict=True) if text is not None}
        version = int(found.pop(_VERSION.encode(), 0))
        return version, {name.decode(): text.decode("utf-8", "replace") for name, text in found.items()}

    def write(
        self, key: str, put: Mapping[str, str], drop: Collection[str] = (), *, expected: int | None = None
    ) -> int:
        """See `Records`."""
        pairs = [text for pair in put.items() for text in pair]
        base = "" if expected is None else str(expected)
        done, version = self._ask(key, "EVAL", _WRITE, "1", key, base, str(len(drop)), *drop, *pairs)
        if not done:
            raise Conflict(version)
        return int(version)

    def listener(self) -> "RedisListener":
        """See `Records`."""
        return RedisListener(self._home)

    def close(self) -> None:
        """See `Records`."""
        self._check_process()
        with self._lock:
            self._hang_up()

    def _check_process(self) -> None:
        """Begin anew in the child of a fork; what the parent uses is left alone, neither used nor closed."""
        if self._pid != os.getpid():
            _inherited.append(self._connections)
            self._begin()

    def _ask(self, key: str, *command: str) -> Any:
        self._check_process()
        with self._lock:
            try:
                return self._redirected(key, command)
            except StoreUnavailable:
                self._hang_up()
                raise

    def _redirected(self, key: str, command: tuple[str, ...]) -> Any:
        for _ in range(_REDIRECTIONS):
            reply = _say(self._connection(self._where.get(key)), command)
            if not isinstance(reply, Exception):
                return reply
            word, _, rest = str(reply).partition(" ")
            if word != "MOVED":
                raise StoreUnavailable(str(reply))
            host, _, port = rest.partition(" ")[2].rpartition(":")
            self._where[key] = (host, int(port))
        raise StoreUnavailable("redirected again and again")

    def _connection(self, address: Address | None) -> Blocking:
        connection = self._connections.get(address)
        if connection is not None and not connection.usable:
            connection.close()
            connection = None
        if connection is None:
            connection = self._connections[address] = self._home() if address is None else self._at(address)
        return connection

    def _hang_up(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()
        self._where.clear()


class RedisListener:
    """Listens to what `RedisRecords` publish, on a connection that is made by `connect` when first needed."""

    def __init__(self, connect: Callable[[], Blocking]) -> None:
        self._connect = connect
        self._connection: Blocking | None = None
        self._channels: tuple[str, ...] = ()
        self._bell, self._rope = socket.socketpair()

    def wait(self, seconds: float, keys: Sequence[str]) -> None:
        """See `Listener`."""
        deadline = time.monotonic() + seconds
        try:
            if self._connection is None or self._channels != tuple(keys):
                self._hang_up()
                self._listen(tuple(keys))
                return  # what was published before is to be looked for
            self._hear(self._connection, seconds)
        except (StoreUnavailable, OSError):
            self._hang_up()
            self._readable([], max(deadline - time.monotonic(), 0.0))

    def wake(self) -> None:
        """See `Listener`."""
        with contextlib.suppress(OSError):  # closed already
            self._rope.send(b"!")

    def close(self) -> None:
        """See `Listener`."""
        self._hang_up()
        self._bell.close()
        self._rope.close()

    def _listen(self, channels: tuple[str, ...]) -> None:
        connection = self._connect()
        reply = _say(connection, ("SUBSCRIBE", *channels))
        if isinstance(reply, Exception):
            connection.close()
            raise StoreUnavailable(str(reply))
        self._connection, self._channels = connection, channels

    def _hear(self, connection: Blocking, seconds: float) -> None:
        """Wait until something comes; what it says does not matter."""
        sock = connection._socket  # noqa: SLF001  what is published comes unasked, and no conversation expects it
        if not self._readable([sock], seconds):
            return
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            while sock.recv(65536):
                continue
            raise StoreUnavailable("the server closed the connection")

    def _readable(self, socks: Sequence[socket.socket], seconds: float) -> bool:
        """Wait until one of these has something to read, or the bell rings."""
        with selectors.DefaultSelector() as selector:
            for sock in (*socks, self._bell):
                selector.register(sock, selectors.EVENT_READ)
            found = [selected.fileobj for selected, _ in selector.select(seconds)]
        if self._bell in found:
            self._bell.recv(64)
        return any(sock in found for sock in socks)

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


_inherited: list[object] = []
"""What a fork's child got from its parent."""


def _ways(url: str) -> tuple[Callable[[], Blocking], Callable[[Address], Blocking]]:
    """How to connect at first, and how to one address of a cluster."""
    if url.startswith(SENTINEL):
        sentinels = Sentinels(url)
        return sentinels.connect, lambda _address: sentinels.connect()
    if not url.startswith(_CLUSTER):
        direct = Direct(url)
        return direct.connect, lambda address: Direct(url, address=address).connect()
    spread = Spread.parse(url, 6379)

    def to(address: Address) -> Blocking:
        return Direct(spread.url(), address=address).connect()

    def any_of_them() -> Blocking:
        failure = StoreUnavailable("the cluster has no node")
        for address in spread.addresses:
            try:
                return to(address)
            except StoreUnavailable as error:
                failure = error
        raise failure

    return any_of_them, to


def _say(connection: Blocking, command: tuple[str, ...]) -> Any:
    """The reply to one command."""

    def conversation() -> Any:
        return (yield (command,))

    return connection.carry(conversation(), time.monotonic() + HANDSHAKE_TIMEOUT)[0]
