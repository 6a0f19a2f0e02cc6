"""Records in Redis: a hash for each key, changed by one script, which publishes that it did."""

import contextlib
import logging
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from ratelimit_mw.errors import Conflict, StoreUnavailable
from ratelimit_mw.stores.redis.blocking import Blocking
from ratelimit_mw.stores.redis.questions import Questions, say
from ratelimit_mw.stores.redis.url import shown

logger = logging.getLogger("ratelimit_mw")

_VERSION = "version"

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
        self._questions = Questions(url)
        self._unreadable: set[str] = set()
        self._ask = self._questions.ask

    def version(self, key: str) -> int:
        """See `Records`."""
        with self._readable(key):
            return int(self._ask(key, "HGET", key, _VERSION) or 0)

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
            raise Conflict(number)
        return number

    def listener(self) -> "RedisListener":
        """See `Records`."""
        return RedisListener(self._questions.connect)

    def close(self) -> None:
        """See `Records`."""
        self._questions.close()

    @contextlib.contextmanager
    def _readable(self, key: str) -> Iterator[None]:
        """Take a reply that is not of the expected form for a store that is away, and log it once for each key.

        Another program may have written to the key, and what is asked again and again must not log each time.
        """
        try:
            yield
        except (ValueError, TypeError, AttributeError, IndexError) as error:
            message = f"{self.name}: what is kept under {key} can't be read ({error})"
            if key not in self._unreadable:
                self._unreadable.add(key)
                logger.warning("%s", message)
            self._questions.close()  # the reply may be another question's
            raise StoreUnavailable(message) from None
        self._unreadable.discard(key)


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
        reply = say(connection, (b"SUBSCRIBE", *map(str.encode, channels)))
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
