"""What was needed of late, in bounded room."""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """At most `most` values by their keys, in two generations, so that forgetting the older one makes no pause.

    A value is never false. Any thread may use it: the worst that two can do to each other is to forget too soon.
    """

    __slots__ = ("_most", "_old", "_young")

    def __init__(self, most: int) -> None:
        self._most = most // 2
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: K) -> V | None:
        """The value of `key`, if it is remembered."""
        return self._young.get(key) or self._old.get(key)

    def put(self, key: K, value: V) -> None:
        """Remember `value`."""
        if len(self._young) >= self._most:
            self._old, self._young = self._young, {}
        self._young[key] = value

    def drop(self, key: K) -> None:
        """Forget it."""
        self._young.pop(key, None)
        self._old.pop(key, None)
