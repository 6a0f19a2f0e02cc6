"""Named texts under a key, all of one version: rules and overrides lie there.

This is off the request's path: a question may take a second.
"""

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from ratelimit_mw.errors import Conflict


class Records(Protocol):
    """Texts by name under each key. Every question may raise StoreUnavailable. Safe after a fork."""

    name: str
    """What a log calls it."""

    def version(self, key: str) -> int:
        """How often the texts under `key` were changed; 0 where there are none."""
        ...

    def read(self, key: str, names: Sequence[str] | None = None) -> tuple[int, dict[str, str]]:
        """The version, and its texts: all of them, or those of these names that there are."""
        ...

    def write(
        self, key: str, put: Mapping[str, str], drop: Collection[str] = (), *, expected: int | None = None
    ) -> int:
        """Change some texts at once, and return the new version.

        Raises Conflict, and changes nothing, where the version is not the `expected` one.
        """
        ...

    def listener(self) -> "Listener":
        """What a thread of its own waits with for changes. Nothing is connected yet."""
        ...

    def close(self) -> None:
        """Let go of what is held open. Twice is fine."""


class Listener(Protocol):
    """Waits for changes. One thread may wait, and closes it in the end; `wake` may be called from any."""

    def wait(self, seconds: float, keys: Sequence[str]) -> None:
        """Return after `seconds`, or as soon as something under `keys` may have changed. Raises nothing."""

    def wake(self) -> None:
        """Let who waits return at once."""

    def close(self) -> None:
        """Let go of what is held open."""


class Timer:
    """Waits where nobody tells of changes."""

    def __init__(self) -> None:
        self._woken = threading.Event()

    def wait(self, seconds: float, keys: Sequence[str] = ()) -> None:  # noqa: ARG002  nobody tells of any
        """See `Listener`."""
        self._woken.wait(seconds)

    def wake(self) -> None:
        """See `Listener`."""
        self._woken.set()

    def close(self) -> None:
        """Nothing is held open."""


class MemoryRecords:
    """Texts of this process alone."""

    def __init__(self) -> None:
        self.name = "this process's memory"
        self._texts: dict[str, tuple[int, dict[str, str]]] = {}
        self._lock = threading.Lock()

    def version(self, key: str) -> int:
        """See `Records`."""
        return self.read(key)[0]

    def read(self, key: str, names: Sequence[str] | None = None) -> tuple[int, dict[str, str]]:
        """See `Records`."""
        version, texts = self._texts.get(key, (0, {}))
        return version, {name: text for name, text in texts.items() if names is None or name in names}

    def write(
        self, key: str, put: Mapping[str, str], drop: Collection[str] = (), *, expected: int | None = None
    ) -> int:
        """See `Records`."""
        with self._lock:
            version, texts = self._texts.get(key, (0, {}))
            if expected is not None and expected != version:
                raise Conflict(version)
            kept = {name: text for name, text in texts.items() if name not in drop}
            self._texts[key] = version + 1, {**kept, **put}
            return version + 1

    def listener(self) -> Listener:
        """See `Records`. Nobody else can change them."""
        return Timer()

    def close(self) -> None:
        """Nothing is held open."""


RECORD_SCHEMES = frozenset({"redis", "rediss", "unix", "redis+sentinel", "redis+cluster"})
"""The schemes of storage URLs at which records lie. With any other, overrides are this process's own."""


def open_records(url: str) -> Records:
    """Records at a storage URL. Raises ValueError for one that can't be read; nothing is connected yet."""
    if url.startswith("memory:"):
        return MemoryRecords()
    from ratelimit_mw.stores.redis.records import RedisRecords  # imported late: redis-py takes a while

    return RedisRecords(url)
