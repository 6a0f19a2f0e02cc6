"""Records: named texts under a key, with a common version. They keep rules, overrides and the kill switch.

Requests do not use records, so each call may take a second.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence

from ratelimit_mw.errors import VersionConflict
from ratelimit_mw.process_local import lazy, lock


class Records(ABC):
    """Texts by name under each key. Every method may raise StoreUnavailable. Records may be used after a fork."""

    name: str
    """The name of the storage in logs."""

    @abstractmethod
    def read(self, key: str, names: Sequence[str] | None = None) -> tuple[int, dict[str, str]]:
        """The version and the texts by name. With `names`, only the texts of these names that exist."""

    @abstractmethod
    def write(
        self, key: str, put: Mapping[str, str], drop: Collection[str] = (), *, expected: int | None = None
    ) -> int:
        """Set the texts `put` and delete the names `drop` in one atomic step, and return the new version.

        Raises VersionConflict, without a change, if the version is not the `expected` one (None for any).
        """

    def version(self, key: str) -> int:
        """The number of changes to the texts under `key`; 0 if there are none."""
        return self.read(key, ())[0]

    def close(self) -> None:  # noqa: B027  only a server has connections
        """Close all connections. May be called twice."""


Texts = dict[str, tuple[int, dict[str, str]]]
"""The version and the texts by name, by key."""


def read_from(texts: Texts, key: str, names: Sequence[str] | None) -> tuple[int, dict[str, str]]:
    """See `Records.read`."""
    version, known = texts.get(key, (0, {}))
    return version, {name: text for name, text in known.items() if names is None or name in names}


def write_to(texts: Texts, key: str, put: Mapping[str, str], drop: Collection[str], expected: int | None) -> int:
    """See `Records.write`."""
    version, known = texts.get(key, (0, {}))
    if expected is not None and expected != version:
        raise VersionConflict(version)
    texts[key] = version + 1, {**{name: text for name, text in known.items() if name not in drop}, **put}
    return version + 1


class MemoryRecords(Records):
    """Records in the memory of this process."""

    _lock = lazy(lock)

    def __init__(self) -> None:
        self.name = "this process's memory"
        self._texts: Texts = {}

    def read(self, key: str, names: Sequence[str] | None = None) -> tuple[int, dict[str, str]]:
        """See `Records`."""
        return read_from(self._texts, key, names)

    def write(
        self, key: str, put: Mapping[str, str], drop: Collection[str] = (), *, expected: int | None = None
    ) -> int:
        """See `Records`."""
        with self._lock:
            return write_to(self._texts, key, put, drop, expected)
