"""The queue of deferred requests, in Redis: a stream of those that may be tried, and beside it those that wait."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from ratelimit_mw.clock import Clock
from ratelimit_mw.deferral.stored_request import DeferredStatus, Entry, Job
from ratelimit_mw.model import SECOND
from ratelimit_mw.settings import DeferSettings
from ratelimit_mw.stores.redis.records import CommandClient

GROUP = "workers"
"""The consumer group that all workers are of."""

_BEYOND = 60  # seconds that a key outlives what it is for
_PATIENCE = 5.0  # seconds beyond those that a worker listens: an answer that comes too late is a request mislaid
_SHOWN = ("state", "status", "type", "answer", "reason", "since", "attempts")


class Queue:
    """The queue of `domain` at a storage URL. Every method blocks, and may raise StoreUnavailable.

    Any thread may use it; `next` blocks all other callers of the same object. With `clock` its time counts, not
    the server's. Raises ValueError for a URL that can't be read.
    """

    def __init__(self, url: str, domain: str, settings: DeferSettings, clock: Clock | None = None) -> None:
        self._questions = CommandClient(url)
        # No counter's key begins with a brace: a domain is escaped where one stands there.
        self._prefix = f"{{{quote(domain, safe='')}:deferred}}:"
        self._stream = f"{self._prefix}stream"
        self._settings = settings
        self._clock = clock

    def put(self, request: str, lane: str, fields: Mapping[str, str | bytes]) -> bool:
        """Queue a request behind those of its lane; False where it, or the lane, is full."""
        settings = self._settings
        parts = [part for pair in fields.items() for part in pair]
        return bool(self._do("put", request, lane, settings.max_length, settings.max_each, *parts))

    def look(self, request: str) -> DeferredStatus | None:
        """What became of a request; None where it is not known (any more). Raises ValueError for what is spoilt."""
        key = self._key(request)
        found = self._questions.ask(key, "HMGET", key, *_SHOWN)
        return None if found[0] is None else _fate(dict(zip(_SHOWN, found, strict=True)))

    def arrive(self, request: str, ticket: str) -> bytes | None:
        """The request that has arrived with this ticket, once; None for a ticket that is not, or no longer, good."""
        found: bytes | None = self._do("arrive", request, ticket)
        return found

    def promote(self) -> float | None:
        """Let those be tried whose time has come; the seconds until that of the next, None where none waits."""
        left = self._do("promote")
        return None if left < 0 else left / SECOND

    def next(self, consumer: str, seconds: float) -> Entry | None:
        """The next request that may be tried, if one comes within `seconds`."""
        command = ("XREADGROUP", "GROUP", GROUP, consumer, "COUNT", 1, "BLOCK", max(int(seconds * 1000), 1))
        found = self._questions.ask(self._stream, *command, "STREAMS", self._stream, ">", within=seconds + _PATIENCE)
        return _entry(found[0][1]) if found else None

    def handed_out(self, consumer: str) -> list[Entry]:
        """What a worker was handed and has not settled, whether or not it has heard of it."""
        command = ("XREADGROUP", "GROUP", GROUP, consumer, "COUNT", 100, "STREAMS", self._stream, "0")
        found = self._questions.ask(self._stream, *command)
        return [entry for item in found[0][1] if (entry := _entry([item])) is not None] if found else []

    def claim(self, consumer: str, idle: float) -> Entry | None:
        """A request that was handed to a worker `idle` seconds ago, who has said nothing of it since."""
        command = ("XAUTOCLAIM", self._stream, GROUP, consumer, int(idle * 1000), "0", "COUNT", 1)
        return _entry(self._questions.ask(self._stream, *command)[1])

    def load(self, request: str) -> Job | None:
        """A request that is to be tried; None where it has expired. Raises ValueError for what somebody has spoilt."""
        now, state, content, body, attempts, since = self._do("load", request)
        if not content:
            return None
        return Job(state.decode(), content, body or b"", int(attempts or 0), int(now) - int(since or 0))

    def begin(self, entry: Entry, ticket: str) -> int:
        """Begin an attempt, and return which it is; 0 where somebody else was faster."""
        return int(self._do("begin", entry.id, entry.number, ticket))

    def postpone(self, entry: Entry, seconds: float, *, counted: bool = True) -> bool:
        """Let a request, and its lane, wait so long; what was begun and not `counted` was no attempt."""
        return bool(self._do("postpone", entry.id, entry.number, int(seconds * SECOND), int(counted)))

    def settle(self, entry: Entry, state: str, fields: Mapping[str, str | bytes | int]) -> bool:
        """Say what became of a request; False where somebody else has said so."""
        keep = int(self._settings.keep * 1000)
        parts = [part for pair in fields.items() for part in pair]
        return bool(self._do("settle", entry.id, entry.number, state, keep, self._settings.max_length, *parts))

    def forget(self, entry: Entry) -> None:
        """Drop an entry that stands for nothing any more."""
        self._do("forget", entry.id, entry.number, entry.lane)

    def retry(self, request: str) -> bool:
        """Queue a parked request again; False where it is not parked."""
        return bool(self._do("retry", request))

    def parked(self) -> dict[str, DeferredStatus]:
        """Those that were given up, by their ids, the oldest first."""
        key = f"{self._prefix}parked"
        found: dict[str, DeferredStatus] = {}
        for name in self._questions.ask(key, "ZRANGE", key, 0, -1):
            fate = self.look(name.decode())
            if fate is not None:
                found[name.decode()] = fate
        return found

    def length(self) -> int:
        """How many are queued or under way."""
        key = f"{self._prefix}open"
        return int(self._questions.ask(key, "ZCARD", key))

    def leave(self, consumer: str) -> None:
        """Strike a worker off the group; what it was handed and has not settled is lost sight of."""
        self._questions.ask(self._stream, "XGROUP", "DELCONSUMER", self._stream, GROUP, consumer)

    def close(self) -> None:
        """Let go of the connections. Twice is fine."""
        self._questions.close()

    def _key(self, request: str) -> str:
        return f"{self._prefix}request:{request}"

    def _do(self, command: str, *arguments: str | bytes | int) -> Any:
        span = int(2 * self._settings.keep + _BEYOND) * 1000
        now = "" if self._clock is None else str(self._clock.now())
        return self._questions.ask(self._stream, "EVAL", _script(), 1, self._stream, command, span, now, *arguments)


@cache
def _script() -> str:
    return files("ratelimit_mw.deferral").joinpath("queue.lua").read_text(encoding="utf-8")


def _entry(found: Any) -> Entry | None:
    for item in found:
        if item is not None and item[1] is not None:  # Redis 6.2 claims what was deleted, too
            number, fields = item
            return Entry(fields[1].decode(), fields[3].decode(), number.decode())
    return None


def _fate(found: Mapping[str, bytes | None]) -> DeferredStatus:
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
