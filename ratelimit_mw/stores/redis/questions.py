"""Single commands to whichever server has a key, for what is off the request's path: they may take a second."""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from ratelimit_mw.errors import StoreUnavailable
from ratelimit_mw.late import late, lock
from ratelimit_mw.stores.redis.blocking import Blocking
from ratelimit_mw.stores.redis.connecting import HANDSHAKE_TIMEOUT
from ratelimit_mw.stores.redis.endpoint import Address, Direct, Spread, redirection
from ratelimit_mw.stores.redis.sentinel import SCHEME as SENTINEL
from ratelimit_mw.stores.redis.sentinel import Sentinels
from ratelimit_mw.stores.redis.wire import Command

_REDIRECTIONS = 5
_CLUSTER = "redis+cluster://"


class Questions:
    """Asks at any storage URL but memory://, one question at a time. Threads may share it; it is safe after a fork.

    Raises ValueError for a URL that can't be read; nothing is connected yet.
    """

    _lock = late(lock)

    def __init__(self, url: str) -> None:
        self.connect, self._at = _ways(url)
        """A new connection, which belongs to who asked for it."""
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        vars(self).pop("_lock", None)
        self._connections: dict[Address | None, Blocking] = {}
        self._where: dict[str, Address] = {}

    def ask(self, key: str, *command: str | bytes | int, within: float = HANDSHAKE_TIMEOUT) -> Any:
        """The reply to one command about `key`, within so many seconds; or StoreUnavailable."""
        self._check_process()
        with self._lock:
            return self._asked(key, _encoded(command), within)

    def close(self) -> None:
        """Let go of what is held open. Twice is fine, and the next question begins anew."""
        self._check_process()
        with self._lock:
            self._hang_up()

    def _check_process(self) -> None:
        """Begin anew in the child of a fork; what the parent uses is left alone, neither used nor closed."""
        if self._pid != os.getpid():
            _inherited.append(self._connections)
            self._begin()

    def _asked(self, key: str, command: Command, within: float) -> Any:
        try:
            return self._redirected(key, command, within)
        except BaseException:  # an exception from elsewhere, too: no other question may read the reply to this one
            self._hang_up()
            raise

    def _redirected(self, key: str, command: Command, within: float) -> Any:
        for _ in range(_REDIRECTIONS):
            reply = say(self._connection(self._where.get(key)), command, within)
            if not isinstance(reply, Exception):
                return reply
            address = redirection(str(reply)) if str(reply).startswith("MOVED ") else None
            if address is None:
                raise StoreUnavailable(str(reply))
            self._where[key] = address
        raise StoreUnavailable("redirected again and again")

    def _connection(self, address: Address | None) -> Blocking:
        connection = self._connections.get(address)
        if connection is not None and not connection.usable:
            connection.close()
            connection = None
        if connection is None:
            connection = self._connections[address] = self.connect() if address is None else self._at(address)
        return connection

    def _hang_up(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()
        self._where.clear()


_inherited: list[object] = []
"""What a fork's child got from its parent."""


def say(connection: Blocking, command: Command, within: float = HANDSHAKE_TIMEOUT) -> Any:
    """The reply to one command; an error reply as a value."""

    def conversation() -> Any:
        return (yield (command,))

    return connection.carry(conversation(), time.monotonic() + within)[0]


def _encoded(words: Sequence[str | bytes | int]) -> Command:
    return tuple(word if isinstance(word, bytes) else str(word).encode() for word in words)


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
