"""Records in Redis (rules, overrides, switches), and a client for single commands outside of requests."""

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from ratelimit_mw.errors import StoreUnavailable, VersionConflict
from ratelimit_mw.logs import logger
from ratelimit_mw.process_local import abandon, lazy, lock, reset_after_fork
from ratelimit_mw.stores.base import Records
from ratelimit_mw.stores.redis.codec import Command
from ratelimit_mw.stores.redis.connection import HANDSHAKE_TIMEOUT, BlockingConnection
from ratelimit_mw.stores.redis.endpoint import SCHEME as SENTINEL
from ratelimit_mw.stores.redis.endpoint import (
    Address,
    Blocking,
    Direct,
    Sentinels,
    Spread,
    first_answer,
    redirection,
    shown,
)

_PAGE = 500
"""The keys that the server examines in one step of a SCAN."""

_PATIENCE = 5.0
"""Seconds for one step of a SCAN. No request waits for it."""


def scan(connection: BlockingConnection, prefix: str) -> Iterator[str]:
    """Iterate over the keys that begin with `prefix`, each once. Closes `connection` at the end.

    Raises StoreUnavailable.
    """
    pattern = (re.sub(r"([*?\[\]\\^])", r"\\\1", prefix) + "*").encode()
    seen: set[bytes] = set()
    cursor = b"0"
    try:
        while True:
            cursor, keys = connection.ask((b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"%d" % _PAGE), _PATIENCE)
            for key in keys:
                if key not in seen:  # SCAN may return a key twice
                    seen.add(key)
                    yield key.decode(errors="replace")
            if cursor == b"0":
                return
    finally:
        connection.close()


_REDIRECTIONS = 5
_CLUSTER = "redis+cluster://"


class CommandClient:
    """Sends single commands to the server or cluster at a storage URL, one at a time.

    It connects on first use. Threads may share it, and it may be used after a fork. Raises ValueError for a malformed
    URL.
    """

    _lock = lazy(lock)

    def __init__(self, url: str) -> None:
        self.connect, self._connect_to = _connectors(url)
        """Makes a new connection, which the caller must close."""
        self._begin()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Reset in the child of a fork."""
        abandon(self._connections)
        self._begin()

    def _begin(self) -> None:
        self._connections: dict[Address | None, Blocking] = {}
        self._where: dict[str, Address] = {}

    def ask(self, key: str, *command: str | bytes | int, within: float = HANDSHAKE_TIMEOUT) -> Any:
        """Send one command and return the reply.

        Args:
            key: the key of the command, which determines the node of a cluster.
            command: the command and its arguments.
            within: the timeout in seconds.

        Raises:
            StoreUnavailable: no reply, or an error reply.
        """
        return self.ask_all(key, [command], within)[0]

    def ask_all(
        self, key: str, commands: Sequence[Sequence[str | bytes | int]], within: float = HANDSHAKE_TIMEOUT
    ) -> list[Any]:
        """Send commands in one pipeline and return their replies. Their keys must be on the node of `key`.

        Args:
            key: one of the keys.
            commands: each command with its arguments. A cluster may get them twice.
            within: the timeout in seconds.

        Raises:
            StoreUnavailable: no reply, or an error reply (which is the `__cause__`).
        """
        encoded = [_encoded(command) for command in commands]
        with self._lock:
            try:
                return self._redirected(key, encoded, within)
            except BaseException:  # also an asynchronous exception: the next command must not read this command's reply
                self._disconnect()
                raise

    def close(self) -> None:
        """Close all connections. May be called twice; the next command connects again."""
        with self._lock:
            self._disconnect()

    def _redirected(self, key: str, commands: Sequence[Command], within: float) -> list[Any]:
        for _ in range(_REDIRECTIONS):
            replies = self._connection(self._where.get(key)).ask_all(commands, within)
            failure = next((reply for reply in replies if isinstance(reply, Exception)), None)
            if failure is None:
                return replies
            address = redirection(str(failure)) if str(failure).startswith("MOVED ") else None
            if address is None:
                raise StoreUnavailable(str(failure)) from failure
            self._where[key] = address
        raise StoreUnavailable(f"the cluster redirected a command {_REDIRECTIONS} times")

    def _connection(self, address: Address | None) -> Blocking:
        connection = self._connections.get(address)
        if connection is not None and not connection.usable:
            connection.close()
            connection = None
        if connection is None:
            connection = self._connections[address] = self.connect() if address is None else self._connect_to(address)
        return connection

    def _disconnect(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()
        self._where.clear()


def _encoded(words: Sequence[str | bytes | int]) -> Command:
    return tuple(word if isinstance(word, bytes) else str(word).encode() for word in words)


def _connectors(url: str) -> tuple[Callable[[], Blocking], Callable[[Address], Blocking]]:
    """Two functions: one connects to any server of the URL, the other to one address of a cluster."""
    if url.startswith(SENTINEL):
        sentinels = Sentinels(url)
        return sentinels.connect, lambda _address: sentinels.connect()
    if not url.startswith(_CLUSTER):
        direct = Direct(url)
        return direct.connect, lambda address: Direct(url, address=address).connect()
    spread = Spread.parse(url, 6379)

    def to(address: Address) -> Blocking:
        return Direct(spread.url(), address=address).connect()

    return lambda: first_answer(spread.addresses, to), to


_VERSION = "version"

_WRITE = """
local version = tonumber(redis.call('HGET', KEYS[1], 'version') or '0')
if ARGV[1] ~= '' and tonumber(ARGV[1]) ~= version then return {0, version} end
local dropped = tonumber(ARGV[2])
for i = 3, 2 + dropped do redis.call('HDEL', KEYS[1], ARGV[i]) end
for i = 3 + dropped, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('HSET', KEYS[1], 'version', string.format('%.0f', version + 1))
return {1, version + 1}
"""


class RedisRecords(Records):
    """Records in Redis: the texts of a key are the fields of a hash, with the version in the field `version`.

    Args:
        url: any storage URL except memory://.

    Raises:
        ValueError: the URL is malformed.
    """

    def __init__(self, url: str) -> None:
        self.name = shown(url)
        self._client = CommandClient(url)
        self._unreadable: set[str] = set()
        self._ask = self._client.ask

    def read(self, key: str, names: Sequence[str] | None = None) -> tuple[int, dict[str, str]]:
        """See `Records`."""
        with self._readable(key):
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
        with self._readable(key):
            done, version = self._ask(key, "EVAL", _WRITE, "1", key, base, str(len(drop)), *drop, *pairs)
            number = int(version)
        if not done:
            raise VersionConflict(number)
        return number

    def close(self) -> None:
        """See `Records`."""
        self._client.close()

    @contextlib.contextmanager
    def _readable(self, key: str) -> Iterator[None]:
        """Raise StoreUnavailable for a reply of an unexpected form, and log it once for each key.

        Another program may have written to the key. The key is read periodically, so it is not logged each time.
        """
        try:
            yield
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            message = f"{self.name}: the records under {key} cannot be read ({error})"
            if key not in self._unreadable:
                self._unreadable.add(key)
                logger.warning("%s", message)
            self._client.close()  # the reply may belong to another command
            raise StoreUnavailable(message) from None
        self._unreadable.discard(key)
