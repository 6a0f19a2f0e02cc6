"""The queue of deferred requests in Redis. The script `queue.lua` describes its keys and operations."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from ratelimit_mw.clock import Clock
from ratelimit_mw.deferral.stored_request import DeferredStatus, QueuedRequest, QueueEntry
from ratelimit_mw.model import SECOND
from ratelimit_mw.rules.compiled import key_of_domain
from ratelimit_mw.settings import DeferSettings
from ratelimit_mw.stores.redis.records import CommandClient

GROUP = "workers"
"""The consumer group of all workers."""

_TTL_MARGIN = 60  # seconds
_LISTEN_MARGIN = 5.0  # seconds; an entry in a reply that comes after the timeout would be lost for a while
_STATUS_FIELDS = ("state", "status", "type", "answer", "reason", "since", "attempts")


class Queue:
    """The queue of `domain` at a storage URL. Every method blocks and may raise StoreUnavailable.

    Any thread may use it, but `next` blocks all other callers of the same object. If `clock` is given, it replaces the
    server's clock. Raises ValueError if the URL is invalid.
    """

    def __init__(self, url: str, domain: str, settings: DeferSettings, clock: Clock | None = None) -> None:
        self._client = CommandClient(url)
        # The key of a counter never begins with a brace, because the domain in it is escaped.
        self._prefix = f"{{{key_of_domain(domain)}:deferred}}:"
        self._stream = f"{self._prefix}stream"
        self._settings = settings
        self._clock = clock

    def put(self, request: str, lane: str, fields: Mapping[str, str | bytes]) -> bool:
        """Queue a request at the end of its lane. Return False if the queue or the lane is full."""
        settings = self._settings
        parts = [part for pair in fields.items() for part in pair]
        return bool(self._do("put", request, lane, settings.max_length, settings.max_each, *parts))

    def status(self, request: str) -> DeferredStatus | None:
        """Return the status of a request, or None if it is unknown or expired. Raises ValueError if unreadable."""
        key = self._key(request)
        found = self._client.ask(key, "HMGET", key, *_STATUS_FIELDS)
        return None if found[0] is None else _status(dict(zip(_STATUS_FIELDS, found, strict=True)))

    def arrive(self, request: str, ticket: str) -> bytes | None:
        """Return the stored request for a ticket, or None if the ticket is not valid. A ticket is valid once."""
        found: bytes | None = self._do("arrive", request, ticket)
        return found

    def promote(self) -> float | None:
        """Advance the lanes whose waiting time has passed.

        Return the seconds until the next lane is due, or None if no lane waits.
        """
        left = self._do("promote")
        return None if left < 0 else left / SECOND

    def next(self, consumer: str, seconds: float) -> QueueEntry | None:
        """Wait at most `seconds` for the next request that may be tried."""
        command = ("XREADGROUP", "GROUP", GROUP, consumer, "COUNT", 1, "BLOCK", max(int(seconds * 1000), 1))
        found = self._client.ask(self._stream, *command, "STREAMS", self._stream, ">", within=seconds + _LISTEN_MARGIN)
        return _entry(found[0][1]) if found else None

    def pending(self, consumer: str) -> list[QueueEntry]:
        """Return the pending entries of a worker: those that it was given and has not settled."""
        command = ("XREADGROUP", "GROUP", GROUP, consumer, "COUNT", 100, "STREAMS", self._stream, "0")
        found = self._client.ask(self._stream, *command)
        return [entry for item in found[0][1] if (entry := _entry([item])) is not None] if found else []

    def claim(self, consumer: str, idle: float) -> QueueEntry | None:
        """Take over an entry that another worker was given at least `idle` seconds ago and has not settled."""
        command = ("XAUTOCLAIM", self._stream, GROUP, consumer, int(idle * 1000), "0", "COUNT", 1)
        return _entry(self._client.ask(self._stream, *command)[1])

    def load(self, request: str) -> QueuedRequest | None:
        """Return a request to be tried, or None if it has expired. Raises ValueError if it is unreadable."""
        now, state, content, body, attempts, since = self._do("load", request)
        if not content:
            return None
        return QueuedRequest(state.decode(), content, body or b"", int(attempts or 0), int(now) - int(since or 0))

    def begin(self, entry: QueueEntry, ticket: str) -> int:
        """Begin an attempt and return its number, or 0 if another worker was faster."""
        return int(self._do("begin", entry.id, entry.number, ticket))

    def postpone(self, entry: QueueEntry, seconds: float, *, counted: bool = True) -> bool:
        """End an attempt and let the lane wait for `seconds`. An attempt that is not `counted` does not count."""
        return bool(self._do("postpone", entry.id, entry.number, int(seconds * SECOND), int(counted)))

    def settle(self, entry: QueueEntry, state: str, fields: Mapping[str, str | bytes | int]) -> bool:
        """Set the final state of a request. Return False if another worker has already done so."""
        keep = int(self._settings.keep * 1000)
        parts = [part for pair in fields.items() for part in pair]
        return bool(self._do("settle", entry.id, entry.number, state, keep, self._settings.max_length, *parts))

    def forget(self, entry: QueueEntry) -> None:
        """Remove an entry that is no longer the current entry of its request."""
        self._do("forget", entry.id, entry.number, entry.lane)

    def retry(self, request: str) -> bool:
        """Queue a parked request again. Return False if it is not parked."""
        return bool(self._do("retry", request))

    def parked(self) -> dict[str, DeferredStatus]:
        """Return the status of the parked requests by id, the oldest first."""
        key = f"{self._prefix}parked"
        found: dict[str, DeferredStatus] = {}
        for name in self._client.ask(key, "ZRANGE", key, 0, -1):
            status = self.status(name.decode())
            if status is not None:
                found[name.decode()] = status
        return found

    def length(self) -> int:
        """Return the number of requests that are queued or running."""
        key = f"{self._prefix}open"
        return int(self._client.ask(key, "ZCARD", key))

    def leave(self, consumer: str) -> None:
        """Remove a worker from the group. It must have no pending entries, because they would be lost."""
        self._client.ask(self._stream, "XGROUP", "DELCONSUMER", self._stream, GROUP, consumer)

    def close(self) -> None:
        """Close the connections. It may be called twice."""
        self._client.close()

    def _key(self, request: str) -> str:
        return f"{self._prefix}request:{request}"

    def _do(self, command: str, *arguments: str | bytes | int) -> Any:
        ttl = int(2 * self._settings.keep + _TTL_MARGIN) * 1000
        now = "" if self._clock is None else str(self._clock.now())
        return self._client.ask(self._stream, "EVAL", _script(), 1, self._stream, command, ttl, now, *arguments)


@cache
def _script() -> str:
    return files("ratelimit_mw.deferral").joinpath("queue.lua").read_text(encoding="utf-8")


def _entry(found: Any) -> QueueEntry | None:
    for item in found:
        if item is not None and item[1] is not None:  # Redis 6.2 also claims deleted entries
            number, fields = item
            return QueueEntry(fields[1].decode(), fields[3].decode(), number.decode())
    return None


def _status(found: Mapping[str, bytes | None]) -> DeferredStatus:
    text = {name: (value or b"").decode("utf-8", "replace") for name, value in found.items() if name != "answer"}
    return DeferredStatus(
        text["state"],
        int(text["status"] or 0),
        text["type"],
        found["answer"],
        text["reason"],
        int(text["since"] or 0),
        int(text["attempts"] or 0),
    )
